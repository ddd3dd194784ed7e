"""One training and one pass back through it: every client's influence."""

from collections.abc import Callable
import itertools
from typing import Any
from typing import NamedTuple

import jax

from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import guards
from fedinf_jax import influence
from fedinf_jax import metrics
from fedinf_jax import types
from fedinf_jax.curvature import wall
from fedinf_jax.data import federated
from fedinf_jax.simulation import found as founds
from fedinf_jax.simulation import meter
from fedinf_jax.simulation import plan as plans
from fedinf_jax.simulation import reverse
from fedinf_jax.simulation import run as runs
from fedinf_jax.simulation import simulator
from fedinf_jax.simulation import turning


class Pass(NamedTuple):
  """A pass whose loop belongs to the caller. States given are used up."""

  init: Callable[[], reverse.State]
  train: Callable[..., reverse.State]  # (state, rounds=1)
  turn: Callable[..., reverse.State]  # (state, at=None)
  back: Callable[..., reverse.State]  # (state, rounds=1)
  read: Callable[[reverse.State], founds.Found]
  lower: Callable[[], reverse.Loops]  # both programs, before anything is run


def adjoint(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  x: Any,
  y: Any,
  *,
  metric: Callable = metrics.loss,
  directions: int | None = None,
  own_part: bool = True,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
  snapshot_every: int | None = None,
  mesh: jax.sharding.Mesh | str | None = None,
  curvature: wall.Curvature | None = None,
  server_data: Any = None,
  window: int | None = None,
  progress: bool | Callable[[int, int], None] = False,
) -> founds.Found:
  """Trains once and scores every client by one pass back.

  Args:
    model: what to train.
    data: the K clients.
    fed: how.
    x: [N, ...] test inputs.
    y: [N, ...] test labels.
    metric: (outputs, y) -> [], differentiable; `metrics.loss` is the model's
      own. Influence on others is read off the result.
    directions: eigenvectors of the metric's Hessian that are carried back
      beside its gradient; 0: first order. None: 16, or as many as the model
      has parameters.
    own_part: account for the client's own part in carrying its earlier
      influence; see `backwards.coordinates`.
    cohorts: int [T, B] positions of clients; None: drawn from the seed. A list
      of T lists may have shorter ones, where not everybody replied.
    params: w_0; None: drawn from the seed.
    seed: of every draw.
    snapshot_every: rounds between the models that are kept. Those in between
      are trained again on the way back. None: √T; 1: every model is kept.
    mesh: None: one device; "auto": all there are; or a Mesh as `simulator`
      takes it. Its devices share the participants of a round.
    curvature: None: directions go back through the participants' trainings.
      `server_side(fisher(..., per="round"))`: by the server's curvature alone,
      as a real server can do it (see `backwards.score_kept`).
    server_data: examples of the server's own, for such a curvature.
    window: rounds to go back through; what clients did before is not counted.
      None: all.
    progress: as of `simulate`, which takes True or a function of (rounds done,
      all rounds). Rounds back count like those of the training.

  Raises:
    ValueError: naming the argument, client or round at fault.

  Examples:
    >>> found = fi.adjoint(model, data, fed, *test, directions=2)
    >>> found.influence.shape  # On the test loss; > 0 helps.
    (6,)
    >>> found.on(fi.metrics.accuracy, *test).shape
    (6,)
  """
  shown = meter.reader(progress)
  go = adjoint_pass(
    model, data, fed, x, y, metric=metric, directions=directions,
    own_part=own_part, cohorts=cohorts, params=params, seed=seed,
    snapshot_every=snapshot_every, mesh=mesh, curvature=curvature,
    server_data=server_data, window=window,
  )  # fmt: skip
  back = min(window or fed.rounds, fed.rounds)
  every = turning.snapshot_distance(snapshot_every, fed.rounds)
  there, home = _stops(fed.rounds, back, every, shown)

  def walk(step, state, stops):
    for done, stop in itertools.pairwise(stops):
      state = step(state, stop - done)
      checks.call("progress", shown.tell, stop, fed.rounds + back)
    return state

  with meter.line(shown, fed.rounds + back):
    state = walk(go.train, go.init(), there)
    return go.read(walk(go.back, go.turn(state), home))


def _stops(rounds, back, every, shown):
  """Returns after which rounds of the way progress is told.

  Only at snapshots: going back from elsewhere would train a block twice.

  Args:
    rounds: of the training.
    back: rounds to go back through.
    every: rounds between snapshots.
    shown: whom to tell, and how often.

  Returns:
    0 … `rounds`, and `rounds` … `rounds` + `back`.
  """
  snapshots = range(0, rounds, every)
  told = {snapshots[i - 1] for i in shown.stops(len(snapshots))}
  left = {i for i in told if i > rounds - back}
  return (
    sorted({0, *told, rounds}),
    sorted({rounds, *(2 * rounds - i for i in left), rounds + back}),
  )


