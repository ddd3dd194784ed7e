"""A federated run and, beside it, what it would be without each client."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import checks
from fedinf_jax import curvature
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import leave_one_out
from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import tangent
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated

UPLOAD_BYTES = 2**30  # What uploads held at once may take.


class State(NamedTuple):
  """All that changes from round to round: what a checkpoint holds."""

  round: jax.Array  # int32 [], rounds done
  params: types.Params  # w_t
  estimators: dict[str, influence.EstimatorState]
  replay: types.Params | None  # w_t^(r) of the replayed rows, leaves [E, ...]
  rows: jax.Array | None  # int32 [E], which removals they are
  diverged: jax.Array  # int32 [], first client of a non-finite upload; or -1


class Simulator(NamedTuple):
  """A run whose loop belongs to the caller."""

  init: Callable[[], State]
  # step(state, rounds=1) -> state. The state given is used up (donated).
  step: Callable[..., State]


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """What a run leaves behind.

  Attributes:
    params: w_T.
    eps: each estimator's FIP, leaves [R, ...].
    health: how each estimator fared.
    exact_eps: exact FIP of `exact_rows`, leaves [E, ...]; or None.
    exact_rows: int [E], which removals were replayed; or None.
    model: the model that was trained.
  """

  params: types.Params
  eps: dict[str, types.Params]
  health: dict[str, influence.Health]
  exact_eps: types.Params | None
  exact_rows: np.ndarray | None
  model: types.Model

  @classmethod
  def of(cls, model: types.Model, state: State) -> "Run":
    """Reads a run off its state, after any round."""
    rows, exact = None, None
    if state.rows is not None:
      rows = np.asarray(state.rows)
      exact = jax.tree.map(lambda a, w: a - w[None], state.replay, state.params)
    return cls(
      state.params,
      {name: s.eps for name, s in state.estimators.items()},
      {name: influence.health(s) for name, s in state.estimators.items()},
      exact,
      rows,
      model,
    )

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
      [R, ...]; for "exact" one entry for each of `exact_rows`.
    """
    eps = self.exact_eps if of == "exact" else self.eps.get(of)
    if eps is None:
      known = [*self.eps, *(["exact"] if self.exact_eps is not None else [])]
      raise ValueError(
        f"of is {of!r}; this run has {', '.join(map(repr, known)) or 'nothing'}"
        ' ("exact" needs exact=True or a list of rows)'
      )
    x, y = jnp.asarray(x), jnp.asarray(y)
    per_row = memory.intermediate_bytes(self.model.apply, self.params, x)
    per_row += memory.tree_bytes(self.params)
    chunk = memory.chunk_size(jax.tree.leaves(eps)[0].shape[0], per_row)
    return _influence(
      self.params, eps, x, y, model=self.model, metric=metric, chunk=chunk
    )


@functools.partial(jax.jit, static_argnames=("model", "metric", "chunk"))
def _influence(params, eps, x, y, *, model, metric, chunk):
  metric = metrics.of_model(metric, model)
  with jax.default_matmul_precision("highest"):
    score = lambda w: metric(model.apply(w, x), y)
    moved = lambda e: score(jax.tree.map(jnp.add, params, e))
    return tree.map_rows(moved, eps, chunk) - score(params)[None]


