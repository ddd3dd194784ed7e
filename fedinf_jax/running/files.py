"""Files that are replaced whole or grow by lines: JSON, JSON lines and CSV."""

import csv
import io
import json
import math
import os
import pathlib

import numpy as np


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
  """Converts to JSON's types; what is not finite becomes null.

  Args:
    content: dicts, lists, arrays, and NamedTuples, which become objects.
  """
  if hasattr(content, "_asdict"):
    content = content._asdict()
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
