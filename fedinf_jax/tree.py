"""Pytree algebra that neither jax.tree nor optax.tree_utils has."""

import functools

import jax
from jax import lax
import jax.numpy as jnp


def cast(tree, dtype):
  """Returns `tree` with its floating leaves as `dtype`."""
  return jax.tree.map(
    lambda a: (
      jnp.asarray(a, dtype) if jnp.issubdtype(a.dtype, jnp.floating) else a
    ),
    tree,
  )


def weighted_sum(weights, tree):
  """Returns sum_k weights[k] leaf[k]: [B] and leaves [B, ...] -> [...]."""
  return jax.tree.map(
    lambda a: jnp.tensordot(weights, a, 1, precision=lax.Precision.HIGHEST),
    tree,
  )


def select(condition, on_true, on_false):
  """Picks row by row: condition [R], leaves [R, ...]."""
  pick = jax.vmap(lambda c, a, b: jnp.where(c, a, b))
  return jax.tree.map(lambda a, b: pick(condition, a, b), on_true, on_false)


def repeat(tree, times):
  """Repeats every leaf along a new axis: [...] -> [times, ...]."""
  return jax.tree.map(
    lambda a: jnp.broadcast_to(a[None], (times, *a.shape)), tree
  )


def first_rows(tree, num_rows):
  """Returns the first rows; all of them without a copy."""
  return jax.tree.map(
    lambda a: a if a.shape[0] == num_rows else a[:num_rows], tree
  )


def map_rows(function, rows, chunk):
  """Maps `function` over rows (leaves [R, ...]), `chunk` of them at a time.

  Rows of a chunk are vmapped; chunks follow one another, to bound memory.
  """
  num_rows = jax.tree.leaves(rows)[0].shape[0]
  if chunk == 1:  # An axis of length one costs transpositions.
    return lax.map(function, rows)
  together = jax.vmap(function)
  if num_rows <= chunk:
    return together(rows)
  # Padded to whole chunks: a remainder would be a second program.
  pad = -num_rows % chunk
  fill = lambda a: jnp.pad(a, ((0, pad),) + ((0, 0),) * (a.ndim - 1))
  split = lambda a: fill(a).reshape(-1, chunk, *a.shape[1:])
  mapped = lax.map(together, jax.tree.map(split, rows))
  return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:num_rows], mapped)


def update_rows(function, rows, inputs, chunk):
  """Replaces rows (leaves [R, ...]) by function(rows, inputs), in place.

  `chunk` of them at a time, so that only a chunk's results are held twice.
  """
  num_rows = jax.tree.leaves(rows)[0].shape[0]
  if num_rows <= chunk:
    return function(rows, inputs)

  def body(i, rows):
    start = jnp.minimum(i * chunk, num_rows - chunk)
    take = lambda a: lax.dynamic_slice_in_dim(a, start, chunk)
    old = jax.tree.map(take, rows)
    new = function(old, jax.tree.map(take, inputs))
    # The last chunk reaches back into the one before.
    done = start + jnp.arange(chunk) < i * chunk
    new = select(done, old, new)
    put = lambda a, b: lax.dynamic_update_slice_in_dim(a, b, start, 0)
    return jax.tree.map(put, rows, new)

  return lax.fori_loop(0, -(-num_rows // chunk), body, rows)


def names(tree):
  """Returns the leaves' names, such as "dense/kernel"."""
  paths, _ = jax.tree.flatten_with_path(tree)
  join = functools.partial(jax.tree_util.keystr, simple=True, separator="/")
  return tuple(join(path) for path, _ in paths)


def dtype_of(tree):
  """Returns the dtype of the leaves, which is that of the run's data."""
  return jax.tree.leaves(tree)[0].dtype


def finite_rows(tree):
  """Returns whether every row is finite: leaves [R, ...] -> bool [R].

  By its sum, which also overflows where numbers are as good as infinite; an
  array of booleans would be as large as an upload.
  """
  sums = [a.sum(range(1, a.ndim)) for a in jax.tree.leaves(tree)]
  return jnp.isfinite(jnp.stack(sums)).all(0)
