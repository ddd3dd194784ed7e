"""Files whose paths are a user's: damaged, huge, or no files at all."""

import os
import pathlib
import stat
from typing import Any

from fedinf_jax import memory


def path(name: str, value: Any) -> pathlib.Path:
  """Returns a path, from text or another path."""
  try:
    found = pathlib.Path(value)
    os.lstat(found)  # Raises for names that no file can have.
  except (FileNotFoundError, NotADirectoryError, PermissionError):
    pass
  except (TypeError, ValueError, OSError) as error:
    raise ValueError(f"{name} is {value!r}; it must be a path") from error
  return found


def require_regular(path: pathlib.Path):
  """Refuses what is no regular file, or too large, before it is opened.

  A pipe would wait for a writer, and a device might never end.
  """
  try:
    found = os.stat(path)
  except OSError as error:
    raise ValueError(f"{path}: cannot be read ({error.strerror})") from error
  if not stat.S_ISREG(found.st_mode):
    raise ValueError(f"{path}: cannot be read (it is not a regular file)")
  memory.require(f"{path}: its content", found.st_size)


def read(path: pathlib.Path) -> bytes:
  """Returns the content of a regular file."""
  require_regular(path)
  try:
    return path.read_bytes()
  except (OSError, MemoryError) as error:
    problem = getattr(error, "strerror", None) or "out of memory"
    raise ValueError(f"{path}: cannot be read ({problem})") from error


def write(name: str, value: Any, content: str):
  """Writes text to a path that a user gave under a name."""
  place = path(name, value)
  try:
    place.write_text(content, encoding="utf-8", newline="")
  except OSError as error:
    raise ValueError(
      f"{name}: {place} cannot be written ({error.strerror})"
    ) from error
