"""A federated run and, beside it, what it would be without each client."""

from collections.abc import Callable
from collections.abc import Sequence
import dataclasses
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
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import meter
from fedinf_jax.simulation import plan as plans
from fedinf_jax.simulation import recorder as recorders
from fedinf_jax.simulation import round as rounds
from fedinf_jax.simulation import run as runs


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
  exact: bool | int | Sequence[Any] = False,
  removals: Any = None,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
  server_data: Any = None,
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
    exact: True: replay every removal; False: none; a number of them, drawn
      from the seed; a list of rows of removals; or a list of clients' ids. Text
      is an id and an integer a row. Where clients have integers for ids, a
      Python list of integers may be either, and is refused if it could be both:
      then give ids as text, or rows as a NumPy array.
    removals: bool [R, K], one row per set of clients taken out together; or
      their ids, [["a", "b"], ["c"]]; None: leave-one-out, R = K.
    cohorts: int [T, B] positions of clients; None: drawn from the seed. A list
      of T lists may have shorter ones, where not everybody replied.
    params: w_0; None: drawn from the seed.
    seed: of every draw.
    server_data: (x [N, ...], y [N, ...]), examples of the server's own, for
      estimators with `server_side(curvature)`; or a FederatedData, where some
      of them are the clients', by the same ids.
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

  Examples:
    >>> init, step = fi.simulator(model, data, fed, estimators=ours, exact=True)
    >>> state = step(init(), 6)
    >>> so_far = fi.Run.of(model, state, data)
    >>> so_far.influence(fi.metrics.loss, *test, of="ours").shape
    (6,)
  """
  plan = _plan(
    model, data, fed, estimators=estimators, exact=exact, removals=removals,
    cohorts=cohorts, params=params, seed=seed, server_data=server_data,
    replay_chunk=replay_chunk, upload_chunk=upload_chunk, mesh=mesh,
  )  # fmt: skip
  return _simulator(plan, data)


def _simulator(plan, data):
  """Returns (init, step) of a plan."""
  _require_memory(plan)
  total = plan.choices.setup.fed.rounds
  expected = jax.eval_shape(lambda params: start(plan, params), plan.params)
  advance = rounds.loop(plan.choices)

  def step(state, rounds=1):
    runs.check_state(state, expected)
    traced = isinstance(state.round, jax.core.Tracer)
    if not traced:
      left = total - int(state.round)
      if not 0 < _whole(rounds) <= left:
        raise ValueError(
          f"rounds is {rounds}; {left} of {total} rounds are left"
        )
    state = advance(state, rounds, plan.inputs)
    if not traced:
      require_finite(state, data)
    return state

  return Simulator(lambda: _init(plan), step)


def simulate(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  *,
  evaluate: Any = None,
  evaluate_every: int | None = None,
  progress: bool | Callable[[int, int], None] = False,
  **options,
) -> runs.Run:
  """Trains by FedAvg and replays the training without each client.

  Takes the arguments of `simulator` and runs all its rounds.

  Args:
    model: what to train.
    data: the K clients.
    fed: how.
    evaluate: (x, y), or a FederatedData: `history` of the run then holds FIL
      on these at every evaluated round.
    evaluate_every: rounds between two evaluations; None: 5.
    progress: True: a live line on a terminal, and some plain lines elsewhere,
      on the error output; or a function of (rounds done, all rounds).
    **options: see `simulator`.

  Examples:
    >>> run = fi.simulate(model, data, fed, estimators=ours, exact=True)
    >>> fil = run.influence(fi.metrics.loss, *test, of="ours")
    >>> run.ids[fil.argmin()]  # FIL < 0: the loss falls without it.
    'hospital 0'
  """
  shown = meter.reader(progress)
  record = recorders.recorder(model, data, fed, evaluate, evaluate_every)
  plan = _plan(model, data, fed, **options)
  init, step = _simulator(plan, data)
  state, lines, done = init(), [], 0
  evaluated = record.rounds if record else []
  told = shown.stops(fed.rounds)
  with meter.line(shown, fed.rounds):
    for stop in sorted({*evaluated, *told, fed.rounds}):
      state, done = step(state, stop - done), stop
      if record is not None and stop in evaluated:
        lines.append(record.read(state))
      if stop in told:
        checks.call("progress", shown.tell, stop, fed.rounds)
  run = runs.Run.of(
    model,
    state,
    data,
    removals=plan.mask,
    cohorts=plan.cohorts,
    copy=False,  # Nobody will step this state.
  )
  history = recorders.joined(evaluated, lines) if record else None
  return dataclasses.replace(run, history=history, made=plan.made)


def lower(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  **options,
) -> jax.stages.Lowered:
  """Lowers the program of `simulator`'s step, for a state that need not exist.

  Takes the arguments of `simulator`. `lower(...).compile()` tells what the
  program needs, before anything is run.

  Examples:
    >>> lowered = fi.simulation.lower(model, data, fed, estimators=ours)
    >>> type(lowered).__name__  # Then lowered.compile().memory_analysis().
    'Lowered'
  """
  plan = _plan(model, data, fed, **options)
  state = jax.eval_shape(lambda params: start(plan, params), plan.params)
  if plan.choices.layout.mesh is not None:
    place = lambda sharding, part: jax.tree.map(
      lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), part
    )
    state = jax.tree.map(place, _shardings(plan, state), state)
  return rounds.loop(plan.choices).lower(state, 1, plan.inputs)


def from_exact(state: runs.State, name: str) -> runs.State:
  """Returns the state with an estimator's ε replaced by the exact one.

  One `step` later, that estimator is off by what the round itself added, the
  o(C) of Theorem 1: see `theory.new_error`.

  Examples:
    >>> init, step = fi.simulator(model, data, fed, estimators=ours, exact=True)
    >>> state = fi.from_exact(step(init(), 5), "ours")
    >>> after = fi.Run.of(model, step(state), data)
    >>> fi.theory.new_error(after.exact_eps, after.eps["ours"]).shape
    (6,)
  """
  runs.check_state(state)
  if not isinstance(name, str) or name not in state.estimators:
    known = ", ".join(map(repr, state.estimators)) or "no estimator"
    raise ValueError(f"name is {name!r}; this run has {known}")
  estimator = state.estimators[name]
  num_removals = int(state.num_removals)
  replayed = state.replayed
  if replayed is not None:
    replayed = devices.replicate(replayed)[:num_removals]
  if replayed is None or not np.array_equal(replayed, np.arange(num_removals)):
    raise ValueError("from_exact needs a run with exact=True")
  eps = jax.tree.map(
    lambda e, a, w: jax.device_put(a - w[None], e.sharding),
    estimator.eps,
    state.replay,
    state.params,
  )
  estimators = {**state.estimators, name: estimator._replace(eps=eps)}
  return state._replace(estimators=estimators)


def upload_bytes(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  estimator: influence.Estimator,
  num_removals: int | None = None,
) -> int:
  """Returns the most bytes that a participant uploads for an estimator.

  Besides its local model. An interactive one is sent as many bytes, too.

  Args:
    model: see `simulator`.
    data: see `simulator`.
    fed: see `simulator`.
    estimator: one of `simulator`'s.
    num_removals: R, the models in an answer; None: leave-one-out.

  Examples:
    >>> fi.upload_bytes(model, data, fed, ours["ours"])  # 2 × 5 rows of 15.
    600
  """
  params = agreement.training(model, data, fed)
  plans.check_estimators({"it": estimator})
  if num_removals is not None:
    checks.positive_integer("num_removals", num_removals)
  estimators, reports = {"it": estimator}, {}
  curvature = estimator.curvature
  if curvature.serve is None and not curvature.interactive:
    largest = int(data.num_examples.max())
    setup = federation.setup(model, fed, estimators, params, largest)
    reports = plans.report_shapes(setup, estimators, params, data)
  answer = (num_removals or data.num_clients) * memory.tree_bytes(params)
  return plans.upload_bytes(estimator, reports, answer)


def _plan(
  model, data, fed, *, estimators=None, exact=False, removals=None,
  cohorts=None, params=None, seed=0, server_data=None, replay_chunk=None,
  upload_chunk=None, mesh=None,
):  # fmt: skip
  asked = plans.request(
    model, data, fed, estimators=estimators, exact=exact, removals_=removals,
    cohorts=cohorts, params=params, seed=seed, server_data=server_data,
    mesh=mesh, ragged=True,
  )  # fmt: skip
  return plans.make(asked, replay_chunk=replay_chunk, upload_chunk=upload_chunk)


def _require_memory(plan):
  """Refuses a state that could never fit, before any of it is made."""
  if jax.default_backend() != "cpu":
    return  # How much a device has is not for us to guess.
  setup = plan.choices.setup
  model = memory.tree_bytes(plan.params)
  replayed = 0 if plan.replayed is None else len(plan.replayed)
  rows = plan.num_removals * len(plan.choices.estimators) + replayed
  memory.require(f"{rows:,} models of {model:,} bytes", rows * model)
  if any(e.curvature.linear for _, e in plan.choices.estimators):
    steps = setup.fed.local_steps
    memory.require(f"local_steps is {steps}: its models", steps * model)


def require_finite(state: runs.State, data: federated.FederatedData):
  """Refuses a state with an upload that is not finite."""
  if int(state.diverged) >= 0:
    raise ValueError(
      f"round {int(state.round)}: the upload of client"
      f" {data.ids[int(state.diverged)]!r} is not finite; a smaller learning"
      " rate may help"
    )


def _whole(rounds):
  """Returns a number of rounds, which may be an array of JAX's."""
  if isinstance(rounds, jax.Array) and not rounds.ndim:
    rounds = np.asarray(rounds)[()]
  return checks.integer("rounds", rounds)


