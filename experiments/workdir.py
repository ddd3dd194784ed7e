"""The files of a run. Everything that a figure needs is here.

Whole files are replaced atomically. Logs grow by lines and are cut back to the
round of the checkpoint when a run is resumed, so that an interrupted run ends
with the very bytes of an uninterrupted one (timing.jsonl apart).
"""

import csv
import importlib.metadata
import io
import json
import math
import os
import pathlib
import subprocess

import numpy as np

import fedinf_jax as fi

LOGS = ("metrics.jsonl", "history.jsonl", "layers.csv")


def write(path: pathlib.Path, content: str | bytes):
  """Replaces a file in one step: readers see the old one or the new one."""
  if isinstance(content, str):
    content = content.encode()
  temporary = path.with_name(path.name + ".tmp")
  with open(temporary, "wb") as file:
    file.write(content)
    file.flush()
    os.fsync(file.fileno())
  os.replace(temporary, path)


def write_json(path: pathlib.Path, content):
  """Writes JSON that any parser reads: no NaN in it."""
  text = json.dumps(plain(content), indent=2, ensure_ascii=False)
  write(path, text + "\n")


def read_json(path: pathlib.Path):
  """Reads JSON, naming the file when it is damaged."""
  try:
    return json.loads(path.read_text(encoding="utf-8"))
  except ValueError as error:
    raise ValueError(f"{path} is damaged ({error})") from error


def read_lines(path: pathlib.Path) -> list:
  """Reads a log of JSON lines."""
  lines = path.read_text(encoding="utf-8").splitlines()
  return [json.loads(line) for line in lines]


def append(path: pathlib.Path, *lines: str):
  """Adds lines to a log."""
  with open(path, "a", encoding="utf-8") as file:
    file.write("".join(line + "\n" for line in lines))


def append_json(path: pathlib.Path, content):
  """Adds one line of JSON to a log."""
  append(path, json.dumps(plain(content), ensure_ascii=False))


def csv_line(cells) -> str:
  """Returns one line of CSV; None is an empty cell."""
  made = io.StringIO()
  csv.writer(made, lineterminator="").writerow(
    ["" if c is None else repr(c) if isinstance(c, float) else c for c in cells]
  )
  return made.getvalue()


def plain(content):
  """Makes JSON's types of NumPy's, and null of what is not finite."""
  if isinstance(content, dict):
    return {str(k): plain(v) for k, v in content.items()}
  if isinstance(content, (list, tuple)):
    return [plain(v) for v in content]
  if isinstance(content, np.ndarray):
    return plain(content.tolist())
  if isinstance(content, np.generic):
    content = content.item()
  if isinstance(content, float) and not math.isfinite(content):
    return None
  return content


def claim(folder: pathlib.Path, about: dict):
  """Makes a workdir, or checks that it holds a run of the same kind.

  Args:
    folder: the workdir.
    about: what config.json says: the recipe, the data, the versions.

  Raises:
    ValueError: saying what differs.
  """
  folder.mkdir(parents=True, exist_ok=True)
  if not os.access(folder, os.W_OK | os.X_OK):
    raise ValueError(f"--workdir={folder} cannot be written to")
  path = folder / "config.json"
  about = plain(about)
  if path.exists():
    there = read_json(path)
    mine, theirs = _flat(about), _flat(there)
    for key in sorted(mine.keys() | theirs.keys()):
      if mine.get(key) != theirs.get(key):
        raise ValueError(
          f"--workdir={folder} holds another run: its {key} is"
          f" {theirs.get(key)!r}, not {mine.get(key)!r}; choose another"
          " --workdir, or delete that one"
        )
    return
  strangers = [p for p in folder.iterdir() if not p.name.endswith(".tmp")]
  if strangers:
    raise ValueError(
      f"--workdir={folder} is not empty and holds no run ({strangers[0].name});"
      " choose another"
    )
  write_json(path, about)


def rewind(folder: pathlib.Path, round_: int):
  """Drops what the logs say about later rounds, and torn lines."""
  for name in LOGS:
    path = folder / name
    if path.exists():
      lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
      kept = [s for s in lines if s.endswith("\n") and _round(s) <= round_]
      write(path, "".join(kept))


def versions() -> dict[str, str]:
  """Returns the versions that the numbers of a run depend on."""
  names = ("jax", "jaxlib", "flax", "optax", "numpy")
  found = {name: importlib.metadata.version(name) for name in names}
  return {"fedinf_jax": fi.__version__, **found}


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


def _flat(content, prefix=""):
  if not isinstance(content, dict):
    return {prefix: content}
  parts = [
    _flat(v, f"{prefix}.{k}" if prefix else k) for k, v in content.items()
  ]
  return {k: v for part in parts for k, v in part.items()}


def _round(line):
  """Returns the round a line of a log is about; 0 for a header."""
  if line.startswith("{"):
    return json.loads(line)["round"]
  first = line.split(",", 1)[0]
  return int(first) if first.isdecimal() else 0
