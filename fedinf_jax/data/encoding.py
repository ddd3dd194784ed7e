"""From rows of a file to arrays, and other files in the same way."""

import os
from typing import Any
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from fedinf_jax import text
from fedinf_jax.data import columns
from fedinf_jax.data import federated
from fedinf_jax.data import labels
from fedinf_jax.data import rows as rows_
from fedinf_jax.data import sources


class Encoder(NamedTuple):
  """What the training data were encoded by."""

  columns: tuple[columns.Column, ...] | None  # None: x is an array
  labels: labels.Labels
  client: str | None
  label: str
  ids: tuple[str, ...]
  shape: tuple[int, ...]  # of an example

  def encode(self, path: Any):
    """See `Reading.encode`."""
    rows = sources.read(path, self.client, self.label, known=True)
    x, y = _arrays(self, rows, None)
    if x.shape[1:] != self.shape:
      raise ValueError(
        f"{rows.name}: examples have the shape {list(x.shape[1:])}, those of"
        f" the training data {list(self.shape)}"
      )
    owners = None
    if rows.clients is not None:
      names, owner = rows_.owners(rows)
      known = set(self.ids)
      own = [name if name in known else None for name in names]
      owners = tuple(np.array(own, object)[owner])
    return x, y, owners


def fit(
  path: str | os.PathLike | Any,
  client: str | None,
  label: str | None,
  task: str,
) -> tuple[Encoder, federated.FederatedData, str]:
  """Returns an encoder, the data by it, and a line of words. See `read`."""
  rows = sources.read(path, client, label, known=False)
  table = isinstance(rows.x, pa.Table)
  fitted, left_out = columns.fit(rows) if table else (None, ())
  found = labels.fit(rows, task, standardised=table)
  names, owner = rows_.owners(rows)
  encoder = Encoder(fitted, found, rows.client, rows.label, names, ())
  dealt = np.argsort(owner, kind="stable")
  order = None if (dealt == np.arange(len(dealt))).all() else dealt
  x, y = _arrays(encoder, rows, order)
  data = federated.FederatedData(
    x,
    y,
    np.bincount(owner, minlength=len(names)),
    names,
    None if found.classes is None else len(found.classes),
  )
  if fitted is not None:
    examples = columns.words(fitted, left_out)
  else:
    examples = [f"examples of {' × '.join(map(str, x.shape[1:]))}"]
  line = ", ".join(
    [
      f"{rows.name}: {columns.count(len(names), 'client')} {rows.by}",
      columns.count(len(x), "row"),
      *examples,
      labels.words(found, rows.label, *rows.notes),
    ]
  )
  return encoder._replace(shape=x.shape[1:]), data, text.printable(line)


def _arrays(encoder, rows, order):
  y = labels.apply(encoder.labels, rows, order)
  if isinstance(rows.x, pa.Table) != (encoder.columns is not None):
    raise ValueError(
      f"{rows.name}: must be a file of the same kind as the training data's"
    )
  if encoder.columns is not None:
    return columns.apply(encoder.columns, rows, order), y
  return rows.x if order is None else rows.x[order], y
