r"""Runs a real federation on this machine: a SuperLink, SuperNodes, Flower.

    python -m experiments.federation --workdir=runs/federation

Starts one process per client on loopback ports, runs examples/flower, kills one
SuperNode on the way and starts it again, stops all it started, and says how far
ε is from that of a federation by hand, and of a simulation, with the same
attendance. Started again on the same workdir it resumes. Needs the
environment of requirements-flower.txt.
"""

import importlib.util
import json
import logging
import pathlib
import sys

from absl import flags
import jax
import numpy as np

from experiments import federation_processes as processes
from experiments import launch
import fedinf_jax as fi
from fedinf_jax.running import files
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import participant

MODES = ("silent", "upload", "interactive")
ROOT = pathlib.Path(__file__).parent.parent
APP = ROOT / "examples" / "flower"

_WORKDIR = flags.DEFINE_string("workdir", None, "Where everything is written.")
_CLIENTS = flags.DEFINE_integer("clients", 6, "SuperNodes.", lower_bound=3)
_ROUNDS = flags.DEFINE_integer("rounds", 12, "Rounds.", lower_bound=1)
_COHORT = flags.DEFINE_integer("cohort", 3, "Clients per round.", lower_bound=1)
_MODE = flags.DEFINE_enum(
  "mode", "silent", MODES, "What clients are asked for."
)
_TIMEOUT = flags.DEFINE_integer(
  "timeout", 120,
  "Seconds to wait for replies. A client is a new process in every round, and"
  " one that uploads or answers compiles first.", lower_bound=1,
)  # fmt: skip
_KILL = flags.DEFINE_bool("kill", True, "Kill a SuperNode on the way.")
_KILL_SERVER = flags.DEFINE_bool(
  "kill_server", False, "Kill the server on the way, too."
)


def main(argv: list[str]):
  """Runs the federation and compares."""
  del argv
  if _WORKDIR.value is None:
    raise ValueError("--workdir must be given")
  if importlib.util.find_spec("flwr") is None:
    raise ValueError(
      "flwr is not installed: pip install -r requirements-flower.txt, in an"
      " environment of its own"
    )
  if _COHORT.value > _CLIENTS.value:
    raise ValueError(
      f"--cohort is {_COHORT.value}, but there are {_CLIENTS.value} --clients"
    )
  folder = pathlib.Path(_WORKDIR.value).absolute()
  config = configuration(
    folder, mode=_MODE.value, clients=_CLIENTS.value, rounds=_ROUNDS.value,
    cohort=_COHORT.value, timeout=_TIMEOUT.value,
  )  # fmt: skip
  own(folder, config)
  victim = _CLIENTS.value - 1 if _KILL.value else None
  if not (folder / "checkpoints" / str(_ROUNDS.value)).is_dir():
    with processes.Processes(folder / "processes") as started:
      federation = processes.Federation(started, _CLIENTS.value)
      processes.play(
        federation, APP, config, victim=victim, kill_server=_KILL_SERVER.value
      )
  by_hand, simulated, full = compare(folder, config)
  print(f"rounds in which everybody replied: {full} of {_ROUNDS.value}")
  print(f"largest difference of ε from that by hand: {by_hand:.2e}")
  print(f"… from the simulator's, on the same cohorts: {simulated:.2e}")
  print(f"{folder / 'report.html'}")


def configuration(
  folder: pathlib.Path,
  *,
  mode: str,
  clients: int,
  rounds: int,
  cohort: int,
  timeout: int,
  report: bool = True,
) -> dict:
  """Returns the configuration of the app, by its own names."""
  return {
    "mode": mode,
    "num-clients": clients,
    "num-rounds": rounds,
    "cohort-size": cohort,
    "seed": 0,
    "timeout": timeout,
    "workdir": str(folder),
    "report": report,
    "drop-harmful": False,
  }


