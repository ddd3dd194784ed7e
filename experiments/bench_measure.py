"""Times what `experiments.bench` compares."""

from collections.abc import Callable
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedinf_jax as fi
from fedinf_jax import checks
from fedinf_jax import removals as removals_
from fedinf_jax.curvature import descent
from fedinf_jax.linalg import low_rank
from fedinf_jax.recipes import estimators as named

REPEATS = 5
SECONDS = 4.0  # Fast rounds are timed together, for about this long.
# The sizes at which growth is fitted: R is several times m N_s, and P large
# enough that rows act on ε directly.
SIZES = {"K": 600, "P": 2005, "m": 2, "N_s": 12}
COHORT = 8
FACTORS = (1, 2, 4)
EXAMPLES = 20  # Per client of the 100,000, who would not fit otherwise.


class Seconds(NamedTuple):
  """What a program took."""

  compile: float  # its first call, less a later one
  round: float


class Federation:
  """A model, its clients and how they train; all rounds have one cohort."""

  def __init__(self, model, data, fed, server_data=None):
    self.model, self.data, self.fed = model, data, fed
    self.server_data = server_data
    self.cohorts = checks.cohorts(None, data, fed, 0)
    # Rounds then differ in time, not in the work.
    self.cohorts[:] = self.cohorts[0]
    counts = data.num_examples[self.cohorts[0]]
    self.examples = int(counts.sum()) * fed.local_steps  # seen per round

  def seconds(self, **options) -> Seconds:
    """Times rounds of `fi.simulator` with such options."""
    init, step = fi.simulator(
      self.model, self.data, self.fed, cohorts=self.cohorts, **options
    )
    started = time.perf_counter()
    state = jax.block_until_ready(step(init()))
    first = time.perf_counter() - started
    left, least, rounds = self.fed.rounds - 1, np.inf, 1
    for _ in range(REPEATS):
      if left < rounds:
        break
      started = time.perf_counter()
      state = jax.block_until_ready(step(state, rounds))
      took = (time.perf_counter() - started) / rounds
      least, left = min(least, took), left - rounds
      most = (self.fed.rounds - 2) // REPEATS
      rounds = max(1, min(int(SECONDS / took), most))
    return Seconds(first - least, least)


def kept(federation: Federation, name: str) -> Seconds:
  """Times rounds that keep every ε by a named estimator."""
  options, size = {}, None
  if federation.server_data is not None:
    size = len(federation.server_data.x)
  estimators = named.build(name, size)
  if estimators[name].curvature.serve is not None:
    options["server_data"] = federation.server_data
  return federation.seconds(estimators=estimators, **options)


def equal_clients(num_clients: int) -> fi.FederatedData:
  """Makes clients of EXAMPLES each, of the shape of setting 1, quickly."""
  draw = np.random.default_rng(0)
  x = draw.standard_normal((num_clients * EXAMPLES, 60), np.float32)
  y = draw.integers(0, 5, len(x)).astype(np.int32)
  return fi.data.partition.iid(
    x, y, num_clients=num_clients, seed=0, num_classes=5
  )


