"""Starts a binary: its flags, its help, and one line for a mistake."""

import ast
from collections.abc import Callable
import os
import pathlib
import runpy
import signal
import sys
import textwrap
from typing import Any

from absl import app
from absl import flags
import jax
from ml_collections import config_flags

from fedinf_jax import text
from fedinf_jax.recipes import estimators
from fedinf_jax.running import compile_cache
from fedinf_jax.running import processes

CONFIGS = pathlib.Path(__file__).parent / "configs"
HELP = ("--help", "-help", "-h", "-?", "--helpshort", "--helpfull")
_CACHE = flags.DEFINE_boolean(
  "compilation_cache", True, "Keep compiled programs in ~/.cache/fedinf_jax, so"
  " that the next start is faster. (JAX_COMPILATION_CACHE_DIR: elsewhere.)",
)  # fmt: skip


def define_config(default):
  """Defines --config, a recipe of ours by default."""
  try:
    # It reads the command line already here, overrides and all.
    return config_flags.DEFINE_config_file(
      "config", str(recipes()[default]), "The recipe: a name or a file."
    )
  except Exception as error:  # A recipe is a program: it may raise anything.
    _refuse(recipe_error(error))


def config_name():
  """Returns the name of the recipe that --config points at."""
  return pathlib.Path(
    config_flags.get_config_filename(flags.FLAGS["config"])
  ).stem


def get_problem() -> Callable | None:
  """Returns the function that makes the recipe's own problem, or None."""
  path = config_flags.get_config_filename(flags.FLAGS["config"])
  return runpy.run_path(path).get("get_problem")


def define_data_dir():
  """Defines --data_dir; the environment variable FEDINF_DATA says the same."""
  return flags.DEFINE_string(
    "data_dir",
    os.environ.get("FEDINF_DATA") or None,
    "FEMNIST: LEAF's folder, a prepared TFDS folder or an .npz of writers."
    " None: glyph writers stand in. (FEDINF_DATA says the same.)",
  )


def define_processes():
  """Defines the flags of a run by several processes; see `join`."""
  flags.DEFINE_boolean(
    "distributed", False, "Join other processes; Slurm, TPU pods and MPI are"
    " detected, elsewhere give the three flags below.",
  )  # fmt: skip
  flags.DEFINE_string(
    "coordinator", None, "Host and port of process 0, such as node1:1234."
  )
  flags.DEFINE_integer(
    "num_processes", None, "How many processes there are.", lower_bound=1
  )
  flags.DEFINE_integer(
    "process_id", None, "The number of this process, from 0.", lower_bound=0
  )
  flags.DEFINE_integer(
    "heartbeat_seconds", 30, "A process that is silent for that long is gone.",
    lower_bound=2,
  )  # fmt: skip


def join():
  """Joins the other processes, if the flags say that there are any."""
  processes.join(
    coordinator=flags.FLAGS.coordinator,
    num_processes=flags.FLAGS.num_processes,
    process_id=flags.FLAGS.process_id,
    heartbeat_seconds=flags.FLAGS.heartbeat_seconds,
    distributed=flags.FLAGS.distributed,
  )


def run(main):
  """Runs `main` under absl, turning user errors into one line on stderr."""

  def guarded(argv):
    if _CACHE.value:
      compile_cache.keep()
    try:
      main(argv)
    except (ValueError, OSError) as error:
      _refuse(error)
    except (jax.errors.JaxRuntimeError, processes.Alone) as error:
      if not jax.distributed.is_initialized():
        raise
      print(processes.alone(str(error)), file=sys.stderr)
      processes.leave(1)

  try:
    # Until here, Ctrl-C is handled in experiments/__init__.py.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    app.run(guarded, flags_parser=_parse)
  except KeyboardInterrupt as stopped:
    line = stopped.args[0] if stopped.args else "interrupted"
    print(text.printable(line), file=sys.stderr)
    processes.leave(130)


