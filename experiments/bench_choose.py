"""Times what tells which estimator is the cheap one for a federation."""

from collections.abc import Callable

import jax
import numpy as np

from experiments import bench_backwards
from experiments import bench_measure
import fedinf_jax as fi

CLIENTS = 10, 100, 1_000
HIDDEN = (), (150,), (1_500,)  # Widths: 305, 9,905 and 99,005 parameters.
FEATURES, CLASSES, HELD = 60, 5, 200
ESTIMATORS = "relu", "server"
ROUNDS = 20


def measure(scale: float, say: Callable[[str], None]) -> dict:
  """Returns what a run takes in plain trainings, by method, K and P.

  Every client has 20 examples; 10 of them train five steps per round.
  """
  found: dict[str, float] = {}
  for clients in CLIENTS:
    data = bench_measure.equal_clients(max(10, round(scale * clients)))
    for hidden in HIDDEN:
      widths = [max(2, round(scale * width)) for width in hidden]
      model = fi.models.mlp(FEATURES, CLASSES, hidden=widths)
      leaves = jax.tree.leaves(model.param_shapes())
      count = sum(a.size for a in leaves)
      name = f"K={clients:,} P={count:,}"
      taken = _trainings(model, data, lambda text, n=name: say(f"{n}: {text}"))
      found |= {f"{name} {method}": took for method, took in taken.items()}
  return found


def _trainings(model, data, say):
  """Returns seconds of a round with each method over those of a plain one."""
  fed = fi.FedAvg(
    rounds=ROUNDS, cohort_size=10, local_steps=5, learning_rate=0.003
  )
  held = data.with_examples(np.arange(min(HELD, len(data.x))))
  federation = bench_measure.Federation(model, data, fed, held)
  say("plain rounds")
  plain = federation.seconds().round
  say("exact replay")
  found = {"replay": federation.seconds(exact=True).round / plain}
  for name in ESTIMATORS:
    say(name)
    found[name] = bench_measure.kept(federation, name).round / plain
  say("adjoint")
  took, _ = bench_backwards.backwards(
    model, data, fed, federation.cohorts, directions=16
  )
  return found | {"adjoint": took / fed.rounds / plain}