def sigma(federation: Federation, estimator: str, peak: float) -> dict:
  """Times the propagation of every ε alone, on uploads made up at random.

  Counts the σ recursion's operations, 4 m N_s P per participant and ε,
  whatever form the estimator takes: above the peak, it takes fewer.

  Args:
    federation: whose sizes are taken.
    estimator: name of the one that propagates.
    peak: Gflop/s of this machine.
  """
  fed, data = federation.fed, federation.data
  most = int(data.num_examples[federation.cohorts[0]].max())
  samples = min(50, most)
  params = federation.model.param_shapes()
  size = sum(a.size for a in jax.tree.leaves(params))
  # A participant's upload may be gigabytes: then they come one at a time.
  upload = 4 * fed.local_steps * samples * size
  together = max(1, min(fed.cohort_size, 2**30 // upload))
  propagate, args = _propagation(
    params,
    estimator,
    removals=data.num_clients,
    participants=together,
    steps=fed.local_steps,
    samples=samples,
  )
  seconds = least_seconds(propagate, *args)
  rows = together * fed.local_steps * samples
  gflops = 4 * rows * size * data.num_clients / seconds / 1e9
  return {"sigma_gflops": gflops, "sigma_fraction_of_peak": gflops / peak}


def exponents(scale: float, say: Callable[[str], None]) -> dict:
  """Fits time ~ size^exponent, of propagation and of the replay."""
  found = {}
  for symbol in SIZES:
    say(f"growth with {symbol}")
    sizes = [
      SIZES | {symbol: max(2, round(scale * factor * SIZES[symbol]))}
      for factor in FACTORS
    ]
    found[f"exponent_{symbol}"] = _fit(
      [s[symbol] for s in sizes], [_propagation_seconds(s) for s in sizes]
    )
  say("growth with R")
  removals = [max(2, round(scale * factor * 250)) for factor in FACTORS]
  found["exponent_R"] = _fit(removals, _replay_seconds(removals))
  return found


def _replay_seconds(removals):
  """Times the replay of R removals, for every R."""
  data = fi.data.synthetic(num_clients=200)
  fed = fi.FedAvg(rounds=40, cohort_size=5, local_steps=5, learning_rate=0.003)
  federation = Federation(fi.models.logreg(60, 5), data, fed)
  plain = federation.seconds().round
  seconds = []
  for count in removals:
    # All rows remove the same client, which makes no difference to the replay.
    rows = np.zeros((count, data.num_clients), bool)
    rows[:, 0] = True
    took = federation.seconds(exact=True, removals=rows).round
    seconds.append(took - plain)
  return seconds


def least_seconds(function, *args) -> float:
  """Returns the least time of some calls after the first."""
  jax.block_until_ready(function(*args))
  took: list[float] = []
  while len(took) < 2 * REPEATS and sum(took) < 2 * SECONDS:
    started = time.perf_counter()
    jax.block_until_ready(function(*args))
    took.append(time.perf_counter() - started)
  return min(took)


def _propagation(params, name, *, removals, participants, steps, samples):
  """Returns a compiled `absorb` and arguments for it, at random.

  Args:
    params: shapes of the model's parameters.
    name: of the estimator.
    removals: rows of ε, R.
    participants: that upload.
    steps: local steps.
    samples: gradients per step.
  """
  estimator = named.build(name)[name]
  draw = np.random.default_rng(0)
  normal = lambda *shape: jnp.asarray(
    0.01 * draw.standard_normal(shape, np.float32)
  )
  rows = jax.tree.map(
    lambda a: normal(participants, steps, samples, a.size), params
  )
  base = jnp.full(participants, 1 / participants, jnp.float32)
  attendance = removals_.Attendance(
    shares=jnp.repeat(base[None], removals, 0),
    base=base,
    slots=jnp.ones(participants, jnp.int32),
    hits=jnp.arange(participants),
  )
  fed = fi.FedAvg(
    rounds=1, cohort_size=participants, local_steps=steps, learning_rate=0.01
  )
  plain = descent.Descent(fed, fed.learning_rate)

  @jax.jit
  def propagate(state, eps, report, attendance):
    so_far = estimator.begin(state)
    return estimator.absorb(plain, eps, so_far, report, attendance)

  state = estimator.init(params, removals, 1)
  eps = jax.tree.map(lambda a: normal(removals, *a.shape), params)
  return propagate, (state, eps, low_rank.Rows(rows, None), attendance)


def _propagation_seconds(sizes):
  propagate, args = _propagation(
    {"w": jax.ShapeDtypeStruct((sizes["P"],), jnp.float32)},
    "both",
    removals=sizes["K"],
    participants=COHORT,
    steps=sizes["m"],
    samples=sizes["N_s"],
  )
  return least_seconds(propagate, *args)


def _fit(sizes, seconds):
  """Returns the slope of log seconds over log size."""
  return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])
