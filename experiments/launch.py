"""Starts a binary: what a user got wrong is one line and exit code 2."""

import os
import pathlib
import sys

from absl import app
from absl import flags
import jax
from ml_collections import config_flags

from experiments import processes

CONFIGS = pathlib.Path(__file__).parent / "configs"


def define_config(default):
  """Defines --config, a recipe of ours by default."""
  try:
    return config_flags.DEFINE_config_file(
      "config", str(CONFIGS / f"{default}.py"), "The recipe to run."
    )
  except AttributeError as error:
    # It reads the command line already here, overrides and all.
    _refuse(f"--config has no such key: {error}")


def config_name():
  """Returns the name of the recipe that --config points at."""
  return pathlib.Path(
    config_flags.get_config_filename(flags.FLAGS["config"])
  ).stem


def define_data_dir():
  """Defines --data_dir; the environment variable FEDINF_DATA says the same."""
  return flags.DEFINE_string(
    "data_dir",
    os.environ.get("FEDINF_DATA") or None,
    "FEMNIST: LEAF's folder, a prepared TFDS folder or an .npz of writers."
    " None: glyph writers stand in. (FEDINF_DATA says the same.)",
  )


def run(main):
  """Runs `main` under absl, turning user errors into one line on stderr."""
  try:
    app.run(_guarded(main), flags_parser=_parse)
  except KeyboardInterrupt as stopped:
    print(stopped.args[0] if stopped.args else "interrupted", file=sys.stderr)
    processes.leave(130)


def _parse(argv):
  try:
    # Warnings only, unless the command line says otherwise.
    left = flags.FLAGS([argv[0], "--verbosity=-1", *argv[1:]])
  except flags.Error as error:
    _refuse(error)
  if len(left) > 1:
    _refuse(f"unexpected argument {left[1]!r}; flags start with --")
  return left


def _guarded(main):
  def call(argv):
    try:
      main(argv)
    except (ValueError, OSError) as error:
      _refuse(error)
    except (jax.errors.JaxRuntimeError, processes.Alone) as error:
      if not jax.distributed.is_initialized():
        raise
      print(processes.alone(str(error)), file=sys.stderr)
      processes.leave(1)

  return call


def _refuse(error):
  message = " ".join(str(error).split())
  print(f"error: {message}", file=sys.stderr)
  processes.leave(2)
