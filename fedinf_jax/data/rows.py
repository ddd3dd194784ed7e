"""Examples as a file holds them: before anything is encoded."""

from collections.abc import Callable
from collections.abc import Sequence
import reprlib
from typing import Any
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedinf_jax import text as text_


class Rows(NamedTuple):
  """N examples of several clients, and where each of them stands."""

  name: str  # of the source, to begin a line with
  x: Any  # pa.Table, a column for each feature; or np.ndarray [N, ...]
  y: pa.ChunkedArray  # [N]
  clients: Any  # pa.ChunkedArray [N] of names; None: nobody's
  label: str  # what the file calls the labels
  client: str | None  # what the file calls the clients; None: it has no name
  by: str  # how the clients were told apart, in words
  where: Callable[[str, int], str]  # names a cell, to begin an error with
  notes: tuple[str, ...] = ()  # what else one should know


def owners(rows: Rows) -> tuple[tuple[str, ...], np.ndarray]:
  """Returns the K clients' names, as they first appear, and each row's client.

  Args:
    rows: with clients.

  Returns:
    names; int32 [N], positions among them.
  """
  name, clients = rows.client or "client", rows.clients
  assert clients is not None
  filled(clients, name, rows.where)
  try:
    names = text(clients)
  except pa.ArrowException as error:
    raise ValueError(
      f"{rows.where(name, 0)} is of type {clients.type}; a client's name"
      " must be text or an integer"
    ) from error
  found = names.combine_chunks().dictionary_encode()
  return tuple(found.dictionary.to_pylist()), found.indices.to_numpy()


def text(column: pa.ChunkedArray) -> pa.ChunkedArray:
  """Returns a column as text."""
  return pa.chunked_array(pc.cast(column, pa.large_string()))


def num_distinct(column: pa.ChunkedArray) -> int:
  """Returns how many different values a column holds; -1: nobody can say."""
  try:
    return pc.count_distinct(column).as_py()
  except pa.ArrowNotImplementedError:  # Of lists and records.
    return -1


def filled(
  column: pa.ChunkedArray, name: str, where: Callable[[str, int], str]
):
  """Refuses empty cells."""
  if column.null_count:
    row = first(pc.is_null(column))
    raise ValueError(
      f"{where(name, row)} is empty; fill it in, or leave the row out"
    )


def first(found: pa.ChunkedArray) -> int:
  """Returns the first row where a column of booleans is true."""
  return pc.index(found, True).as_py()


# What reads as a number, and what would with a point in place of its comma.
_NUMBER = r"^\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*$"
_COMMA = r"^\s*[-+]?\d*,\d+\s*$"
_SHOWN = 20  # names in a message
_FEW = 20  # different texts of which none is alone are categories, not mistakes


def refuse_mixed(
  column: pa.ChunkedArray, name: str, where: Callable[[str, int], str]
):
  """Refuses a column of text that is mostly numbers: some cell spoiled it."""
  numbers = pc.match_substring_regex(column, _NUMBER)
  commas = pc.match_substring_regex(column, _COMMA)
  if pc.mean(pc.or_(numbers, commas)).as_py() < 0.5:
    return
  counts = pc.value_counts(column).field("counts")
  meant = len(counts) <= _FEW and pc.min(counts).as_py() > 1
  wrong = pc.invert(numbers)
  if pc.any(commas).as_py() or (pc.any(wrong).as_py() and not meant):
    row = first(wrong)
    raise ValueError(
      f"{where(name, row)} holds {shown(column[row])}; the column is mostly"
      " numbers, so this must be one (with a decimal point), or all of it text"
    )


def parsed(
  column: pa.ChunkedArray, name: str, where: Callable[[str, int], str]
) -> pa.ChunkedArray:
  """Returns a column of text as the numbers that it spells."""
  numbers = pc.match_substring_regex(column, _NUMBER)
  if not pc.all(numbers).as_py():
    row = first(pc.invert(numbers))
    raise ValueError(
      f"{where(name, row)} holds {shown(column[row])}; it must be a number"
      " (with a decimal point)"
    )
  return pc.cast(pc.utf8_trim_whitespace(column), pa.float64())


def listed(names: Sequence[str]) -> str:
  """Returns names for a message, the first of many."""
  more = ["…"] if len(names) > _SHOWN else []
  return text_.printable(", ".join([*names[:_SHOWN], *more]))


def shown(cell: pa.Scalar) -> str:
  """Returns a cell for a message."""
  return reprlib.repr(cell.as_py())
