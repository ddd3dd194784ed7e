"""Pytree algebra that neither jax.tree nor optax.tree_utils has."""

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


def rows(tree, index):
  """Returns the given rows of every leaf."""
  return jax.tree.map(lambda a: a[index], tree)


def num_parameters(tree):
  """Returns P, the number of scalars in `tree`."""
  return sum(a.size for a in jax.tree.leaves(tree))


def all_finite(tree):
  """Returns, for leaves [B, ...], which rows are finite everywhere: [B]."""
  finite = [
    jnp.isfinite(a).reshape(a.shape[0], -1).all(1)
    for a in jax.tree.leaves(tree)
  ]
  return jnp.stack(finite).all(0)
