"""One round for everybody, and the compiled loop over rounds.

Work is distributed over the devices of a mesh; what passes between them are
models and reports, never a row of ε.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import fedavg
from fedinf_jax import federation
from fedinf_jax import guards
from fedinf_jax import influence
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import exchange
from fedinf_jax.simulation import run
from fedinf_jax.simulation import stages as stages_


class Inputs(NamedTuple):
  """What a round reads and never changes."""

  clients: on_device.Clients
  waves: jax.Array  # int32 [T, W, G]
  size_class: jax.Array  # int32 [T, W]
  slots: jax.Array  # int32 [K + 1], where a guard remembers a client
  removals: removals.Removals | None  # of the estimators, all R
  hits: jax.Array | None  # int32 [T, H], removals that touch the cohort
  replayed: removals.Removals | None
  server: on_device.Held | None  # the server's own
  root: jax.Array  # the run's key


class Cohort(NamedTuple):
  """The participants of one round."""

  draws: tuple[jax.Array, jax.Array]  # the run's key, the round (1-based)
  waves: jax.Array  # int32 [W, G]
  size_class: jax.Array  # int32 [W]
  counts: jax.Array  # int32 [W, G]
  attendance: removals.Attendance


def input_specs(layout: devices.Layout) -> Inputs:
  """Returns where a round's inputs lie."""
  everywhere = devices.REPLICATED
  everyone: Any = devices.Spec(devices.REMOVALS)
  return Inputs(
    clients=stages_.client_specs(layout),
    waves=everywhere,
    size_class=everywhere,
    slots=everywhere,
    removals=everyone,
    hits=everywhere,
    replayed=devices.SPLIT,
    server=everywhere,
    root=everywhere,
  )


def state_specs(state: run.State, layout: devices.Layout) -> run.State:
  """Returns where a state lies (`state` may be one of shapes)."""
  everywhere = devices.REPLICATED
  estimators = {}
  for name in state.estimators:
    by: Any = devices.Spec(layout.axes(name))
    eps = by
    if name in layout.columns:
      eps = devices.column_specs(layout.mesh, state.params, by)
    guard = guards.GuardState(by, by, by, by)
    estimators[name] = influence.EstimatorState(eps, guard)
  return run.State(
    round=everywhere,
    params=everywhere,
    estimators=estimators,
    replay=devices.SPLIT,
    replayed=devices.SPLIT,
    residuals=everywhere,
    diverged=everywhere,
    num_removals=everywhere,
  )


@functools.lru_cache(maxsize=8)
def loop(choices: stages_.Choices) -> jax.stages.Wrapped:
  """Builds the compiled loop over rounds.

  Remembered: another run of the same model and settings on data of the same
  shape, with other cohorts or parameters, compiles nothing.

  Returns:
    loop(state, rounds, inputs) -> state. The state given is donated.
  """
  stages = stages_.build(choices)
  last = choices.setup.fed.rounds

  @functools.partial(jax.jit, donate_argnums=0)
  def run_rounds(state, rounds, inputs):
    stop = jnp.minimum(state.round + rounds, last)
    # Accelerators multiply matrices in less than float32 unless told.
    with jax.default_matmul_precision("highest"):
      return lax.while_loop(
        lambda s: (s.round < stop) & (s.diverged < 0),
        lambda s: one_round(choices, stages, s, inputs),
        state,
      )

  return run_rounds


def one_round(choices, stages, state, inputs):
  """Does one round: everybody's training, every ε, every replayed model."""
  layout = choices.layout
  cohort = cohort_of(choices, state, inputs)
  round_ = state.round + 1
  so_far, (local, finite) = receive_all(choices, stages, state, inputs, cohort)
  attendance = cohort.attendance
  params, change = federation.aggregate(state.params, local, attendance.base)
  served, residuals = _serve_all(
    stages, state, inputs, cohort, so_far, change.updates
  )
  so_far = so_far | served
  estimators = {
    name: stages.end[name](
      state.estimators[name], so_far[name], round_, attendance, change
    )
    for name, _ in choices.estimators
  }
  replay = state.replay
  if replay is not None:
    replay = stages.replay(
      replay,
      inputs.replayed,
      params,
      _of_all(choices, inputs),
      cohort._replace(attendance=None),  # The replay weighs by itself.
    )
  culprit = cohort.waves.reshape(-1)[jnp.argmin(finite)]
  state = state._replace(
    round=round_,
    params=params,
    estimators=estimators,
    replay=replay,
    residuals=residuals,
    diverged=jnp.where(finite.min() > 0, -1, culprit),
  )
  return devices.constrain(layout.mesh, state, state_specs(state, layout))


