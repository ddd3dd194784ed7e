"""The training forwards with snapshots, and directions back through it.

Snapshots are kept every `every` rounds. The rounds between two of them are
trained again when the pass comes back to them, so that memory is that of
T / every + every models and of D directions, whatever the number of clients.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import flatten_util
from jax import lax
import jax.numpy as jnp

from fedinf_jax import backwards
from fedinf_jax import federation
from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.curvature import wall
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import exchange
from fedinf_jax.simulation import round as rounds_
from fedinf_jax.simulation import run
from fedinf_jax.simulation import stages as stages_
from fedinf_jax.simulation import wave as waves_


class State(NamedTuple):
  """All that changes during a pass, forwards and back."""

  trained: run.State  # the training so far
  kept: types.Params  # w_0, w_every, w_{2 every}, …: leaves [S, ...]
  end: jax.Array  # int32 [], the round that directions belong to; 0: none yet
  left: jax.Array  # int32 [], rounds to go back through
  final: types.Params  # w_end
  params: types.Params  # w_left
  directions: backwards.Directions  # at w_end
  rows: jax.Array  # Λ_left, [D, P]
  passed: backwards.Passed  # zeros for rounds not yet passed
  finite: jax.Array  # bool [], whether Λ is


class Loops(NamedTuple):
  """The compiled programs, or lowered ones. States given are donated."""

  train: Any  # (state, rounds, inputs) -> state
  back: Any  # (state, rounds, inputs, places) -> state


@functools.lru_cache(maxsize=8)
def loops(
  choices: stages_.Choices,
  every: int,
  chunk: int,
  curvature: wall.Curvature | None,
) -> Loops:
  """Builds the programs of both directions.

  Args:
    choices: of a plan without estimators and replay.
    every: rounds between snapshots.
    chunk: directions that a participant carries together.
    curvature: by which directions are carried back; None: by the participants'
      own trainings.
  """
  stages = stages_.build(choices)
  if curvature is None:
    pull = _by_trainings(choices, _pull_stage(choices, chunk))
  else:
    pull = _by_the_server(choices, stages, curvature)
  mesh, last = choices.layout.mesh, choices.setup.fed.rounds

  def place(state):
    return devices.constrain(mesh, state, devices.REPLICATED)

  @functools.partial(jax.jit, donate_argnums=0)
  def train(state, rounds, inputs):
    stop = jnp.minimum(state.trained.round + rounds, last)

    def one(carry):
      trained, kept = carry
      kept = _keep(kept, trained, every)
      return rounds_.one_round(choices, stages, trained, inputs), kept

    with jax.default_matmul_precision("highest"):
      trained, kept = lax.while_loop(
        lambda s: (s[0].round < stop) & (s[0].diverged < 0),
        one,
        (state.trained, state.kept),
      )
    return place(state._replace(trained=trained, kept=kept))

  @functools.partial(jax.jit, donate_argnums=0)
  def back(state, rounds, inputs, places):
    stop = jnp.maximum(state.left - rounds, 0)

    def one_block(state):
      start = (state.left - 1) // every * every
      models = _retrace(choices, stages, state, inputs, start, every)

      def one(state):
        before = _row(models, state.left - 1 - start)
        return _one_round_back(pull, state, before, inputs, places)

      until = jnp.maximum(start, stop)
      return lax.while_loop(lambda s: (s.left > until) & s.finite, one, state)

    with jax.default_matmul_precision("highest"):
      state = lax.while_loop(
        lambda s: (s.left > stop) & s.finite, one_block, state
      )
    return place(state)

  return Loops(train, back)


def _keep(kept, trained, every):
  """Puts w_t among the snapshots, where t is a multiple of `every`."""
  i = trained.round // every
  due = trained.round % every == 0
  return jax.tree.map(
    lambda rows, a: rows.at[i].set(jnp.where(due, a, rows[i])),
    kept,
    trained.params,
  )


def _row(rows, i):
  return jax.tree.map(lambda a: a[i], rows)


def _retrace(choices, stages, state, inputs, start, every):
  """Trains again from a snapshot up to the round that comes next.

  Returns:
    w_start … w_{left−1}, leaves [every, ...]; zeros behind them.
  """
  put = lambda models, s: jax.tree.map(
    lambda rows, a: rows.at[s.round - start].set(a), models, s.params
  )

  def one(carry):
    trained, models = carry
    models = put(models, trained)
    return rounds_.one_round(choices, stages, trained, inputs), models

  first = state.trained._replace(
    round=start, params=_row(state.kept, start // every)
  )
  models = jax.tree.map(
    lambda a: jnp.zeros((every, *a.shape), a.dtype), first.params
  )
  trained, models = lax.while_loop(
    lambda s: s[0].round < state.left - 1, one, (first, models)
  )
  return put(models, trained)


def _one_round_back(pull, state, before, inputs, places):
  """Carries the directions back through one round."""
  t = state.left - 1
  rows, found, where = pull(state, before, inputs, places[t])
  put = lambda all_, some: all_.at[t, where.reshape(-1)].set(some, mode="drop")
  pushed, seen, gap, gram = state.passed
  pushed, seen, gap = jax.tree.map(put, (pushed, seen, gap), found)
  gram = gram.at[t].set(rows @ rows.T)
  passed = backwards.Passed(pushed, seen, gap, gram)
  return state._replace(
    left=t,
    params=before,
    rows=rows,
    passed=passed,
    finite=jnp.isfinite(rows).all(),
  )


def _by_trainings(choices, pull):
  """Builds a round back through the participants' own trainings.

  Returns:
    (state, w_{t−1}, inputs, places) -> Λ_{t−1}; pushed, seen and gap, by lane;
    and the lanes' places in the cohort.
  """
  mesh, setup = choices.layout.mesh, choices.setup

  def back(state, before, inputs, places):
    t = state.left - 1
    waves, size_class = inputs.waves[t], inputs.size_class[t]
    total = inputs.clients.count[waves].sum()
    nobody = len(inputs.clients.count) - 1
    dealt = exchange.deal(mesh, waves, size_class, nobody)
    where, _ = exchange.deal(mesh, places, size_class, setup.fed.cohort_size)
    draws = inputs.root, state.left
    operand = before, state.params, state.rows, draws, total
    rows, found = pull(operand, inputs.clients, *dealt)
    return rows, devices.constrain(mesh, found, devices.REPLICATED), where

  return back


def _by_the_server(choices, stages, curvature):
  """Builds a round back by the server's own curvature, as `_by_trainings`."""
  setup = choices.setup
  ravel = lambda tree: flatten_util.ravel_pytree(tree)[0]

  def back(state, before, inputs, places):
    begun = state.trained._replace(round=state.left - 1, params=before)
    cohort = rounds_.cohort_of(choices, begun, inputs)
    _, (local, _) = rounds_.receive_all(choices, stages, begun, inputs, cohort)
    base, counts = cohort.attendance.base, cohort.counts.reshape(-1)
    _, change = federation.aggregate(before, local, base)
    report = curvature.serve(
      setup,
      # Directions belong to no removal, so nobody's examples are left out.
      inputs.server._replace(owner=None, removed_in=None),
      before,
      wall.Participants(change.updates, counts),
      rng.server_draws(*cohort.draws),
    )
    carry = lambda rows, shares: backwards.served(
      curvature, setup.descent, report, rows, shares, before
    )
    rows, alone = state.rows, counts == counts.sum()
    earlier = carry(rows, jnp.broadcast_to(base, (len(rows), len(base))))
    earlier = jnp.where(counts.sum() > 0, earlier, rows)  # Nothing happened.
    own = ravel(state.params)[None] - jax.vmap(ravel)(local)
    skipped = (ravel(before) - ravel(state.params))[None]
    moved = jnp.where(alone[:, None], skipped, own)
    pushed, seen = moved @ rows.T, moved @ earlier.T
    by_own = carry(moved, jnp.eye(len(base), dtype=rows.dtype)) @ rows.T
    gap = jnp.where(alone[:, None], pushed - seen, seen - by_own)
    return earlier, (pushed, seen, gap), places

  return back


