"""Starts binaries as a user would."""

import os
import pathlib
import subprocess
import sys

from fedinf_jax import recipes
from fedinf_jax.recipes import quickstart

ROOT = pathlib.Path(__file__).parent.parent
# The smallest run of everything: 20 clients, 10 rounds.
SMALL = ("--config.scale=0.1", "--config.estimators=both")


def small(**changes):
  """Returns the recipe of that run."""
  config = quickstart.get_config()
  config.scale = 0.1
  config = recipes.scaled(config)
  config.mesh = "none"
  config.update_from_flattened_dict(changes)
  return config


def command(binary, *arguments):
  return [sys.executable, "-m", f"experiments.{binary}", *map(str, arguments)]


def environment():
  env = {k: v for k, v in os.environ.items() if k != "FEDINF_DATA"}
  env["COLUMNS"] = "120"
  return env


def start(binary, *arguments, prefix=()):
  return subprocess.run(
    [*prefix, *command(binary, *arguments)],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=400,
    check=False,
    env=environment(),
  )


def begin(binary, *arguments, env=None):
  """Starts a binary and does not wait for it."""
  return subprocess.Popen(
    command(binary, *arguments),
    cwd=ROOT,
    env=environment() | (env or {}),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def files(folder, *, clock=False):
  """Returns the bytes of every file but those of checkpoints.

  Args:
    folder: a workdir.
    clock: also of timing.jsonl, which depends on the clock.
  """
  return {
    str(path.relative_to(folder)): path.read_bytes()
    for path in sorted(folder.rglob("*"))
    if path.is_file()
    and (clock or path.name != "timing.jsonl")
    and "checkpoints" not in path.parts
  }
