"""One round for everybody, and the compiled loop over rounds.

Work is split over the devices of a mesh; what passes between them are models
and uploads, never a row of ε.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import curvature
from fedinf_jax import exchange
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import leave_one_out
from fedinf_jax import packing
from fedinf_jax import runs
from fedinf_jax import sharding
from fedinf_jax import tree


class Inputs(NamedTuple):
  """What a round reads and never changes."""

  packed: packing.Clients
  waves: jax.Array  # int32 [T, W, G]
  size_class: jax.Array  # int32 [T, W]
  slots: jax.Array  # int32 [K + 1], a client's place in `dropped`
  removals: leave_one_out.Removals | None  # of the estimators, all R
  hits: jax.Array | None  # int32 [T, H], removals that touch the cohort
  replayed: leave_one_out.Removals | None
  root: jax.Array  # the run's key


def input_specs(layout: sharding.Layout) -> Inputs:
  """Returns where a round's inputs lie."""
  whole, own = sharding.WHOLE, sharding.WHOLE
  if layout.own_data:
    own = sharding.ROWS
  packed = packing.Clients(own, own, own, whole, whole)
  removals = sharding.Spec(sharding.REMOVALS)
  return Inputs(
    packed, whole, whole, whole, removals, whole, sharding.ROWS, whole
  )


def state_specs(state: runs.State, layout: sharding.Layout) -> runs.State:
  """Returns where a state lies (`state` may be one of shapes)."""
  whole, rows = sharding.WHOLE, sharding.ROWS
  estimators = {}
  for name in state.estimators:
    by = sharding.Spec(layout.axes(name))
    eps = by
    if name in layout.columns:
      eps = sharding.column_specs(layout.mesh, state.params, by)
    estimators[name] = influence.EstimatorState(eps, by, by, by, by)
  return runs.State(whole, whole, estimators, rows, rows, whole, whole)


