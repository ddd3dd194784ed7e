"""The workdir of a real federation, and how far its ε is from a simulation."""

import json
import logging
import pathlib
import sys

import jax
import numpy as np

import fedinf_jax as fi
from fedinf_jax.running import files
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import participant

MODES = ("silent", "upload", "interactive")
APP = pathlib.Path(__file__).parent.parent / "examples" / "flower"


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
