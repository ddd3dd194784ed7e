"""Files that are replaced whole or grow by lines: JSON, JSON lines and CSV."""

import contextlib
import csv
import io
import json
import math
import os
import pathlib

import numpy as np

from fedinf_jax import text


def write(path: pathlib.Path, content: str | bytes):
  """Replaces a file in one step: readers see the old one or the new one."""
  if isinstance(content, str):
    content = content.encode()
  temporary = path.with_name(path.name + ".tmp")
  with _named(path):
    with open(temporary, "wb") as file:
      file.write(content)
      file.flush()
      os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: pathlib.Path, content, *, indent: int | None = 2):
  """Writes JSON that any parser reads: no NaN in it."""
  write(path, _dumped(content, indent=indent) + "\n")


def read_json(path: pathlib.Path):
  """Reads a JSON object, naming the file when it is damaged."""
  if not path.is_file():
    raise ValueError(f"{path} is not a file")
  try:
    content = json.loads(path.read_text(encoding="utf-8"))
  except (ValueError, RecursionError) as error:
    raise ValueError(f"{path} is damaged ({error})") from error
  if not isinstance(content, dict):
    raise ValueError(f"{path} is damaged (it holds no object)")
  return content


def append(path: pathlib.Path, *lines: str):
  """Adds lines to a log."""
  with _named(path), open(path, "a", encoding="utf-8") as file:
    file.write("".join(line + "\n" for line in lines))


def append_json(path: pathlib.Path, content):
  """Adds one line of JSON to a log."""
  append(path, _dumped(content))


def csv_line(cells) -> str:
  """Returns one line of CSV.

  Args:
    cells: None is an empty one, a string is written by `text.cell`.
  """
  cells = [text.cell(c) if isinstance(c, str) else c for c in cells]
  made = io.StringIO()
  csv.writer(made, lineterminator="\n").writerow(cells)
  return made.getvalue().removesuffix("\n")


def plain(content):
  """Converts to JSON's types; what is not finite becomes null.

  Args:
    content: dicts, lists, arrays, and NamedTuples, which become objects,
      without fields that have a default and are None.
  """
  if hasattr(content, "_asdict"):
    content = {
      k: v
      for k, v in content._asdict().items()
      if v is not None or k not in content._field_defaults
    }
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


def _dumped(content, **options):
  made = json.dumps(plain(content), ensure_ascii=False, **options)
  return "\n".join(map(text.printable, made.split("\n")))


@contextlib.contextmanager
def _named(path):
  """Names the file in errors that do not: a full disk has no name."""
  try:
    yield
  except OSError as error:
    reason = error.strerror or error
    raise OSError(f"{path} cannot be written ({reason})") from error
