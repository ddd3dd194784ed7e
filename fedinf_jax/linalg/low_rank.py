"""Σ_k a_{r,k} (ε_r − P_k ε_r) of low-rank propagators, as large products.

With G the rows of all steps of one participant stacked, D their factors and L
the part of GGᵀ strictly below its diagonal blocks (a block is a step),

    Π_i (I − G_iᵀ D_i G_i) = I − Gᵀ (I + D L)⁻¹ D G,

so that with u = Gε and c = (I + DL)⁻¹ D u what is lost of ε is Gᵀc, and
‖P_kε‖² − ‖ε‖² = cᵀGGᵀc − 2uᵀc. Participants' rows share one pair of products.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import memory
from fedinf_jax import tree
from fedinf_jax import types

einsum = functools.partial(jnp.einsum, precision=lax.Precision.HIGHEST)

# An operation of the recursion, whose products have a side of S, costs as much
# as so many here (measured at P = 57,694 and S = 50; BUILD_NOTES.md).
SKINNY = 2
COLUMNS = 4096  # Parameters of a piece of a Gram matrix's sum.


class Rows(NamedTuple):
  """Steps of low rank: step i is I − Σ_s factor_s g_s g_sᵀ.

  With η and 1/S_k in it already (η only for plain gradient descent).
  """

  rows: types.Params  # g, leaves [M, S, P_j]
  factor: jax.Array | None  # [M, S]; None: all ones


# (gain [R, b], block) -> which participants' terms to keep, bool [R, b].
Keep = Callable[..., jax.Array]


def absorb(report, grams, blocks, eps, lost, attendance, examiner):
  """Adds Σ_k a_{r,k} (ε_r − P_k ε_r) over b participants.

  Args:
    report: their reports, rows with leaves [b, M, S, P_j].
    grams: `gram_matrices` of the report; whole ones with an examiner.
    blocks: which layers belong together.
    eps: ε, leaves [R, ...].
    lost: what to add to, leaves [R, ...].
    attendance: weights a_{r,k} [R, b], a_k [b] and hits.
    examiner: drops participants' terms that grow; None: keeps all.

  Returns:
    The sum, leaves [R, ...]; and bool [R, b, L], which terms grew, or None.
  """
  shares, hits = attendance.shares, attendance.hits
  fine = examiner is not None
  per_removal = _removal_bytes(
    report, blocks, len(shares), whole=fine, hits=hits
  )
  chunk = memory.chunk_size(len(shares), per_removal)
  if chunk < len(shares):
    hits = None  # They are places among all removals, not within a chunk.
  square = tree.layer_dots(eps, eps)  # [R, L]
  before = examiner.before if fine else None

  def add(so_far, inputs):
    total, _ = so_far
    eps, square, shares, before = inputs
    leaves, treedef = jax.tree.flatten(eps)
    found: list[Any] = [None] * len(leaves)  # bool [R, b] of each layer

    def keep(gain, block):
      size = sum(square[:, j] for j in block)[:, None]
      for j in block:
        found[j] = examiner.grows(gain, size, shares)
      return ~(found[block[0]] | before[:, :, block[0]])

    flat = [a.reshape(a.shape[0], -1) for a in leaves]
    parts = rows_lost(
      report, grams, flat, shares, blocks,
      keep=keep if fine else None, base=attendance.base, hits=hits,
    )  # fmt: skip
    parts = jax.tree.unflatten(treedef, parts)
    total = jax.tree.map(lambda a, b: a + b.reshape(a.shape), total, parts)
    return total, jnp.stack(found, 2) if fine else None

  grown = None if before is None else jnp.zeros(before.shape, bool)
  inputs = eps, square, shares, before
  return tree.update_rows(add, (lost, grown), inputs, chunk)


def gram_matrices(
  report: Rows, blocks: list[tuple[int, ...]], *, whole: bool
) -> list[jax.Array]:
  """Returns the products of rows with rows that each block needs, [b, q, q].

  Args:
    report: participants' reports, rows with leaves [b, M, S, P_j].
    blocks: which layers belong together.
    whole: GGᵀ; otherwise only later steps with earlier ones: all of L, without
      the first step's rows and the last step's columns.
  """
  skip = 0 if whole else jax.tree.leaves(report.rows)[0].shape[2]
  products = [_gram(a, skip) for a in jax.tree.leaves(report.rows)]
  return [sum(products[j] for j in block) for block in blocks]


def rows_lost(
  report: Rows,
  grams: list[jax.Array],
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
    grams: of the report; whole ones with `keep`.
    eps: ε, leaves [R, P_j].
    shares: a_{r,k}, [R, b].
    blocks: which layers belong together.
    keep: decides which terms count, once it knows how each of them grows.
    base: [b], the share of participants in a removal that none of them is in.
    hits: int [H], the removals with other shares than `base`, padded with R.

  Returns:
    Leaves [R, P_j].
  """
  lost = {}
  rows = jax.tree.leaves(report.rows)
  step_rows = rows[0].shape[2]
  for block, gram in zip(blocks, grams, strict=True):
    g = [rows[j] for j in block]
    e = [eps[j] for j in block]
    factor = None
    if report.factor is not None:
      factor = report.factor.reshape(len(report.factor), -1)
    earlier = gram
    if keep is not None:
      earlier = gram[:, step_rows:, : gram.shape[2] - step_rows]
    solve = functools.partial(_solve, earlier, factor, step_rows)
    direct = functools.partial(
      _direct, g, gram, solve, keep and functools.partial(keep, block=block)
    )
    if keep is None and explicit_is_cheaper(report, block, len(shares), hits):
      out = _explicit(g, solve, e, base)
      own = direct([a[hits] for a in e], shares[hits])
      out = [
        a.at[hits].set(c, mode="drop") for a, c in zip(out, own, strict=True)
      ]
    else:
      out = direct(e, shares)
    for j, a in zip(block, out, strict=True):
      lost[j] = a
  return [lost[j] for j in range(len(eps))]