def simulator(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  *,
  estimators: dict[str, influence.Estimator] | None = None,
  exact: bool | Sequence[int] = False,
  removals: Any = None,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
  replay_chunk: int | None = None,
  upload_chunk: int | None = None,
) -> Simulator:
  """Prepares training by FedAvg, estimates of influence, and exact replay.

  Args:
    model: what to train.
    data: the K clients.
    fed: how.
    estimators: name -> `estimator(curvature, guard)`. They share the training
      and, where they can, the uploads.
    exact: True: replay every removal; False: none; or a list of rows.
    removals: bool [R, K], a row for each set of clients taken out together;
      None: leave-one-out, R = K.
    cohorts: int [T, B] positions of clients; None: drawn from the seed.
    params: w_0; None: drawn from the seed.
    seed: of every draw.
    replay_chunk: removals replayed at once; None: as memory allows.
    upload_chunk: waves of participants whose uploads are held at once (at most,
      and a divisor of their number); None: as memory allows.

  Returns:
    The pair (init, step): `init() -> state`; `step(state, rounds=1) -> state`
    advances by that many rounds in one compiled program, the same for any
    number of rounds. `Run.of(model, state)` reads the result.

  Raises:
    ValueError: naming the argument, client or round at fault.
  """
  checks.seed(seed)
  checks.chunk("replay_chunk", replay_chunk)
  checks.chunk("upload_chunk", upload_chunk)
  estimators = checks.estimators(estimators)
  cohorts = checks.cohorts(cohorts, data, fed, seed)
  mask, rows = checks.removals(removals, exact, data.num_clients)
  params = checks.params(params, model, seed)
  if jnp.issubdtype(data.x.dtype, jnp.floating):
    params = tree.cast(params, data.x.dtype)  # The data's dtype rules the run.

  linear = any(e.curvature.linear for e in estimators.values())
  largest = int(data.num_examples.max())
  setup = curvature.Setup(
    model,
    fed,
    tangent.plain_rate(fed, params) if linear else None,
    min(largest, fed.batch_size or largest),
  )
  # Participants whose uploads fit in memory together are heard together. A
  # curvature that cannot upload makes an R × P result for each: one at a time.
  together = UPLOAD_BYTES // max(
    1, _upload_bytes(setup, estimators, params, data)
  )
  if any(not e.curvature.uploads for e in estimators.values()):
    together = 1
  schedule = packing.schedule(
    cohorts, data.num_examples, fed.batch_size, max_lanes=max(1, together)
  )
  _, num_waves, lanes = schedule.clients.shape
  upload_chunk = _divisor(num_waves, upload_chunk or max(1, together // lanes))
  num_removals = data.num_clients if mask is None else len(mask)
  everyone = np.arange(num_removals)
  slots, num_slots = _slots(cohorts, data.num_clients)
  make = functools.partial(
    leave_one_out.removals, mask, cohorts=cohorts, num_clients=data.num_clients
  )
  inputs = _Inputs(
    packing.clients(data),
    jnp.asarray(schedule.clients),
    jnp.asarray(schedule.size_class),
    jnp.asarray(slots),
    make(rows=everyone) if estimators else None,
    jnp.asarray(_hits(mask, cohorts)) if estimators else None,
    make(rows=rows) if len(rows) else None,
    jax.random.key(seed),
  )
  if len(rows) and replay_chunk is None:
    per_row = _replay_bytes(setup, params, data, lanes)
    replay_chunk = memory.chunk_size(len(rows), per_row)
  advance = _advance(
    setup, estimators, schedule.sizes, replay_chunk, upload_chunk
  )

  def init():
    # Copied: `step` donates its state, and `params` may be the caller's.
    own = jax.tree.map(jnp.array, params)
    started = {
      name: e.init(params, num_removals, num_slots)
      for name, e in estimators.items()
    }
    replayed, which = None, None
    if inputs.replayed is not None:
      replayed = tree.repeat(params, len(rows))
      which = jnp.array(inputs.replayed.rows)
    return State(jnp.int32(0), own, started, replayed, which, jnp.int32(-1))

  def step(state, rounds=1):
    traced = isinstance(state.round, jax.core.Tracer)
    left = None if traced else fed.rounds - int(state.round)
    if not traced and not 0 < rounds <= left:
      raise ValueError(
        f"rounds is {rounds}; {left} of {fed.rounds} rounds are left"
      )
    state = advance(state, rounds, inputs)
    if not traced and int(state.diverged) >= 0:
      raise ValueError(
        f"round {int(state.round)}: the upload of client"
        f" {data.ids[int(state.diverged)]!r} is not finite; a smaller learning"
        " rate may help"
      )
    return state

  return Simulator(init, step)


def from_exact(state: State, name: str) -> State:
  """Returns the state with an estimator's ε replaced by the exact one.

  One `step` later, that estimator is off by what the round itself added, the
  o(C) of Theorem 1: see `theory.new_error`.
  """
  estimator = state.estimators[name]
  num_removals = estimator.growth.shape[0]
  if state.rows is None or not np.array_equal(
    state.rows, np.arange(num_removals)
  ):
    raise ValueError("from_exact needs a run with exact=True")
  exact = jax.tree.map(lambda a, w: a - w[None], state.replay, state.params)
  estimators = {**state.estimators, name: estimator._replace(eps=exact)}
  return state._replace(estimators=estimators)


def simulate(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  **options,
) -> Run:
  """Trains by FedAvg and replays the training without each client.

  Takes the arguments of `simulator` and runs all its rounds.
  """
  init, step = simulator(model, data, fed, **options)
  return Run.of(model, step(init(), fed.rounds))


class _Inputs(NamedTuple):
  """What a round reads and never changes."""

  packed: packing.Clients
  waves: jax.Array  # int32 [T, W, G]
  size_class: jax.Array  # int32 [T, W]
  slots: jax.Array  # int32 [K + 1], a client's place in `dropped`
  removals: leave_one_out.Removals | None  # of the estimators, all R
  hits: jax.Array | None  # int32 [T, H], removals that touch the cohort
  replayed: leave_one_out.Removals | None
  root: jax.Array  # the run's key


def _advance(setup, estimators, sizes, replay_chunk, upload_chunk):
  """Builds the compiled loop over rounds."""
  model, fed = setup.model, setup.fed
  train_one = fedavg.local_training(model, fed)
  train_wave = fedavg.over_wave(lambda *args: train_one(*args)[0], sizes)
  take_part = fedavg.over_wave(
    _participant(setup, estimators, train_one), sizes
  )

  def one_round(state, inputs):
    t, round_ = state.round, state.round + 1
    waves, size_class = inputs.waves[t], inputs.size_class[t]  # [W, G], [W]
    counts = inputs.packed.count[waves]
    context = inputs.packed, inputs.root, round_
    base = fedavg.weights(counts.reshape(-1), _dtype(state.params))
    shares = None
    if estimators:
      left = leave_one_out.counts_left(inputs.removals, waves, counts)
      shares = influence.shares_of(
        left.reshape(len(left), -1), counts.reshape(-1), base
      ).reshape(left.shape)

    def hear_chunk(so_far, chunk):
      waves, size_class, base, shares = chunk
      operand = state.params, _applied_eps(estimators, state.estimators)

      def hear_wave(_, wave):
        return None, take_part(operand, *context, *wave)

      _, (local, finite, uploads, lost) = lax.scan(
        hear_wave, None, (waves, size_class)
      )
      flat = lambda a: a.reshape(-1, *a.shape[2:])
      local, finite, uploads, lost = jax.tree.map(
        flat, (local, finite, uploads, lost)
      )
      heard = {}
      for name, e in estimators.items():
        report = uploads[e.curvature.key] if e.curvature.uploads else lost[name]
        participants = influence.Participants(
          report,
          jnp.moveaxis(shares, 2, 0).reshape(shares.shape[2], -1),
          base.reshape(-1),
          inputs.slots[waves].reshape(-1),
        )
        heard[name] = e.absorb(
          setup,
          state.estimators[name].eps,
          so_far[name],
          participants,
          inputs.hits[t],
        )
      return heard, (local, finite)

    split = lambda a: a.reshape(-1, upload_chunk, *a.shape[1:])
    chunks = jax.tree.map(
      split,
      (
        waves,
        size_class,
        base.reshape(waves.shape),
        None if shares is None else jnp.moveaxis(shares, 0, 2),
      ),
    )
    begun = {n: e.begin(state.estimators[n]) for n, e in estimators.items()}
    heard, (local, finite) = lax.scan(hear_chunk, begun, chunks)
    local = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), local)
    params = tree.weighted_sum(base, local)

    ended = {}
    if estimators:
      updates = jax.tree.map(lambda a, w: a - w[None], local, state.params)
      flat = shares.reshape(len(shares), -1)
      combinatorial = influence.combinatorial(flat, base, updates)
      change = jax.tree.map(jnp.subtract, state.params, params)
      empty = flat.sum(1) == 0
      ended = {
        name: e.end(
          state.estimators[name],
          heard[name],
          round_,
          combinatorial,
          empty,
          change,
        )
        for name, e in estimators.items()
      }
    replay = state.replay
    if replay is not None:
      train = lambda params, *wave: train_wave(params, *context, *wave)
      replay = leave_one_out.replay_round(train, chunk=replay_chunk)(
        replay, params, inputs.replayed, round_, waves, size_class, counts
      )
    culprit = waves.reshape(-1)[jnp.argmin(finite.reshape(-1))]
    diverged = jnp.where(finite.all(), -1, culprit)
    return State(round_, params, ended, replay, state.rows, diverged)

  @functools.partial(jax.jit, donate_argnums=0)
  def advance(state, rounds, inputs):
    stop = jnp.minimum(state.round + rounds, fed.rounds)
    # Accelerators multiply matrices in less than float32 unless told.
    with jax.default_matmul_precision("highest"):
      return lax.while_loop(
        lambda s: (s.round < stop) & (s.diverged < 0),
        lambda s: one_round(s, inputs),
        state,
      )

  return advance


