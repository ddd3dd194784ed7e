"""What `experiments.bench` runs, and the numbers it takes from each."""

from collections.abc import Callable
from collections.abc import Mapping
import importlib
import importlib.util
import resource
import types
from typing import Any
from typing import NamedTuple

import ml_collections

from experiments import bench_backwards
from experiments import bench_choose
from experiments import bench_measure
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax.command import plans


class Workload(NamedTuple):
  """A federation to time."""

  recipe: str
  rounds: int  # of the federation, which bounds those timed
  changes: Mapping[str, Any] = types.MappingProxyType({})  # keys of the recipe
  num_clients: int | None = None  # equal clients, instead of the recipe's data
  estimator: str = "both"  # whose rounds are timed
  others: tuple[str, ...] = ()  # estimators whose rounds are timed as well
  replay: bool = True  # time the replay of all clients as well


OURS = ("relu", "server", "matched")
# Those that are no recipe's: (scale, say) -> numbers by name.
OTHERS = {
  "exponents": bench_measure.exponents,
  "backwards": bench_backwards.measure,
  "choose": bench_choose.measure,
}
WORKLOADS = {
  "setting1": Workload(recipe="setting1", rounds=200, others=OURS),
  "setting2": Workload(recipe="setting2", rounds=100, others=OURS),
  "setting3": Workload(recipe="setting3", rounds=20, others=OURS),
  "leafcnn": Workload(
    recipe="setting3",
    rounds=2,
    changes={"model.widths": (32, 64), "model.dense": 2048},
    replay=False,
  ),
  "clients100k": Workload(
    recipe="setting1",
    rounds=40,
    num_clients=100_000,
    estimator="both_fine",
    replay=False,
  ),
}
NAMES = *WORKLOADS, *OTHERS


def measure(name: str, scale: float, say: Callable[[str], None]) -> dict:
  """Runs a workload; returns its numbers by name.

  Args:
    name: of the workload.
    scale: below 1, the federation is smaller.
    say: is called with words about the progress.
  """
  say("GEMM peak")
  peak = plans.peak() / 1e9
  found = {"gemm_peak_gflops": peak}
  if name in OTHERS:
    return found | OTHERS[name](scale, say)
  workload = WORKLOADS[name]
  config, federation = _federation(workload, scale)
  say("rounds that keep every ε")
  kept = bench_measure.kept(federation, workload.estimator)
  found["compile_seconds"] = kept.compile
  found["peak_rss_mb"] = _peak_rss()
  say("plain rounds")
  plain = federation.seconds().round
  found["round_seconds"] = plain
  found["influence_over_training"] = kept.round / plain
  for other in workload.others:
    say(f"rounds that keep every ε, by {other}")
    took = bench_measure.kept(federation, other)
    found[f"influence_over_training_{other}"] = took.round / plain
  say("propagation of ε")
  found |= bench_measure.sigma(federation, workload.estimator, peak)
  if workload.replay:
    say("replay of every client")
    replay = federation.seconds(exact=True).round - plain
    operations = _operations(config, federation.data)
    found |= _replay(federation, operations, plain, replay, peak)
    found |= _fedjax(federation, plain, replay, say)
  return found


def _replay(federation, operations, plain, replay, peak):
  """Compares a round's replay with the peak and with plain trainings.

  Args:
    federation: all of whose clients are replayed.
    operations: of one example's gradient.
    plain: seconds of a plain round.
    replay: seconds of the replay alone.
    peak: Gflop/s of this machine.
  """
  clients = federation.data.num_clients
  gflops = clients * federation.examples * operations / replay / 1e9
  return {
    "replay_seconds": replay,
    "replay_gflops": gflops,
    "replay_fraction_of_peak": gflops / peak,
    "replay_speedup_vs_sequential": clients * plain / replay,
  }


def _fedjax(federation, plain, replay, say):
  """Compares with the same rounds by fedjax, where it is installed."""
  if importlib.util.find_spec("fedjax") is None:
    say("no fedjax: pip install -r requirements-fedjax.txt to compare")
    return {}
  say("the same rounds by fedjax")
  from experiments import bench_fedjax

  found = {}
  for rival, timed in (
    ("fedjax", bench_fedjax.algorithm_seconds),
    ("fedjax_core", bench_fedjax.core_seconds),
  ):
    seconds = timed(federation)
    trainings = federation.data.num_clients * seconds
    found[f"fedavg_speedup_vs_{rival}"] = seconds / plain
    found[f"replay_speedup_vs_{rival}"] = trainings / replay
  return found


def _federation(workload, scale):
  """Returns the recipe, scaled, and the federation to time."""
  module = importlib.import_module(f"experiments.configs.{workload.recipe}")
  config = module.get_config()
  config.update_from_flattened_dict(workload.changes)
  config.scale = scale
  if workload.num_clients:
    config.data.num_clients = workload.num_clients
  config = recipes.scaled(config)
  config.fed.rounds = workload.rounds
  if not workload.num_clients:
    task = recipes.build(workload.recipe, config, None)
    return config, bench_measure.Federation(
      task.model, task.train, task.fed, task.server_data
    )
  data = bench_measure.equal_clients(config.data.num_clients)
  classes: Any = data.num_classes
  model = fi.models.logreg(data.x.shape[1], classes, "sigmoid")
  fed = fi.FedAvg(**{**config.fed, "batch_size": None})
  return config, bench_measure.Federation(model, data, fed)


def _operations(config: ml_collections.ConfigDict, data) -> int:
  """Counts the operations of one example's gradient, as one would by hand.

  Products forward, for the weights and (but for the first layer) for the
  inputs: what a program computes beyond that does not count.
  """
  classes = data.num_classes
  if config.model.kind == "logreg":
    return 4 * data.x.shape[1] * classes
  first, second = config.model.widths
  dense = config.model.dense
  stride = 2 if config.model.pool == "stride" else 1
  conv1 = 2 * 25 * (28 // stride) ** 2 * first
  conv2 = 2 * 25 * (14 // stride) ** 2 * first * second
  head = 2 * (49 * second * dense + dense * classes)
  return 2 * conv1 + 3 * (conv2 + head)


def _peak_rss():
  """Returns the most memory that this process ever had, in MB."""
  return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
