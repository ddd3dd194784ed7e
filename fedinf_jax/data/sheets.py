"""Tables of examples: CSV, Parquet, and whatever else has columns."""

import bisect
from collections.abc import Callable
from collections.abc import Mapping
import itertools
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fedinf_jax import memory
from fedinf_jax import text
from fedinf_jax.data import csv_file
from fedinf_jax.data import files
from fedinf_jax.data import rows as rows_

CSV = ".csv", ".tsv", ".txt"
PARQUET = ".parquet", ".pq"
FOLDER = ".csv", ".tsv", *PARQUET  # a .txt beside them says something else
# What a column is called where nobody says: the first that is there.
CLIENTS = (
  *("client", "hospital", "site", "user", "owner", "writer", "participant"),
  *("institution", "center", "centre", "device", "party", "clients"),
)
LABELS = "label", "target", "class", "outcome", "labels", "response", "y"
_INDEX = "Unnamed: 0", "__index_level_0__"  # pandas' own, no feature


def read(
  path: pathlib.Path, client: str | None, label: str | None, known: bool
) -> rows_.Rows:
  """Reads one CSV or Parquet file with a column of clients.

  Args:
    path: of the file.
    client: the column of clients; None: guessed by its name.
    label: the column of labels; None: guessed, or the last.
    known: the columns are those of other data: without clients will do.
  """
  choose = lambda names: _guess(names, CLIENTS)
  if client is not None or known:
    choose = lambda names: client
  table, where = _open(path, choose)
  return _rows(path.name, str(path), table, where, client, label, known)


def of_folder(paths: list[pathlib.Path], label: str | None) -> rows_.Rows:
  """Reads one file per client, called by the file's name.

  Args:
    paths: at least one.
    label: the column of labels; None: guessed, or the last.
  """
  opened = [_open(path, lambda names: None) for path in paths]
  tables = [table for table, _ in opened]
  counts = [table.num_rows for table in tables]
  ends = list(itertools.accumulate(counts))

  def where(column, row):
    k = bisect.bisect_right(ends, row)
    return opened[k][1](column, row - ends[k] + counts[k])

  folder, names = paths[0].parent, _names(paths)
  table = _stacked(paths, tables)
  label, note = _label(str(folder), table, label, None)
  left_out, by = [label], "by file"
  own = _guess(table.column_names, CLIENTS)
  if own not in (None, label) and all(
    rows_.num_distinct(t[own]) == 1 for t in tables
  ):
    left_out.append(own)  # It would tell the model whose each row is.
    by = f"by file (one {own} each, left out)"
  return rows_.Rows(
    folder.name,
    table.drop_columns(left_out),
    table[label],
    pa.chunked_array(list(map(pa.repeat, names, counts)), pa.string()),
    label,
    None,
    by,
    where,
    note,
  )


def _names(paths):
  """Returns the clients' names, which are their files'."""
  names = [path.stem for path in paths]
  twice = next((k for k, n in enumerate(names) if n in names[:k]), None)
  if twice is not None:
    raise ValueError(
      f"{paths[twice]}: there is another file of client {names[twice]!r}; each"
      " must have one"
    )
  return names


def _stacked(paths, tables):
  """Returns the rows of all files, which must have the same columns."""
  first = tables[0].column_names
  for path, table in zip(paths, tables, strict=True):
    astray = set(table.column_names) ^ set(first)
    if astray:
      column = min(astray)
      has, lacks = paths[0], path
      if column not in first:
        has, lacks = lacks, has
      raise ValueError(
        f"{lacks}: column {column} is missing; {has.name} has it, and all files"
        " must have the same columns"
      )
  try:
    return pa.concat_tables(
      [table.select(first) for table in tables], promote_options="permissive"
    )
  except pa.ArrowException as error:
    raise _clash(paths, tables) from error


def of_frame(
  frame: Any, client: str | None, label: str | None, known: bool
) -> rows_.Rows:
  """Takes a table of columns: of pandas, of Arrow, or {name: values}.

  Args:
    frame: anything with columns.
    client: as in `read`.
    label: as in `read`.
    known: as in `read`.
  """
  try:
    table = pa.table(_columns(frame))
    table.validate(full=True)
  except (TypeError, ValueError, pa.ArrowException) as error:
    raise ValueError(
      f"the table is a {type(frame).__name__}; it must have columns, as those"
      f" of pandas or Arrow have, all as long ({error})"
    ) from error
  where = lambda column, row: f"the table: column {column}, row {row} (from 0)"
  table = _checked("the table", table)
  return _rows("table", "the table", table, where, client, label, known)


