"""Partitions are disjoint and complete, whatever they are fed."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from fedinf_jax.data import partition


def deal(how, x, y, num_clients, alpha=0.5, seed=0):
  if how == "iid":
    return partition.iid(x, y, num_clients=num_clients, seed=seed)
  if how == "dirichlet":
    return partition.dirichlet(
      x, y, num_clients=num_clients, alpha=alpha, seed=seed
    )
  return partition.by_writer(x, y, writers=[f"w{v % num_clients}" for v in x])


@pytest.mark.parametrize("how", ["iid", "dirichlet", "by_writer"])
@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(
  st.integers(0, 60),
  st.one_of(st.integers(-1, 70), st.floats(), st.booleans()),
  st.one_of(st.floats(), st.floats(1e-6, 100)),
  st.integers(0, 2**32),
)
def test_disjoint_and_complete(how, examples, num_clients, alpha, seed):
  if how == "by_writer":
    num_clients = max(1, int(seed % 7))
  x = np.arange(examples)
  y = np.random.default_rng(seed).integers(0, 5, examples)
  try:
    data = deal(how, x, y, num_clients, alpha, seed)
  except ValueError as error:
    assert any(w in str(error) for w in ("num_clients", "alpha", "client"))
    fine = isinstance(num_clients, int) and 1 <= num_clients <= examples
    assert not fine or isinstance(num_clients, bool) or not 0 < alpha < np.inf
    return
  np.testing.assert_array_equal(np.sort(data.x), x)
  np.testing.assert_array_equal(y[data.x], data.y)
  assert (data.num_examples >= 1).all()


def test_iid_is_balanced_and_dirichlet_is_not():
  x = np.arange(1000)
  y = x % 10
  even = partition.iid(x, y, num_clients=7)
  assert set(even.num_examples) <= {142, 143}
  classes = lambda data: np.mean(
    [len(np.unique(labels)) for _, labels in data.clients()]
  )
  skewed = partition.dirichlet(x, y, num_clients=10, alpha=0.05)
  mild = partition.dirichlet(x, y, num_clients=10, alpha=100.0)
  assert classes(skewed) < 5 < 9 < classes(mild)
  again = partition.dirichlet(x, y, num_clients=10, alpha=0.05)
  np.testing.assert_array_equal(skewed.x, again.x)


def test_by_writer_keeps_names():
  writers = ["b", "a", "b", "c"]
  data = partition.by_writer(np.arange(4), np.zeros(4, int), writers=writers)
  assert data.ids == ("b", "a", "c")
  np.testing.assert_array_equal(data.client(0)[0], [0, 2])
  with pytest.raises(ValueError, match="writers has 1 entries for 4 examples"):
    partition.by_writer(np.arange(4), np.zeros(4, int), writers=["a"])
  with pytest.raises(ValueError, match="do not hold the same examples"):
    partition.iid(np.arange(4), np.zeros(3), num_clients=1)
  with pytest.raises(ValueError, match="one integer label"):
    partition.dirichlet(np.arange(4), np.zeros(4), num_clients=1, alpha=1.0)
