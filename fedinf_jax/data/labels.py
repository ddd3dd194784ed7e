"""Labels as a file holds them: classes, or numbers to predict."""

import contextlib
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedinf_jax.data import columns
from fedinf_jax.data import rows as rows_

TASKS = "auto", "classification", "regression"
_FEW = 20  # different integers are classes
_MOSTLY = 0.9  # where so many labels are integers, the others are mistakes
_MOST_CLASSES = 1000
_MOST_COUNTED = 100  # integers from 0 or 1 on are classes, up to so many


class Labels(NamedTuple):
  """How labels become integers, or targets become numbers."""

  task: str
  classes: tuple[str, ...] | None  # in the order of their integers
  mean: float = 0.0
  scale: float = 1.0


def fit(rows: rows_.Rows, task: str, standardised: bool) -> Labels:
  """Returns what the labels are.

  Args:
    rows: N examples.
    task: of TASKS; "auto": text and few different integers are classes.
    standardised: whether targets of a regression are.
  """
  rows_.filled(rows.y, rows.label, rows.where)
  names = _class_names(rows, task)
  if names is not None:
    if len(names) < 2:
      raise ValueError(
        f"{rows.where(rows.label, 0)}: every label is {names[0]!r}; a"
        " classifier needs two classes, so name another label"
      )
    return Labels("classification", names)
  found = columns.numbers(rows.y, rows.label, rows.where)
  mean, scale = (found.mean(), found.std()) if standardised else (0.0, 1.0)
  return Labels("regression", None, float(mean), float(scale) or 1.0)


def apply(
  labels: Labels, rows: rows_.Rows, order: np.ndarray | None
) -> np.ndarray:
  """Returns int32 [N] labels, or float [N] targets.

  Args:
    labels: of `fit`.
    rows: N examples.
    order: int [N], of the rows; None: as they are.
  """
  rows_.filled(rows.y, rows.label, rows.where)
  if labels.classes is None:
    found = columns.numbers(rows.y, rows.label, rows.where)
    y = ((found - labels.mean) / labels.scale).astype(jnp.result_type(float))
  else:
    classes = pa.array(labels.classes, pa.large_string())
    index = pc.index_in(_named(rows.y), value_set=classes)
    if index.null_count:
      row = rows_.first(pc.is_null(index))
      raise ValueError(
        f"{rows.where(rows.label, row)} is {_named(rows.y)[row].as_py()!r}; the"
        f" classes are {rows_.listed(labels.classes)}"
      )
    y = index.to_numpy().astype(np.int32)
  return y if order is None else y[order]


def _class_names(rows, task):
  """Returns the classes, sorted; None: these are numbers to predict."""
  kind = rows.y.type
  if task == "regression":
    return None
  if columns.is_text(kind):
    rows_.refuse_mixed(rows_.text(rows.y), rows.label, rows.where)
  elif not pa.types.is_boolean(kind):
    found = columns.numbers(rows.y, rows.label, rows.where)
    whole = found == np.rint(found)
    if not whole.all():
      if task == "classification" or whole.mean() > _MOSTLY:
        row = int(whole.argmin())
        raise ValueError(
          f"{rows.where(rows.label, row)} is {found[row]}; a class is text or"
          " an integer (numbers to predict are task regression)"
        )
      return None
    distinct = np.unique(found)
    if task == "auto" and not _look_like_classes(distinct, len(found)):
      return None
  return _sorted_names(rows)


def _look_like_classes(distinct, num_rows):
  """Says whether whole numbers [C], sorted, stand for classes."""
  count = len(distinct)
  counted = distinct[0] in (0, 1) and distinct[-1] - distinct[0] + 1 == count
  if counted and count <= 2:
    return True
  return count <= (_MOST_COUNTED if counted else _FEW) and num_rows >= 2 * count


def _sorted_names(rows):
  names = pc.unique(_named(rows.y)).to_pylist()
  if len(names) > _MOST_CLASSES:
    raise ValueError(
      f"{rows.where(rows.label, 0)}: there are {len(names):,} different labels;"
      f" a classifier takes at most {_MOST_CLASSES:,}, so name another label"
    )
  try:
    return tuple(sorted(names, key=lambda name: (int(name), name)))
  except ValueError:
    return tuple(sorted(names))


def _named(y):
  """Returns labels as text; 1.0 is the class 1."""
  if columns.is_text(y.type):
    return rows_.text(y)
  if not pa.types.is_boolean(y.type):
    # What is no integer is no class either, and named as it is.
    with contextlib.suppress(pa.ArrowInvalid):
      y = pc.cast(y, pa.int64())
  return rows_.text(y)


def words(labels: Labels, name: str, *notes: str) -> str:
  """Returns what the labels are."""
  name = " ".join([name, *(f"({note})" for note in notes)])
  if labels.classes is None:
    return f"target {name}{'' if labels.scale == 1 else ' (standardised)'}"
  return f"label {name} with {len(labels.classes)} classes"
