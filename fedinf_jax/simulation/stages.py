"""The parts of a round: what each device does with its share."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import federation
from fedinf_jax import influence
from fedinf_jax import leave_one_out
from fedinf_jax import removals
from fedinf_jax import tree
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import exchange
from fedinf_jax.simulation import wave as waves_


class Choices(NamedTuple):
  """All that the compiled program depends on, besides shapes. Hashable."""

  setup: wall.Setup
  estimators: tuple[tuple[str, influence.Estimator], ...]  # (name, estimator)
  sizes: tuple[int, ...]  # examples of the size classes
  replay_chunk: int | None  # removals that a device replays at once
  upload_chunk: int  # waves of participants whose reports are held at once
  layout: devices.Layout


class Stages(NamedTuple):
  """The parts of a round, each of which a device does on its own share."""

  receive: Callable  # participants train and report
  begin: dict[str, Callable]  # by name of estimator, as all below
  absorb: dict[str, Callable]
  serve: dict[str, Callable]  # of those that are the server's own
  end: dict[str, Callable]
  replay: Callable


def client_specs(layout: devices.Layout) -> on_device.Clients:
  """Returns where the clients' examples lie."""
  everywhere = devices.REPLICATED
  own = devices.SPLIT if layout.own_data else everywhere
  return on_device.Clients(
    x=own, y=own, offset=own, count=everywhere, words=everywhere
  )


def own_clients(
  layout: devices.Layout, clients: on_device.Clients
) -> on_device.Clients:
  """Within `per_device`: the clients as a device has them."""
  if not layout.own_data:
    return clients
  x, y, offset = (a[0] for a in (clients.x, clients.y, clients.offset))
  return clients._replace(x=x, y=y, offset=offset)


def build(choices: Choices) -> Stages:
  """Builds the parts of a round."""
  layout, mesh = choices.layout, choices.layout.mesh
  everywhere, split = devices.REPLICATED, devices.SPLIT
  begin, absorb, serve, end = {}, {}, {}, {}
  for name, e in choices.estimators:
    axes = layout.axes(name)
    by: Any = devices.Spec(axes)
    of = removals.Attendance(by, everywhere, everywhere, everywhere)
    per_device = functools.partial(devices.per_device, mesh=mesh, axes=axes)
    begin[name] = per_device(e.begin, in_specs=(by,), out_specs=by)
    if e.curvature.serve is None:
      absorb[name] = per_device(
        _absorb(choices, name, e),
        in_specs=(by, by, of, everywhere, everywhere, everywhere),
        out_specs=by,
      )
    else:
      serve[name] = per_device(
        _serve(choices, name, e),
        in_specs=(by, by, of, *[everywhere] * 4),
        out_specs=(by, everywhere),
      )
    end[name] = per_device(
      _end(layout, name, e),
      in_specs=(by, by, everywhere, of, everywhere),
      out_specs=by,
    )
  receive = devices.per_device(
    _receive(choices),
    mesh,
    devices.ALL,
    (everywhere, client_specs(layout), split, split),
    split,
  )
  replay = devices.per_device(
    _replay(choices),
    mesh,
    devices.ALL,
    (split, split, everywhere, everywhere, everywhere),
    split,
  )
  return Stages(
    receive=receive,
    begin=begin,
    absorb=absorb,
    serve=serve,
    end=end,
    replay=replay,
  )


def _receive(choices):
  """Builds the training and the reports of some waves of participants."""
  setup, layout = choices.setup, choices.layout
  train = federation.train(setup)
  curvatures = [e.curvature for _, e in choices.estimators]
  sampled = [c for c in curvatures if c.sampled]
  others = [c for c in curvatures if not c.sampled]
  keep_iterates = any(c.interactive for c in curvatures)

  def take_part(params, examples, draws):
    local, client = train(params, examples, draws)
    return local, client.iterates, federation.report(setup, others, client)

  def report_sample(iterates, examples, draws):
    client = wall.Client(iterates, examples, draws)
    return federation.report(setup, sampled, client)

  wave_takes_part = waves_.over_wave(take_part, choices.sizes)
  # What reads a sample costs the same whatever the size of the slice: compiled
  # for the largest class alone.
  wave_reports = waves_.over_wave(report_sample, choices.sizes[-1:], 0)

  def receive(operand, clients, waves, size_class):
    params, draws, hits = operand
    clients = own_clients(layout, clients)

    def one_wave(_, inputs):
      wave, size_class = inputs
      local, iterates, reports = wave_takes_part(
        params, clients, *draws, wave, size_class
      )
      reports = reports | wave_reports(iterates, clients, *draws, wave, 0)
      return None, (local, iterates if keep_iterates else None, reports)

    _, replies = lax.scan(one_wave, None, (waves, size_class))
    local, iterates, reports = tree.merge_axes(replies)
    return exchange.Received(
      local=local,
      iterates=iterates,
      reports=reports,
      prepared=_prepared(choices, reports, hits),
      finite=tree.finite_rows((local, reports)).astype(jnp.int32),
    )

  return receive


