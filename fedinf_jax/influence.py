r"""The estimator of Fed-Influence on parameters (Section 3).

    ε_t^r = Σ_{k∈C_t} a_{r,k} P_k ε_{t-1}^r            sequential influence
          + Σ_{k∈C_t} a_{r,k} w_{t,m}^k − w_t           combinatorial influence

with ε_0 = 0 and a_{r,k} = n_k [k ∉ r] / N(C_t \ r). It sees reports and
weights, never a model or data.
"""

from collections.abc import Callable
from collections.abc import Mapping
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import guards
from fedinf_jax import removals
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import wall


class EstimatorState(NamedTuple):
  """What the server keeps between rounds."""

  eps: types.Params  # ε_t, leaves [R, ...]
  guard: guards.GuardState


class Sequential(NamedTuple):
  """The sequential influence of the participants absorbed so far."""

  lost: types.Params  # Σ_k a_{r,k} (ε_r − P_k ε_r) of the kept terms
  terms: guards.Terms | None  # of a fine guard


class ModelChange(NamedTuple):
  """What a round did to the model."""

  updates: types.Params  # w_{t,m}^k − w_{t-1}, leaves [B, ...]
  undone: types.Params  # w_{t-1} − w_t

  def check(self, num_participants: int, eps: types.Params):
    """Refuses changes that do not fit the model, or are not finite."""
    of_each = lambda e: (num_participants, *e.shape[1:])
    wall.require_leaves("updates", self.updates, eps, of_each)
    wall.require_leaves("undone", self.undone, eps, lambda e: e.shape[1:])
    tree.require_finite_rows("updates", self.updates)


class Estimator(NamedTuple):
  """A curvature and a guard, as pure functions of the server."""

  curvature: wall.Curvature
  guard: guards.Guard
  init: Callable[..., EstimatorState]  # (params, num_removals, num_slots=0)
  update: Callable[..., EstimatorState]  # a whole round; see `_update`
  # `update` in pieces, for reports that do not fit in memory together:
  begin: Callable[[EstimatorState], Sequential]
  absorb: Callable[..., Sequential]  # see `_absorb`
  end: Callable[..., EstimatorState]  # see `_end`


class Health(NamedTuple):
  """How far an estimate can be trusted."""

  truncated_at: jax.Array  # int32 [R, L]: 1-based round, 0 = never
  growth: jax.Array  # [R, L]: largest growth of a round; > 1 is Case 3
  nonfinite_at: jax.Array  # int32 [R, L]: 1-based round, 0 = never
  layer_names: tuple[str, ...]
  # [K], of server_side(..., match=True): how far a client's updates were from
  # any mixture of the server's examples, ‖difference‖ / ‖update‖, on average
  # over its rounds. Near 1: unlike anything the server holds; NaN: never drawn.
  residual: jax.Array | None = None


def health(state: EstimatorState, residuals: jax.Array | None = None) -> Health:
  """Reads the health off a state.

  Args:
    state: of an estimator.
    residuals: [K + 1, 2], sums and numbers of residuals per client; or None.
  """
  if residuals is not None:
    residuals = residuals[:-1, 0] / residuals[:-1, 1]  # The last is nobody.
  return Health(
    truncated_at=state.guard.truncated_at,
    growth=state.guard.growth,
    nonfinite_at=state.guard.nonfinite_at,
    layer_names=tree.names(state.eps),
    residual=residuals,
  )


def estimator(curvature: wall.Curvature, guard: guards.Guard) -> Estimator:
  """Builds an estimator from a curvature and a guard.

  Args:
    curvature: how local training carries influence, such as `fi.fisher()`.
    guard: when sequential influence is dropped, such as `fi.lwet()`.

  Examples:
    >>> paper = fi.estimator(fi.fisher(num_samples=5), fi.lwet())
    >>> fi.upload_bytes(model, data, fed, paper)
    600
  """
  if not isinstance(curvature, wall.Curvature):
    raise ValueError(
      f"curvature is {curvature!r}; it must be one such as fi.fisher()"
    )
  if not isinstance(guard, guards.Guard):
    raise ValueError(
      f"guard is {guard!r}; it must be fi.lwet() or fi.no_guard()"
    )
  bind = lambda function: functools.partial(function, curvature, guard)
  return Estimator(
    curvature=curvature,
    guard=guard,
    init=functools.partial(_init, guard),
    update=bind(_update),
    begin=functools.partial(_begin, guard),
    absorb=bind(_absorb),
    end=bind(_end),
  )


def serving(estimators: Mapping[str, Estimator]) -> dict[str, int | None]:
  """Returns whose curvature the server makes itself, from its own examples.

  Args:
    estimators: by name.

  Returns:
    Name → how many examples it draws per round; None: all there are.
  """
  found = estimators.items()
  return {n: e.curvature.num_samples for n, e in found if e.curvature.serve}


