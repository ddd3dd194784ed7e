"""One round for everybody, and the compiled loop over rounds."""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import curvature
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import leave_one_out
from fedinf_jax import packing
from fedinf_jax import runs
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


@functools.lru_cache(maxsize=8)
def advance(setup, estimators, sizes, replay_chunk, upload_chunk):
  """Builds the compiled loop over rounds.

  Remembered: another run of the same model and settings on data of the same
  shape, with other cohorts or parameters, compiles nothing.

  Args:
    setup: what client and server both know.
    estimators: pairs (name, estimator).
    sizes: rows of the size classes.
    replay_chunk: removals replayed at once.
    upload_chunk: waves of participants heard at once.
  """
  estimators = dict(estimators)
  model, fed = setup.model, setup.fed
  train_one = fedavg.local_training(model, fed)
  train_wave = fedavg.over_wave(lambda *args: train_one(*args)[0], sizes)
  take_part = fedavg.over_wave(participant(setup, estimators, train_one), sizes)
  # What reads a sample costs the same whatever the size of the slice: compiled
  # for the largest class alone.
  sample = fedavg.over_wave(sampled_reports(setup, estimators), sizes[-1:], 0)

  def one_round(state, inputs):
    t, round_ = state.round, state.round + 1
    waves, size_class = inputs.waves[t], inputs.size_class[t]  # [W, G], [W]
    counts = inputs.packed.count[waves]
    context = inputs.packed, inputs.root, round_
    base = fedavg.weights(counts.reshape(-1), tree.dtype_of(state.params))
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
        local, iterates, uploads, lost = take_part(operand, *context, *wave)
        uploads = uploads | sample(iterates, *context, wave[0], 0)
        return None, (local, uploads, lost)

      _, heard = lax.scan(hear_wave, None, (waves, size_class))
      flat = lambda a: a.reshape(-1, *a.shape[2:])
      local, uploads, lost = jax.tree.map(flat, heard)
      finite = tree.finite_rows((local, uploads))
      heard = {}
      for name, e in estimators.items():
        participants = influence.Participants(
          uploads[e.curvature.key] if e.curvature.uploads else lost[name],
          flat(shares).T,
          base.reshape(-1),
          inputs.slots[waves].reshape(-1),
        )
        eps = state.estimators[name].eps
        heard[name] = e.absorb(
          setup, eps, so_far[name], participants, inputs.hits[t]
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
      hits = inputs.hits[t]
      combinatorial = influence.combinatorial(flat[hits], base, updates)
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
          hits,
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
    return runs.State(round_, params, ended, replay, state.rows, diverged)

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
    take_part((params, eps), examples, draws) -> (local model, its iterates,
    uploads by key, what each ε loses where that cannot be uploaded).
  """
  uploading = _uploading(estimators, sampled=False)

  def take_part(operand, examples, draws):
    params, eps = operand
    local, iterates = train(params, examples, draws)
    client = curvature.Client(iterates, examples, draws)
    uploads = {key: c.report(setup, client) for key, c in uploading.items()}
    lost = {}
    for name in eps:
      c = estimators[name].curvature
      lost[name] = c.lost(setup, c.report(setup, client), eps[name])
    return local, iterates, uploads, lost

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


def _uploading(estimators, sampled):
  """The distinct curvatures that upload, by key."""
  return {
    e.curvature.key: e.curvature
    for e in estimators.values()
    if e.curvature.uploads and e.curvature.sampled == sampled
  }


def _applied_eps(estimators, states):
  """The ε that curvatures without an upload are applied to on the client."""
  return {
    name: states[name].eps
    for name, e in estimators.items()
    if not e.curvature.uploads
  }
