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

from fedinf_jax import fedavg
from fedinf_jax import leave_one_out
from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated


class State(NamedTuple):
  """All that changes from round to round: what a checkpoint holds."""

  round: jax.Array  # int32 [], rounds done
  params: types.Params  # w_t
  replay: types.Params | None  # w_t^(r) of the replayed rows, leaves [E, ...]
  rows: jax.Array | None  # int32 [E], which removals they are; -1 is padding
  diverged: jax.Array  # int32 [], first client of a non-finite model; or -1


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
    exact_eps: exact FIP of `exact_rows`, leaves [E, ...]; or None.
    exact_rows: int [E], which removals were replayed; or None.
    model: the model that was trained.
  """

  params: types.Params
  exact_eps: types.Params | None
  exact_rows: np.ndarray | None
  model: types.Model

  @classmethod
  def of(cls, model: types.Model, state: State) -> "Run":
    """Reads a run off its state, after any round."""
    if state.rows is None:
      return cls(state.params, None, None, model)
    rows = np.asarray(state.rows)
    rows = rows[rows >= 0]
    eps = jax.tree.map(
      lambda a, w: a[: len(rows)] - w[None], state.replay, state.params
    )
    return cls(state.params, eps, rows, model)

  def influence(self, metric, x, y, of: str = "exact") -> jax.Array:
    """Returns F(w + ε) − F(w), the influence of each removal on a metric.

    For a loss, > 0 means that the loss rises without the client: it helps.
    For an accuracy, < 0 means the same.

    Args:
      metric: (outputs, y) -> array; `metrics.loss` is the model's own.
      x: [N, ...] test inputs.
      y: [N, ...] test labels.
      of: "exact", the ground truth.

    Returns:
      [E, ...], one entry for each of `exact_rows`.
    """
    if of != "exact":
      raise ValueError(f'of is {of!r}; this run has "exact"')
    if self.exact_eps is None:
      raise ValueError(
        'of="exact" needs a run with exact=True or a list of rows'
      )
    x, y = jnp.asarray(x), jnp.asarray(y)
    per_row = memory.intermediate_bytes(self.model.apply, self.params, x)
    per_row += memory.tree_bytes(self.params)
    chunk = memory.chunk_size(len(self.exact_rows), per_row)
    return _influence(
      self.params,
      self.exact_eps,
      x,
      y,
      model=self.model,
      metric=metric,
      chunk=chunk,
    )


@functools.partial(jax.jit, static_argnames=("model", "metric", "chunk"))
def _influence(params, eps, x, y, *, model, metric, chunk):
  metric = metrics.of_model(metric, model)
  with jax.default_matmul_precision("highest"):
    score = lambda w: metric(model.apply(w, x), y)
    moved = lambda e: score(jax.tree.map(jnp.add, params, e))
    return lax.map(moved, eps, batch_size=chunk) - score(params)[None]


def simulator(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  *,
  exact: bool | Sequence[int] = False,
  removals: Any = None,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
  replay_chunk: int | None = None,
) -> Simulator:
  """Prepares training by FedAvg and the replay without each client.

  Args:
    model: what to train.
    data: the K clients.
    fed: how.
    exact: True: replay every removal; False: none; or a list of rows.
    removals: bool [R, K], a row for each set of clients taken out together;
      None: leave-one-out, R = K.
    cohorts: int [T, B] positions of clients; None: drawn from the seed.
    params: w_0; None: drawn from the seed.
    seed: of every draw.
    replay_chunk: removals replayed at once; None: as memory allows.

  Returns:
    The pair (init, step): `init() -> state`; `step(state, rounds=1) -> state`
    advances by that many rounds in one compiled program, the same for any
    number of rounds. `Run.of(model, state)` reads the result.
  """
  if (
    isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32
  ):
    raise ValueError(f"seed is {seed!r}; it must be an integer in 0 … 2^32 - 1")
  cohorts = _checked_cohorts(cohorts, data, fed, seed)
  mask, rows = _checked_removals(removals, exact, data.num_clients)
  params = _checked_params(params, model, seed)
  if jnp.issubdtype(data.x.dtype, jnp.floating):
    params = tree.cast(params, data.x.dtype)  # The data's dtype rules the run.

  schedule = packing.schedule(cohorts, data.num_examples, fed.batch_size)
  who = None
  if len(rows):
    if replay_chunk is None:
      per_row = _bytes_per_removal(model, fed, params, data, schedule)
      replay_chunk = memory.chunk_size(len(rows), per_row)
    if replay_chunk < 1:
      raise ValueError(f"replay_chunk is {replay_chunk}; it must be >= 1")
    replay_chunk = min(replay_chunk, len(rows))
    who = leave_one_out.removals(
      mask, rows, cohorts, data.num_clients, replay_chunk
    )
  advance = _advance(model, fed, schedule.sizes, replay_chunk)
  inputs = (
    packing.clients(data),
    (jnp.asarray(schedule.clients), jnp.asarray(schedule.size_class)),
    who,
    rng.stream_key(seed, rng.Stream.BATCH),
  )

  def init():
    # Copied: `step` donates its state, and `params` may be the caller's.
    own = jax.tree.map(jnp.array, params)
    if who is None:
      return State(jnp.int32(0), own, None, None, jnp.int32(-1))
    replay = tree.repeat(params, len(who.rows))
    return State(jnp.int32(0), own, replay, jnp.array(who.rows), jnp.int32(-1))

  def step(state, rounds=1):
    traced = isinstance(state.round, jax.core.Tracer)
    left = None if traced else fed.rounds - int(state.round)
    if not traced and not 0 < rounds <= left:
      raise ValueError(
        f"rounds is {rounds}; {left} of {fed.rounds} rounds are left"
      )
    state = advance(state, rounds, *inputs)
    if not traced and int(state.diverged) >= 0:
      raise ValueError(
        f"round {int(state.round)}: the local model of client"
        f" {data.ids[int(state.diverged)]!r} is not finite; a smaller learning"
        " rate may help"
      )
    return state

  return Simulator(init, step)


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


def _advance(model, fed, sizes, replay_chunk):
  """Builds the compiled loop over rounds."""
  train_wave = fedavg.wave_training(model, fed, sizes)

  def one_round(state, packed, schedule, who, key):
    waves, size_class = jax.tree.map(lambda a: a[state.round], schedule)
    round_ = state.round + 1
    counts = packed.count[waves]

    def train(params, wave, size_class):
      return train_wave(params, packed, key, round_, wave, size_class)

    _, local = lax.scan(
      lambda _, wave: (None, train(state.params, *wave)),
      None,
      (waves, size_class),
    )
    local = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), local)
    finite = tree.all_finite(local)  # [B]
    params = fedavg.aggregate(local, counts.reshape(-1))
    replay = state.replay
    if replay is not None:
      replay = leave_one_out.replay_round(train, chunk=replay_chunk)(
        replay, params, who, round_, waves, size_class, counts
      )
    culprit = waves.reshape(-1)[jnp.argmin(finite)]
    diverged = jnp.where(finite.all(), -1, culprit)
    return State(round_, params, replay, state.rows, diverged)

  @functools.partial(jax.jit, donate_argnums=0)
  def advance(state, rounds, packed, schedule, who, key):
    stop = jnp.minimum(state.round + rounds, fed.rounds)
    # Accelerators multiply matrices in less than float32 unless told.
    with jax.default_matmul_precision("highest"):
      return lax.while_loop(
        lambda s: (s.round < stop) & (s.diverged < 0),
        lambda s: one_round(s, packed, schedule, who, key),
        state,
      )

  return advance


def _bytes_per_removal(model, fed, params, data, schedule):
  """Bounds the temporaries that one removal adds to a round of the replay."""
  size = schedule.sizes[-1]
  rows = schedule.clients.shape[2] * min(size, fed.batch_size or size)
  x, y = (
    jax.ShapeDtypeStruct((rows, *a.shape[1:]), a.dtype)
    for a in (data.x, data.y)
  )
  step = jax.grad(lambda w, x, y: model.loss(model.apply(w, x), y).mean())
  temporaries = memory.intermediate_bytes(step, params, x, y)
  return temporaries + 4 * memory.tree_bytes(params)


def _checked_params(params, model, seed):
  """Returns w_0: drawn from the seed, or the caller's if it fits the model."""
  key = rng.stream_key(seed, rng.Stream.INIT)
  if params is None:
    return model.init(key)
  expected, treedef = jax.tree.flatten_with_path(
    jax.eval_shape(model.init, key)
  )
  leaves, given = jax.tree.flatten(params)
  if given != treedef:
    raise ValueError(f"params: the model has {treedef}, not {given}")
  for (path, shape), leaf in zip(expected, leaves, strict=True):
    if shape.shape != np.shape(leaf):
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise ValueError(
        f"params: {name} has shape {list(np.shape(leaf))}; the model's is"
        f" {list(shape.shape)}"
      )
  return jax.tree.map(jnp.asarray, params)