def is_compact(
  report: Rows,
  blocks: list[tuple[int, ...]],
  num_removals: int,
  *,
  whole: bool,
  hits: jax.Array | None = None,
) -> bool:
  """Tells whether the form above beats the step-by-step recursion.

  Both take 4nPR per participant of n rows for the products with ε. On top come
  Gram matrices and, for each block, the substitution; with few removals those
  outweigh the better shape of the products.
  """
  total = recursion = 0
  for block in blocks:
    b, n, step_rows, p = _sizes(report, block)
    q = n if whole else n - step_rows
    ways = [_direct_operations(report, block, num_removals, whole=whole)]
    if not whole and hits is not None:
      ways.append(_explicit_operations(report, block, num_removals, hits))
    total += b * 2 * q * q * p + min(ways)
    recursion += b * 4 * n * p * num_removals
  return total <= SKINNY * recursion


def explicit_is_cheaper(
  report: Rows,
  block: tuple[int, ...],
  num_removals: int,
  hits: jax.Array | None,
) -> bool:
  """Tells whether to make M itself, P × P, for all removals but the hits."""
  return hits is not None and _explicit_operations(
    report, block, num_removals, hits
  ) < _direct_operations(report, block, num_removals, whole=False)


def _removal_bytes(
  report: Rows,
  blocks: list[tuple[int, ...]],
  num_removals: int,
  *,
  whole: bool,
  hits: jax.Array | None,
) -> int:
  """Bounds the temporaries that one removal adds to `rows_lost`."""
  numbers = 0
  for block in blocks:
    b, n, _, p = _sizes(report, block)
    numbers += p
    if whole or not explicit_is_cheaper(report, block, num_removals, hits):
      numbers += 4 * b * n  # u, c and what they are made of.
  return numbers * jax.tree.leaves(report.rows)[0].dtype.itemsize


def _direct_operations(report, block, num_removals, *, whole):
  b, n, step_rows, p = _sizes(report, block)
  substitution = 2 * n * (n - step_rows + (n if whole else 0))
  return b * (4 * n * p + substitution) * num_removals