def _prepared(choices, reports, hits):
  """Makes ready, where the reports are, what absorbing them will need."""
  layout = choices.layout
  return {
    name: e.curvature.prepare(
      choices.setup.descent,
      reports[e.curvature.key],
      layout.removals_each(name),
      fine=e.guard.fine,
      hits=None if name in layout.columns else hits,
    )
    for name, e in choices.estimators
    if e.curvature.uploads
  }


def _absorb(choices, name, e):
  """Builds the sequential influence of participants on some rows of ε."""
  setup, layout = choices.setup, choices.layout
  descent = setup.descent

  def answer(operand, examples, draws):
    iterates, eps = operand
    client = wall.Client(iterates, examples, draws)
    return federation.answer(e.curvature, setup, client, eps)

  answer_wave = waves_.over_wave(answer, choices.sizes, (0, None))

  def interact(eps, so_far, attendance, iterates, clients, where):
    """Sends every ε to the participants, wave after wave."""
    draws, waves, size_class = where

    def one_wave(so_far, inputs):
      iterates, (shares, base, slots), wave, size_class = inputs
      answers = answer_wave((iterates, eps), clients, *draws, wave, size_class)
      part = removals.Attendance(shares.T, base, slots, attendance.hits)
      return e.absorb(descent, eps, so_far, answers, part), None

    cut = lambda a: a.reshape(*waves.shape, *a.shape[1:])
    parts = attendance.shares.T, attendance.base, attendance.slots
    iterates, parts = jax.tree.map(cut, (iterates, parts))
    inputs = iterates, parts, waves, size_class
    return lax.scan(one_wave, so_far, inputs)[0]

  def absorb(eps, so_far, attendance, received, clients, where):
    # With columns elsewhere they would make a matrix of all columns.
    hits = None
    if name not in layout.columns:
      hits = layout.own_removals(name, attendance.hits)
    attendance = attendance._replace(hits=hits)
    if e.curvature.interactive:
      return interact(
        eps, so_far, attendance, received.iterates, clients, where
      )
    report = received.reports[e.curvature.key]
    prepared = received.prepared[name]
    return e.absorb(descent, eps, so_far, report, attendance, prepared)

  return absorb


def _serve(choices, name, e):
  """Builds the sequential influence by the server's own curvature."""
  setup, layout = choices.setup, choices.layout

  def serve(eps, so_far, attendance, params, participants, server, draws):
    hits = layout.own_removals(name, attendance.hits)
    attendance = attendance._replace(hits=hits)
    if server.removed_in is not None:
      removed_in = layout.own_removals(name, server.removed_in)
      server = server._replace(removed_in=removed_in)
    report = e.curvature.serve(setup, server, params, participants, draws)
    so_far = e.absorb(setup.descent, eps, so_far, report, attendance)
    return so_far, report.residual if e.curvature.matched else None

  return serve


def _end(layout, name, e):
  """Builds the end of a round for some rows of ε."""

  def end(state, so_far, round_, attendance, change):
    hits = layout.own_removals(name, attendance.hits)
    attendance = attendance._replace(hits=hits)
    return e.end(state, so_far, round_, attendance, change)

  return end


def _replay(choices):
  """Builds a round of the exact replay of some removals."""
  train = federation.train(choices.setup)
  train_wave = waves_.over_wave(lambda *args: train(*args)[0], choices.sizes)

  def replay(models, who, params, clients, cohort):
    train_one = lambda model, *wave: train_wave(
      model, clients, *cohort.draws, *wave
    )
    step = leave_one_out.replay_round(train_one, chunk=choices.replay_chunk)
    _, round_ = cohort.draws
    return step(
      models, params, who, round_, cohort.waves, cohort.size_class,
      cohort.counts,
    )  # fmt: skip

  return replay