def combinatorial(
  attendance: removals.Attendance, updates: types.Params
) -> types.Params:
  """Returns Σ_k a_{r,k} w_{t,m}^k − w_t of the removals in the attendance.

  As Σ_k (a_{r,k} − a_k)(w_{t,m}^k − w_{t-1}): exactly zero for a removal that
  none of the participants is in, and without cancellation of whole models.
  With `hits`, only those: leaves [H, ...].
  """
  shares, hits = attendance.shares, attendance.hits
  shares = shares if hits is None else shares[hits]
  differences = shares - attendance.base[None]
  return jax.tree.map(
    lambda a: jnp.tensordot(differences, a, 1, precision=lax.Precision.HIGHEST),
    updates,
  )


def _init(guard, params, num_removals, num_slots=0):
  """Returns ε_0 = 0."""
  zeros = lambda a: jnp.zeros((num_removals, *a.shape), a.dtype)
  state = guards.init(guard, params, num_removals, num_slots)
  return EstimatorState(jax.tree.map(zeros, params), state)


def _begin(guard, state):
  """Begins a round: nobody is absorbed yet."""
  return Sequential(
    tree.zeros_like(state.eps), guards.begin(guard, state.guard)
  )


def _absorb(
  curvature: wall.Curvature,
  guard: guards.Guard,
  descent: descents.Descent,
  eps: types.Params,
  so_far: Sequential,
  report: Any,
  attendance: removals.Attendance,
  prepared: Any = None,
) -> Sequential:
  """Adds the sequential influence of some participants.

  Args:
    curvature: whose reports they are.
    guard: the rule.
    descent: how participants train.
    eps: ε_{t-1}, leaves [R, ...].
    so_far: of those absorbed before.
    report: of b participants, leaves [b, ...]; or their `wall.Answer`, leaves
      [b, R, ...].
    attendance: of these participants.
    prepared: what `curvature.prepare` made of the reports; None: nothing yet.
  """
  examiner = guards.examiner(guard, so_far.terms, attendance)
  absorb = curvature.absorb
  if isinstance(report, wall.Answer):
    absorb = wall.absorb_answers(layerwise=curvature.layerwise)
  lost, grown = absorb(
    descent, report, eps, so_far.lost, attendance, examiner, prepared
  )
  terms = so_far.terms
  if terms is not None and examiner is not None:
    terms = guards.count(terms, examiner, grown, attendance)
  return Sequential(lost, terms)


def _end(
  curvature: wall.Curvature,
  guard: guards.Guard,
  state: EstimatorState,
  so_far: Sequential,
  round_: jax.Array,
  attendance: removals.Attendance,
  change: ModelChange,
) -> EstimatorState:
  """Closes the round: examines, truncates, adds combinatorial influence.

  Args:
    curvature: of the estimator.
    guard: of the estimator.
    state: before the round.
    so_far: the sequential influence of all participants.
    round_: [] 1-based.
    attendance: of all participants.
    change: what the round did to the model.
  """
  num_layers = len(jax.tree.leaves(state.eps))
  empty = attendance.shares.sum(1) == 0
  guarded, sequential = guards.examine(
    guard,
    state.guard,
    so_far.terms,
    round_=round_,
    eps=state.eps,
    lost=so_far.lost,
    empty=empty,
    blocks=tree.layer_blocks(num_layers, layerwise=curvature.layerwise),
  )
  # C_t \ r is empty: the counterfactual round is skipped.
  skipped = jax.tree.map(lambda e, d: e + d[None], state.eps, change.undone)
  eps = tree.select(empty, skipped, sequential)
  hits = attendance.hits
  if hits is None:
    hits = jnp.arange(len(empty))
  # They alone have combinatorial influence: no R × P sum of zeros.
  added = combinatorial(attendance, change.updates)
  added = tree.select(empty[hits], tree.zeros_like(added), added)
  eps = jax.tree.map(lambda e, c: e.at[hits].add(c, mode="drop"), eps, added)
  return EstimatorState(eps, guarded)


def _update(
  curvature: wall.Curvature,
  guard: guards.Guard,
  descent: descents.Descent,
  state: EstimatorState,
  report: Any,
  attendance: removals.Attendance,
  round_: jax.Array,
  change: ModelChange,
) -> EstimatorState:
  """Does a whole round, ε_{t-1} -> ε_t; arguments as above."""
  if curvature.interactive and not isinstance(report, wall.Answer):
    raise ValueError(
      f"{curvature.name} has nothing that a client could upload; send it ε,"
      " and give its `fi.answer` as the report"
    )
  removals.check_attendance(attendance, len(jax.tree.leaves(state.eps)[0]))
  num_participants = attendance.shares.shape[1]
  if isinstance(report, wall.Answer):
    wall.check_answer(report, num_participants, state.eps)
  else:
    curvature.check_report(descent, report, num_participants, state.eps)
  change.check(num_participants, state.eps)
  if curvature.serve is None:
    tree.require_finite_rows("report", report)
  so_far = _absorb(
    curvature,
    guard,
    descent,
    state.eps,
    _begin(guard, state),
    report,
    attendance,
  )
  return _end(curvature, guard, state, so_far, round_, attendance, change)
