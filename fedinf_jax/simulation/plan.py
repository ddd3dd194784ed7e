"""Decisions on the host: who trains when, in which chunks, on which device."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import federation
from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax import selection
from fedinf_jax import types
from fedinf_jax.curvature import wall
from fedinf_jax.data import federated
from fedinf_jax.data import on_device
from fedinf_jax.linalg import low_rank
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import made as mades
from fedinf_jax.simulation import round as rounds
from fedinf_jax.simulation import schedule as schedules
from fedinf_jax.simulation import stages


class Request(NamedTuple):
  """What a user asks for, checked; see `simulator.simulator`."""

  data: federated.FederatedData
  estimators: dict[str, influence.Estimator]
  setup: wall.Setup
  cohorts: np.ndarray  # int32 [T, B], K for nobody
  mask: np.ndarray | None  # bool [R, K]; None: leave-one-out
  num_removals: int  # R
  replayed: np.ndarray  # int [E]
  params: types.Params  # w_0
  seed: int
  server: on_device.Held | None
  mesh: jax.sharding.Mesh | None

  def padded(self, numbers: np.ndarray) -> np.ndarray:
    """Pads numbers of removals to a multiple of the devices, with nobody."""
    more = devices.padded(len(numbers), self.mesh) - len(numbers)
    return np.pad(numbers, (0, more), constant_values=self.num_removals)


class Plan(NamedTuple):
  """All that was decided before anything is compiled."""

  choices: stages.Choices
  inputs: rounds.Inputs
  params: types.Params  # w_0
  num_slots: int  # participants that a fine guard remembers
  num_clients: int  # K
  num_removals: int  # R
  replayed: np.ndarray | None  # int [E], padded
  cohorts: np.ndarray  # int32 [T, B], K for nobody
  mask: np.ndarray | None  # bool [R, K]; None: leave-one-out
  made: mades.Made


def request(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  *,
  estimators: Any,
  exact: Any,
  removals_: Any,
  cohorts: Any,
  params: Any,
  seed: Any,
  server_data: Any,
  mesh: Any,
  served: influence.Estimator | None = None,
  ragged: bool = False,
) -> Request:
  """Checks what a user asks for, the cheap things first.

  Args beyond those of `simulator.simulator`:
    served: an estimator that is not kept, but whose curvature the server makes.
    ragged: whether cohorts may be of several sizes.
  """
  mesh = devices.resolve(mesh)
  seed = checks.seed(seed)
  estimators = check_estimators(estimators)
  shapes = agreement.training(model, data, fed)
  mask = selection.removals(removals_, data)
  num_removals = data.num_clients if mask is None else len(mask)
  asking = estimators if served is None else {"curvature": served}
  server = _held(server_data, data, asking, model, shapes)
  if server is not None and server.owner is not None:
    rows = removals.hits(mask, server.owner[:, None], num_removals)
    server = server._replace(removed_in=rows)
  setup = federation.setup(
    model, fed, asking, shapes, int(data.num_examples.max())
  )
  return Request(
    data=data,
    estimators=estimators,
    setup=setup,
    cohorts=checks.cohorts(cohorts, data, fed, seed, ragged=ragged),
    mask=mask,
    num_removals=num_removals,
    replayed=selection.replayed(
      exact, num_removals, seed, data.ids if mask is None else None
    ),
    params=checks.params(params, model, seed, data),
    seed=seed,
    server=server,
    mesh=mesh,
  )


def _held(server_data, data, estimators, model, shapes):
  """Returns the server's own examples; None where nobody asks for them."""
  found = agreement.server_examples(
    model,
    shapes,
    influence.serving(estimators),
    server_data,
    agreement.example_of(data),
  )
  if found is None:
    return None
  x, y, ids = found
  held: Any = on_device.Held  # Of arrays that are not JAX's yet.
  return held(
    x=np.asarray(x, data.x.dtype),
    y=np.asarray(y, data.y.dtype),
    owner=None if ids is None else _owners(ids, data),
    removed_in=None,
  )


def _owners(ids, data):
  """Returns whose each example is, int [N]; K: no client's. None: all of them.

  As elsewhere, ids that are written alike are the same.
  """
  position = {str(client): k for k, client in enumerate(data.ids)}
  owners = [position.get(i, data.num_clients) for i in ids]
  if min(owners) == data.num_clients:
    return None
  return np.asarray(owners, np.int32)


