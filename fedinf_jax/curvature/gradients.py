"""Gradients of single examples, as a client samples them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedinf_jax import fedavg
from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.curvature import wall


class Options(NamedTuple):
  """What `fisher` was made with, for those who use its gradients."""

  labels: str
  spectrum: str | None
  rank: int | None


def sampled(
  setup: wall.Setup,
  client: wall.Client,
  step: tuple[jax.Array, types.Params],
  num_samples: int,
  labels: str,
) -> types.Params:
  """Returns √(η/S_k) g of one step's sampled examples: leaves [S, P_j].

  Args:
    setup: what clients know.
    client: whose examples they are.
    step: number of the local step, and its iterate w.
    num_samples: S_k is the smaller of it and the step's examples.
    labels: "observed" or "sampled".
  """
  i, w = step
  model = setup.model
  size = min(num_samples, setup.max_examples)
  x, y, own = fedavg.batch(setup.fed, client.examples, client.draws, i)
  limit = own.shape[0]
  key = client.draws.key(rng.Stream.EXAMPLES, i)
  index, valid = rng.choose(key, own.sum(), size=min(size, limit), limit=limit)
  chosen = jnp.argmax(own) + index
  x, y = x[chosen], y[chosen]
  if labels == "sampled":
    key = client.draws.key(rng.Stream.LABELS, i)
    # A key per slot: the draw must not depend on how many slots follow.
    draw = lambda slot, out: model.sample(
      jax.random.fold_in(key, slot), out[None]
    )[0]
    y = jax.vmap(draw)(jnp.arange(len(index)), model.apply(w, x))
  loss = lambda w, x, y: model.loss(model.apply(w, x[None]), y[None])[0]
  g = jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)

  def scaled(a):
    share = (setup.descent.eta or 1.0) / jnp.maximum(valid.sum(), 1)
    scale = jnp.where(valid, jnp.sqrt(share), 0).astype(a.dtype)
    rows = a.reshape(a.shape[0], -1) * scale[:, None]
    return jnp.pad(rows, ((0, size - len(rows)), (0, 0)))

  return jax.tree.map(scaled, g)
