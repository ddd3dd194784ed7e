"""How much memory a computation takes, and how large chunks may be."""

import os
from typing import Any

import jax

from fedinf_jax import tree

CHUNK_BYTES = 512 * 2**20  # What the temporaries of one chunk may take.
CACHE_BYTES = 16 * 2**20  # About a processor's share of its last cache.
UPLOAD_BYTES = 2**30  # What uploads held at once may take.


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


def gradient_bytes(model, params, examples) -> int:
  """Bounds the temporaries of one gradient of the mean loss.

  Args:
    model: whose loss it is.
    params: its parameters, or their shapes.
    examples: (x [N, ...], y [N, ...]), or their shapes.
  """
  loss = lambda w, x, y: model.loss(model.apply(w, x), y).mean()
  return intermediate_bytes(jax.grad(loss), params, *examples)


def compiled_bytes(compiled: jax.stages.Compiled) -> int:
  """Returns what a compiled program needs; what is donated counts once."""
  needs: Any = compiled.memory_analysis()
  # The CPU's own peak leaves temporaries out.
  return (
    needs.argument_size_in_bytes
    + needs.output_size_in_bytes
    - needs.alias_size_in_bytes
    + needs.temp_size_in_bytes
  )


def require(what: str, bytes_: int):
  """Refuses what this machine's memory could never hold.

  Args:
    what: needs it, in words.
    bytes_: at least.

  Raises:
    ValueError: with both numbers.
  """
  try:
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
  except (AttributeError, ValueError, OSError):  # Not every system says.
    return
  if bytes_ > there:
    raise ValueError(
      f"{what} would need {bytes_:,} bytes of memory or more; this machine has"
      f" {there:,}"
    )


def tree_bytes(arrays) -> int:
  """Returns the bytes of a pytree of arrays, or of shapes."""
  return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(arrays))


def chunk_size(num_rows: int, bytes_per_row: int) -> int:
  """Returns how many rows to treat at once: even chunks within CHUNK_BYTES."""
  fitting = max(1, CHUNK_BYTES // bytes_per_row)
  num_chunks = -(-num_rows // fitting)
  return -(-num_rows // num_chunks)


def uploads_at_once(upload_bytes: int) -> int:
  """Returns how many participants' uploads are held at once."""
  return max(1, UPLOAD_BYTES // max(1, upload_bytes))


def models_at_once(num_models: int, bytes_per_model: int) -> int:
  """Returns how many models to run at once.

  One that fills a processor's cache keeps its cores busy, too: more of them
  would only wait for memory.
  """
  if jax.default_backend() == "cpu" and bytes_per_model > CACHE_BYTES:
    return 1
  return chunk_size(num_models, bytes_per_model)


def map_models(function, rows, bytes_per_model: int):
  """Maps `function` over models (leaves [R, ...]), as many at once as fit."""
  num_models = jax.tree.leaves(rows)[0].shape[0]
  return tree.map_rows(
    function, rows, models_at_once(num_models, bytes_per_model)
  )
