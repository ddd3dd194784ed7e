"""Which kind of file a path is."""

import os
import pathlib
from typing import Any

from fedinf_jax.data import arrays
from fedinf_jax.data import files
from fedinf_jax.data import images
from fedinf_jax.data import leaf
from fedinf_jax.data import rows as rows_
from fedinf_jax.data import sheets

_KINDS = (
  ".csv, .parquet or .npz, or a folder of a CSV per client, of LEAF's JSON or"
  " of images client/label/*.png"
)


def read(
  path: Any, client: str | None, label: str | None, *, known: bool
) -> rows_.Rows:
  """Reads what a path leads to, or takes a table as it is.

  Args:
    path: see `reading.read`.
    client: the column of clients; None: guessed.
    label: the column of labels; None: guessed.
    known: the names are those of other data; clients may be missing.
  """
  if not isinstance(path, str | os.PathLike):
    return sheets.of_frame(path, client, label, known)
  path = files.path("path", path)
  if path.is_dir():
    return _of_folder(path, client, label, known)
  suffix = path.suffix.lower()
  if suffix in (*sheets.CSV, *sheets.PARQUET):
    return sheets.read(path, client, label, known)
  if suffix == ".npz":
    return arrays.of_npz(path, client, label, known)
  files.require_regular(path)
  raise ValueError(f"{path}: has another ending; it must be {_KINDS}")


def _of_folder(folder, client, label, known):
  try:
    there = sorted(p for p in folder.iterdir() if p.name[0] != ".")
  except OSError as error:
    raise ValueError(f"{folder}: cannot be read ({error.strerror})") from error
  tables = [path for path in there if path.suffix.lower() in sheets.FOLDER]
  found = images.paths(folder) if any(map(pathlib.Path.is_dir, there)) else []
  if tables and found:
    raise ValueError(
      f"{folder}: holds tables ({tables[0].name}) and images"
      f" ({found[0].relative_to(folder)}); it must hold one kind"
    )
  if client is not None and not known:
    raise ValueError(
      f"{folder}: the clients of a folder are its files or folders; client="
      f"{client} is for one file"
    )
  if tables:
    return sheets.of_folder(tables, label)
  if label is not None and not known:
    raise ValueError(f"{folder}: label={label} is for files with columns")
  if any(p.suffix == ".json" for p in (*there, *folder.glob("train/*"))):
    return arrays.of_leaf(folder, leaf.paths(folder, "train"))
  if found:
    return images.of_folder(folder, found)
  problem = "holds nothing that can be read" if there else "is an empty folder"
  raise ValueError(f"{folder}: {problem}; it must be {_KINDS}")