def cohort_of(choices, state, inputs):
  """Reads who takes part, and with which weights."""
  waves = inputs.waves[state.round]
  clients = waves.reshape(-1)
  counts = inputs.clients.count[waves]
  dtype = tree.dtype_of(state.params)
  slots = inputs.slots[clients]
  if choices.estimators:
    attendance = removals.attendance(
      inputs.removals,
      clients,
      counts.reshape(-1),
      dtype,
      slots=slots,
      hits=inputs.hits[state.round],
    )
  else:
    base = fedavg.weights(counts.reshape(-1), dtype)
    shares: Any = None  # No estimator needs them.
    attendance = removals.Attendance(shares, base, slots)
  return Cohort(
    draws=(inputs.root, state.round + 1),
    waves=waves,
    size_class=inputs.size_class[state.round],
    counts=counts,
    attendance=attendance,
  )


def _of_all(choices, inputs):
  """Returns every client's examples, where every device has them."""
  return None if choices.layout.own_data else inputs.clients


def receive_all(choices, stages, state, inputs, cohort):
  """Hears all participants, chunk by chunk, and absorbs their reports.

  Returns:
    `Sequential` by name of estimator; local models, leaves [B, ...], and which
    participants' replies are finite, [B].
  """
  layout = choices.layout
  hits = cohort.attendance.hits
  nobody = len(inputs.clients.count) - 1

  def one_chunk(so_far, chunk):
    waves, size_class, attendance = chunk
    attendance = attendance._replace(hits=hits)
    dealt = exchange.deal(layout.mesh, waves, size_class, nobody)
    received = stages.receive(
      (state.params, cohort.draws, hits), inputs.clients, *dealt
    )
    received = exchange.publish(received, state.params, waves.shape, layout)
    where = cohort.draws, waves, size_class
    so_far = {
      name: stages.absorb[name](
        state.estimators[name].eps,
        so_far[name],
        attendance,
        received,
        _of_all(choices, inputs),
        where,
      )
      if name in stages.absorb
      else so_far[name]
      for name, _ in choices.estimators
    }
    return so_far, (received.local, received.finite)

  begun = {
    name: stages.begin[name](state.estimators[name])
    for name, _ in choices.estimators
  }
  chunks = _by_chunk(cohort, len(cohort.waves) // choices.upload_chunk)
  so_far, replies = lax.scan(one_chunk, begun, chunks)
  return so_far, tree.merge_axes(replies)


def _serve_all(stages, state, inputs, cohort, so_far, updates):
  """Lets the server make its own curvature, once for all participants.

  Returns:
    `Sequential` by name of estimator, and the sums of residuals.
  """
  draws = rng.server_draws(*cohort.draws)
  clients = cohort.waves.reshape(-1)
  participants = wall.Participants(updates, cohort.counts.reshape(-1))
  served, residuals = {}, dict(state.residuals)
  for name, serve in stages.serve.items():
    served[name], found = serve(
      state.estimators[name].eps,
      so_far[name],
      cohort.attendance,
      state.params,
      participants,
      inputs.server,
      draws,
    )
    if found is not None:
      one = jnp.stack([found, jnp.ones_like(found)], axis=1)
      residuals[name] = residuals[name].at[clients].add(one)
  return served, residuals


def _by_chunk(cohort, num_chunks):
  """Cuts waves, size classes and attendance into chunks of waves."""
  cut = lambda a: a.reshape(num_chunks, -1, *a.shape[1:])
  shares, base, slots, _ = cohort.attendance
  if shares is not None:
    shares = shares.reshape(len(shares), num_chunks, -1)
    shares = jnp.moveaxis(shares, 1, 0)
  attendance = removals.Attendance(shares, cut(base), cut(slots))
  return cut(cohort.waves), cut(cohort.size_class), attendance
