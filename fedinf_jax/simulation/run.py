"""What a run is at any moment, and what it leaves behind."""

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import influence
from fedinf_jax import metrics
from fedinf_jax import selection
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.simulation import describing
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import history as histories
from fedinf_jax.simulation import made as mades
from fedinf_jax.simulation import measuring
from fedinf_jax.simulation import portraits
from fedinf_jax.simulation import saved
from fedinf_jax.simulation import scores
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import reliability


class State(NamedTuple):
  """All that changes from round to round: what a checkpoint holds."""

  round: jax.Array  # int32 [], rounds done
  params: types.Params  # w_t
  estimators: dict[str, influence.EstimatorState]
  replay: types.Params | None  # w_t^(r) of the replayed ones, leaves [E, ...]
  replayed: jax.Array | None  # int32 [E], which removals they are
  # By name of a matched estimator, [K + 1, 2]: the sum over a client's rounds
  # of how far its update was from the server's mixtures, and their number.
  residuals: dict[str, jax.Array]
  diverged: jax.Array  # int32 [], first client of a non-finite upload; or -1
  # int32 [], R. On several devices there are padding rows, removals of nobody,
  # to make their number a multiple of the devices.
  num_removals: jax.Array


def check_state(state: Any, expected: Any = None, kind: type = State):
  """Refuses what is no state, one of another simulator, or one used up.

  Args:
    state: what a user hands in.
    expected: the shapes it must have; None: any.
    kind: the type it must have.
  """
  if not isinstance(state, kind):
    raise ValueError(
      f"state is a {type(state).__name__}; it must be what a simulator's"
      " init or step returned"
    )
  form = lambda tree: jax.tree.map(
    lambda a: (jnp.shape(a), jnp.result_type(a)), tree
  )
  if expected is not None and form(state) != form(expected):
    raise ValueError("state is one of another simulator, not of this one")
  arrays = [a for a in jax.tree.leaves(state) if isinstance(a, jax.Array)]
  if any(checks.readable(a) and a.is_deleted() for a in arrays):
    raise ValueError(
      "state was used up by an earlier step; take the one that it returned"
    )


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Run:
  """What a run leaves behind.

  Attributes:
    params: w_T.
    health: how each estimator fared.
    exact_rows: int [E], which removals were replayed; or None.
    model: the model that was trained.
    num_removals: R.
    spread_eps: each estimator's FIP as it lies on the devices: R rows, and
      padding rows behind them.
    spread_exact: the same of the exact FIP; or None.
    example: what the training data look like; None: not known.
    ids: of the clients; None: not known.
    num_examples: int [K], of the clients; None: not known.
    labels: int [K, C], how many of each class they have; None: not known.
    cohorts: int [T, B], who took part, K for nobody; None: not known.
    removed: bool [R, K], who is taken out; None: one client after another.
    history: FIL of the evaluated rounds; or None.
    rounds: how many are done; None: not known.
    made: how the run was made; None: not known.

  Examples:
    >>> run.rounds, run.names
    (6, ['exact', 'ours'])
    >>> run.influence(fi.metrics.accuracy, *test, of="ours").shape
    (6,)
    >>> run.table(*test).counts("exact")
    {'helps': 3, 'hurts': 1, 'cannot tell': 2}
    >>> sorted(run.agreement(*test))
    ['ours']
    >>> jax.tree.map(np.shape, run.exact_eps)
    {'dense': {'bias': (6, 3), 'kernel': (6, 4, 3)}}
    >>> np.asarray(run.everyone(fil, of="exact")).shape
    (6,)
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> run.save(folder)
    >>> fi.Run.load(folder, model).names
    ['exact', 'ours']
  """

  params: types.Params
  health: dict[str, influence.Health]
  exact_rows: np.ndarray | None
  model: types.Model
  num_removals: int
  spread_eps: dict[str, types.Params]
  spread_exact: types.Params | None
  example: agreement.Example | None = None
  ids: tuple[Any, ...] | None = None
  num_examples: np.ndarray | None = None
  labels: np.ndarray | None = None
  cohorts: np.ndarray | None = None
  removed: np.ndarray | None = None
  history: histories.History | None = None
  rounds: int | None = None
  made: mades.Made | None = None

  @classmethod
  def of(
    cls,
    model: types.Model,
    state: State,
    data: federated.FederatedData | None = None,
    *,
    removals: Any = None,
    cohorts: Any = None,
    copy: bool = True,
  ) -> "Run":
    """Reads a run off its state, after any round.

    The next `step` uses its state up, so the run has a copy of what it needs:
    the model and, of each estimator, R models more than the state holds. With
    `copy=False` it has none, and ends with the state.

    Args:
      model: what is trained.
      state: of the simulator.
      data: the clients. If given, examples that influence is measured on must
        look like theirs.
      removals: those of the simulator, for `table`.
      cohorts: int [T, B] of the rounds so far, for `table`; None: not known.
      copy: whether the run outlives its state.

    Examples:
      >>> init, step = fi.simulator(
      ...   model, data, fed, estimators=ours, exact=True
      ... )
      >>> fi.Run.of(model, step(init(), 3), data).rounds
      3
    """
    agreement.require_model(model)
    check_state(state)
    if checks.boolean("copy", copy):
      # The replayed models become differences below, which are a copy.
      kept = jax.tree.map(jnp.copy, (state.params, state.estimators))
      state = state._replace(params=kept[0], estimators=kept[1])
    about: dict[str, Any] = {}
    if data is not None:
      about["example"] = agreement.example_of(federated.check(data))
      about["ids"], about["num_examples"] = data.ids, data.num_examples
      about["labels"] = portraits.labels(data)
    num_removals = int(state.num_removals)
    removed = selection.removals(removals, data)
    replayed, exact = None, None
    if state.replayed is not None:
      replayed = np.asarray(devices.replicate(state.replayed))
      replayed = replayed[replayed < num_removals]
      exact = jax.tree.map(lambda a, w: a - w[None], state.replay, state.params)
    states = state.estimators.items()
    health = {
      name: influence.health(s, state.residuals.get(name)) for name, s in states
    }
    return cls(
      params=state.params,
      health={name: _readable(h, num_removals) for name, h in health.items()},
      exact_rows=replayed,
      model=model,
      num_removals=num_removals,
      spread_eps={name: s.eps for name, s in states},
      spread_exact=exact,
      cohorts=None if cohorts is None else np.asarray(cohorts),
      removed=removed,
      rounds=int(state.round),
      **about,
    )

  @classmethod
  def load(cls, folder: Any, model: types.Model) -> "Run":
    """Reads a run that `save` wrote.

    What it says is what the run that was saved said, to the bit (on one
    device, if it lay on several).

    Args:
      folder: of the run.
      model: which was trained.

    Raises:
      ValueError: if there is no run, or one of another model.
    """
    return cls(model=model, **saved.read(folder, model))

  def save(self, folder: Any):
    """Writes the run to a folder, as one file (run.npz), whole or not at all.

    Without the model's functions: `load` is given these. No pickle.

    Args:
      folder: new, empty, or of a run that is replaced; a report may share it.

    Raises:
      ValueError: if it holds something else, or cannot be written to.
    """
    saved.write(folder, self)

  def __repr__(self) -> str:
    return "\n".join(describing.lines(self))

  def _repr_html_(self) -> str:
    return describing.html_table(self)

  @property
  def names(self) -> list[str]:
    """What influence there is: "exact" if anybody was replayed, estimators."""
    return [*["exact"] * (self.spread_exact is not None), *self.spread_eps]

  @functools.cached_property
  def eps(self) -> dict[str, types.Params]:
    """Each estimator's FIP, leaves [R, ...]."""
    return tree.first_rows(self.spread_eps, self.num_removals)

  @functools.cached_property
  def exact_eps(self) -> types.Params | None:
    """Exact FIP of `exact_rows`, leaves [E, ...]; or None."""
    if self.spread_exact is None:
      return None
    return tree.first_rows(self.spread_exact, self._count("exact"))

  def influence(self, metric, x, y, of: str) -> jax.Array:
    """Returns F(w + ε) − F(w), the influence of each removal on a metric.

    For a loss, > 0 means that the loss rises without the client: it helps.
    For an accuracy, < 0 means the same.

    Args:
      metric: (outputs, y) -> array; `metrics.loss` is the model's own.
      x: [N, ...] test inputs.
      y: [N, ...] test labels.
      of: the name of an estimator, or "exact", the ground truth.

    Returns:
      [R, ...]; for "exact" one entry per row in `exact_rows`.

    Raises:
      ValueError: naming the argument and the example at fault.
    """
    eps = self.require(of)
    arrays = agreement.evaluation(
      self.model,
      self.params,
      metric,
      (x, y),
      like=self.example,
      num_models=jax.tree.leaves(eps)[0].shape[0],
    )
    found = scores.influence(self.model, self.params, eps, metric, arrays)
    return found[: self._count(of)]

  def everyone(self, found: Any, of: str) -> np.ndarray:
    """Returns influence of all R removals, NaN where none is known.

    Args:
      found: what `influence` has returned.
      of: for whom.
    """
    found = np.asarray(found, float)
    if of != "exact":
      return found
    values = np.full((self.num_removals, *found.shape[1:]), np.nan)
    values[self.exact_rows] = found
    return values

  def table(
    self,
    x,
    y=None,
    *,
    of: str | Sequence[str] | None = None,
    owners: Any = None,
    seed: int = 0,
  ) -> tables.Table:
    """Returns all that is known about each removal, a row each.

    Args:
      x: [N, ...] test inputs; or a FederatedData, whose clients own them.
      y: [N, ...] test labels; None with a FederatedData.
      of: names of estimators, "exact" among them; None: all there are.
      owners: [N] ids of the clients that the examples belong to, None for
        nobody's; None: all are nobody's.
      seed: of the resampling that gives the intervals.

    Raises:
      ValueError: naming the argument at fault.
    """
    return measuring.table(self, x, y, of=of, owners=owners, seed=seed)

  def agreement(self, x, y) -> dict[str, reliability.Agreement]:
    """Returns how near each estimator is to the replayed truth.

    Args:
      x: [N, ...] test inputs.
      y: [N, ...] test labels.
    """
    truth = np.asarray(self.influence(metrics.loss, x, y, of="exact"), float)
    found = {}
    for name in self.spread_eps:
      every = self.influence(metrics.loss, x, y, of=name)
      fil = np.asarray(every, float)[self.exact_rows]
      found[name] = reliability.Agreement(
        pearson=reliability.correlation(scipy.stats.pearsonr, fil, truth),
        spearman=reliability.correlation(scipy.stats.spearmanr, fil, truth),
        fip_relative_error=self._fip_error(name),
      )
    return found

  def _fip_error(self, name):
    """Returns mean ‖ε − ε*‖ / mean ‖ε*‖."""
    square = lambda a: jnp.square(a).reshape(len(a), -1).sum(1)
    norm = lambda rows: jnp.sqrt(sum(map(square, jax.tree.leaves(rows)))).mean()
    rows = jax.tree.map(lambda a: a[self.exact_rows], self.eps[name])
    size = float(norm(self.exact_eps))
    error = float(norm(tree.subtract(rows, self.exact_eps)))
    return error / size if size > 0 else None

  def _count(self, of):
    """Returns how many removals influence is known of."""
    rows = self.exact_rows if of == "exact" else None
    return self.num_removals if rows is None else len(rows)

  def require(self, of: str) -> types.Params:
    """Returns the FIP of an estimator, or "exact", as it lies on the devices.

    Raises:
      ValueError: if there is none, saying what there is.

    Examples:
      >>> sorted(run.require("exact")["dense"])
      ['bias', 'kernel']
    """
    eps = None
    if isinstance(of, str):
      eps = self.spread_exact if of == "exact" else self.spread_eps.get(of)
    if eps is None:
      known = ", ".join(map(repr, sorted(self.names))) or "nothing"
      raise ValueError(
        f"of is {of!r}; this run has {known}"
        ' ("exact" needs exact=True or a list of rows)'
      )
    return eps


def _readable(health, num_removals):
  """Returns the health of the R removals, where any process can read it."""
  per_removal = health.truncated_at, health.growth, health.nonfinite_at
  truncated_at, growth, nonfinite_at = tree.first_rows(
    devices.replicate(per_removal), num_removals
  )
  return health._replace(
    truncated_at=truncated_at, growth=growth, nonfinite_at=nonfinite_at
  )