def _columns(frame):
  """Returns what Arrow can make a table of."""
  if isinstance(frame, Mapping | pa.Table) or not hasattr(frame, "columns"):
    return frame
  if hasattr(frame, "__arrow_c_stream__"):
    return frame
  return {str(name): np.asarray(frame[name]) for name in frame.columns}


def _rows(name, path, table, where, client, label, known):
  """Finds the columns of clients and labels."""
  if client is None and not known:
    client = _guess(table.column_names, CLIENTS)
    if client is None:
      raise ValueError(
        f"{path}: no column is called like a client (client, hospital, site,"
        f" user, owner, writer); name one of {rows_.listed(table.column_names)}"
        " with client="
      )
  elif client is not None and client not in table.column_names:
    if not known:
      raise _missing(path, client, table)
    client = None
  label, note = _label(path, table, label, client)
  if client == label:
    raise ValueError(f"{path}: column {label} cannot be both client and label")
  return rows_.Rows(
    name,
    table.drop_columns([c for c in (client, label) if c is not None]),
    table[label],
    None if client is None else table[client],
    label,
    client,
    f"by column {client}",
    where,
    note,
  )


def _label(path, table, label, client):
  """Returns the column of labels, and what one should know about it."""
  if label is not None:
    if label not in table.column_names:
      raise _missing(path, label, table)
    return label, ()
  guess = _guess(table.column_names, LABELS)
  if guess is not None:
    return guess, ()
  columns = [c for c in table.column_names if c != client]
  if not columns:
    raise ValueError(f"{path}: there is no column beside {client}")
  return columns[-1], ("the last column",)


def _guess(columns, names):
  """Returns the column that is called by the first of these names."""
  called: dict[str, str] = {}
  for column in columns:
    plain = column.strip().lower().replace(" ", "_").replace("-", "_")
    for end in ("_id", "_name"):
      plain = plain.removesuffix(end)
    called.setdefault(plain, column)
  return next((called[name] for name in names if name in called), None)


def _missing(path, column, table):
  return ValueError(
    f"{path}: column {column} is missing; there are"
    f" {rows_.listed(table.column_names)}"
  )


def _clash(paths, tables):
  """Names the file that has another type in a column than those before it."""
  for k, table in enumerate(tables[1:], 1):
    for name in table.column_names:
      kinds = tables[0].schema.field(name).type, table.schema.field(name).type
      try:
        pa.unify_schemas(
          [pa.schema([(name, kind)]) for kind in kinds],
          promote_options="permissive",
        )
      except pa.ArrowException:
        return ValueError(
          f"{paths[k]}: column {name} holds {kinds[1]}, that of"
          f" {paths[0].name} {kinds[0]}; a column must be all numbers or all"
          " text"
        )
  return ValueError(f"{paths[0].parent}: the files' columns do not fit")


def _open(
  path: pathlib.Path, choose: Callable[[list[str]], str | None]
) -> tuple[pa.Table, Callable[[str, int], str]]:
  """Returns a file's table, and what names its cells.

  Args:
    path: of the file.
    choose: names of columns -> that of the clients, which stays text.
  """
  files.require_regular(path)
  if path.suffix.lower() in PARQUET:
    try:
      with pq.ParquetFile(path) as file:
        cells = file.metadata.num_rows * file.metadata.num_columns
        memory.require(f"{path}: its columns", 4 * cells)
        table = file.read()
      table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
      raise ValueError(
        f"{path}: is no Parquet file ({_line(error)})"
      ) from error
    where = lambda column, row: f"{path}: column {column}, row {row + 1}"
  else:
    table = csv_file.read(path, choose)
    where = lambda column, row: (
      f"{path}: column {column}, row {csv_file.row_number(path, row)}"
    )
  return _checked(str(path), table), where


def _checked(path, table):
  """Refuses a table without rows, or with columns that share a name."""
  names = table.column_names
  unnamed = [c for c in names[:1] if not c.strip() or c in _INDEX[:1]]
  unnamed += [c for c in names if c in _INDEX[1:]]
  twice = next((c for c in names if names.count(c) > 1), None)
  if twice is not None:
    raise ValueError(
      f"{path}: column {twice!r} is there twice; columns must have distinct"
      " names"
    )
  if not table.num_rows:
    raise ValueError(f"{path}: has no rows; at least one example is needed")
  table = table.drop_columns(unnamed)
  broken = next((c for c in names if text.printable(c) != c), None)
  if broken is not None:
    raise ValueError(
      f"{path}: column {broken!r} has a name that is not printable; give it"
      " another"
    )
  if "" in table.column_names:
    number = names.index("") + 1
    raise ValueError(f"{path}: column {number} has no name; give it one")
  return table


def _line(error):
  return " ".join(str(error).split())
