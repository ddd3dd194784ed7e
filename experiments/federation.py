r"""Runs a real federation on this machine: a SuperLink, SuperNodes, Flower.

    python -m experiments.federation --workdir=runs/federation

Starts one process per client on loopback ports, runs examples/flower, kills one
SuperNode on the way and starts it again, stops all it started, and says how far
ε is from that of a federation by hand, and of a simulation, with the same
attendance. Started again on the same workdir it resumes. Needs the
environment of requirements-flower.txt.
"""

import importlib.util
import pathlib

from absl import flags

from experiments import federation_processes as processes
from experiments import federation_workdir as workdir
from experiments import launch

_WORKDIR = flags.DEFINE_string("workdir", None, "Where everything is written.")
_CLIENTS = flags.DEFINE_integer("clients", 6, "SuperNodes.", lower_bound=3)
_ROUNDS = flags.DEFINE_integer("rounds", 12, "Rounds.", lower_bound=1)
_COHORT = flags.DEFINE_integer("cohort", 3, "Clients per round.", lower_bound=1)
_MODE = flags.DEFINE_enum(
  "mode", "silent", workdir.MODES, "What clients are asked for."
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
  config = workdir.configuration(
    folder, mode=_MODE.value, clients=_CLIENTS.value, rounds=_ROUNDS.value,
    cohort=_COHORT.value, timeout=_TIMEOUT.value,
  )  # fmt: skip
  workdir.own(folder, config)
  victim = _CLIENTS.value - 1 if _KILL.value else None
  if not (folder / "checkpoints" / str(_ROUNDS.value)).is_dir():
    with processes.Processes(folder / "processes") as started:
      federation = processes.Federation(started, _CLIENTS.value)
      processes.play(
        federation,
        workdir.APP,
        config,
        victim=victim,
        kill_server=_KILL_SERVER.value,
      )
  by_hand, simulated, full = workdir.compare(folder, config)
  print(f"rounds in which everybody replied: {full} of {_ROUNDS.value}")
  print(f"largest difference of ε from that by hand: {by_hand:.2e}")
  print(f"… from the simulator's, on the same cohorts: {simulated:.2e}")
  print(f"{folder / 'report.html'}")


if __name__ == "__main__":
  launch.run(main)