def check_estimators(estimators: Any) -> dict[str, influence.Estimator]:
  """Returns the estimators by name."""
  if estimators is None:
    return {}
  if not isinstance(estimators, dict):
    raise ValueError(
      f"estimators is a {type(estimators).__name__}; it must be a dictionary"
      ' of names, such as {"ours": fi.estimator(curvature, guard)}'
    )
  for name, e in estimators.items():
    if not isinstance(name, str):
      raise ValueError(f"estimators: the name {name!r} is not a string")
    checks.identifier("estimators", name)
    if name == "exact":
      raise ValueError('estimators: "exact" is the name of the ground truth')
    if not isinstance(e, influence.Estimator):
      raise ValueError(
        f"estimators: {name!r} is not an estimator(curvature, guard)"
      )
  return dict(estimators)


def make(
  asked: Request, *, replay_chunk: int | None, upload_chunk: int | None
) -> Plan:
  """Decides everything else; chunks that are None are as memory allows."""
  for name, chunk in (
    ("replay_chunk", replay_chunk),
    ("upload_chunk", upload_chunk),
  ):
    if chunk is not None:
      checks.positive_integer(name, chunk)
  data, setup = asked.data, asked.setup
  reports = report_shapes(setup, asked.estimators, asked.params, data)
  each_bytes = gradient_bytes(asked)
  at_once = memory.uploads_at_once(memory.tree_bytes(reports))
  schedule = schedules.schedule(
    asked.cohorts,
    data.num_examples,
    setup.fed.batch_size,
    max_lanes=_max_lanes(asked, at_once, each_bytes),
  )
  _, num_waves, lanes = schedule.clients.shape
  if upload_chunk is None:
    upload_chunk = max(1, at_once // lanes)
  layout = _layout(asked, reports)
  slots, num_slots = _slots(asked.cohorts, data.num_clients)
  choices = stages.Choices(
    setup=setup,
    estimators=tuple(asked.estimators.items()),
    sizes=schedule.sizes,
    replay_chunk=replay_chunk or _replay_chunk(asked, lanes * each_bytes),
    upload_chunk=_divisor(num_waves, upload_chunk),
    layout=layout,
  )
  return Plan(
    choices=choices,
    inputs=_inputs(asked, choices, schedule, slots),
    params=asked.params,
    num_slots=num_slots,
    num_clients=data.num_clients,
    num_removals=asked.num_removals,
    replayed=asked.padded(asked.replayed) if len(asked.replayed) else None,
    cohorts=asked.cohorts,
    mask=asked.mask,
    made=_made(asked, reports),
  )


def _made(asked, reports):
  """Returns how the run is made."""
  model = memory.tree_bytes(asked.params)
  uploads = {
    name: upload_bytes(e, reports, asked.num_removals * model)
    for name, e in asked.estimators.items()
  }
  return mades.made(asked.setup.fed, asked.seed, asked.estimators, uploads)


def upload_bytes(
  estimator: influence.Estimator, reports: dict, answer: int
) -> int:
  """Returns what a participant uploads for an estimator, beside its model.

  Args:
    estimator: whose.
    reports: shapes of one participant's reports, by key.
    answer: bytes of an interactive participant's answer.
  """
  curvature = estimator.curvature
  if curvature.serve is not None:
    return 0
  if curvature.interactive:
    return answer
  return memory.tree_bytes(reports.get(curvature.key))


def report_shapes(
  setup: wall.Setup,
  estimators: dict[str, influence.Estimator],
  params: types.Params,
  data: federated.FederatedData,
) -> dict:
  """Returns the shapes of one participant's reports, by key."""
  number: Any = jax.ShapeDtypeStruct((), jnp.int32)
  words: Any = jax.ShapeDtypeStruct((2,), jnp.uint32)
  x, y = _example_shapes(setup, data)
  examples = on_device.Examples(x, y, first=number, count=number)
  draws = rng.Draws(jax.eval_shape(lambda: jax.random.key(0)), number, words)
  curvatures = [e.curvature for e in estimators.values()]

  def take_part(params, examples, draws):
    _, client = federation.train(setup)(params, examples, draws)
    return federation.report(setup, curvatures, client)

  return jax.eval_shape(take_part, params, examples, draws)


def gradient_bytes(asked: Request) -> int:
  """Bounds the temporaries of the largest local step's gradient."""
  shapes = _example_shapes(asked.setup, asked.data)
  return memory.gradient_bytes(asked.setup.model, asked.params, shapes)


def _example_shapes(setup, data):
  """Returns the shapes of the largest local step's x and y."""
  shape = lambda a: (setup.max_examples, *a.shape[1:])
  return [jax.ShapeDtypeStruct(shape(a), a.dtype) for a in (data.x, data.y)]


def _max_lanes(asked, at_once, each_bytes):
  """Returns how many participants may train side by side."""
  if any(e.curvature.interactive for e in asked.estimators.values()):
    return 1  # Each makes an R × P result of its own.
  cohort_size = asked.setup.fed.cohort_size
  # There is a wave for every device.
  each = -(-cohort_size // devices.num_devices(asked.mesh))
  fitting = memory.models_at_once(cohort_size, each_bytes)
  return max(1, min(at_once, fitting, each))


def _replay_chunk(asked, wave_bytes):
  """Returns how many removals a device replays at once."""
  if not len(asked.replayed):
    return None
  num_devices = devices.num_devices(asked.mesh)
  each = devices.padded(len(asked.replayed), asked.mesh) // num_devices
  per_removal = wave_bytes + 4 * memory.tree_bytes(asked.params)
  return memory.models_at_once(each, per_removal)


def _layout(asked, reports):
  """Decides what lies on which device."""
  mesh = asked.mesh
  columns: frozenset[str] = frozenset()
  if mesh is not None and mesh.shape[devices.PARAMS] > 1:
    columns = frozenset(
      name
      for name, e in asked.estimators.items()
      if isinstance(reports.get(e.curvature.key), low_rank.Rows)
    )
  # Replay and interactive participants read every client's examples on every
  # device.
  interactive = any(e.curvature.interactive for e in asked.estimators.values())
  return devices.Layout(
    mesh=mesh,
    num_removals=devices.padded(asked.num_removals, mesh),
    columns=columns,
    own_data=mesh is not None and not len(asked.replayed) and not interactive,
  )


def _inputs(asked, choices, schedule, slots):
  """Puts what a round reads on the devices."""
  data, layout = asked.data, choices.layout
  select = lambda numbers: removals.select(
    asked.mask, asked.padded(numbers), asked.cohorts, data.num_clients
  )
  everyone, replayed = None, None
  clients: Any = None  # They follow.
  hits: Any = None
  if asked.estimators:
    everyone = select(np.arange(asked.num_removals))
    hits = removals.hits(asked.mask, asked.cohorts, layout.num_removals)
  if len(asked.replayed):
    replayed = select(asked.replayed)
  inputs = rounds.Inputs(
    clients=clients,
    waves=schedule.clients,
    size_class=schedule.size_class,
    slots=slots,
    removals=everyone,
    hits=hits,
    replayed=replayed,
    server=asked.server,
    root=jax.random.key(asked.seed),
  )
  specs = rounds.input_specs(layout)._replace(clients=devices.REPLICATED)
  inputs = devices.put(layout.mesh, inputs, specs)
  clients = _clients(data, schedule, layout, choices.upload_chunk)
  return inputs._replace(clients=clients)


def _clients(data, schedule, layout, upload_chunk):
  """Puts the clients on the devices; with a mesh, only those that are drawn."""
  mesh = layout.mesh
  if mesh is None:
    return on_device.put(data)
  clients = on_device.on_host(data)
  parts = mesh.size if layout.own_data else 1
  num_rounds, _, lanes = schedule.clients.shape
  drawn = schedule.clients.reshape(num_rounds, -1, upload_chunk, lanes)
  # As `devices.dealing_order` deals the waves of a chunk out.
  needed = [
    np.setdiff1d(drawn[:, :, part::parts], data.num_clients)
    for part in range(parts)
  ]
  counts = [int(clients.count[some].sum()) for some in needed]
  most = int(max(*counts, schedule.sizes[-1]))
  excerpt = lambda part: on_device.excerpt(clients, needed[part], most)
  if layout.own_data:
    x, y, offset = devices.by_device(mesh, excerpt)
  else:
    x, y, offset = devices.put(mesh, excerpt(0), devices.REPLICATED)
  count, words = devices.put(
    mesh, (clients.count, clients.words), devices.REPLICATED
  )
  return on_device.Clients(x=x, y=y, offset=offset, count=count, words=words)


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
  times[num_clients] = 0  # Nobody, who fills up a cohort.
  again = np.flatnonzero(times > 1)
  num_slots = max(1, len(again))
  slots = np.full(num_clients + 1, num_slots, np.int32)
  slots[again] = np.arange(len(again))
  return slots, num_slots
