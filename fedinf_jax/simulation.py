"""A federated run and, beside it, what it would be without each client."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import checks
from fedinf_jax import curvature
from fedinf_jax import engine
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import leave_one_out
from fedinf_jax import memory
from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import runs
from fedinf_jax import sharding
from fedinf_jax import tangent
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated

UPLOAD_BYTES = 2**30  # What uploads held at once may take.


class Simulator(NamedTuple):
  """A run whose loop belongs to the caller."""

  init: Callable[[], runs.State]
  # step(state, rounds=1) -> state. The state given is used up (donated).
  step: Callable[..., runs.State]


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
  mesh: jax.sharding.Mesh | str | None = None,
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
    replay_chunk: removals replayed at once on a device; None: as memory allows.
    upload_chunk: waves of participants whose uploads are held at once (at most,
      and a divisor of their number); None: as memory allows.
    mesh: None: one device; "auto": all there are; or a Mesh with an axis
      "removals" and, for models whose uploads do not fit one device, "params".

  Returns:
    The pair (init, step): `init() -> state`; `step(state, rounds=1) -> state`
    advances by that many rounds in one compiled program, the same for any
    number of rounds. `Run.of(model, state)` reads the result.

  Raises:
    ValueError: naming the argument, client or round at fault.
  """
  mesh = sharding.resolve(mesh)
  checks.seed(seed)
  checks.chunk("replay_chunk", replay_chunk)
  checks.chunk("upload_chunk", upload_chunk)
  estimators = checks.estimators(estimators)
  cohorts = checks.cohorts(cohorts, data, fed, seed)
  mask, rows = checks.removals(removals, exact, data.num_clients)
  params = checks.params(params, model, seed)
  if jnp.issubdtype(data.x.dtype, jnp.floating):
    params = tree.cast(params, data.x.dtype)  # The data's dtype rules the run.

  setup = _setup(model, data, fed, estimators, params)
  # Participants whose uploads fit in memory together are heard together.
  uploads = _uploads(setup, estimators, params, data)
  together = UPLOAD_BYTES // max(1, memory.tree_bytes(uploads))
  client_bytes = _gradient_bytes(setup, params, data)
  devices = sharding.num_devices(mesh)
  max_lanes = min(
    together,
    memory.models_at_once(fed.cohort_size, client_bytes),
    -(-fed.cohort_size // devices),  # There is a wave for every device.
  )
  if any(not e.curvature.uploads for e in estimators.values()):
    max_lanes = 1  # Each makes an R × P result of its own.
  plan = packing.schedule(
    cohorts, data.num_examples, fed.batch_size, max_lanes=max(1, max_lanes)
  )
  _, num_waves, lanes = plan.clients.shape
  upload_chunk = _divisor(num_waves, upload_chunk or max(1, together // lanes))
  num_removals = data.num_clients if mask is None else len(mask)
  layout = _layout(mesh, estimators, uploads, num_removals, rows)
  slots, num_slots = _slots(cohorts, data.num_clients)
  fill = lambda rows: np.pad(
    rows,
    (0, sharding.padded(len(rows), mesh) - len(rows)),
    constant_values=num_removals,  # Nobody.
  )
  make = lambda rows: leave_one_out.removals(
    mask, fill(rows), cohorts, data.num_clients
  )
  inputs = sharding.put(
    mesh,
    engine.Inputs(
      None,  # The clients themselves follow.
      plan.clients,
      plan.size_class,
      slots,
      make(np.arange(num_removals)) if estimators else None,
      _hits(mask, cohorts, layout.num_rows) if estimators else None,
      make(rows) if len(rows) else None,
      jax.random.key(seed),
    ),
    engine.input_specs(layout)._replace(packed=sharding.WHOLE),
  )
  inputs = inputs._replace(packed=_packed(data, plan, layout, upload_chunk))
  if len(rows) and replay_chunk is None:
    per_row = lanes * client_bytes + 4 * memory.tree_bytes(params)
    each = sharding.padded(len(rows), mesh) // devices
    replay_chunk = memory.models_at_once(each, per_row)
  advance = engine.advance(
    setup,
    tuple(estimators.items()),
    plan.sizes,
    replay_chunk,
    upload_chunk,
    layout,
  )

  def start(params):
    # Copied: `step` donates its state, and `params` may be the caller's.
    params = jax.tree.map(jnp.copy, params)
    started = {
      name: e.init(params, layout.num_rows, num_slots)
      for name, e in estimators.items()
    }
    replayed, which = None, None
    if len(rows):
      which = jnp.asarray(fill(rows), jnp.int32)
      replayed = tree.repeat(params, len(which))
    return runs.State(
      jnp.int32(0),
      params,
      started,
      replayed,
      which,
      jnp.int32(-1),
      jnp.int32(num_removals),
    )

  shapes = jax.eval_shape(start, params)
  lie = None
  if mesh is not None:
    lie = sharding.shardings(mesh, engine.state_specs(shapes, layout))

  def init():
    if mesh is None:
      return start(params)
    own = sharding.put(mesh, params, sharding.WHOLE)
    return jax.jit(start, out_shardings=lie)(own)

  def program():
    """Lowers `step`, for a state that need not exist."""
    state = shapes
    if mesh is not None:
      place = lambda to, part: jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=to), part
      )
      state = jax.tree.map(place, lie, shapes)
    return advance.lower(state, 1, inputs)

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

  step.program = program
  return Simulator(init, step)


def from_exact(state: runs.State, name: str) -> runs.State:
  """Returns the state with an estimator's ε replaced by the exact one.

  One `step` later, that estimator is off by what the round itself added, the
  o(C) of Theorem 1: see `theory.new_error`.
  """
  estimator = state.estimators[name]
  num_removals = int(state.num_removals)
  rows = None if state.rows is None else sharding.whole(state.rows)
  if rows is None or not np.array_equal(
    rows[:num_removals], np.arange(num_removals)
  ):
    raise ValueError("from_exact needs a run with exact=True")
  eps = jax.tree.map(
    lambda e, a, w: jax.device_put(a - w[None], e.sharding),
    estimator.eps,
    state.replay,
    state.params,
  )
  estimators = {**state.estimators, name: estimator._replace(eps=eps)}
  return state._replace(estimators=estimators)


def simulate(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  **options,
) -> runs.Run:
  """Trains by FedAvg and replays the training without each client.

  Takes the arguments of `simulator` and runs all its rounds.
  """
  init, step = simulator(model, data, fed, **options)
  return runs.Run.of(model, step(init(), fed.rounds))


def upload_bytes(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  estimator: influence.Estimator,
  num_removals: int | None = None,
) -> int:
  """Returns the most bytes that a participant uploads for an estimator.

  Besides its local model. One that must be asked is sent as many bytes, too.

  Args:
    model: see `simulate`.
    data: see `simulate`.
    fed: see `simulate`.
    estimator: one of `simulate`'s.
    num_removals: R, the models in an answer; None: leave-one-out.
  """
  params = checks.params(None, model, 0)
  if not estimator.curvature.uploads:
    return (num_removals or data.num_clients) * memory.tree_bytes(params)
  setup = _setup(model, data, fed, {"": estimator}, params)
  return memory.tree_bytes(_uploads(setup, {"": estimator}, params, data))


def _setup(model, data, fed, estimators, params):
  linear = any(e.curvature.linear for e in estimators.values())
  largest = int(data.num_examples.max())
  return curvature.Setup(
    model,
    fed,
    tangent.plain_rate(fed, params) if linear else None,
    min(largest, fed.batch_size or largest),
  )


def _uploads(setup, estimators, params, data):
  """Returns the shapes of one participant's uploads, by key."""
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
  take_part = engine.participant(setup, estimators, train)
  _, iterates, uploads = jax.eval_shape(take_part, params, examples, draws)
  sample = engine.sampled_reports(setup, estimators)
  return uploads | jax.eval_shape(sample, iterates, examples, draws)


def _gradient_bytes(setup, params, data):
  """Bounds the temporaries of one local step of the largest client."""
  x, y = (
    jax.ShapeDtypeStruct((setup.max_rows, *a.shape[1:]), a.dtype)
    for a in (data.x, data.y)
  )
  loss = lambda w, x, y: setup.model.loss(setup.model.apply(w, x), y).mean()
  return memory.intermediate_bytes(jax.grad(loss), params, x, y)


def _layout(mesh, estimators, uploads, num_removals, rows):
  """Decides what lies on which device."""
  uploading = {n: e for n, e in estimators.items() if e.curvature.uploads}
  columns = frozenset()
  if mesh is not None and mesh.shape[sharding.PARAMS] > 1:
    columns = frozenset(
      name
      for name, e in uploading.items()
      if isinstance(uploads[e.curvature.key], curvature.Rows)
    )
  # Replay, and curvature that cannot be uploaded, read every participant's
  # examples on every device.
  alone = not len(rows) and len(uploading) == len(estimators)
  return sharding.Layout(
    mesh,
    sharding.padded(num_removals, mesh),
    columns,
    own_data=mesh is not None and alone,
  )


def _packed(data, plan, layout, upload_chunk):
  """Puts the clients on the devices; with a mesh, only those that are drawn."""
  mesh = layout.mesh
  if mesh is None:
    return packing.clients(data)
  packed = packing.on_host(data)
  parts = mesh.size if layout.own_data else 1
  rounds, _, lanes = plan.clients.shape
  drawn = plan.clients.reshape(rounds, -1, upload_chunk, lanes)
  # As `sharding.dealt` deals the waves of a chunk out.
  needed = [
    np.setdiff1d(drawn[:, :, part::parts], data.num_clients)
    for part in range(parts)
  ]
  rows = max(packed.count[some].sum() for some in needed)
  rows = int(max(rows, plan.sizes[-1]))
  excerpt = lambda part: packing.excerpt(packed, needed[part], rows)
  if layout.own_data:
    x, y, offset = sharding.by_device(mesh, excerpt)
  else:
    x, y, offset = sharding.put(mesh, excerpt(0), sharding.WHOLE)
  count, words = sharding.put(mesh, packed[3:], sharding.WHOLE)
  return packing.Clients(x, y, offset, count, words)


def _divisor(number, limit):
  """Returns the largest divisor of `number` that is at most `limit`."""
  return max(d for d in range(1, number + 1) if number % d == 0 and d <= limit)


def _slots(cohorts, num_clients):
  """Numbers the clients that take part more than once.

  Only for them does a guard have to remember anything. The others, and nobody,
  get the first number that is not taken. (One place is there even for nobody:
  JAX does not read from an axis of length zero.)
  """
  times = np.bincount(cohorts.ravel(), minlength=num_clients + 1)
  again = np.flatnonzero(times > 1)
  num_slots = max(1, len(again))
  slots = np.full(num_clients + 1, num_slots, np.int32)
  slots[again] = np.arange(len(again))
  return slots, num_slots


def _hits(mask, cohorts, nowhere):
  """Returns which removals touch each cohort, [T, H], filled up."""
  if mask is None:
    return cohorts
  touched = [np.flatnonzero(mask[:, cohort].any(1)) for cohort in cohorts]
  most = max(1, max(len(rows) for rows in touched))
  fill = lambda rows: np.pad(
    rows, (0, most - len(rows)), constant_values=nowhere
  )
  return np.stack([fill(rows) for rows in touched]).astype(np.int32)