def _participant(setup, estimators, train):
  """Builds what one participant does: train, and report what is asked for."""
  uploading = {
    e.curvature.key: e.curvature
    for e in estimators.values()
    if e.curvature.uploads
  }

  def take_part(operand, examples, draws):
    params, eps = operand
    local, iterates = train(params, examples, draws)
    client = curvature.Client(iterates, examples, draws)
    uploads = {key: c.report(setup, client) for key, c in uploading.items()}
    lost = {}
    for name in eps:
      c = estimators[name].curvature
      lost[name] = c.lost(setup, c.report(setup, client), eps[name])
    finite = tree.is_finite((local, uploads))
    return local, finite, uploads, lost

  return take_part


def _applied_eps(estimators, states):
  """The ε that curvatures without an upload are applied to on the client."""
  return {
    name: states[name].eps
    for name, e in estimators.items()
    if not e.curvature.uploads
  }


def _upload_bytes(setup, estimators, params, data):
  """Returns the bytes of one participant's uploads."""
  shape = lambda a: jax.ShapeDtypeStruct(
    (setup.max_rows, *a.shape[1:]), a.dtype
  )
  number = jax.ShapeDtypeStruct((), jnp.int32)
  examples = packing.Examples(shape(data.x), shape(data.y), number, number)
  draws = rng.Draws(
    jax.eval_shape(lambda: jax.random.key(0)),
    number,
    jax.ShapeDtypeStruct((2,), jnp.uint32),
  )
  train = fedavg.local_training(setup.model, setup.fed)
  take_part = _participant(setup, estimators, train)
  return memory.tree_bytes(
    jax.eval_shape(take_part, (params, {}), examples, draws)[2]
  )


