"""Uploads that are clipped and noised on the client, and what that guarantees.

A participant takes the gradients of its S_k sampled examples at w_{t-1}, the
model that it was sent, clips each as one vector to norm C, and adds Gaussian
noise of standard deviation z · 2C to every number. What follows (the rotation
to a gentler spectrum) sees noised rows only.

What is guaranteed, (ε, δ), is about the reports of one client, for any fixed
sequence of the models that it was sent. Two sets of examples are neighbours if
one example was replaced by another. The number of examples n_k is public, which
ones are sampled depends on n_k and the round alone, and so at most one row of a
report differs, by at most 2C. Nothing is won by the sampling: who knows the
seed, and the server does, knows the draws. Later local steps start from models
that depend on all examples: they are not reported.

The guarantee says nothing about the local models that FedAvg sends. And it
holds for noise that nobody knows: here it is drawn from the run's seed, as
everything in a simulation; a deployment must draw it from a secret.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import dense_layers
from fedinf_jax.curvature import gradients
from fedinf_jax.curvature import rows
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import lanczos
from fedinf_jax.linalg import low_rank

NOISE = 0x9015E  # Sets the key of noise apart from that of its examples.


class Mechanism(NamedTuple):
  """How rows are made private."""

  clip: float  # C, bound of a gradient's norm; inf: none
  multiplier: float  # z: noise of z · 2C in every number; 0: none

  @property
  def deviation(self) -> float:
    """The noise's standard deviation in the units of a gradient."""
    return self.multiplier * 2 * self.clip if self.multiplier else 0.0


def clipped(gradients_: types.Params, bound: jax.Array | float) -> types.Params:
  """Scales rows, leaves [S, P_j], down to norm `bound` as whole vectors."""
  leaves = jax.tree.leaves(gradients_)
  norm = jnp.sqrt(sum((a**2).sum(1) for a in leaves))
  factor = jnp.where(norm > bound, bound / jnp.where(norm > 0, norm, 1), 1)
  return jax.tree.map(lambda a: a * factor[:, None], gradients_)


def private_fisher(
  mechanism: Mechanism,
  *,
  num_samples: int = 50,
  labels: str = "observed",
  spectrum: str | None = None,
) -> wall.Curvature:
  """Makes `fi.fisher(layerwise=False, per="round")` of noised gradients.

  Args:
    mechanism: clipping and noise.
    num_samples: N_s.
    labels: "observed" or "sampled".
    spectrum: as in `fi.fisher`. The server knows the noise's size, and so
      what it adds to every eigenvalue is taken away.
  """
  checks.one_of("labels", labels, ("observed", "sampled"))
  options = gradients.Options(labels, 1, spectrum, None)

  def report(setup, client):
    released = release(setup, client, num_samples, options, mechanism)
    blocks = tree.layer_blocks(len(jax.tree.leaves(released)), layerwise=False)
    power = setup.fed.local_steps
    if mechanism.multiplier:
      # The largest eigenvalue of NNᵀ, noise alone (Marchenko and Pastur).
      size = sum(a.shape[1] for a in jax.tree.leaves(released))
      edge = (math.sqrt(size) + math.sqrt(num_samples)) ** 2
      share = _share(setup, client, num_samples)
      released = _shrunk(released, edge * share * mechanism.deviation**2)
    made = dense_layers.plain(released)
    shaped = rows.reshape_spectrum(made, blocks, None, spectrum, power)
    return low_rank.Rows(jax.tree.map(lambda a: a[None], shaped), None)

  return rows.curvature(
    name="private_fisher",
    key=wall.key("private_fisher", *mechanism, num_samples, labels, spectrum),
    layerwise=False,
    spectrum=spectrum,
    num_steps=1,
    first_step_only=True,
    num_samples=num_samples,
    options=options,
    report=report,
    check=lambda setup: setup.descent.require_plain("spectrum", spectrum),
    sampled=True,
  )


def release(
  setup: wall.Setup,
  client: wall.Client,
  num_samples: int,
  options: gradients.Options,
  mechanism: Mechanism,
) -> types.Params:
  """Returns what the guarantee is about: √(η/S_k) (clipped g + noise).

  Rows behind the S_k are zero, and have no noise.
  """
  step = jnp.int32(0), client.start
  made = gradients.sampled(setup, client, step, num_samples, options).rows
  count = jnp.minimum(_examples(setup, client), num_samples)
  key = client.draws.key(rng.Stream.EXAMPLES, 0)
  scale = jnp.sqrt(_share(setup, client, num_samples))
  return privatised(made, mechanism, scale, count, key)


def privatised(
  made: types.Params,
  mechanism: Mechanism,
  scale: jax.Array | float,
  count: jax.Array | int,
  key: jax.Array,
) -> types.Params:
  """Clips rows and adds noise.

  Args:
    made: leaves [S, P_j], gradients times `scale`.
    mechanism: clipping and noise.
    scale: √(η/S_k).
    count: S_k; rows behind have no noise.
    key: of the noise.
  """
  made = clipped(made, mechanism.clip * scale)
  if not mechanism.multiplier:
    return made
  leaves, structure = jax.tree.flatten(made)
  valid = (jnp.arange(len(leaves[0])) < count)[:, None]
  keys = jax.random.split(jax.random.fold_in(key, NOISE), len(leaves))
  deviation = jnp.asarray(scale * mechanism.deviation, leaves[0].dtype)
  noise = lambda k, a: deviation * jax.random.normal(k, a.shape, a.dtype)
  return jax.tree.unflatten(
    structure,
    [a + valid * noise(k, a) for a, k in zip(leaves, keys, strict=True)],
  )


def epsilon(multiplier: float, reports: int, delta: float) -> float:
  """Returns ε of that many reports, by dp-accounting's Rényi accountant.

  Args:
    multiplier: z, the noise's standard deviation over the sensitivity 2C.
    reports: rounds in which the client takes part, at most.
    delta: δ.
  """
  import dp_accounting  # Of this experiment's requirements alone.
  from dp_accounting import rdp

  if not multiplier:
    return float("inf")
  event = dp_accounting.GaussianDpEvent(multiplier)
  accountant = rdp.RdpAccountant()
  accountant.compose(dp_accounting.SelfComposedDpEvent(event, reports))
  return float(accountant.get_epsilon(delta))


def _examples(setup, client):
  """How many examples a local step has."""
  size = setup.fed.batch_size
  count = client.examples.count
  return count if size is None else jnp.minimum(count, size)


def _share(setup, client, num_samples):
  """Returns η/S_k, by which squared gradients are scaled."""
  count = jnp.minimum(_examples(setup, client), num_samples)
  return (setup.descent.eta or 1.0) / jnp.maximum(count, 1)


def _shrunk(made, floor):
  """Takes `floor` from the eigenvalues of GGᵀ, down to 0."""
  leaves = jax.tree.leaves(made)
  gram = sum(low_rank.matmul(a, a.T) for a in leaves)
  x, u = lanczos.eigh(gram)
  kept = jnp.maximum(x - floor, 0) / jnp.where(x > 0, x, 1)
  shrink = low_rank.matmul(u * jnp.sqrt(kept)[None], u.T)
  return jax.tree.map(lambda a: low_rank.matmul(shrink, a), made)