@functools.lru_cache(maxsize=8)
def advance(setup, estimators, sizes, replay_chunk, upload_chunk, layout):
  """Builds the compiled loop over rounds.

  Remembered: another run of the same model and settings on data of the same
  shape, with other cohorts or parameters, compiles nothing.

  Args:
    setup: what client and server both know.
    estimators: pairs (name, estimator).
    sizes: rows of the size classes.
    replay_chunk: removals that a device replays at once.
    upload_chunk: waves of participants heard at once.
    layout: what lies on which device.
  """
  estimators = dict(estimators)
  fed, mesh = setup.fed, layout.mesh
  whole, rows = sharding.WHOLE, sharding.ROWS
  hear = sharding.split(
    _hear(setup, estimators, sizes, layout),
    mesh,
    sharding.ALL,
    (whole, input_specs(layout).packed, rows, rows),
    rows,
  )
  begin, absorb, end = {}, {}, {}
  for name, e in estimators.items():
    axes = layout.axes(name)
    by = sharding.Spec(axes)
    begin[name] = sharding.split(e.begin, mesh, axes, (by,), by)
    absorb[name] = sharding.split(
      _absorb(setup, name, e, sizes, layout),
      mesh,
      axes,
      (by, by, by, whole, whole, whole),
      by,
    )
    end[name] = sharding.split(
      _end(name, e, layout), mesh, axes, (by, by, by, whole), by
    )
  replay = sharding.split(
    _replay(setup, sizes, replay_chunk),
    mesh,
    sharding.ALL,
    (rows, rows, whole, whole, whole),
    rows,
  )

  def one_round(state, inputs):
    t, round_ = state.round, state.round + 1
    draws = inputs.root, round_
    waves, size_class = inputs.waves[t], inputs.size_class[t]  # [W, G], [W]
    counts = inputs.packed.count[waves]
    base = fedavg.weights(counts.reshape(-1), tree.dtype_of(state.params))
    num_chunks = len(waves) // upload_chunk
    by_chunk = lambda a: a.reshape(num_chunks, -1, *a.shape[1:])
    shares = hits = shares_by_chunk = None
    if estimators:
      hits = inputs.hits[t]
      left = leave_one_out.counts_left(inputs.removals, waves, counts)
      shares = influence.shares_of(
        left.reshape(len(left), -1), counts.reshape(-1), base
      )  # [R, B]
      shares_by_chunk = jnp.moveaxis(
        shares.reshape(len(shares), num_chunks, -1), 1, 0
      )

    def hear_chunk(so_far, chunk):
      waves, size_class, base, shares = chunk
      heard = hear(
        (state.params, draws, hits),
        inputs.packed,
        *exchange.deal(
          mesh, waves, size_class, nobody=len(inputs.packed.count) - 1
        ),
      )
      heard = exchange.publish(heard, state.params, waves.shape, layout)
      said = heard, base, inputs.slots[waves].reshape(-1), hits
      so_far = {
        name: absorb[name](
          state.estimators[name].eps,
          so_far[name],
          shares,
          said,
          everyones,
          (draws, waves, size_class),
        )
        for name in estimators
      }
      return so_far, (heard.local, heard.finite)

    # Whoever needs every participant's examples has them; see `own_data`.
    everyones = None if layout.own_data else inputs.packed
    begun = {n: begin[n](state.estimators[n]) for n in estimators}
    chunks = *map(by_chunk, (waves, size_class, base)), shares_by_chunk
    heard, (local, finite) = lax.scan(hear_chunk, begun, chunks)
    local = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), local)
    params = tree.weighted_sum(base, local)

    updates = jax.tree.map(lambda a, w: a - w[None], local, state.params)
    change = jax.tree.map(jnp.subtract, state.params, params)
    ended = {
      name: end[name](
        state.estimators[name],
        heard[name],
        shares,
        (round_, base, updates, change, hits),
      )
      for name in estimators
    }
    replayed = state.replay
    if replayed is not None:
      turn = draws, waves, size_class, counts
      replayed = replay(replayed, inputs.replayed, params, everyones, turn)
    culprit = waves.reshape(-1)[jnp.argmin(finite.reshape(-1))]
    diverged = jnp.where(finite.min() > 0, -1, culprit)
    state = state._replace(
      round=round_,
      params=params,
      estimators=ended,
      replay=replayed,
      diverged=diverged,
    )
    return sharding.constrain(mesh, state, state_specs(state, layout))

  @functools.partial(jax.jit, donate_argnums=0)
  def loop(state, rounds, inputs):
    stop = jnp.minimum(state.round + rounds, fed.rounds)
    # Accelerators multiply matrices in less than float32 unless told.
    with jax.default_matmul_precision("highest"):
      return lax.while_loop(
        lambda s: (s.round < stop) & (s.diverged < 0),
        lambda s: one_round(s, inputs),
        state,
      )

  return loop


def participant(setup, estimators, train):
  """Builds what one participant does: train, and report what is asked for.

  Returns:
    take_part(params, examples, draws) -> (local model, its iterates, uploads by
    key).
  """
  uploading = _uploading(estimators, sampled=False)

  def take_part(params, examples, draws):
    local, iterates = train(params, examples, draws)
    client = curvature.Client(iterates, examples, draws)
    uploads = {key: c.report(setup, client) for key, c in uploading.items()}
    return local, iterates, uploads

  return take_part


def sampled_reports(setup, estimators):
  """Builds the reports that read a sample of the participant's examples.

  Returns:
    report(iterates, examples, draws) -> uploads by key.
  """
  uploading = _uploading(estimators, sampled=True)

  def report(iterates, examples, draws):
    client = curvature.Client(iterates, examples, draws)
    return {key: c.report(setup, client) for key, c in uploading.items()}

  return report


# Below, what each device does with its part.


