"""A metric at models that differ from the trained one, many of them."""

import functools

import jax
from jax import flatten_util
import jax.numpy as jnp

from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import tree
from fedinf_jax.simulation import devices


def influence(model, params, rows, metric, examples, *, basis=None):
  """Returns F(w + ε) − F(w) for many ε.

  Args:
    model: whose outputs are measured.
    params: w.
    rows: ε, leaves [R, ...]; or with a basis, [R, D]. On several devices, R is
      a multiple of their number.
    metric: (outputs, y) -> array; `metrics.loss` is the model's own.
    examples: (x [N, ...], y [N, ...]), checked.
    basis: [D, P], what rows are multiplied by to give ε; None: nothing.

  Returns:
    [R, ...].
  """
  mesh = devices.mesh_of(rows)
  x, y = devices.put(mesh, examples, devices.REPLICATED)
  without, present, moved = scores(
    params,
    rows,
    basis,
    x,
    y,
    model=model,
    metric=metric,
    chunk=_models_at_once(model, params, rows, x),
    mesh=mesh,
  )
  # Out here because a fused difference would be one of unrounded values. An ε
  # of zero has no influence, whatever a batched product rounds to.
  keep = moved.reshape(-1, *[1] * (without.ndim - 1))
  return jnp.where(keep, without - present[None], 0)


def _models_at_once(model, params, rows, x):
  """Returns how many removals a device evaluates together."""
  if jax.default_backend() == "cpu":
    # Batched, the time was quadratic in the removals: XLA seems to add w + ε
    # within the product, once for each output.
    return 1
  per_model = memory.intermediate_bytes(model.apply, params, x)
  per_model += memory.tree_bytes(params)
  num_models = jax.tree.leaves(rows)[0].shape[0]
  num_devices = devices.num_devices(devices.mesh_of(rows))
  return memory.chunk_size(num_models // num_devices, per_model)


@functools.partial(
  jax.jit, static_argnames=("model", "metric", "chunk", "mesh")
)
def scores(params, rows, basis, x, y, *, model, metric, chunk, mesh):
  """Returns F(w + ε) of every removal, F(w), and which ε are not zero."""
  metric = metrics.of_model(metric, model)

  def on_device(rows, basis, params, x, y):
    score = lambda w: metric(model.apply(w, x), y)
    unravel = flatten_util.ravel_pytree(params)[1]

    def without(row):
      eps = row if basis is None else unravel(row @ basis)
      return score(jax.tree.map(jnp.add, params, eps))

    moves = [
      (a != 0).reshape(a.shape[0], -1).any(1) for a in jax.tree.leaves(rows)
    ]
    moved = functools.reduce(jnp.logical_or, moves)
    return tree.map_rows(without, rows, chunk), score(params), moved

  everywhere, split = devices.REPLICATED, devices.SPLIT
  with jax.default_matmul_precision("highest"):
    found = devices.per_device(
      on_device,
      mesh,
      devices.ALL,
      (split, everywhere, everywhere, everywhere, everywhere),
      (split, everywhere, split),
    )(rows, basis, params, x, y)
  return devices.constrain(mesh, found, everywhere)