def adjoint_pass(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  x: Any,
  y: Any,
  *,
  metric: Callable = metrics.loss,
  directions: int | None = None,
  own_part: bool = True,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
  snapshot_every: int | None = None,
  mesh: jax.sharding.Mesh | str | None = None,
  curvature: wall.Curvature | None = None,
  server_data: Any = None,
  window: int | None = None,
) -> Pass:
  """Prepares a training and the pass back through it.

  Args:
    model: what to train.
    data: the K clients.
    fed: how.
    x: [N, ...] test inputs.
    y: [N, ...] test labels.
    metric: (outputs, y) -> [], differentiable; `metrics.loss` is the model's
      own. Influence on others is read off the result.
    directions: eigenvectors of the metric's Hessian that are carried back
      beside its gradient; 0: first order. None: 16, or as many as the model
      has parameters.
    own_part: account for the client's own part in carrying its earlier
      influence; see `backwards.coordinates`.
    cohorts: int [T, B] positions of clients; None: drawn from the seed. A list
      of T lists may have shorter ones, where not everybody replied.
    params: w_0; None: drawn from the seed.
    seed: of every draw.
    snapshot_every: rounds between the models that are kept. Those in between
      are trained again on the way back. None: √T; 1: every model is kept.
    mesh: None: one device; "auto": all there are; or a Mesh as `simulator`
      takes it. Its devices share the participants of a round.
    curvature: None: directions go back through the participants' trainings.
      `server_side(fisher(..., per="round"))`: by the server's curvature alone,
      as a real server can do it (see `backwards.score_kept`).
    server_data: examples of the server's own, for such a curvature.
    window: rounds to go back through; what clients did before is not counted.
      None: all.

  Returns:
    The functions of a pass: `init() -> state`; `train(state, rounds=1)`;
    `turn(state, at=None)`, which finds the directions after round `at` (the
    last one trained); `back(state, rounds=1)`; `read(state)`, once all rounds
    are passed. A state may be turned again at another round. `lower()` gives
    the programs, to ask what memory they need.

  Raises:
    ValueError: naming the argument, client or round at fault.

  Examples:
    >>> back_and_forth = fi.adjoint_pass(model, data, fed, *test, directions=2)
    >>> state = back_and_forth.train(back_and_forth.init(), 6)
    >>> state = back_and_forth.back(back_and_forth.turn(state), 6)
    >>> back_and_forth.read(state).influence.shape
    (6,)
  """
  own_part = checks.boolean("own_part", own_part)
  if directions is not None:
    checks.integer("directions", directions)
  if window is not None:
    checks.positive_integer("window", window)
  served = _served(curvature)
  asked = plans.request(
    model, data, fed, estimators=None, exact=False, removals_=None,
    cohorts=cohorts, params=params, seed=seed, server_data=server_data,
    mesh=mesh, served=served, ragged=True,
  )  # fmt: skip
  examples = turning.check_examples(model, data, asked.params, metric, (x, y))
  count = turning.num_eigenvectors(directions, asked.params)
  every = turning.snapshot_distance(snapshot_every, fed.rounds)
  score = turning.score(model, metric)
  turning.require_gradient(score, asked.params, examples, asked.seed)
  plan = plans.make(asked, replay_chunk=None, upload_chunk=None)
  parts = turning.Parts(
    plan=plan, asked=asked, count=count, every=every, score=score,
    examples=examples, curvature=curvature,
    window=fed.rounds if window is None else window,
  )  # fmt: skip
  turning.require_memory(parts)
  return _build(parts, model, own_part=own_part, metric=metric)


def _served(curvature):
  """Returns an estimator by the curvature, for the checks of its examples."""
  if curvature is None:
    return None
  if not isinstance(curvature, wall.Curvature) or not curvature.symmetric:
    raise ValueError(
      "curvature must be None or"
      ' fi.server_side(fi.fisher(..., per="round")): only what the server makes'
      " by itself, in one matrix per round, can be carried back without clients"
    )
  return influence.estimator(curvature, guards.no_guard())


def _build(parts, model, *, own_part, metric):
  """Builds the functions of a pass."""
  asked, plan = parts.asked, parts.plan
  last = asked.setup.fed.rounds
  expected = jax.eval_shape(lambda w: turning.start(parts, w), plan.params)
  loops = reverse.loops(
    plan.choices,
    parts.every,
    turning.directions_at_once(parts),
    parts.curvature,
  )
  left = lambda state: int(state.left) - max(0, int(state.end) - parts.window)
  places = turning.places(plan, asked.cohorts, parts.mesh)
  check = lambda state: runs.check_state(state, expected, reverse.State)

  def train(state, rounds=1):
    check(state)
    left = last - int(state.trained.round)
    state = loops.train(state, _rounds(rounds, left), plan.inputs)
    simulator.require_finite(state.trained, asked.data)
    return state

  def turn(state, at=None):
    check(state)
    return turning.turn(parts, state, at)

  def back(state, rounds=1):
    check(state)
    if not int(state.end):
      raise ValueError("state has no directions yet; turn it before back")
    rounds = _rounds(rounds, left(state))
    state = loops.back(state, rounds, plan.inputs, places)
    if not bool(state.finite):
      raise ValueError(
        f"round {int(state.left) + 1}: a direction carried back through it is"
        " not finite; the local optimiser may have no derivative there (for"
        " optax.adam set eps_root), or a smaller learning rate may help"
      )
    return state

  def read(state):
    check(state)
    if not int(state.end) or left(state):
      raise ValueError(
        f"state has {left(state) or last} rounds left to go back through"
      )
    return founds.read(
      state, asked, model, metric, parts.examples,
      linear=not parts.count, own_part=own_part,
    )  # fmt: skip

  init = lambda: turning.place(parts, turning.start(parts, plan.params))
  lower = lambda: reverse.Loops(
    train=loops.train.lower(expected, 1, plan.inputs),
    back=loops.back.lower(expected, 1, plan.inputs, places),
  )
  return Pass(
    init=init, train=train, turn=turn, back=back, read=read, lower=lower
  )


def _rounds(rounds, left):
  rounds = checks.positive_integer("rounds", rounds)
  if rounds > left:
    raise ValueError(f"rounds is {rounds}; {left} rounds are left")
  return rounds
