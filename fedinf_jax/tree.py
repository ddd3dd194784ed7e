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


def add(a, b):
  """Returns a + b."""
  return jax.tree.map(jnp.add, a, b)


def subtract(a, b):
  """Returns a − b."""
  return jax.tree.map(jnp.subtract, a, b)


def zeros_like(tree):
  """Returns zeros of the same shapes."""
  return jax.tree.map(jnp.zeros_like, tree)


def repeat(tree, times):
  """Repeats every leaf along a new axis: [...] -> [times, ...]."""
  return jax.tree.map(
    lambda a: jnp.broadcast_to(a[None], (times, *a.shape)), tree
  )


def merge_axes(tree):
  """Joins the first two axes of every leaf: [A, B, ...] -> [A B, ...]."""
  return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), tree)


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


def name(path):
  """Returns a leaf's name, such as "dense/kernel"."""
  return jax.tree_util.keystr(path, simple=True, separator="/")


def names(tree):
  """Returns the leaves' names."""
  return tuple(name(path) for path, _ in jax.tree.flatten_with_path(tree)[0])


def dtype_of(tree):
  """Returns the dtype of the leaves, which is that of the run's data."""
  return jax.tree.leaves(tree)[0].dtype


def require_finite_rows(name, tree):
  """Refuses a tree with a row that is not finite; what is traced passes."""
  leaves = jax.tree.leaves(tree)
  if not leaves or any(isinstance(a, jax.core.Tracer) for a in leaves):
    return
  finite = finite_rows(tree)
  if not finite.all():
    raise ValueError(
      f"{name}: that of participant {int(finite.argmin())} is not finite"
    )


def finite_rows(tree):
  """Returns whether every row is finite: leaves [R, ...] -> bool [R].

  By its sum, which also overflows where numbers are as good as infinite; an
  array of booleans would be as large as an upload.
  """
  sums = [a.sum(range(1, a.ndim)) for a in jax.tree.leaves(tree)]
  return jnp.isfinite(jnp.stack(sums)).all(0)


# Below, a layer is a leaf: L of them, with a row per removal each.


def layer_blocks(num_layers: int, *, layerwise: bool) -> list[tuple[int, ...]]:
  """Returns which layers belong together: each alone, or all."""
  layers = range(num_layers)
  return [(j,) for j in layers] if layerwise else [tuple(layers)]


def layer_dots(a, b):
  """Returns ⟨a, b⟩ of each row and layer: leaves [R, ...] -> [R, L]."""
  dot = lambda x, y: (x * y).reshape(x.shape[0], -1).sum(1)
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return jnp.stack([dot(x, y) for x, y in pairs], axis=1)


def scale_layers(factors, tree):
  """Multiplies layer j of row r by factors[r, j]."""
  leaves, treedef = jax.tree.flatten(tree)
  scale = jax.vmap(lambda f, a: f * a)
  return jax.tree.unflatten(
    treedef, [scale(factors[:, j], a) for j, a in enumerate(leaves)]
  )


def clear_layers(cleared, tree):
  """Puts zeros where `cleared` [R, L] says so."""
  leaves, treedef = jax.tree.flatten(tree)
  pick = jax.vmap(lambda c, a: jnp.where(c, 0, a))
  return jax.tree.unflatten(
    treedef, [pick(cleared[:, j], a) for j, a in enumerate(leaves)]
  )


def finite_layers(tree):
  """Returns whether each row of each layer is finite: -> bool [R, L]."""
  finite = lambda a: jnp.isfinite(a).reshape(a.shape[0], -1).all(1)
  return jnp.stack([finite(a) for a in jax.tree.leaves(tree)], axis=1)
