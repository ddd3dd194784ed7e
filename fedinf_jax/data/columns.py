"""Columns as numbers: standardised, or a column for each category."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedinf_jax import memory
from fedinf_jax.data import rows as rows_

MOST_CATEGORIES = 50  # of one column


class Column(NamedTuple):
  """How a column becomes numbers."""

  name: str
  mean: float = 0.0
  scale: float = 1.0
  values: tuple[str, ...] | None = None  # of a category; None: a number

  @property
  def width(self) -> int:
    """How many numbers it becomes."""
    return 1 if self.values is None else len(self.values)


def fit(rows: rows_.Rows) -> tuple[tuple[Column, ...], tuple[str, ...]]:
  """Returns how each column becomes numbers, and those that are left out."""
  columns, left_out = [], []
  for name in rows.x.column_names:
    if _is_identifier(name, rows.x[name]):
      left_out.append(name)
    else:
      columns.append(_fit(rows.x[name], name, rows.where))
  if not columns:
    raise ValueError(
      f"{rows.name}: has no column beside client and label; at least one must"
      " describe the examples"
    )
  return tuple(columns), tuple(left_out)


def apply(
  columns: tuple[Column, ...], rows: rows_.Rows, order: np.ndarray | None
) -> np.ndarray:
  """Returns examples [N, D] as floats.

  A category that the columns do not know becomes zeros.

  Args:
    columns: of `fit`.
    rows: N examples.
    order: int [N], of the rows; None: as they are.
  """
  missing = [c.name for c in columns if c.name not in rows.x.column_names]
  if missing:
    raise ValueError(
      f"{rows.name}: column {missing[0]} is missing; there are"
      f" {rows_.listed(rows.x.column_names)}"
    )
  dtype = jnp.result_type(float)
  width = sum(column.width for column in columns)
  memory.require(f"{rows.name}: x", rows.x.num_rows * width * dtype.itemsize)
  x = np.empty((rows.x.num_rows, width), dtype)
  end = 0
  for column in columns:
    start, end = end, end + column.width
    found = _apply(column, rows.x[column.name], rows.where)
    found = found if order is None else found[order]
    if column.values is None:
      x[:, start] = found
    else:
      x[:, start:end] = found[:, None] == np.arange(column.width)
  return x


def words(columns: tuple[Column, ...], left_out: tuple[str, ...]) -> list[str]:
  """Returns what was made of the columns."""
  made = []
  numbers = sum(c.values is None for c in columns)
  if numbers:
    made.append(f"{count(numbers, 'numeric column')} (standardised)")
  widths = [str(c.width) for c in columns if c.values is not None]
  if widths:
    made.append(
      f"{count(len(widths), 'category', 'categories')} (one-hot,"
      f" {' + '.join(widths)} values)"
    )
  if left_out:
    made.append(f"{', '.join(left_out)} left out (every row differs)")
  return made


def count(number: int, one: str, many: str | None = None) -> str:
  """Returns a number of things, in words."""
  return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def is_text(kind: pa.DataType) -> bool:
  """Says whether a column holds text."""
  kind = kind.value_type if pa.types.is_dictionary(kind) else kind
  return (
    pa.types.is_string(kind)
    or pa.types.is_large_string(kind)
    or pa.types.is_string_view(kind)
  )


def numbers(
  column: pa.ChunkedArray, name: str, where: Callable[[str, int], str]
) -> np.ndarray:
  """Returns a column as float64 [N], each of them finite.

  Raises:
    ValueError: naming the first cell that is no number.
  """
  rows_.filled(column, name, where)
  kind = column.type
  if is_text(kind):
    column = rows_.parsed(rows_.text(column), name, where)
  elif not (
    pa.types.is_integer(kind)
    or pa.types.is_floating(kind)
    or pa.types.is_decimal(kind)
    or pa.types.is_boolean(kind)
  ):
    raise ValueError(
      f"{where(name, 0)} is of type {kind}; it must be a number or text (a date"
      " as a number of days, say), or leave the column out"
    )
  if pa.types.is_boolean(kind):
    column = pc.cast(column, pa.int8())
  found = pc.cast(column, pa.float64(), safe=False).to_numpy()
  good = np.isfinite(found)
  if not good.all():
    row = int(good.argmin())
    problem = "not a number" if np.isnan(found[row]) else "infinite"
    raise ValueError(
      f"{where(name, row)} is {problem}; it must be a finite number"
    )
  return found


def _is_identifier(name, column):
  """Says whether a column that is called an id differs in every row."""
  called = name.lower().replace("-", "_").replace(" ", "_").split("_")[-1]
  rows = len(column)
  return called == "id" and rows > 1 and rows_.num_distinct(column) == rows


def _fit(column, name, where):
  if not is_text(column.type):
    found = numbers(column, name, where)
    with np.errstate(over="ignore", invalid="ignore"):
      mean, scale = float(found.mean()), float(found.std())
    if not np.isfinite(scale):
      row = int(np.abs(found).argmax())
      raise ValueError(
        f"{where(name, row)} is {found[row]}; so large a number cannot be"
        " standardised"
      )
    # A constant column is zero but for rounding.
    return Column(name, mean, scale if scale > 1e-12 * abs(mean) else 1.0)
  rows_.filled(column, name, where)
  column = rows_.text(column)
  rows_.refuse_mixed(column, name, where)
  values = pc.unique(column)
  if len(values) > MOST_CATEGORIES:
    raise ValueError(
      f"{where(name, 0)}: the column holds {len(values):,} different texts; a"
      f" category has at most {MOST_CATEGORIES}, so group them, or leave the"
      " column out"
    )
  return Column(name, values=tuple(sorted(values.to_pylist())))


def _apply(column, found, where):
  """Returns a column as float64 [N], or as categories, int [N]; -1: none."""
  if column.values is None:
    return (numbers(found, column.name, where) - column.mean) / column.scale
  rows_.filled(found, column.name, where)
  values = pa.array(column.values, pa.large_string())
  index = pc.index_in(rows_.text(found), value_set=values)
  return pc.fill_null(index, -1).to_numpy()
