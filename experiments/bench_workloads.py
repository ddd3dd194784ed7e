"""What `experiments.bench` runs, and the numbers it takes from each."""

from collections.abc import Callable
import importlib
import importlib.util
import resource
from typing import NamedTuple

import ml_collections
import numpy as np

from experiments import bench_measure
from experiments import estimators as named
from experiments import problem
import fedinf_jax as fi


class Workload(NamedTuple):
  """A federation to time."""

  recipe: str
  changes: dict  # keys of the recipe
  estimator: str  # whose rounds are timed
  replay: bool  # time the replay of all clients as well
  rounds: int  # of the federation, which bounds those timed


WORKLOADS = {
  "setting1": Workload("setting1", {}, "both", True, 60),
  "setting2": Workload("setting2", {}, "both", True, 30),
  "setting3": Workload("setting3", {}, "both", True, 12),
  "leafcnn": Workload(
    "setting3",
    {"model.widths": (32, 64), "model.dense": 2048},
    "both",
    False,
    2,
  ),
  "clients100k": Workload(
    "setting1", {"data.num_clients": 100_000}, "both_fine", False, 40
  ),
  "exponents": None,
}
EXAMPLES = 20  # Of each of the 100,000 clients, who would not fit otherwise.


def measure(name: str, scale: float, say: Callable[[str], None]) -> dict:
  """Runs a workload; returns its numbers by name."""
  say("GEMM peak")
  peak = bench_measure.gemm_peak()
  found = {"gemm_peak_gflops": peak}
  if name == "exponents":
    return found | bench_measure.exponents(scale, say)
  workload = WORKLOADS[name]
  config, task = _task(workload, scale)
  federation = bench_measure.Federation(task.model, task.train, task.fed)

  say("rounds that keep every ε")
  kept = federation.seconds(estimators=named.build(workload.estimator))
  found["compile_seconds"] = kept.compile
  found["peak_rss_mb"] = _peak_rss()
  say("plain rounds")
  plain = federation.seconds()
  found["round_seconds"] = plain.round
  found["influence_over_training"] = kept.round / plain.round
  say("propagation of ε")
  found |= bench_measure.sigma(federation, workload.estimator, peak)
  if workload.replay:
    say("replay of every client")
    both = federation.seconds(exact=True)
    replay = both.round - plain.round
    clients = task.train.num_clients
    operations = clients * federation.examples * _operations(config, task.train)
    found["replay_seconds"] = replay
    found["replay_gflops"] = operations / replay / 1e9
    found["replay_fraction_of_peak"] = found["replay_gflops"] / peak
    found["replay_speedup_vs_sequential"] = clients * plain.round / replay
    if importlib.util.find_spec("fedjax") is None:
      say("no fedjax: pip install -r requirements-fedjax.txt to compare")
    else:
      say("the same rounds by fedjax")
      bench_fedjax = importlib.import_module("experiments.bench_fedjax")
      for rival, timed in (
        ("fedjax", bench_fedjax.algorithm_seconds),
        ("fedjax_core", bench_fedjax.core_seconds),
      ):
        seconds = timed(federation)
        found[f"fedavg_speedup_vs_{rival}"] = seconds / plain.round
        found[f"replay_speedup_vs_{rival}"] = clients * seconds / replay
  return found


def _task(workload, scale):
  module = importlib.import_module(f"experiments.configs.{workload.recipe}")
  config = module.get_config()
  config.update_from_flattened_dict(workload.changes)
  config.scale = scale
  config = problem.scaled(config)
  config.fed.rounds = workload.rounds
  if "data.num_clients" not in workload.changes:
    return config, problem.build(config, None)
  train = _equal_clients(config.data.num_clients)
  model = fi.models.logreg(train.x.shape[1], train.num_classes, "sigmoid")
  fed = fi.FedAvg(**{**config.fed, "batch_size": None})
  empty = np.zeros(0)
  return config, problem.Problem(
    train, empty, empty, model, fed, "noise", True, ()
  )


def _equal_clients(num_clients):
  """Makes clients of EXAMPLES each, of setting 1's shape, quickly."""
  draw = np.random.default_rng(0)
  x = draw.standard_normal((num_clients * EXAMPLES, 60), np.float32)
  y = draw.integers(0, 5, len(x)).astype(np.int32)
  return fi.data.partition.iid(
    x, y, num_clients=num_clients, seed=0, num_classes=5
  )


def _operations(config: ml_collections.ConfigDict, train) -> int:
  """Counts the operations of one example's gradient, as one would by hand.

  Products forward, for the weights and (but for the first layer) for the
  inputs: what a program computes beyond that does not count.
  """
  classes = train.num_classes
  if config.model.kind == "logreg":
    return 4 * train.x.shape[1] * classes
  first, second = config.model.widths
  dense = config.model.dense
  stride = 2 if config.model.pool == "stride" else 1
  conv1 = 2 * 25 * (28 // stride) ** 2 * first
  conv2 = 2 * 25 * (14 // stride) ** 2 * first * second
  head = 2 * (49 * second * dense + dense * classes)
  return 2 * conv1 + 3 * (conv2 + head)


def _peak_rss():
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