def recipes() -> dict[str, pathlib.Path]:
  """Returns the files of our recipes, by name."""
  paths = sorted(CONFIGS.glob("*.py"))
  return {path.stem: path for path in paths if path.stem != "__init__"}


def with_recipe_files(argv: list[str]) -> list[str]:
  """Replaces the name of a recipe by its file: --config=quickstart.

  Raises:
    ValueError: for a name that no recipe has, listing those there are.
  """
  known = recipes()
  given, value_follows = [], False
  for argument in argv:
    flag, _, value = argument.rpartition("=")
    is_value = value_follows or flag in ("--config", "-config")
    if is_value and "/" not in value and "." not in value:
      if value not in known:
        raise ValueError(
          f"--config={value}: there is no such recipe; there are"
          f" {', '.join(known)}"
        )
      equals = "=" if flag else ""
      argument = f"{flag}{equals}{known[value]}"
    given.append(argument)
    value_follows = not flag and value in ("--config", "-config")
  return given


def recipe_error(error: Exception):
  """Says in one line what is wrong with a recipe, or with a change to it."""
  if isinstance(error, AttributeError):
    return f"--config has no such key: {error}; --help lists them"
  if isinstance(error, SyntaxError):
    return f"--config: {error.filename}, line {error.lineno}: {error.msg}"
  lines = str(error).splitlines() or [""]
  if "Traceback" in str(error):  # ml_collections writes all of it.
    return f"--config cannot be read: {lines[-1]}"
  if isinstance(error, ValueError | flags.Error):
    return error
  return f"--config cannot be read: {type(error).__name__}: {lines[0]}"


def help_text(doc: str, values: flags.FlagValues) -> str:
  """Returns what --help prints.

  Args:
    doc: the docstring of the binary.
    values: its flags, parsed.
  """
  lines = [doc.strip(), "", "Flags:"]
  for module, there in values.flags_by_module_dict().items():
    if module == sys.argv[0] or module.startswith("experiments."):
      for flag in there:
        default = flag.default_as_str
        if "." not in flag.name and flag.name != "config":
          value = "" if default is None else f"={default.strip(chr(39))}"
          lines.append(_wrapped(f"--{flag.name}{value}  {flag.help}"))
  if "config" in values:
    lines += _recipe_help(values["config"].value)
  return "\n".join(lines)


def _recipe_help(config):
  """Returns the lines about recipes, their keys and the named estimators."""
  lines = ["", "Recipes, --config=NAME or a file of your own:"]
  for name, path in recipes().items():
    doc: Any = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    lines.append(f"  {name:16} {doc.splitlines()[0]}")
  lines += ["", f"Keys of the recipe {config_name()}:"]
  for key, value in config.items():
    if hasattr(value, "items"):
      inner = (f"--config.{key}.{k}={v}" for k, v in value.items())
      lines.append(_wrapped("  ".join(inner)))
    else:
      lines.append(f"  --config.{key}={value}")
  lines += ["", "Estimators, --config.estimators=NAME,NAME:"]
  for name in estimators.NAMES:
    lines.append(f"  {name:14} {estimators.describe(name)}")
  return lines


def _wrapped(paragraph):
  return textwrap.fill(
    paragraph,
    width=80,
    initial_indent="  ",
    subsequent_indent="      ",
    break_on_hyphens=False,
  )


def _parse(argv):
  wants_help = any(argument in HELP for argument in argv)
  try:
    given = with_recipe_files([a for a in argv if a not in HELP])
    # Warnings only, unless the command line says otherwise.
    left = flags.FLAGS([given[0], "--verbosity=-1", *given[1:]])
  except Exception as error:  # As in `define_config`.
    _refuse(recipe_error(error))
  if wants_help:
    print(help_text(sys.modules["__main__"].__doc__ or "", flags.FLAGS))
    sys.exit(0)
  if len(left) > 1:
    _refuse(f"unexpected argument {left[1]!r}; flags start with --")
  return left


def _refuse(error):
  message = text.printable(" ".join(str(error).split()))
  print(f"error: {message}", file=sys.stderr)
  processes.leave(2)
