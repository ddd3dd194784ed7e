r"""The estimator of Fed-Influence on parameters (Section 3).

    ε_t^r = Σ_{k∈C_t} a_{r,k} P_k ε_{t-1}^r            sequential influence
          + Σ_{k∈C_t} a_{r,k} w_{t,m}^k − w_t           combinatorial influence

with ε_0 = 0 and a_{r,k} = n_k [k ∉ r] / N(C_t \ r). It sees uploads and
weights, never a model or data.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import curvature as curvatures
from fedinf_jax import fedavg
from fedinf_jax import guards
from fedinf_jax import memory
from fedinf_jax import propagation
from fedinf_jax import tree
from fedinf_jax import types


class EstimatorState(NamedTuple):
  """What the server keeps between rounds."""

  eps: types.Params  # leaves [R, ...]
  truncated_at: jax.Array  # int32 [R, L], round of the first drop; 0: never
  nonfinite_at: jax.Array  # int32 [R, L], round of an overflow; 0: never
  growth: jax.Array  # [R, L], the largest ‖(Mε)_(j)‖ / ‖ε_(j)‖ so far
  dropped: jax.Array | None  # bool [R, D, L], terms dropped of D participants


class Participants(NamedTuple):
  """Some participants of a round, or all of them."""

  report: Any  # leaves [b, ...]; or a `curvature.Answer`, leaves [b, R, ...]
  shares: jax.Array  # a_{r,k}, [R, b]
  base: jax.Array  # a_k = n_k / N(C_t), [b]
  slots: jax.Array  # int32 [b], where in `dropped` they stand; D: nowhere
  grams: Any = None  # `Estimator.grams` of the report; None: yet to be made


class Sequential(NamedTuple):
  """Sequential influence, as far as participants have been heard."""

  lost: types.Params  # Σ_k a_{r,k} (ε_r − P_k ε_r) of the kept terms
  missing: jax.Array  # Σ_k a_{r,k} of the dropped terms, [R, L]
  tripped: jax.Array  # bool [R, L], some term was dropped for the first time
  dropped: jax.Array | None  # as in the state


class Estimator(NamedTuple):
  """A curvature and a guard, as pure functions."""

  init: Callable[..., EstimatorState]  # (params, num_removals, num_slots=0)
  update: Callable[..., EstimatorState]  # a whole round
  # `update` in pieces, for uploads that do not fit in memory together:
  begin: Callable[..., Sequential]
  grams: Callable[..., Any]  # what one who has a report can prepare of it
  absorb: Callable[..., Sequential]
  end: Callable[..., EstimatorState]
  curvature: curvatures.Curvature
  guard: guards.Guard


class Health(NamedTuple):
  """How far an estimate can be trusted."""

  truncated_at: jax.Array  # int32 [R, L]: 1-based round, 0 = never
  growth: jax.Array  # [R, L]: largest growth of a round; > 1 is Case 3
  nonfinite_at: jax.Array  # int32 [R, L]: 1-based round, 0 = never
  layer_names: tuple[str, ...]


def health(state: EstimatorState) -> Health:
  """Reads the health off a state."""
  names = tree.names(state.eps)
  return Health(state.truncated_at, state.growth, state.nonfinite_at, names)


def estimator(
  curvature: curvatures.Curvature, guard: guards.Guard
) -> Estimator:
  """Builds an estimator.

  Returns:
    An `Estimator`. One round on a server is `update(setup, state,
    participants, round_, updates, change, hits)`, where `updates` are
    w_{t,m}^k − w_{t-1} (leaves [B, ...]) and `change` is w_{t-1} − w_t. `hits`
    (int [H], filled up with R) may name the removals that the cohort touches:
    the others then share their work.
  """
  fine = guard.per == "participant"

  def init(params, num_removals, num_slots=0):
    shape = num_removals, len(jax.tree.leaves(params))
    return EstimatorState(
      jax.tree.map(
        lambda a: jnp.zeros((num_removals, *a.shape), a.dtype), params
      ),
      jnp.zeros(shape, jnp.int32),
      jnp.zeros(shape, jnp.int32),
      jnp.zeros(shape, jax.tree.leaves(params)[0].dtype),
      jnp.zeros((num_removals, num_slots, shape[1]), bool) if fine else None,
    )

  def begin(state):
    return Sequential(
      jax.tree.map(jnp.zeros_like, state.eps),
      jnp.zeros_like(state.growth),
      jnp.zeros(state.growth.shape, bool),
      state.dropped,
    )

  def grams(setup, report, num_removals, hits=None):
    """Makes Gram matrices of a report, None where they would not pay."""
    if not isinstance(report, curvatures.Rows) or setup.eta is None:
      return None
    num_layers = len(jax.tree.leaves(report.rows))
    blocks = curvatures.layer_blocks(num_layers, curvature.layerwise)
    if not propagation.is_compact(report, blocks, num_removals, fine, hits):
      return None
    return propagation.gram_matrices(report, blocks, whole=fine)

  def absorb(setup, eps, so_far, participants, hits=None):
    """Adds the sequential influence of some participants."""
    report, shares, base, slots, prepared = participants
    leaves, treedef = jax.tree.flatten(eps)
    square = _layer_dots(leaves, leaves)  # [R, L]
    blocks = curvatures.layer_blocks(len(leaves), curvature.layerwise)
    if prepared is None:
      prepared = grams(setup, report, len(shares), hits)
    if prepared is None:
      return _absorb_one_by_one(setup, eps, square, so_far, participants)

    per_row = propagation.row_bytes(report, blocks, len(shares), fine, hits)
    chunk = memory.chunk_size(len(shares), per_row)
    if chunk < len(shares):
      hits = None  # They are places among all removals, not within a chunk.

    def add(so_far, rows):
      eps, square, shares = rows
      flat = [a.reshape(a.shape[0], -1) for a in jax.tree.leaves(eps)]
      grown = [None] * len(flat)  # [R, b] of each layer
      if fine:
        before = so_far.dropped.at[:, slots].get(mode="fill", fill_value=False)

      def keep(gain, block):
        size = sum(square[:, j] for j in block)[:, None]
        for j in block:
          grown[j] = guards.grows(guard, gain, size) & (shares > 0)
        return ~(grown[block[0]] | before[:, :, block[0]])

      lost = propagation.rows_lost(
        report,
        prepared,
        flat,
        shares,
        blocks,
        keep if fine else None,
        base,
        hits,
      )
      lost = jax.tree.map(
        lambda a, b: a + b.reshape(a.shape),
        so_far.lost,
        treedef.unflatten(lost),
      )
      if not fine:
        return so_far._replace(lost=lost)
      out = jnp.stack(grown, 2)  # [R, b, L]
      tripped = so_far.tripped | (out & ~before).any(1)
      out = out | before
      return Sequential(
        lost,
        so_far.missing + jnp.where(out, shares[:, :, None], 0).sum(1),
        tripped,
        so_far.dropped.at[:, slots].max(out, mode="drop"),
      )

    return tree.update_rows(add, so_far, (eps, square, shares), chunk)

  def _absorb_one_by_one(setup, eps, square, so_far, participants):
    """The same for any curvature, one participant after another."""
    blocks = curvatures.layer_blocks(square.shape[1], curvature.layerwise)

    def one(so_far, participant):
      report, share, slot = participant
      if isinstance(report, curvatures.Answer):
        lost = report.lost
      else:
        lost = curvature.lost(setup, report, eps)
      share = jnp.repeat(share[:, None], square.shape[1], 1)  # [R, L]
      now = so_far
      if fine:
        gain = _by_block(_gains(eps, lost), blocks)
        grown = guards.grows(guard, gain, _by_block(square, blocks))
        grown = grown & (share > 0)
        before = now.dropped.at[:, slot].get(mode="fill", fill_value=False)
        out = grown | before
        now = now._replace(
          missing=now.missing + jnp.where(out, share, 0),
          tripped=now.tripped | (grown & ~before),
          dropped=now.dropped.at[:, slot].set(out, mode="drop"),
        )
        share = jnp.where(out, 0, share)
      lost = jax.tree.map(jnp.add, now.lost, _scale_layers(share, lost))
      return now._replace(lost=lost), None

    inputs = participants.report, participants.shares.T, participants.slots
    return lax.scan(one, so_far, inputs)[0]

  def end(state, so_far, round_, combinatorial, empty, change, hits=None):
    """Closes the round: examines, truncates, adds combinatorial influence.

    Args:
      state: before the round.
      so_far: the sequential influence of all participants.
      round_: [] 1-based.
      combinatorial: leaves [R, ...]; of `hits` alone, [H, ...], if given.
      empty: bool [R], removals whose cohort is empty.
      change: w_{t-1} − w_t.
      hits: int [H], the removals that the round misses, filled up with R.
    """
    num_layers = state.growth.shape[1]
    blocks = curvatures.layer_blocks(num_layers, curvature.layerwise)
    # The shares sum to one; said so, ε − lost keeps its digits.
    kept = _scale_layers(1 - so_far.missing, state.eps) if fine else state.eps
    sequential = jax.tree.map(jnp.subtract, kept, so_far.lost)
    leaves = jax.tree.leaves(state.eps)
    square = _by_block(_layer_dots(leaves, leaves), blocks)
    if fine:
      moved = jax.tree.leaves(sequential)
      gain = _by_block(_layer_dots(moved, moved), blocks) - square
    else:
      gain = _by_block(_gains(state.eps, so_far.lost), blocks)
    overflow = ~jnp.stack(
      [
        jnp.isfinite(a).reshape(a.shape[0], -1).all(1)
        for a in jax.tree.leaves(sequential)
      ],
      axis=1,
    )  # [R, L]
    examined = ~empty[:, None]
    tripped = so_far.tripped
    if guard.per == "layer":
      tripped = guards.grows(guard, gain, square) & ~overflow
    truncated_at = _first(state.truncated_at, tripped & examined, round_)
    nonfinite_at = _first(state.nonfinite_at, overflow & examined, round_)
    gone = nonfinite_at > 0
    if not fine:
      gone = gone | (truncated_at > 0)
    ratio = jnp.sqrt(
      jnp.maximum(1 + gain / jnp.where(square > 0, square, 1), 0)
    )
    measured = examined & (square > 0) & ~(gone & (state.growth > 0))
    growth = jnp.where(
      measured & jnp.isfinite(ratio),
      jnp.maximum(state.growth, ratio),
      state.growth,
    )
    # C_t \ r is empty: the counterfactual round is skipped.
    skipped = jax.tree.map(lambda e, d: e + d[None], state.eps, change)
    eps = tree.select(empty, skipped, _select_layers(gone, sequential))
    if hits is None:
      hits = jnp.arange(len(empty))
    # They alone have combinatorial influence: no R × P sum of zeros.
    eps = jax.tree.map(
      lambda e, c: e.at[hits].add(c, mode="drop"),
      eps,
      tree.select(
        empty[hits], jax.tree.map(jnp.zeros_like, combinatorial), combinatorial
      ),
    )
    dropped = so_far.dropped
    return EstimatorState(eps, truncated_at, nonfinite_at, growth, dropped)

  def update(setup, state, participants, round_, updates, change, hits=None):
    answered = isinstance(participants.report, curvatures.Answer)
    if not (curvature.uploads or answered):
      raise ValueError(
        f"{curvature.name} has nothing that a client could upload; send it ε,"
        " and give its `fi.answer` as the report"
      )
    _check_report(participants, state.eps)
    so_far = absorb(setup, state.eps, begin(state), participants, hits)
    shares = participants.shares if hits is None else participants.shares[hits]
    return end(
      state,
      so_far,
      round_,
      combinatorial(shares, participants.base, updates),
      participants.shares.sum(1) == 0,
      change,
      hits,
    )

  return Estimator(init, update, begin, grams, absorb, end, curvature, guard)


def shares_of(counts_left, counts, base):
  """Returns a_{r,k} = n_k [k ∉ r] / N(C_t minus r), [R, B].

  A removal that no participant is in has their own shares a_k, to the last
  digit: its combinatorial influence must be zero, not a rounding error.

  Args:
    counts_left: n_k [k ∉ r], [R, B].
    counts: n_k, [B].
    base: a_k, [B].
  """
  own = fedavg.weights(counts_left, base.dtype)
  touched = (counts_left != counts[None]).any(1)
  return jax.vmap(jnp.where, (0, 0, None))(touched, own, base)


def combinatorial(shares, base, updates):
  """Returns Σ_k a_{r,k} w_{t,m}^k − w_t for every removal.

  As Σ_k (a_{r,k} − a_k)(w_{t,m}^k − w_{t-1}): exactly zero for a removal that
  none of the participants is in, and without cancellation of whole models.

  Args:
    shares: a_{r,k}, [R, B].
    base: a_k, [B].
    updates: w_{t,m}^k − w_{t-1}, leaves [B, ...].
  """
  differences = shares - base[None]
  return jax.tree.map(
    lambda a: jnp.tensordot(differences, a, 1, precision=lax.Precision.HIGHEST),
    updates,
  )


def _check_report(participants, eps):
  """Refuses reports that do not fit the model or each other."""
  num_participants = participants.shares.shape[1]
  for leaf in jax.tree.leaves(participants.report):
    if leaf.shape[0] != num_participants:
      raise ValueError(
        f"report: {leaf.shape[0]} participants for {num_participants} shares"
      )
  kind = type(participants.report)
  if kind not in (curvatures.Answer, curvatures.Rows):
    return
  sent = jax.tree.leaves(participants.report[0])
  leaves = jax.tree.leaves(eps)
  for name, a, e in zip(tree.names(eps), sent, leaves, strict=True):
    if kind is curvatures.Answer:
      fits = a.shape[1:] == e.shape
      right = f"[participants, {', '.join(map(str, e.shape))}]"
    else:
      fits = a.ndim == 4 and a.shape[-1] == e[0].size
      right = f"[participants, steps, rows, {e[0].size}]"
    if not fits:
      raise ValueError(
        f"report: {name} has shape {list(a.shape)}; it must be {right}"
      )


def _layer_dots(a, b):
  """Returns ⟨a, b⟩ of each row and leaf: two lists [R, ...] -> [R, L]."""
  dot = lambda x, y: (x * y).reshape(x.shape[0], -1).sum(1)
  return jnp.stack([dot(x, y) for x, y in zip(a, b, strict=True)], axis=1)


def _gains(eps, lost):
  """Returns ‖ε − d‖² − ‖ε‖² = ‖d‖² − 2εᵀd of each row and leaf, [R, L]."""
  eps, lost = jax.tree.leaves(eps), jax.tree.leaves(lost)
  return _layer_dots(lost, lost) - 2 * _layer_dots(eps, lost)


def _by_block(values, blocks):
  """Sums [R, L] within each block and gives every layer its block's sum."""
  if len(blocks) == values.shape[1]:
    return values
  return jnp.broadcast_to(values.sum(1, keepdims=True), values.shape)


def _scale_layers(factors, eps):
  """Multiplies leaf j of row r by factors[r, j]."""
  leaves, treedef = jax.tree.flatten(eps)
  scale = jax.vmap(lambda f, a: f * a)
  return treedef.unflatten(
    [scale(factors[:, j], a) for j, a in enumerate(leaves)]
  )


def _select_layers(gone, eps):
  """Puts zeros where `gone` [R, L] says so."""
  leaves, treedef = jax.tree.flatten(eps)
  pick = jax.vmap(lambda g, a: jnp.where(g, 0, a))
  return treedef.unflatten([pick(gone[:, j], a) for j, a in enumerate(leaves)])


def _first(rounds, happened, round_):
  """Enters `round_` where something happened for the first time."""
  return jnp.where((rounds == 0) & happened, round_, rounds)