def start(plan: plans.Plan, params: types.Params) -> runs.State:
  """Returns the state before the first round."""
  # Copied: `step` donates its state, and `params` may be the caller's.
  params = jax.tree.map(jnp.copy, params)
  num_removals = plan.choices.layout.num_removals
  replay, replayed = None, None
  if plan.replayed is not None:
    replayed = jnp.asarray(plan.replayed, jnp.int32)
    replay = tree.repeat(params, len(replayed))
  return runs.State(
    round=jnp.int32(0),
    params=params,
    estimators={
      name: e.init(params, num_removals, plan.num_slots)
      for name, e in plan.choices.estimators
    },
    replay=replay,
    replayed=replayed,
    residuals={
      name: jnp.zeros((plan.num_clients + 1, 2), tree.dtype_of(params))
      for name, e in plan.choices.estimators
      if e.curvature.matched
    },
    diverged=jnp.int32(-1),
    num_removals=jnp.int32(plan.num_removals),
  )


def _init(plan):
  """Returns the state before the first round, where it belongs."""
  mesh = plan.choices.layout.mesh
  if mesh is None:
    return start(plan, plan.params)
  begin = lambda params: start(plan, params)
  shardings = _shardings(plan, jax.eval_shape(begin, plan.params))
  params = devices.put(mesh, plan.params, devices.REPLICATED)
  return jax.jit(begin, out_shardings=shardings)(params)


def _shardings(plan, state):
  layout = plan.choices.layout
  specs = rounds.state_specs(state, layout)
  return devices.shardings(layout.mesh, specs)
