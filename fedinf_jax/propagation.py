"""Σ_k a_{r,k} (ε_r − P_k ε_r) of low-rank propagators, as large products.

With G the rows of all steps of one participant stacked, D their factors and L
the part of GGᵀ strictly below its diagonal blocks (a block is a step),

    Π_i (I − G_iᵀ D_i G_i) = I − Gᵀ (I + D L)⁻¹ D G,

so that with u = Gε and c = (I + DL)⁻¹ D u what is lost of ε is Gᵀc, and
‖P_kε‖² − ‖ε‖² = cᵀGGᵀc − 2uᵀc. Participants' rows share one pair of products.
"""

from collections.abc import Callable
import functools

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import curvature

_einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)

# (gain [R, b], block) -> which participants' terms to keep, bool [R, b].
Keep = Callable[[jax.Array, tuple[int, ...]], jax.Array]


def rows_lost(
  report: curvature.Rows,
  eps: list[jax.Array],
  shares: jax.Array,
  blocks: list[tuple[int, ...]],
  keep: Keep | None = None,
  base: jax.Array | None = None,
  hits: jax.Array | None = None,
) -> list[jax.Array]:
  """Returns Σ_k a_{r,k} (ε_r − P_k ε_r) over b participants.

  Args:
    report: their reports, rows with leaves [b, M, S, P_j].
    eps: ε, leaves [R, P_j].
    shares: a_{r,k}, [R, b].
    blocks: which layers belong together.
    keep: decides which terms count, once it knows how each of them grows.
    base: [b], the share of participants in a removal that none of them is in.
    hits: int [H], the removals with other shares than `base`, filled up with R.

  Returns:
    Leaves [R, P_j].
  """
  lost = [None] * len(eps)
  rows = jax.tree.leaves(report.rows)
  for block in blocks:
    g = [
      rows[j].reshape(rows[j].shape[0], -1, rows[j].shape[-1]) for j in block
    ]
    e = [eps[j] for j in block]
    b, n, _ = g[0].shape
    gram = sum(_einsum("kqp,ksp->kqs", a, a) for a in g)
    factor = None
    if report.factor is not None:
      factor = report.factor.reshape(b, n)
    solve = functools.partial(_solve, gram, factor, rows[block[0]].shape[2])
    direct = functools.partial(
      _direct, g, gram, solve, keep and functools.partial(keep, block=block)
    )
    if keep is None and hits is not None and _explicit_is_cheaper(g, e, hits):
      out = _explicit(g, solve, e, base)
      own = direct([a[hits] for a in e], shares[hits])
      out = [
        a.at[hits].set(c, mode="drop") for a, c in zip(out, own, strict=True)
      ]
    else:
      out = direct(e, shares)
    for j, a in zip(block, out, strict=True):
      lost[j] = a
  return lost


def is_compact(report: curvature.Rows, num_removals: int) -> bool:
  """Says whether the form above is worth its Gram matrices.

  They cost 2n²P of n rows a participant, the products 4nPR: from n = R on, the
  step-by-step recursion is the better choice.
  """
  _, steps, rows, _ = jax.tree.leaves(report.rows)[0].shape
  return steps * rows <= num_removals


def _solve(gram, factor, step_rows, u):
  """Returns c = (I + D L)⁻¹ D u for u [b, n, R], step after step.

  c_i = D_i (u_i − Σ_{j<i} G_i G_jᵀ c_j): the σ recursion, in the space of rows.
  """
  b, n, width = u.shape
  steps = n // step_rows
  split = lambda a: jnp.moveaxis(a.reshape(b, steps, step_rows, -1), 1, 0)

  def forward(c, step):
    i, gram_i, u_i, factor_i = step
    c_i = u_i - _einsum("kqs,ksr->kqr", gram_i, c)  # Later rows of c are zero.
    if factor_i is not None:
      c_i = factor_i * c_i
    return lax.dynamic_update_slice_in_dim(c, c_i, i * step_rows, 1), None

  inputs = (
    jnp.arange(steps),
    split(gram),
    split(u),
    None if factor is None else split(factor),
  )
  return lax.scan(forward, jnp.zeros((b, n, width), u.dtype), inputs)[0]


def _direct(g, gram, solve, keep, e, shares):
  """All rows on ε: 4 Q P R operations."""
  u = sum(_einsum("kqp,rp->kqr", a, b) for a, b in zip(g, e, strict=True))
  c = solve(u)
  if keep is not None:
    gain = (c * (_einsum("kqs,ksr->kqr", gram, c) - 2 * u)).sum(1).T  # [R, b]
    shares = jnp.where(keep(gain), shares, 0)
  c = c * shares.T[:, None, :]
  return [_einsum("kqr,kqp->rp", c, a) for a in g]


def _explicit(g, solve, e, base):
  """M itself, P × P, for the removals that share it: no rows on ε at all."""
  widths = [a.shape[2] for a in g]
  ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
  g, e = jnp.concatenate(g, axis=2), jnp.concatenate(e, axis=1)
  lost = _einsum("kqp,kqs->ps", g * base[:, None, None], solve(g))
  return jnp.split(_einsum("rs,ps->rp", e, lost), ends, axis=1)


def _explicit_is_cheaper(g, e, hits):
  """Counts operations, for R removals of which H have weights of their own."""
  b, n, _ = g[0].shape
  p = sum(a.shape[2] for a in g)
  direct = lambda r: b * n * (4 * p + n) * r
  explicit = b * n * (n * p + 2 * p * p) + 2 * p * p * e[0].shape[0]
  return explicit + direct(len(hits)) < direct(e[0].shape[0])
