"""Gradients of single examples, as a client samples them."""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import fedavg
from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.curvature import dense_layers
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
) -> dense_layers.PerExample:
  """Returns √(η/S_k) g of one step's sampled examples, zero behind the S_k.

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
  share = (setup.descent.eta or 1.0) / jnp.maximum(valid.sum(), 1)
  g = g.scaled(jnp.where(valid, jnp.sqrt(share), 0))
  pad = lambda a: jnp.pad(a, ((0, size - len(a)), (0, 0)))
  return jax.tree.map(pad, g)


def of_each(
  setup: wall.Setup,
  draws: rng.Draws,
  step: tuple[jax.Array, types.Params],
  examples: tuple[jax.Array, jax.Array],
  options: Options,
) -> dense_layers.PerExample:
  """Returns the gradient of every example.

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
  model = setup.model
  loss = lambda out, y: model.loss(out[None], y[None])[0]
  if options.labels == "observed":
    return dense_layers.gradients(model.apply, loss, w, (x, y))
  key = draws.key(rng.Stream.LABELS, i)
  # A key per slot: the draw must not depend on how many slots follow.
  slots = jnp.arange(len(x))
  keys = jax.vmap(lambda slot: jax.random.fold_in(key, slot))(slots)

  def sampled_loss(out, key):
    labels, weights = _labels(model, key, lax.stop_gradient(out), options)
    losses = jax.vmap(loss, (None, 0))(out, labels)
    return (losses * weights).sum()

  return dense_layers.gradients(model.apply, sampled_loss, w, (x, keys))


def _labels(model, key, output, options):
  """Draws J labels of one example, and a weight ±1/√J for each."""
  count = options.label_draws
  sample = lambda key: model.sample(key, output[None])[0]
  if count == 1:
    return sample(key)[None], jnp.ones(1, output.dtype)
  *keys, sign_key = jax.random.split(key, count + 1)
  signs = jax.random.rademacher(sign_key, (count,), output.dtype)
  labels = jax.vmap(sample)(jnp.stack(keys))
  return labels, signs / jnp.sqrt(count).astype(output.dtype)
