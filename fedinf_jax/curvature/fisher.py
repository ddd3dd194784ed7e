"""The paper's approximation of the Hessian (Section 4.2): sampled gradients."""

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax.curvature import rows
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import low_rank


def fisher(
  *,
  num_samples: int = 50,
  labels: str = "observed",
  layerwise: bool = True,
  rank: int | None = None,
  spectrum: str | None = None,
) -> wall.Curvature:
  """Makes the paper's approximation H ≈ (1/S) Σ g gᵀ and its σ recursion.

      σ ← σ − (η/S_k) Σ_z g(w_{t,i}^k, z) (g(w_{t,i}^k, z)ᵀ σ),  i = 0 … m-1

  Args:
    num_samples: N_s; a step uploads S_k = min(N_s, its examples) gradients,
      drawn without replacement.
    labels: "observed", or "sampled" from the model's own predictions, which
      makes the mean an unbiased estimate of the Gauss–Newton matrix.
    layerwise: each layer for itself, or gradients as whole vectors.
    rank: upload only the best factor of this rank, for each step (and layer).
    spectrum: "clip", "relu", "exp" or "implicit": f(ηs) in place of 1 − ηs on
      the eigenvalues s of each step's matrix, so that nothing ever grows.
  """
  checks.one_of("labels", labels, ("observed", "sampled"))
  checks.positive_integer("num_samples", num_samples)
  rows.check_options(rank, spectrum)

  def check(setup):
    setup.descent.require_plain("spectrum", spectrum)
    if labels == "sampled" and setup.model.sample is None:
      raise ValueError(
        'fisher(labels="sampled") draws labels from the model, which has no'
        " `sample`; give it one (jax.random.categorical for classifiers), or"
        ' take labels="observed"'
      )

  def report(setup, client):
    check(setup)
    num_layers = len(jax.tree.leaves(client.iterates))
    blocks = tree.layer_blocks(num_layers, layerwise=layerwise)

    def step(inputs):
      gradients = _sampled_gradients(setup, client, inputs, num_samples, labels)
      if rank is None and spectrum is None:
        return gradients
      leaves, treedef = jax.tree.flatten(gradients)
      leaves = rows.reshape_spectrum(leaves, blocks, rank, spectrum)
      return treedef.unflatten(leaves)

    steps = jnp.arange(setup.fed.local_steps), client.iterates
    # All steps at once: collected one by one, they would be held twice.
    return low_rank.Rows(jax.vmap(step)(steps), None)

  # The gradients themselves are the same with and without layers.
  shape = (layerwise, rank, spectrum) if rank or spectrum else ()
  return rows.curvature(
    name="fisher",
    key=wall.key("fisher", num_samples, labels, *shape),
    layerwise=layerwise,
    spectrum=spectrum,
    report=report,
    check=check,
    sampled=True,
  )


def _sampled_gradients(setup, client, step, num_samples, labels):
  """Returns √(η/S_k) g of one step's sampled examples: leaves [S, P_j]."""
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
