"""Clients from files: what is in them is found by looking."""

import dataclasses
import os
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax.data import federated


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
  """What `read` found.

  Attributes:
    data: the clients.
    task: "classification" or "regression".
    classes: the labels' names, in the order of their integers; None for a
      regression.
    line: what was understood, in one line.

  Examples:
    >>> found = fi.data.read(
    ...   {"site": ["a", "b"] * 2, "age": [3, 5, 4, 9], "y": [0, 0, 1, 1]}
    ... )
    >>> x_test, y_test, owners = found.encode(
    ...   {"site": ["b", "c"], "age": [3, 9], "y": [0, 1]}
    ... )
    >>> x_test.shape, y_test.tolist(), owners
    ((2, 1), [0, 1], ('b', None))
  """

  data: federated.FederatedData = dataclasses.field(repr=False)
  task: str
  classes: tuple[str, ...] | None
  line: str
  _encoder: Any = dataclasses.field(repr=False)

  def encode(
    self, path: Any
  ) -> tuple[np.ndarray, np.ndarray, tuple[str | None, ...] | None]:
    """Encodes other examples, such as a test set, in the same way.

    The same numbers standardise, and the same integers stand for classes. A
    category that the training data do not have becomes zeros.

    Args:
      path: as in `read`, or a table; its clients may be missing.

    Returns:
      x [N, ...]; y [N]; owners, N ids, None where it is no client of `data`;
      or None if no clients are named. Rows stay in the order of the file.

    Raises:
      ValueError: naming the column that is missing, or the unknown label.
    """
    return self._encoder.encode(path)


def read(
  path: str | os.PathLike | Any,
  *,
  client: str | None = None,
  label: str | None = None,
  task: str = "auto",
) -> Reading:
  """Reads clients from files, with defaults by what they hold.

  Of tables, numeric columns are standardised, text becomes a column for each
  category, and an id that differs in every row is left out. Labels that are
  text or a few integers are classes; other targets are standardised.

  Args:
    path: one CSV or Parquet file with a column of clients; a folder with a CSV
      per client; an .npz with the arrays x, y and client; a folder as LEAF
      writes it; a folder of images, client/label/*.png; or a table.
    client: the column of clients; None: guessed by its name.
    label: the column of labels; None: guessed, or the last.
    task: "auto", "classification" or "regression".

  Returns:
    A Reading: the clients, and what was understood.

  Raises:
    ValueError: one line that names the file, the column and the row.

  Examples:
    >>> found = fi.data.read({
    ...   "hospital": ["a", "a", "b", "b"],
    ...   "age": [34, 51, 42, 67],
    ...   "sex": ["m", "f", "f", "m"],
    ...   "ill": ["no", "yes", "no", "yes"],
    ... })
    >>> found.line
    'table: 2 clients by column hospital, 4 rows, 1 numeric column
     (standardised), 1 category (one-hot, 2 values), label ill (the last
     column) with 2 classes'
    >>> found.data.ids, found.data.x.shape, found.classes
    (('a', 'b'), (4, 3), ('no', 'yes'))
  """
  # Here because it imports pyarrow, which takes a while.
  from fedinf_jax.data import encoding

  checks.one_of("task", task, ("auto", "classification", "regression"))
  for name, value in (("client", client), ("label", label)):
    if value is not None and not isinstance(value, str):
      raise ValueError(f"{name} is {value!r}; it must be a column's name")
  encoder, data, line = encoding.fit(path, client, label, task)
  labels = encoder.labels
  return Reading(data, labels.task, labels.classes, line, encoder)