def _hear(setup, estimators, sizes, layout):
  """Builds the training and the reports of some waves of participants."""
  train = fedavg.local_training(setup.model, setup.fed)
  take_part = fedavg.over_wave(participant(setup, estimators, train), sizes)
  # What reads a sample costs the same whatever the size of the slice: compiled
  # for the largest class alone.
  sample = fedavg.over_wave(sampled_reports(setup, estimators), sizes[-1:], 0)
  keep_iterates = any(not e.curvature.uploads for e in estimators.values())

  def hear(operand, packed, waves, size_class):
    params, draws, hits = operand
    if layout.own_data:
      own = [a[0] for a in (packed.x, packed.y, packed.offset)]
      packed = packing.Clients(*own, packed.count, packed.words)

    def hear_wave(_, wave):
      local, iterates, uploads = take_part(params, packed, *draws, *wave)
      uploads = uploads | sample(iterates, packed, *draws, wave[0], 0)
      return None, (local, iterates if keep_iterates else None, uploads)

    _, heard = lax.scan(hear_wave, None, (waves, size_class))
    flat = lambda a: a.reshape(-1, *a.shape[2:])
    local, iterates, uploads = jax.tree.map(flat, heard)
    grams = {
      name: e.grams(
        setup,
        uploads[e.curvature.key],
        layout.rows_each(name),
        None if name in layout.columns else hits,
      )
      for name, e in estimators.items()
      if e.curvature.uploads
    }
    finite = tree.finite_rows((local, uploads)).astype(jnp.int32)
    return exchange.Heard(local, iterates, uploads, grams, finite)

  return hear


def _absorb(setup, name, e, sizes, layout):
  """Builds the sequential influence of participants on some rows of ε."""

  def answer(operand, examples, draws):
    iterates, eps = operand
    client = curvature.Client(iterates, examples, draws)
    return curvature.answer(e.curvature, setup, client, eps)

  ask = fedavg.over_wave(answer, sizes, (0, None))

  def absorb(eps, so_far, shares, said, packed, turn):
    heard, base, slots, hits = said
    if name in layout.columns:
      hits = None  # They would make a matrix of all columns.
    else:
      hits = layout.own_rows(name, hits)
    if e.curvature.uploads:
      participants = influence.Participants(
        heard.uploads[e.curvature.key], shares, base, slots, heard.grams[name]
      )
      return e.absorb(setup, eps, so_far, participants, hits)

    # Those whose report cannot be uploaded are asked, wave after wave.
    draws, waves, size_class = turn

    def absorb_wave(so_far, inputs):
      (iterates, shares, base, slots), *wave = inputs
      answers = ask((iterates, eps), packed, *draws, *wave)
      participants = influence.Participants(answers, shares.T, base, slots)
      return e.absorb(setup, eps, so_far, participants, hits), None

    by_wave = lambda a: a.reshape(*waves.shape, *a.shape[1:])
    there = jax.tree.map(by_wave, (heard.iterates, shares.T, base, slots))
    return lax.scan(absorb_wave, so_far, (there, waves, size_class))[0]

  return absorb


def _end(name, e, layout):
  """Builds the end of a round for some rows of ε."""

  def end(state, heard, shares, said):
    round_, base, updates, change, hits = said
    hits = layout.own_rows(name, hits)
    combinatorial = influence.combinatorial(shares[hits], base, updates)
    empty = shares.sum(1) == 0
    return e.end(state, heard, round_, combinatorial, empty, change, hits)

  return end


def _replay(setup, sizes, chunk):
  """Builds a round of the exact replay of some removals."""
  train = fedavg.local_training(setup.model, setup.fed)
  train_wave = fedavg.over_wave(lambda *args: train(*args)[0], sizes)

  def replay(models, who, params, packed, turn):
    draws, waves, size_class, counts = turn
    step = leave_one_out.replay_round(
      lambda model, *wave: train_wave(model, packed, *draws, *wave), chunk=chunk
    )
    _, round_ = draws
    return step(models, params, who, round_, waves, size_class, counts)

  return replay


def _uploading(estimators, sampled):
  """The distinct curvatures that upload, by key."""
  return {
    e.curvature.key: e.curvature
    for e in estimators.values()
    if e.curvature.uploads and e.curvature.sampled == sampled
  }