def _explicit_operations(report, block, num_removals, hits):
  b, n, step_rows, p = _sizes(report, block)
  matrix = b * 2 * n * p * (n - step_rows + p)
  own = _direct_operations(report, block, len(hits), whole=False)
  return matrix + 2 * p * p * num_removals + own


def matmul(a, b):
  """Multiplies in full precision: accelerators default to less."""
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _sizes(report, block):
  """Returns b, n, S and the block's P."""
  rows = jax.tree.leaves(report.rows)
  b, steps, step_rows, _ = rows[0].shape
  return b, steps * step_rows, step_rows, sum(rows[j].shape[3] for j in block)


def _gram(rows, skip):
  """Multiplies rows from `skip` on with rows but the last `skip`.

  Some columns at a time: those fit the cache, which so long a sum of so few
  numbers does not; and half of the uploads need not be copied twice.
  """

  def product(part):
    a = _stacked(part)
    return einsum("kqp,ksp->kqs", a[:, skip:], a[:, : a.shape[1] - skip])

  whole = rows.shape[3] // COLUMNS
  part = lambda i: lax.dynamic_slice_in_dim(rows, i * COLUMNS, COLUMNS, 3)
  add = lambda i, total: total + product(part(i))
  total = product(rows[..., whole * COLUMNS :])
  return lax.fori_loop(0, whole, add, total) if whole else total


def _stacked(rows):
  """Returns the rows of all steps as one matrix per participant, [b, n, P]."""
  b, steps, step_rows, p = rows.shape
  return rows.reshape(b, steps * step_rows, p)


def _solve(earlier, factor, step_rows, u):
  """Returns c = (I + D L)⁻¹ D u for u [b, n, R], step after step.

  c_i = D_i (u_i − Σ_{j<i} G_i G_jᵀ c_j): the σ recursion, in the space of rows.
  """
  b, n, _ = u.shape
  weighted = u if factor is None else factor[:, :, None] * u
  if n == step_rows:
    return weighted
  steps = n // step_rows - 1  # The first has none before it.
  split = lambda a: jnp.moveaxis(a.reshape(b, steps, step_rows, -1), 1, 0)

  def forward(c, step):
    i, gram_i, weighted_i, factor_i = step
    # Later rows of c are zero.
    back = einsum("kqs,ksr->kqr", gram_i, c[:, : n - step_rows])
    c_i = weighted_i - (back if factor_i is None else factor_i * back)
    return lax.dynamic_update_slice_in_dim(c, c_i, i * step_rows, 1), None

  first = jnp.pad(weighted[:, :step_rows], ((0, 0), (0, n - step_rows), (0, 0)))
  inputs = (
    jnp.arange(1, steps + 1),
    split(earlier),
    split(weighted[:, step_rows:]),
    None if factor is None else split(factor[:, step_rows:, None]),
  )
  return lax.scan(forward, first, inputs)[0]


def _direct(g, gram, solve, keep, e, shares):
  """All rows on ε: 4 Q P R operations."""
  u = sum(
    einsum("kqp,rp->kqr", _stacked(a), b) for a, b in zip(g, e, strict=True)
  )
  c = solve(u)
  if keep is not None:
    gain = (c * (einsum("kqs,ksr->kqr", gram, c) - 2 * u)).sum(1).T  # [R, b]
    shares = jnp.where(keep(gain), shares, 0)
  c = c * shares.T[:, None, :]
  return [einsum("kqr,kqp->rp", c, _stacked(a)) for a in g]


def _explicit(g, solve, e, base):
  """M itself, P × P, for the removals that share it: no rows on ε at all."""
  widths = [a.shape[-1] for a in g]
  ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
  g = jnp.concatenate([_stacked(a) for a in g], axis=2)
  e = jnp.concatenate(e, axis=1)
  lost = einsum("kqp,kqs->ps", g * base[:, None, None], solve(g))
  return jnp.split(einsum("rs,ps->rp", e, lost), ends, axis=1)