def _checked_cohorts(cohorts, data, fed, seed):
  if fed.cohort_size > data.num_clients:
    raise ValueError(
      f"cohort_size is {fed.cohort_size} but there are only"
      f" {data.num_clients} clients"
    )
  if cohorts is None:
    words = rng.id_words(data.ids)
    return rng.cohorts(seed, words, fed.rounds, fed.cohort_size)
  cohorts = np.asarray(cohorts)
  if cohorts.shape != (fed.rounds, fed.cohort_size):
    raise ValueError(
      f"cohorts has shape {list(cohorts.shape)}; rounds and cohort_size ask"
      f" for {[fed.rounds, fed.cohort_size]}"
    )
  if not np.issubdtype(cohorts.dtype, np.integer):
    raise ValueError(f"cohorts is {cohorts.dtype}; it must hold integers")
  if cohorts.min() < 0 or cohorts.max() >= data.num_clients:
    raise ValueError(f"cohorts: clients run from 0 to {data.num_clients - 1}")
  ordered = np.sort(cohorts, axis=1)
  twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
  if twice.any():
    raise ValueError(
      f"cohorts: round {twice.argmax() + 1} names a client twice"
    )
  return cohorts.astype(np.int32)


def _checked_removals(removals, exact, num_clients):
  """Returns the mask [R, K] (None: leave-one-out) and the rows to replay."""
  num_removals = num_clients
  if removals is not None:
    removals = np.asarray(removals)
    if removals.dtype != bool or removals.ndim != 2 or not len(removals):
      raise ValueError(
        f"removals is {removals.dtype} of shape {list(removals.shape)};"
        f" it must be bool [R, {num_clients}]"
      )
    if removals.shape[1] != num_clients:
      raise ValueError(
        f"removals has {removals.shape[1]} columns for {num_clients} clients"
      )
    num_removals = len(removals)
  if isinstance(exact, bool):
    return removals, np.arange(num_removals if exact else 0)
  rows = np.asarray(exact)
  if rows.ndim != 1 or (
    len(rows) and not np.issubdtype(rows.dtype, np.integer)
  ):
    raise ValueError("exact must be True, False or a list of rows of removals")
  if len(rows) and not (rows.min() >= 0 and rows.max() < num_removals):
    raise ValueError(f"exact: rows run from 0 to {num_removals - 1}")
  return removals, rows.astype(int)
