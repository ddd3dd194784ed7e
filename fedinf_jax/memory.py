"""How much memory a computation takes, so that chunks can bound it."""

import jax

CHUNK_BYTES = 512 * 2**20  # What the temporaries of one chunk may take.
CACHE_BYTES = 16 * 2**20  # About a processor's share of its last cache.


def intermediate_bytes(function, *args) -> int:
  """Bounds the temporaries of `function` from above, by tracing it.

  The sum over every intermediate result; the compiler, which fuses and frees,
  needs less.
  """
  jaxpr = jax.make_jaxpr(function)(*args).jaxpr
  return sum(
    v.aval.size * v.aval.dtype.itemsize
    for equation in jaxpr.eqns
    for v in equation.outvars
  )


def tree_bytes(tree) -> int:
  """Returns the bytes of the arrays (or shapes) in `tree`."""
  return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def chunk_size(num_rows: int, bytes_per_row: int) -> int:
  """Returns how many rows to treat at once: even chunks within CHUNK_BYTES."""
  fitting = max(1, CHUNK_BYTES // bytes_per_row)
  num_chunks = -(-num_rows // fitting)
  return -(-num_rows // num_chunks)


def models_at_once(num_models: int, bytes_per_model: int) -> int:
  """Returns how many models to run at once.

  One that fills a processor's cache keeps its cores busy, too: more of them
  would only wait for memory.
  """
  if jax.default_backend() == "cpu" and bytes_per_model > CACHE_BYTES:
    return 1
  return chunk_size(num_models, bytes_per_model)
