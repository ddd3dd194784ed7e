"""Which kind of file a path is."""

import os
from typing import Any

from fedinf_jax.data import files
from fedinf_jax.data import rows as rows_
from fedinf_jax.data import sheets


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
    return _of_folder(path, client, label)
  suffix = path.suffix.lower()
  if suffix in (*sheets.CSV, *sheets.PARQUET):
    return sheets.read(path, client, label, known)
  files.require_regular(path)
  raise ValueError(
    f"{path}: is neither .csv, .parquet nor .npz, nor a folder of a CSV per"
    " client, of LEAF's JSON or of images client/label/*.png"
  )


def _of_folder(folder, client, label):
  tables = sorted(
    path
    for path in folder.iterdir()
    if path.suffix.lower() in (*sheets.CSV, *sheets.PARQUET)
  )
  if tables:
    if client is not None:
      raise ValueError(
        f"{folder}: its files are the clients, so client={client} has no use"
      )
    return sheets.of_folder(tables, label)
  raise ValueError(f"{folder}: is empty")