def _replay_bytes(setup, params, data, lanes):
  """Bounds the temporaries that one removal adds to a round of the replay."""
  x, y = (
    jax.ShapeDtypeStruct((lanes * setup.max_rows, *a.shape[1:]), a.dtype)
    for a in (data.x, data.y)
  )
  loss = lambda w, x, y: setup.model.loss(setup.model.apply(w, x), y).mean()
  temporaries = memory.intermediate_bytes(jax.grad(loss), params, x, y)
  return temporaries + 4 * memory.tree_bytes(params)


def _divisor(number, limit):
  """Returns the largest divisor of `number` that is at most `limit`."""
  return max(d for d in range(1, number + 1) if number % d == 0 and d <= limit)


def _slots(cohorts, num_clients):
  """Numbers the clients that take part more than once.

  Only for them does a guard have to remember anything. The others, and nobody,
  get the first number that is not taken.
  """
  times = np.bincount(cohorts.ravel(), minlength=num_clients + 1)
  again = np.flatnonzero(times > 1)
  slots = np.full(num_clients + 1, len(again), np.int32)
  slots[again] = np.arange(len(again))
  return slots, len(again)


def _hits(mask, cohorts):
  """Returns which removals touch each cohort, [T, H], filled up with R."""
  if mask is None:
    return cohorts
  touched = [np.flatnonzero(mask[:, cohort].any(1)) for cohort in cohorts]
  most = max(1, max(len(rows) for rows in touched))
  fill = lambda rows: np.pad(
    rows, (0, most - len(rows)), constant_values=len(mask)
  )
  return np.stack([fill(rows) for rows in touched]).astype(np.int32)


def _dtype(params):
  return jax.tree.leaves(params)[0].dtype
