"""What the documents need of `datasets` and `flwr_datasets`, if not installed.

The smallest classes with their interface, so that the snippets run everywhere.
"""

import importlib.util
import types

import numpy as np


class Dataset:
  """Columns, as `datasets.Dataset` has them."""

  def __init__(self, columns):
    self.columns_ = columns

  @classmethod
  def from_dict(cls, columns):
    return cls(columns)

  def with_format(self, kind):
    assert kind == "numpy"
    return Dataset({k: np.asarray(v) for k, v in self.columns_.items()})

  def __getitem__(self, rows):
    return {name: values[rows] for name, values in self.columns_.items()}

  def remove_columns(self, name):
    return Dataset({k: v for k, v in self.columns_.items() if k != name})

  def add_column(self, name, column):
    return Dataset(self.columns_ | {name: column})


class NaturalIdPartitioner:
  """A part for each value of a column, as `flwr_datasets` deals them."""

  def __init__(self, partition_by):
    self._by = partition_by

  @property
  def num_partitions(self):
    return len(self.partition_id_to_natural_id)

  @property
  def partition_id_to_natural_id(self):
    return dict(enumerate(dict.fromkeys(self.dataset.columns_[self._by])))

  def load_partition(self, k):
    name = self.partition_id_to_natural_id[k]
    rows = np.flatnonzero(np.array(self.dataset.columns_[self._by]) == name)
    columns = self.dataset.columns_
    return Dataset({k: np.asarray(v)[rows] for k, v in columns.items()})


def modules():
  """Returns stand-ins for those of the two packages that are missing."""
  module = lambda **names: types.SimpleNamespace(**names)
  made = {
    "datasets": module(Dataset=Dataset),
    "flwr_datasets": module(),
    "flwr_datasets.partitioner": module(
      NaturalIdPartitioner=NaturalIdPartitioner
    ),
  }
  there = lambda name: importlib.util.find_spec(name.split(".")[0]) is not None
  return {name: m for name, m in made.items() if not there(name)}