def _pull_stage(choices, chunk):
  """Builds what each device does with its participants of a round back."""
  layout, setup = choices.layout, choices.setup
  pull_back = backwards.pull_back(setup.model, setup.fed, chunk)
  pull_wave = waves_.over_wave(pull_back, choices.sizes)
  ravel = lambda tree: flatten_util.ravel_pytree(tree)[0]

  def pull(operand, clients, waves, size_class):
    before, after, rows, draws, total = operand
    clients = stages_.own_clients(layout, clients)

    def one_wave(earlier, inputs):
      wave, size_class = inputs
      local, pulled = pull_wave(
        (before, rows), clients, *draws, wave, size_class
      )  # [G, ...], [G, D, P]
      counts = clients.count[wave]
      # Of an empty round all shares are 0.
      whole = jnp.maximum(total, 1).astype(rows.dtype)
      shares = counts.astype(rows.dtype) / whole
      # Not by a weight of zero: an optimiser without a gradient may have no
      # derivative.
      there = (counts > 0)[:, None, None]
      pulled = jnp.where(there, pulled, 0)
      change = ravel(after)[None] - jax.vmap(ravel)(local)
      alone = counts == total
      skipped = (ravel(before) - ravel(after))[None]
      change = jnp.where(alone[:, None], skipped, change)
      own = jnp.einsum("gdp,gp->gd", pulled, change)
      earlier = earlier + jnp.tensordot(shares, pulled, 1)
      return earlier, (change, own, alone)

    earlier, found = lax.scan(
      one_wave, jnp.zeros_like(rows), (waves, size_class)
    )
    if layout.mesh is not None:
      earlier = lax.psum(earlier, devices.ALL)
    earlier = jnp.where(total > 0, earlier, rows)  # Nothing happened.
    change, own, alone = (a.reshape(-1, *a.shape[2:]) for a in found)
    pushed, seen = change @ rows.T, change @ earlier.T
    gap = jnp.where(alone[:, None], pushed - seen, seen - own)
    return earlier, (pushed, seen, gap)

  everywhere, split = devices.REPLICATED, devices.SPLIT
  return devices.per_device(
    pull,
    layout.mesh,
    devices.ALL,
    (everywhere, stages_.client_specs(layout), split, split),
    (everywhere, split),
  )
