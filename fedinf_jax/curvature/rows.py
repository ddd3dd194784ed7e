"""Reports of low rank: rows of gradients or eigenvectors, and their spectra."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import dense_layers
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import lanczos
from fedinf_jax.linalg import low_rank
from fedinf_jax.linalg import spectra

SLACK = 1e-3  # What rounding may add to the bound of a spectrum.


def curvature(
  *,
  layerwise: bool,
  spectrum: str | None,
  num_steps: int | None = None,
  **fields: Any,
) -> wall.Curvature:
  """Makes a curvature whose reports are `low_rank.Rows`.

  Args:
    layerwise: each layer for itself, or rows as whole vectors.
    spectrum: a name of `spectra.SPECTRA`.
    num_steps: steps in a report; None: as many as local training has.
    **fields: the other fields of `Curvature`.
  """
  lost = _lost(layerwise)
  if spectra.BOUNDS[spectrum] is not None:
    fields["restrain"] = _restrain(layerwise, spectra.BOUNDS[spectrum])
  return wall.Curvature(
    layerwise=layerwise,
    lost=lost,
    absorb=_absorb(lost, layerwise),
    prepare=_prepare(layerwise),
    check_report=_check_report(num_steps),
    **fields,
  )


def check_options(rank: int | None, spectrum: str | None):
  """Checks options that `fisher` and `lowrank_hessian` have in common."""
  if rank is not None:
    checks.positive_integer("rank", rank)
  checks.one_of("spectrum", spectrum, spectra.SPECTRA)


def reshape_spectrum(
  gradients: dense_layers.PerExample,
  blocks: list[tuple[int, ...]],
  rank: int | None,
  spectrum: str | None,
  power: int = 1,
) -> types.Params:
  """Rotates each block's rows to its eigenvectors, by its S × S Gram matrix.

  With GGᵀ = U diag(x) Uᵀ the rows √((1 − f(x))/x) Uᵀ G have I − G'ᵀG' act as
  f(x) on each eigenvector; the last `rank` of them are the best factor.

  Args:
    gradients: G of one step.
    blocks: which layers belong together.
    rank: how many rows to keep; None: all.
    spectrum: f, a name of `spectra.SPECTRA`.
    power: the step is taken that many times: f^power in place of f.
  """
  rows, treedef = jax.tree.flatten(gradients.rows)
  out = list(rows)
  for block in blocks:
    gram = dense_layers.products(gradients, gradients, block)
    x, u = lanczos.eigh(gram)
    weight = spectra.ratio(x, spectrum, power)
    rotation = (u * jnp.sqrt(weight)[None]).T
    for j in block:
      keep = len(x)
      if rank is not None:
        alone = rows[j].shape[1] if len(block) == 1 else keep
        keep = min(rank, keep, alone)
      out[j] = low_rank.matmul(rotation[-keep:], rows[j])
  return jax.tree.unflatten(treedef, out)


def _check_report(num_steps) -> Callable:
  """Builds `Curvature.check_report`."""

  def check_report(descent, report, num_participants, eps):
    if not isinstance(report, low_rank.Rows):
      raise ValueError(
        f"report: it is {type(report).__name__}; it must be low_rank.Rows"
      )
    steps = num_steps or descent.fed.local_steps
    shape_of = lambda e: (num_participants, steps, None, e[0].size)
    wall.require_leaves("rows", report.rows, eps, shape_of)
    if report.factor is not None:
      count = jax.tree.leaves(report.rows)[0].shape[2]
      shape = num_participants, steps, count
      wall.require_shape("factor", report.factor, shape)

  return check_report


def _restrain(layerwise, bound) -> Callable:
  """Builds `Curvature.restrain`: λ_max(D½GGᵀD½) <= bound, step by step.

  Clients apply the spectrum themselves, so a server that trusts it could be
  made to blow up everyone's ε by one report. An honest report stays as it is,
  to the last digit.
  """

  def restrain(report):
    leaves, treedef = jax.tree.flatten(report.rows)
    scale: list[Any] = [None] * len(leaves)
    factor = report.factor
    if factor is not None:
      factor = jnp.maximum(factor, 0)  # Negative curvature would expand.
    blocks = tree.layer_blocks(len(leaves), layerwise=layerwise)
    for block in blocks:
      gram = sum(
        low_rank.einsum("kmsp,kmtp->kmst", leaves[j], leaves[j]) for j in block
      )
      if factor is not None:
        root = jnp.sqrt(factor)
        gram = root[..., :, None] * gram * root[..., None, :]
      # A bound of the largest eigenvalue from above: Gershgorin's.
      largest = jnp.abs(gram).sum(-1).max(-1)  # [b, M]
      ratio = jnp.sqrt(bound / jnp.where(largest > 0, largest, bound))
      shrunk = jnp.where(largest > bound * (1 + SLACK), ratio, 1)
      for j in block:
        scale[j] = shrunk
    rows = [a * s[..., None, None] for a, s in zip(leaves, scale, strict=True)]
    excess = jnp.stack([(s < 1).any(1) for s in scale]).any(0)
    if factor is not None:
      excess = excess | (factor != report.factor).any((1, 2))
    return low_rank.Rows(jax.tree.unflatten(treedef, rows), factor), excess

  return restrain


def _lost(layerwise) -> Callable:
  """Builds the σ recursion, step by step."""

  def lost(descent, report, eps):
    leaves, treedef = jax.tree.flatten(eps)
    blocks = tree.layer_blocks(len(leaves), layerwise=layerwise)

    def apply(step, sigma):
      out = [None] * len(leaves)
      rows = jax.tree.leaves(step.rows)
      sigma = [a.reshape(a.shape[0], -1) for a in jax.tree.leaves(sigma)]
      for block in blocks:
        u = sum(low_rank.matmul(sigma[j], rows[j].T) for j in block)  # [R, S]
        if step.factor is not None:
          u = u * step.factor[None]
        for j in block:
          out[j] = low_rank.matmul(u, rows[j]).reshape(leaves[j].shape)
      return jax.tree.unflatten(treedef, out)

    return descents.lost(descent, apply, report, eps)

  return lost


def _prepare(layerwise) -> Callable:
  """Builds `Curvature.prepare`: Gram matrices, where they pay."""

  def prepare(descent, report, num_removals, *, fine, hits):
    if descent.eta is None:
      return None
    num_layers = len(jax.tree.leaves(report.rows))
    blocks = tree.layer_blocks(num_layers, layerwise=layerwise)
    if not low_rank.is_compact(
      report, blocks, num_removals, whole=fine, hits=hits
    ):
      return None
    return low_rank.gram_matrices(report, blocks, whole=fine)

  return prepare


def _absorb(lost_of, layerwise) -> Callable:
  """Builds `Curvature.absorb`: large products, or the recursion if cheaper."""
  recursion = wall.one_by_one(lost_of, layerwise=layerwise)
  prepare = _prepare(layerwise)

  def absorb(descent, report, eps, lost, attendance, examiner, prepared):
    if prepared is None:
      prepared = prepare(
        descent,
        report,
        len(attendance.shares),
        fine=examiner is not None,
        hits=attendance.hits,
      )
    if prepared is None:
      return recursion(descent, report, eps, lost, attendance, examiner, None)
    blocks = tree.layer_blocks(len(jax.tree.leaves(eps)), layerwise=layerwise)
    return low_rank.absorb(
      report, prepared, blocks, eps, lost, attendance, examiner
    )

  return absorb
