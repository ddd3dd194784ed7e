"""Rows in chunks are rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedinf_jax import memory
from fedinf_jax import tree


@pytest.mark.parametrize("chunk", [1, 3, 4, 7, 10])
def test_rows_are_updated_once_each_whatever_the_chunk(chunk):
  rows = {"a": jnp.arange(14.0).reshape(7, 2), "b": jnp.arange(7)}
  weights = jnp.arange(7.0) ** 2

  @jax.jit
  def update(rows, weights):
    add = lambda rows, weights: {
      "a": rows["a"] + weights[:, None],
      "b": rows["b"] + 1,
    }
    return tree.update_rows(add, rows, weights, chunk)

  new = update(rows, weights)
  np.testing.assert_array_equal(new["a"], rows["a"] + weights[:, None])
  np.testing.assert_array_equal(new["b"], rows["b"] + 1)


@pytest.mark.parametrize("chunk", [1, 3, 7, 10])
def test_rows_are_mapped_whatever_the_chunk(chunk):
  rows = jnp.arange(14.0).reshape(7, 2)
  total = jax.jit(lambda rows: tree.map_rows(jnp.sum, rows, chunk))(rows)
  np.testing.assert_array_equal(total, rows.sum(1))


def test_models_that_fill_the_cache_run_one_at_a_time(monkeypatch):
  assert memory.models_at_once(100, memory.CHUNK_BYTES // 50) == 50
  large = memory.CACHE_BYTES + 1
  assert memory.models_at_once(100, large) == 1
  monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
  assert memory.models_at_once(100, large) == memory.chunk_size(100, large) > 1
