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

  labels: str  # "observed" or "sampled"
  label_draws: int  # J, labels drawn per example
  spectrum: str | None
  rank: int | None


def sampled(
  setup: wall.Setup,
  client: wall.Client,
  step: tuple[jax.Array, types.Params],
  num_samples: int,
  options: Options,
) -> types.Params:
  """Returns √(η/S_k) g of one step's sampled examples: leaves [S, P_j].

  Args:
    setup: what clients know.
    client: whose examples they are.
    step: number of the local step, and its iterate w.
    num_samples: S_k is the smaller of it and the step's examples.
    options: which labels.
  """
  i, _ = step
  size = min(num_samples, setup.max_examples)
  x, y, own = fedavg.batch(setup.fed, client.examples, client.draws, i)
  limit = own.shape[0]
  key = client.draws.key(rng.Stream.EXAMPLES, i)
  index, valid = rng.choose(key, own.sum(), size=min(size, limit), limit=limit)
  chosen = jnp.argmax(own) + index
  g = of_each(setup, client.draws, step, (x[chosen], y[chosen]), options)

  def scaled(rows):
    share = (setup.descent.eta or 1.0) / jnp.maximum(valid.sum(), 1)
    scale = jnp.where(valid, jnp.sqrt(share), 0).astype(rows.dtype)
    return jnp.pad(rows * scale[:, None], ((0, size - len(rows)), (0, 0)))

  return jax.tree.map(scaled, g)


def of_each(
  setup: wall.Setup,
  draws: rng.Draws,
  step: tuple[jax.Array, types.Params],
  examples: tuple[jax.Array, jax.Array],
  options: Options,
) -> types.Params:
  """Returns the gradient of every example, leaves [S, P_j].

  With J sampled labels it is Σ_j ± g(w, x, y_j) / √J with random signs: its
  outer product has the same mean for any J, and varies less the larger J is.

  Args:
    setup: what clients know.
    draws: whose labels are drawn.
    step: number of the local step, and its iterate w.
    examples: x [S, ...] and y [S, ...].
    options: which labels.
  """
  (i, w), (x, y) = step, examples
  model, count = setup.model, options.label_draws
  loss = lambda w, x, y: model.loss(model.apply(w, x[None]), y[None])[0]
  if options.labels == "sampled":
    key = draws.key(rng.Stream.LABELS, i)
    # A key per slot: the draw must not depend on how many slots follow.
    keys = jax.vmap(lambda slot: jax.random.fold_in(key, slot))(
      jnp.arange(len(x))
    )
    sample = lambda key, out: model.sample(key, out[None])[0]
    outputs = model.apply(w, x)
    if count == 1:
      y = jax.vmap(sample)(keys, outputs)
    else:
      several = lambda key, out: _several_labels(sample, key, out, count)
      y = jax.vmap(several)(keys, outputs)
      loss = lambda w, x, y: _signed_loss(model, w, x, *y)
  g = jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)
  return jax.tree.map(lambda a: a.reshape(len(x), -1), g)


def _several_labels(sample, key, output, count):
  """Draws labels of one example, and a weight ±1/√J for each."""
  *keys, sign_key = jax.random.split(key, count + 1)
  signs = jax.random.rademacher(sign_key, (count,), output.dtype)
  labels = jax.vmap(sample, (0, None))(jnp.stack(keys), output)
  return labels, signs / jnp.sqrt(count).astype(output.dtype)


def _signed_loss(model, w, x, labels, weights):
  """Returns the weighted sum of one example's losses with several labels."""
  outputs = model.apply(w, x[None])
  losses = jax.vmap(lambda y: model.loss(outputs, y[None])[0])(labels)
  return (losses * weights).sum()
