"""A folder that holds one file of arrays, written whole or not at all."""

import os
import pathlib
from typing import Any
import zipfile

import numpy as np

from fedinf_jax.data import files


def write(
  name: str, folder: Any, file: str, arrays: dict[str, np.ndarray], beside: str
):
  """Writes arrays to a file in a folder, in the place of an older one.

  Args:
    name: of the folder's argument, to begin a message with.
    folder: made if it does not exist.
    file: its name in the folder.
    arrays: by name, numbers only.
    beside: a file in whose company the folder may be, too.

  Raises:
    ValueError: if the folder holds something else, or cannot be written to.
  """
  folder = files.path(name, folder)
  temporary = folder / f"{file}.tmp"
  try:
    folder.mkdir(parents=True, exist_ok=True)
    there = {path.name for path in folder.iterdir()} - {temporary.name}
    if there and not there & {file, beside}:
      raise ValueError(
        f"{name}: {folder} holds something else ({min(there)}); choose another"
      )
    with open(temporary, "wb") as opened:
      np.savez(opened, allow_pickle=False, **arrays)
      opened.flush()
      os.fsync(opened.fileno())
    os.replace(temporary, folder / file)
  except OSError as error:
    raise ValueError(
      f"{name}: {folder} cannot be written ({error.strerror or error})"
    ) from error


def read(name: str, folder: Any, file: str) -> dict[str, np.ndarray]:
  """Reads what `write` wrote.

  Raises:
    ValueError: if it is not there, or damaged.
  """
  folder = files.path(name, folder)
  path = pathlib.Path(folder) / file
  if not path.is_file():
    raise ValueError(f"{name}: {folder} holds no saved run (no {file})")
  files.require_regular(path)
  try:
    with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as opened:
      return dict(opened)
  except (
    *(OSError, ValueError, KeyError, EOFError),
    *(zipfile.BadZipFile, NotImplementedError),
  ) as error:
    raise ValueError(f"{name}: {path} is damaged ({error})") from error
