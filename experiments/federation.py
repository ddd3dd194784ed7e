r"""Runs a real federation on this machine: a SuperLink, SuperNodes, Flower.

    python -m experiments.federation --workdir=runs/federation

Starts one process per client on loopback ports, runs examples/flower, kills one
SuperNode on the way and starts it again, stops all it started, and says how far
ε is from that of a federation by hand with the same attendance. Needs the
environment of requirements-flower.txt.
"""

import importlib.util
import json
import pathlib
import sys

from absl import app
from absl import flags
import jax
import numpy as np

from experiments import federation_processes as processes
import fedinf_jax as fi

MODES = ("silent", "upload", "interactive")
ROOT = pathlib.Path(__file__).parent.parent
APP = ROOT / "examples" / "flower"

_WORKDIR = flags.DEFINE_string("workdir", None, "Where everything is written.")
_CLIENTS = flags.DEFINE_integer("clients", 6, "SuperNodes.", lower_bound=3)
_ROUNDS = flags.DEFINE_integer("rounds", 12, "Rounds.", lower_bound=1)
_COHORT = flags.DEFINE_integer("cohort", 3, "Clients a round.", lower_bound=1)
_MODE = flags.DEFINE_enum(
  "mode", "silent", MODES, "What clients are asked for."
)
_TIMEOUT = flags.DEFINE_integer(
  "timeout", 120,
  "Seconds to wait for replies. A client is a new process in every round, and"
  " one that uploads or answers compiles first.",
)  # fmt: skip
_KILL = flags.DEFINE_bool("kill", True, "Kill a SuperNode on the way.")
flags.mark_flag_as_required("workdir")


def main(argv: list[str]):
  """Runs the federation and compares."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  if importlib.util.find_spec("flwr") is None:
    sys.exit("flwr is not installed: pip install -r requirements-flower.txt")
  folder = pathlib.Path(_WORKDIR.value).absolute()
  config = {
    "mode": _MODE.value,
    "num-clients": _CLIENTS.value,
    "num-rounds": _ROUNDS.value,
    "cohort-size": _COHORT.value,
    "seed": 0,
    "timeout": _TIMEOUT.value,
    "workdir": str(folder),
    "report": True,
    "drop-harmful": False,
  }
  folder.mkdir(parents=True, exist_ok=True)
  victim = _CLIENTS.value - 1 if _KILL.value else None
  with processes.Processes(folder / "processes") as started:
    processes.run(started, APP, config, folder, victim)
  by_hand, simulated, full = compare(folder, config)
  print(f"rounds in which everybody replied: {full} of {_ROUNDS.value}")
  print(f"largest difference of ε from that by hand: {by_hand:.2e}")
  if simulated is not None:
    print(f"… from the simulator's, on the same cohorts: {simulated:.2e}")
  print(f"{folder / 'report.html'}")


def compare(
  folder: pathlib.Path, config: dict
) -> tuple[float, float | None, int]:
  """Plays the same attendance by hand, and simulates it where that is possible.

  Returns:
    The largest difference of an entry of ε from that by hand; the same from the
    simulator's, None if somebody was missing, as its cohorts are all of one
    size; and the rounds in which as many replied as were asked.
  """
  sys.path.insert(0, str(APP))
  from fedinf_app import curvature
  from fedinf_app import task
  from flwr.serverapp import strategy as strategies

  from fedinf_jax import flower
  from fedinf_jax.server import ledger as ledgers
  from fedinf_jax.server import participant
  from fedinf_jax.server import rounds

  estimators = curvature.ESTIMATORS[config["mode"]]
  params, fed = curvature.params(0), curvature.fed(config)
  test = task.load(-2)
  own = {"server_data": task.load(-1)} if config["mode"] == "silent" else {}
  common = {"max_examples": task.MAX_EXAMPLES, "seed": 0, **own}
  made = flower.InfluenceStrategy(
    strategies.FedAvg(), curvature.MODEL, fed, estimators, params,
    test=test, workdir=folder, **common,
  )  # fmt: skip
  made.resume()
  server = rounds.server(
    curvature.MODEL, fed, estimators, params,
    example=(test[0][:1], test[1][:1]), **common,
  )  # fmt: skip
  side = participant.participant(server.setup, estimators)
  number = {task.client_id(k): k for k in range(config["num-clients"])}
  ledger = ledgers.init(estimators, params)
  lines = (folder / "attendance.jsonl").read_text().splitlines()
  attendance = [json.loads(line)["clients"] for line in lines]
  for ids in attendance:
    present = {i: task.load(number[i]) for i in ids}
    ledger = participant.play_round(server, side, ledger, present)
  if made.ledger.ids != ledger.ids or made.ledger.round != ledger.round:
    sys.exit("the federation did not reach its last round; see processes/")
  if not ledger.ids:
    sys.exit("nobody replied in time in any round; give more --timeout")
  eps = lambda of: {name: of.eps(name) for name in estimators}
  by_hand = _distance(eps(made.ledger), eps(ledger))
  full = sum(len(ids) == config["cohort-size"] for ids in attendance)
  simulated = None
  if full == len(attendance):
    data = fi.FederatedData.from_clients(
      {i: task.load(k) for i, k in number.items()}
    )
    cohorts = [[number[i] for i in ids] for ids in attendance]
    run = fi.simulate(
      curvature.MODEL, data, fed, estimators=estimators, params=params, seed=0,
      cohorts=cohorts, **own,
    )  # fmt: skip
    rows = np.array([number[i] for i in ledger.ids])
    found = jax.tree.map(lambda a: a[rows], run.eps)
    simulated = _distance(eps(made.ledger), found)
  return by_hand, simulated, full


def _distance(a, b) -> float:
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return max(float(np.abs(x - y).max()) for x, y in pairs)


if __name__ == "__main__":
  app.run(main)