def own(folder: pathlib.Path, config: dict):
  """Makes a workdir for a configuration; refuses that of another one."""
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"--workdir={folder} is not a folder")
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / "federation.json"
  if not path.exists():
    if any(folder.iterdir()):
      raise ValueError(
        f"--workdir={folder} holds something else; choose another"
      )
    files.write_json(path, config)
  before = files.read_json(path)
  if before.get("num-rounds", 0) > config["num-rounds"]:
    raise ValueError(
      f"--rounds is {config['num-rounds']}, but --workdir={folder} holds a"
      f" federation of {before['num-rounds']}; choose another"
    )
  files.write_json(path, before | {"num-rounds": config["num-rounds"]})
  for key, value in config.items():
    # Time and place may change, and a federation may go on.
    free = key in ("timeout", "workdir", "num-rounds")
    if not free and before.get(key) != value:
      flag = key.removeprefix("num-").removesuffix("-size")
      raise ValueError(
        f"--{flag} is {value}, but --workdir={folder} holds a federation with"
        f" {before.get(key)}; choose another"
      )


def compare(folder: pathlib.Path, config: dict) -> tuple[float, float, int]:
  """Plays the same attendance by hand, and simulates it.

  Returns:
    The largest difference of an entry of ε from that by hand; the same from the
    simulator's; and the rounds in which as many replied as there are places.
  """
  sys.path.insert(0, str(APP))
  from fedinf_app import curvature
  from fedinf_app import task

  names = [task.client_id(k) for k in range(config["num-clients"])]
  data = fi.FederatedData.from_clients(
    {name: task.load(k) for k, name in enumerate(names)}
  )
  federation = {
    "model": curvature.MODEL,
    "fed": curvature.fed(config),
    "estimators": curvature.ESTIMATORS[config["mode"]],
    "params": curvature.params(0),
    "seed": 0,
  }
  if config["mode"] == "silent":
    federation["server_data"] = task.load(-1)
  live, server = _live(folder, federation, task)
  lines = (folder / "attendance.jsonl").read_text().splitlines()
  attendance = [json.loads(line)["clients"] for line in lines]
  if live.round != config["num-rounds"] or live.round != len(attendance):
    sys.exit("the federation did not reach its last round; see processes/")
  if not live.ids:
    sys.exit("nobody replied in time in any round; give more --timeout")
  rows = [names.index(name) for name in live.ids]
  cohorts = [[names.index(name) for name in there] for there in attendance]
  run = fi.simulate(data=data, cohorts=cohorts, **federation)
  eps = {name: live.eps(name) for name in live.state.estimators}
  by_hand = _by_hand(server, federation, data, cohorts)
  full = sum(len(there) == config["cohort-size"] for there in attendance)
  simulated = jax.tree.map(lambda a: a[np.array(rows)], run.eps)
  return _distance(eps, by_hand), _distance(eps, simulated), full


def _live(folder, federation, task):
  """Returns what the server of a workdir knows, and a server like it."""
  from flwr.serverapp import strategy as strategies

  from fedinf_jax import flower

  logging.getLogger("flwr").setLevel(logging.ERROR)
  strategy = flower.InfluenceStrategy(
    strategies.FedAvg(), **federation, test=task.load(-2), workdir=folder,
    max_examples=task.MAX_EXAMPLES,
  )  # fmt: skip
  strategy.resume()
  return strategy.ledger, strategy.server


def _by_hand(server, federation, data, cohorts):
  """Returns every ε of a federation by hand, by estimator."""
  estimators = federation["estimators"]
  side = participant.participant(server.setup, estimators)
  ledger = ledgers.init(estimators, federation["params"])
  for cohort in cohorts:
    present = {data.ids[k]: data.client(k) for k in cohort}
    ledger = participant.play_round(server, side, ledger, present)
  return {name: ledger.eps(name) for name in estimators}


def _distance(a, b) -> float:
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return max(float(np.abs(x - y).max()) for x, y in pairs)


if __name__ == "__main__":
  launch.run(main)
