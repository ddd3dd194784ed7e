"""Guards (Section 4.1): when sequential influence is dropped.

Layer-wise examination and truncation (LWET): a layer whose sequential
influence grows is in Case 3 of Theorem 1, and its error would grow with it. All
of LWET is in this file: the rule, what the server remembers of it, and the
examination of a round.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import removals
from fedinf_jax import tree
from fedinf_jax import types

PER = "layer", "participant"


class Guard(NamedTuple):
  """A rule; use `no_guard` or `lwet`."""

  per: str | None  # one of PER; None: nothing is dropped
  tolerance: float | None  # relative growth that rounding may explain

  @property
  def fine(self) -> bool:
    """Whether each participant's term is examined by itself."""
    return self.per == "participant"


class GuardState(NamedTuple):
  """What the server remembers of earlier examinations."""

  truncated_at: jax.Array  # int32 [R, L], round of the first drop; 0: never
  nonfinite_at: jax.Array  # int32 [R, L], round of an overflow; 0: never
  growth: jax.Array  # [R, L], the largest ‖(Mε)_(j)‖ / ‖ε_(j)‖ so far
  # bool [R, D, L], dropped terms of D participants; None unless fine.
  dropped: jax.Array | None


class Terms(NamedTuple):
  """What a fine guard has dropped so far within a round."""

  missing: jax.Array  # Σ_k a_{r,k} of the dropped terms, [R, L]
  tripped: jax.Array  # bool [R, L], a term was dropped for the first time
  dropped: jax.Array  # bool [R, D, L], as in the state


class Examiner(NamedTuple):
  """A fine guard's examination of b participants."""

  before: jax.Array  # bool [R, b, L], dropped in an earlier round
  # grows(gain, square, share) -> bool, of any shape: the term is dropped.
  grows: Callable[..., jax.Array]


def no_guard() -> Guard:
  """Keeps everything that is finite.

  Examples:
    >>> fi.estimator(fi.fisher(num_samples=5), fi.no_guard()).guard.per is None
    True
  """
  return Guard(None, None)


def lwet(*, per: str = "layer", tolerance: float | None = None) -> Guard:
  """Drops for good what once grew.

  Args:
    per: "layer": a removal's layer, once ‖(Mε)_(j)‖ > ‖ε_(j)‖. "participant": a
      participant's term in it, once ‖(P_kε)_(j)‖ > ‖ε_(j)‖ (the paper's
      fine-grained version).
    tolerance: growth that is forgiven; None: 16 units in the last place.

  Examples:
    >>> guard = fi.lwet(per="participant")
    >>> fi.estimator(fi.fisher(num_samples=5), guard).guard.per
    'participant'
  """
  checks.one_of("per", per, PER)
  if tolerance is not None:
    holds = lambda tolerance: 0 <= tolerance < float("inf")
    tolerance = checks.number(
      "tolerance", tolerance, "be finite and >= 0", holds
    )
  return Guard(per, tolerance)


def init(
  guard: Guard, params: types.Params, num_removals: int, num_slots: int
) -> GuardState:
  """Returns the state before the first round.

  Args:
    guard: the rule.
    params: w_0.
    num_removals: R.
    num_slots: D, participants that a fine guard remembers.
  """
  num_layers = len(jax.tree.leaves(params))
  shape = num_removals, num_layers
  dropped = jnp.zeros((num_removals, num_slots, num_layers), bool)
  return GuardState(
    truncated_at=jnp.zeros(shape, jnp.int32),
    nonfinite_at=jnp.zeros(shape, jnp.int32),
    growth=jnp.zeros(shape, tree.dtype_of(params)),
    dropped=dropped if guard.fine else None,
  )


def begin(guard: Guard, state: GuardState) -> Terms | None:
  """Begins a round; only a fine guard has terms to count."""
  if state.dropped is None:  # The guard is not fine.
    return None
  tripped = jnp.zeros(state.growth.shape, bool)
  return Terms(jnp.zeros_like(state.growth), tripped, state.dropped)


def examiner(
  guard: Guard, terms: Terms | None, attendance: removals.Attendance
) -> Examiner | None:
  """Returns the examination of some participants; None unless fine."""
  if terms is None:
    return None
  before = terms.dropped.at[:, attendance.slots].get(
    mode="fill", fill_value=False
  )
  grows = lambda gain, square, share: _grows(guard, gain, square) & (share > 0)
  return Examiner(before, grows)


