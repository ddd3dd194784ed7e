"""The paper's approximation of the Hessian (Section 4.2): sampled gradients."""

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import tree
from fedinf_jax.curvature import gradients
from fedinf_jax.curvature import rows
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import low_rank


def fisher(
  *,
  num_samples: int = 50,
  labels: str = "observed",
  label_draws: int = 1,
  layerwise: bool = True,
  rank: int | None = None,
  spectrum: str | None = None,
  per: str = "step",
) -> wall.Curvature:
  """Makes the paper's approximation H ≈ (1/S) Σ g gᵀ and its σ recursion.

      σ ← σ − (η/S_k) Σ_z g(w_{t,i}^k, z) (g(w_{t,i}^k, z)ᵀ σ),  i = 0 … m-1

  Args:
    num_samples: N_s; a step uploads S_k = min(N_s, its examples) gradients,
      drawn without replacement.
    labels: "observed", or "sampled" from the model's own predictions, which
      makes the mean an unbiased estimate of the Gauss–Newton matrix.
    label_draws: labels sampled per example. Their gradients are summed with
      random signs: one row as ever, and a less noisy estimate.
    layerwise: each layer for itself, or gradients as whole vectors.
    rank: upload only the best factor of this rank, for each step (and layer).
    spectrum: "clip", "relu", "exp" or "implicit": f(ηs) in place of 1 − ηs on
      the eigenvalues s of each step's matrix, so that nothing ever grows.
    per: "step", or "round": the gradients of the first step serve for all m, as
      f(ηs)^m.

  Examples:
    >>> made = fi.estimator(fi.fisher(num_samples=5), fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)  # 2 steps, 5 rows of 15.
    600
  """
  checks.one_of("labels", labels, ("observed", "sampled"))
  checks.positive_integer("num_samples", num_samples)
  checks.positive_integer("label_draws", label_draws)
  if label_draws > 1 and labels != "sampled":
    raise ValueError(
      f'label_draws is {label_draws}, which needs labels="sampled"; an example'
      " has one observed label"
    )
  checks.boolean("layerwise", layerwise)
  rows.check_options(rank, spectrum)
  checks.one_of("per", per, ("step", "round"))
  options = gradients.Options(labels, label_draws, spectrum, rank)

  def check(setup):
    setup.descent.require_plain("spectrum", spectrum)
    setup.descent.require_plain("per", None if per == "step" else per)
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

    power = setup.fed.local_steps if per == "round" else 1

    def step(inputs):
      sampled = gradients.sampled(setup, client, inputs, num_samples, options)
      if rank is None and spectrum is None and power == 1:
        return sampled.rows
      return rows.reshape_spectrum(sampled, blocks, rank, spectrum, power)

    count = 1 if per == "round" else setup.fed.local_steps
    first = jax.tree.map(lambda a: a[:count], client.iterates)
    steps = jnp.arange(count), first
    # All steps at once: collected one by one, they would be held twice.
    return low_rank.Rows(jax.vmap(step)(steps), None)

  # The gradients themselves are the same with and without layers.
  shape: tuple = ()
  if rank or spectrum or per == "round":
    shape = layerwise, rank, spectrum, per
  return rows.curvature(
    name="fisher",
    key=wall.key("fisher", num_samples, labels, label_draws, *shape),
    layerwise=layerwise,
    spectrum=spectrum,
    num_steps=1 if per == "round" else None,
    first_step_only=per == "round",
    num_samples=num_samples,
    options=options,
    report=report,
    check=check,
    sampled=True,
  )
