"""Twelve hospitals, of which one has all its labels wrong, as files."""

import pathlib

import numpy as np
import pyarrow as pa
from pyarrow import csv as pa_csv

NAMES = [f"hospital {k:02}" for k in range(12)]
BAD = NAMES[6]
ROWS = 20  # of each


def rows():
  """Returns x [12, ROWS, 3] and whether they are ill, [12, ROWS]."""
  draw = np.random.default_rng(0)
  x = draw.normal(size=(12, ROWS, 3)).round(3)
  y = x[..., 0] - x[..., 1] > 0
  y[NAMES.index(BAD)] ^= True
  return x, y


def table(rows):
  """Returns them as a table."""
  x, y = rows
  columns = {"hospital": np.repeat(NAMES, ROWS)}
  for name, values in zip(("age", "pressure", "weight"), x.T, strict=True):
    columns[name] = values.T.ravel()
  columns["outcome"] = np.where(y.ravel(), "ill", "healed")
  return pa.table(columns)


def write(path: pathlib.Path, table: pa.Table):
  """Writes a table as CSV."""
  pa_csv.write_csv(table, path, pa_csv.WriteOptions(quoting_style="none"))
  return path


def csv(path, rows):
  """Writes all of them as one CSV."""
  return write(path, table(rows))
