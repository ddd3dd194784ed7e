"""The folder of a run: whose it is, where its logs end, what it holds.

The files and their writers stand in `records`. Whole files are replaced
atomically. Logs grow by lines and are cut back to the round of the checkpoint
when a run is resumed, so that an interrupted run ends with the very bytes of an
uninterrupted one (timing.jsonl apart).
"""

import importlib.metadata
import os
import pathlib
import subprocess
from typing import Any
from typing import NamedTuple

import numpy as np

from fedinf_jax import version
from fedinf_jax.running import consistency
from fedinf_jax.running import files
from fedinf_jax.running import parsing
from fedinf_jax.running import records
from fedinf_jax.simulation import saved

# Files that are no run's, and may be there before it.
BESIDE = (records.LOCK, saved.FILE)


def check(folder: pathlib.Path, name: str = "--workdir"):
  """Checks that a run can have a folder, which need not exist yet.

  Args:
    folder: the workdir.
    name: of the flag or argument, to begin a message with.

  Raises:
    ValueError: if it cannot be written to or holds something else.
  """
  there = next(p for p in (folder, *folder.parents) if p.exists())
  if not there.is_dir():
    raise ValueError(f"{name}={folder}: {there} is not a folder")
  if not os.access(there, os.W_OK | os.X_OK):
    raise ValueError(f"{name}={folder} cannot be written to")
  if there == folder and not (folder / records.CONFIG).exists():
    others = [
      p
      for p in folder.iterdir()
      if not p.name.endswith(".tmp") and p.name not in BESIDE
    ]
    if others:
      raise ValueError(
        f"{name}={folder} is not empty and holds no run ({others[0].name});"
        " choose another"
      )
  for file in records.FILES:
    if (folder / file).exists() and not (folder / file).is_file():
      raise ValueError(f"{name}={folder}: {file} is not a file")


def claim(folder: pathlib.Path, about: records.About):
  """Makes a workdir, or checks that it holds a run of the same kind.

  Args:
    folder: the workdir.
    about: what config.json says.

  Raises:
    ValueError: saying what differs.
  """
  check(folder)
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / records.CONFIG
  if not path.exists():
    files.write_json(path, about)
    return
  mine = flat(files.plain(about))
  theirs = flat(files.read_json(path))
  for key in sorted(mine.keys() | theirs.keys()):
    if mine.get(key) != theirs.get(key):
      raise ValueError(
        f"--workdir={folder} holds another run: its {key} is"
        f" {theirs.get(key)!r}, not {mine.get(key)!r}; choose another"
        " --workdir, or delete that one"
      )


def is_finished(folder: pathlib.Path) -> bool:
  """Says whether a run has written its summary, and the report after it.

  One whose files do not hold together is not: to run it again mends them.
  """
  if not (folder / records.REPORT).is_file():
    return False
  try:
    read(folder)
  except (ValueError, OSError):
    return False
  return True


def versions() -> dict[str, str]:
  """Returns the versions that the numbers of a run depend on."""
  names = ("jax", "jaxlib", "flax", "optax", "numpy")
  found = {name: importlib.metadata.version(name) for name in names}
  return {"fedinf_jax": version.VERSION, **found}


def git_revision() -> str | None:
  """Returns the revision of this code, where git knows it."""
  try:
    done = subprocess.run(
      ["git", "rev-parse", "HEAD"],
      cwd=pathlib.Path(__file__).parent,
      capture_output=True,
      text=True,
      check=False,
    )
  except OSError:
    return None
  return done.stdout.strip() or None


class Contents(NamedTuple):
  """What the files of a finished run hold: N evaluated rounds, R clients."""

  summary: dict[str, Any]  # of records.Summary
  config: dict[str, Any]  # of records.About
  metrics: list[dict[str, Any]]  # N of records.Metrics
  ids: list[str]  # [R]
  # Influence is NaN where empty, 0 where only rounding; effects are words.
  columns: dict[str, np.ndarray]  # of influence.csv, [R]
  history: dict[str, np.ndarray]  # FIL, name → [N, R]
  # client → layer → estimator → round, error, norm → [N]
  tracked: dict[str, dict[str, dict[str, dict[str, np.ndarray]]]]
  cleanse: dict[str, Any] | None  # of records.Cleanse
  debug: dict[str, Any] | None  # of records.Debug
  files: list[str]  # those that are there
  clients: dict[str, Any] | None = None  # of portraits.Portraits

  @property
  def rounds(self):
    """The evaluated rounds, [N]."""
    return [line["round"] for line in self.metrics]

  @property
  def names(self):
    """The estimators, in the order of the recipe."""
    return list(self.summary["estimators"])

  @property
  def with_eps(self):
    """The estimators that have ε: all but passes backwards."""
    return [n for n in self.names if self.summary["estimators"][n]["layers"]]

  @property
  def is_recipe(self):
    """Whether a recipe made the run, which is then to be had again."""
    return "exact" in self.config["config"]

  @property
  def screened_by(self):
    """By whom the clients to replay were chosen; None: they are no extremes."""
    exact = self.config["config"].get("exact")
    top = records.read_top(exact) if isinstance(exact, str) else None
    return top and top.by

  @property
  def has_exact(self):
    """Whether any client was replayed."""
    return bool(np.isfinite(self.columns.get("fil_exact", np.nan)).any())


def read(folder: pathlib.Path) -> Contents:
  """Reads the workdir of a finished run.

  Raises:
    ValueError: naming the file that is damaged, or missing.
  """
  if not (folder / records.SUMMARY).is_file():
    raise ValueError(
      f"{folder} is not a finished run: it has no {records.SUMMARY}; start"
      f" experiments.run --workdir={folder} first"
    )
  # Not timing.jsonl: a report is the same in every rerun.
  found = {
    name: parsing.parsed(folder / name)
    for name in parsing.PARSERS
    if (folder / name).is_file()
  }
  consistency.check(folder, found)
  return contents(found)


def contents(found: dict[str, Any]) -> Contents:
  """Returns what is known about a run.

  Args:
    found: name of a file → what it holds, as `parsing` returns it.
  """
  summary, history = found[records.SUMMARY], found[records.HISTORY]
  ids, columns = found[records.INFLUENCE]
  return Contents(
    summary=summary,
    config=found[records.CONFIG],
    metrics=found[records.METRICS],
    ids=ids,
    columns={
      name: _without_rounding(values, name[:3], summary)
      for name, values in columns.items()
    },
    history={
      name: _without_rounding(
        np.array([line["fil"][name] for line in history], float),
        "fil",
        summary,
      )
      for name in history[0]["fil"]
    },
    tracked=found[records.LAYERS],
    cleanse=found.get(records.CLEANSE),
    debug=found.get(records.DEBUG),
    files=list(found),
    clients=found.get(records.CLIENTS),
  )


def _without_rounding(values, kind, summary):
  """Sets to 0 what is only rounding, or clients never drawn seem to matter."""
  if values.dtype == object:
    return values
  least = {
    "fil": 1e-6 * abs(summary["loss"] or 0),
    "fia": 0.5 / max(1, summary["test_examples"]),  # half an example
  }
  return np.where(np.abs(values) < least.get(kind, 0), 0.0, values)


def flat(content: dict, prefix: str = "") -> dict[str, Any]:
  """Returns a nested dict as one, with a dot between names and inner names."""
  made: dict[str, Any] = {}
  for name, value in content.items():
    if isinstance(value, dict):
      made |= flat(value, f"{prefix}{name}.")
    else:
      made[prefix + name] = value
  return made