def count(
  terms: Terms,
  examiner: Examiner,
  grown: jax.Array,
  attendance: removals.Attendance,
) -> Terms:
  """Enters which terms of some participants grew, bool [R, b, L]."""
  out = grown | examiner.before
  missing = jnp.where(out, attendance.shares[:, :, None], 0).sum(1)
  new = (grown & ~examiner.before).any(1)
  return Terms(
    missing=terms.missing + missing,
    tripped=terms.tripped | new,
    dropped=terms.dropped.at[:, attendance.slots].max(out, mode="drop"),
  )


def examine(
  guard: Guard,
  state: GuardState,
  terms: Terms | None,
  *,
  round_: jax.Array,
  eps: types.Params,
  lost: types.Params,
  empty: jax.Array,
  blocks: list[tuple[int, ...]],
) -> tuple[GuardState, types.Params]:
  """Examines the sequential influence of a round.

  Args:
    guard: the rule.
    state: before the round.
    terms: what a fine guard has dropped within it.
    round_: [] 1-based.
    eps: ε_{t-1}, leaves [R, ...].
    lost: ε − Mε of the kept terms, leaves [R, ...].
    empty: bool [R], removals whose cohort is empty: nothing is examined.
    blocks: which layers are examined together.

  Returns:
    The state after the round, and Mε with zeros in place of dropped layers.
  """
  square = by_block(tree.layer_dots(eps, eps), blocks)
  if terms is not None:
    # The shares sum to one; used here, ε − lost keeps its digits.
    eps = tree.scale_layers(1 - terms.missing, eps)
    sequential = tree.subtract(eps, lost)
    gain = by_block(tree.layer_dots(sequential, sequential), blocks) - square
  else:
    sequential = tree.subtract(eps, lost)
    gain = by_block(gains(eps, lost), blocks)
  overflow = ~tree.finite_layers(sequential)
  examined = ~empty[:, None]
  tripped = jnp.zeros_like(overflow) if terms is None else terms.tripped
  if guard.per == "layer":
    tripped = _grows(guard, gain, square) & ~overflow
  truncated_at = _first(state.truncated_at, tripped & examined, round_)
  nonfinite_at = _first(state.nonfinite_at, overflow & examined, round_)
  gone = nonfinite_at > 0
  if not guard.fine:
    gone = gone | (truncated_at > 0)
  measured = examined & (square > 0) & ~(gone & (state.growth > 0))
  state = GuardState(
    truncated_at=truncated_at,
    nonfinite_at=nonfinite_at,
    growth=_largest(state.growth, gain, square, measured),
    dropped=None if terms is None else terms.dropped,
  )
  return state, tree.clear_layers(gone, sequential)


def gains(eps, lost) -> jax.Array:
  """Returns ‖ε − d‖² − ‖ε‖² = ‖d‖² − 2εᵀd of each row and layer, [R, L]."""
  return tree.layer_dots(lost, lost) - 2 * tree.layer_dots(eps, lost)


def by_block(values: jax.Array, blocks: list[tuple[int, ...]]) -> jax.Array:
  """Sums [R, L] within each block and gives every layer its block's sum."""
  if len(blocks) == values.shape[1]:
    return values
  return jnp.broadcast_to(values.sum(1, keepdims=True), values.shape)


def _grows(guard, gain, square):
  """Returns where ‖Pε‖ exceeds ‖ε‖ by more than the tolerance.

  Args:
    guard: the rule.
    gain: ‖Pε‖² − ‖ε‖², as ‖d‖² − 2εᵀd with d = ε − Pε.
    square: ‖ε‖².
  """
  tolerance = guard.tolerance
  if tolerance is None:
    tolerance = 16 * float(jnp.finfo(gain.dtype).eps)
  return gain > (2 + tolerance) * tolerance * square


def _first(rounds, happened, round_):
  """Enters `round_` where something happened for the first time."""
  return jnp.where((rounds == 0) & happened, round_, rounds)


def _largest(growth, gain, square, measured):
  """Returns the largest growth so far."""
  ratio = jnp.sqrt(jnp.maximum(1 + gain / jnp.where(square > 0, square, 1), 0))
  known = measured & jnp.isfinite(ratio)
  return jnp.where(known, jnp.maximum(growth, ratio), growth)
