"""The command fedinf: from a command line to its exit code."""

import pathlib
import signal
import sys
from typing import Any

from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.command import own
from fedinf_jax.command import parser
from fedinf_jax.command import plans
from fedinf_jax.command import running
from fedinf_jax.recipes import quickstart
from fedinf_jax.running import compile_cache
from fedinf_jax.running import lock
from fedinf_jax.running import planning
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.simulation import devices


def main(argv: list[str] | None = None) -> int:
  """Runs a command.

  Args:
    argv: without the program; None: those of this process.

  Returns:
    The exit code: 0, 2 for what the user can mend, 130 after Ctrl-C.
  """
  try:
    asked = parser.parse(sys.argv[1:] if argv is None else argv)
    if isinstance(asked, str):
      print(asked)
      return 0
    name, values = asked
    if not values.get("no_cache", False):
      compile_cache.keep()
    _COMMANDS[name](values)
  except (ValueError, OSError) as error:
    print(line(error), file=sys.stderr)
    return 2
  except KeyboardInterrupt as stopped:
    words = stopped.args[0] if stopped.args else "interrupted"
    print(text.printable(words), file=sys.stderr)
    return 130
  return 0


def line(error: Exception | str) -> str:
  """Returns the one line that an error is to a user."""
  words = " ".join(str(error).split())
  # Here the folder of a run is --out.
  return f"error: {text.printable(words.replace('--workdir', '--out'))}"


def run(values: dict[str, Any]):
  """Trains on a user's clients, to the verdict and the report."""
  folder = values["out"]
  workdir.check(folder, "--out")
  found = own.prepare(values, folder.resolve().name)
  screen = progress.console()
  progress.say(screen, found.line)
  with lock.owned(folder):
    running.run(found.task, folder, screen)


def demo(values: dict[str, Any]):
  """Runs the quickstart."""
  folder = values["out"]
  workdir.check(folder, "--out")
  with lock.owned(folder):
    task = recipes.build("quickstart", quickstart.get_config())
    running.run(task, folder, progress.console())


def draw(values: dict[str, Any]):
  """Draws a report again."""
  folder = pathlib.Path(values["DIR"])
  with lock.owned(folder):
    report.write(folder)
  print(text.printable(folder / records.REPORT))


def plan(values: dict[str, Any]):
  """Says what a run takes, on a user's clients or on some made up."""
  screen = progress.console()
  made_up = [f for f in ("num_clients", "params") if values[f] is not None]
  if made_up and values["clients"] is not None:
    flag = made_up[0].replace("_", "-")
    raise ValueError(f"--{flag} is for plans without --clients")
  if values["clients"] is None:
    like = planning.Machine(
      removals=1,
      params=1,
      flops=1e12 * values["tflops"],
      memory=1e9 * values["memory_gb"],
    )
    federations = [
      plans.made_up(clients, params)
      for clients in values["num_clients"] or (10**4, 10**5, 10**6)
      for params in values["params"] or (10**4, 10**6, 10**8)
    ]
    plans.show_fewest(federations, like, screen)
    return
  found = own.prepare(values, "plan")
  progress.say(screen, found.line)
  shape = devices.parse_shape("auto")
  machine = planning.Machine(*shape, plans.peak())
  plans.show(found.task, machine, screen, fits=True)


_COMMANDS = {"run": run, "demo": demo, "report": draw, "plan": plan}


def start():
  """Starts the command as a program of its own."""
  # Until here, Ctrl-C is handled in starting.py.
  signal.signal(signal.SIGINT, signal.default_int_handler)
  sys.exit(main())
