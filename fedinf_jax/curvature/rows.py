"""Reports of low rank: rows of gradients or eigenvectors, and their spectra."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import tree
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import lanczos
from fedinf_jax.linalg import low_rank

# 1 − f(x) of the spectra: what a step takes away along an eigenvector whose
# eigenvalue is x = ηs. None is gradient descent itself, f = 1 − x. Negative
# curvature would expand; the others leave it alone.
SPECTRA = {
  None: lambda x: x,
  "clip": lambda x: jnp.clip(x, 0, 2),
  "relu": lambda x: jnp.clip(x, 0, 1),
  "exp": lambda x: -jnp.expm1(-jnp.maximum(x, 0)),
  "implicit": lambda x: jnp.maximum(x, 0) / (1 + jnp.maximum(x, 0)),
}


def curvature(*, layerwise: bool, **fields: Any) -> wall.Curvature:
  """Makes a curvature whose reports are `low_rank.Rows`.

  Args:
    layerwise: each layer for itself, or rows as whole vectors.
    **fields: the other fields of `Curvature`.
  """
  lost = _lost(layerwise)
  return wall.Curvature(
    layerwise=layerwise,
    lost=lost,
    absorb=_absorb(lost, layerwise),
    prepare=_prepare(layerwise),
    **fields,
  )


def check_options(rank: int | None, spectrum: str | None):
  """Checks options that `fisher` and `lowrank_hessian` have in common."""
  if rank is not None:
    checks.positive_integer("rank", rank)
  checks.one_of("spectrum", spectrum, SPECTRA)


def reshape_spectrum(
  rows: list[jax.Array],
  blocks: list[tuple[int, ...]],
  rank: int | None,
  spectrum: str | None,
) -> list[jax.Array]:
  """Rotates each block's rows to its eigenvectors, by its S × S Gram matrix.

  With GGᵀ = U diag(x) Uᵀ the rows √((1 − f(x))/x) Uᵀ G have I − G'ᵀG' act as
  f(x) on each eigenvector; the last `rank` of them are the best factor.

  Args:
    rows: G of one step, [S, P_j] per layer.
    blocks: which layers belong together.
    rank: how many rows to keep; None: all.
    spectrum: f, a name of SPECTRA.
  """
  out = list(rows)
  for block in blocks:
    gram = sum(low_rank.matmul(rows[j], rows[j].T) for j in block)
    x, u = lanczos.eigh(gram)
    tiny = jnp.finfo(x.dtype).tiny
    weight = jnp.where(x > tiny, SPECTRA[spectrum](x) / jnp.maximum(x, tiny), 1)
    rotation = (u * jnp.sqrt(weight)[None]).T
    for j in block:
      keep = len(x)
      if rank is not None:
        alone = rows[j].shape[1] if len(block) == 1 else keep
        keep = min(rank, keep, alone)
      out[j] = low_rank.matmul(rotation[-keep:], rows[j])
  return out


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
      return treedef.unflatten(out)

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
