"""Times the pass backwards, and what it needs, as clients grow in number."""

from collections.abc import Callable

import numpy as np

from experiments import bench_measure
import fedinf_jax as fi
from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax.recipes import estimators as named

CLIENTS = 1_000, 10_000, 100_000
DIRECTIONS = 0, 16
ROUNDS = 100
TEST = 500  # examples that influence is measured on
BESIDE = 1_000  # The most clients that other methods are timed with.


def measure(scale: float, say: Callable[[str], None]) -> dict:
  """Returns trainings that a pass takes, and its memory, by clients.

  All federations have the cohorts of the smallest: only the number of the
  others differs.
  """
  found = {}
  fed = fi.FedAvg(
    rounds=max(4, round(scale * ROUNDS)), cohort_size=10, local_steps=5,
    learning_rate=0.003,
  )  # fmt: skip
  model = fi.models.logreg(60, 5)
  cohorts = None
  for clients in CLIENTS:
    count = max(40, round(scale * clients))
    data = bench_measure.equal_clients(count)
    if cohorts is None:
      cohorts = checks.cohorts(None, data, fed, 0)
    say(f"{count:,} clients: plain training")
    plain = _seconds(model, data, fed, cohorts)
    found[f"training_seconds_{clients}"] = plain
    for directions in DIRECTIONS:
      say(f"{count:,} clients: backwards with {directions} eigenvectors")
      took, need = backwards(model, data, fed, cohorts, directions)
      found[f"trainings_{directions}_directions_{clients}"] = took / plain
      found[f"program_mb_{directions}_directions_{clients}"] = need
    if clients > BESIDE:
      continue
    for name, options in (
      ("forward", {"estimators": named.build("both")}),
      ("replay", {"exact": True}),
    ):
      say(f"{count:,} clients: {name}")
      took = _seconds(model, data, fed, cohorts, **options)
      found[f"trainings_{name}_{clients}"] = took / plain
  return found | _on_a_network(scale, say)


def _on_a_network(scale, say):
  """Returns the same of the CNN of setting 2, on images made up at random."""
  draw = np.random.default_rng(0)
  count = max(5, round(scale * 60))
  x = draw.random((50 * count, 28, 28, 1), np.float32)
  y = draw.integers(0, 62, len(x)).astype(np.int32)
  data = fi.data.partition.iid(x, y, num_clients=50, seed=0, num_classes=62)
  fed = fi.FedAvg(
    rounds=max(4, round(scale * ROUNDS)), cohort_size=5, local_steps=2,
    learning_rate=0.03,
  )  # fmt: skip
  model = fi.models.cnn(widths=(4, 8), dense=32, activation=None, pool="stride")
  cohorts = checks.cohorts(None, data, fed, 0)
  say("the network of setting 2: plain training")
  plain = _seconds(model, data, fed, cohorts)
  say("the network: backwards with 16 eigenvectors")
  took, _ = backwards(model, data, fed, cohorts, 16)
  return {"trainings_16_directions_cnn": took / plain}


def _seconds(model, data, fed, cohorts, **options):
  """Times a whole run without its compilation."""
  init, step = fi.simulator(model, data, fed, cohorts=cohorts, **options)
  return bench_measure.least_seconds(lambda: step(init(), fed.rounds))


def backwards(model, data, fed, cohorts, directions):
  """Returns seconds of a pass, and MB that its programs need beside data.

  Args:
    model: what is trained.
    data: the clients.
    fed: how.
    cohorts: int [T, B].
    directions: eigenvectors beside the gradient.
  """
  x, y = data.pooled()
  go = fi.adjoint_pass(
    model, data, fed, x[:TEST], y[:TEST], directions=directions,
    cohorts=cohorts,
  )  # fmt: skip

  def all_of_it():
    state = go.turn(go.train(go.init(), fed.rounds))
    return go.read(go.back(state, fed.rounds)).influence

  own = sum(memory.tree_bytes(a) for a in (data.x, data.y, data.num_examples))
  needs = [memory.compiled_bytes(p.compile()) for p in go.lower()]
  seconds = bench_measure.least_seconds(all_of_it)
  return seconds, (max(needs) - own) / 2**20
