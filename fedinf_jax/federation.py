"""Both sides of a round, as pure functions.

A participant trains, then reports or, where its curvature is interactive,
answers. The server aggregates, and carries every ε on. The simulation compiles
these functions into one program; a real federation calls them where they
belong. The server's side sees neither model nor data, unless it makes curvature
of its own (`Serving`).
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device


class Reply(NamedTuple):
  """What a participant sends, or what the server has of B of them."""

  local: types.Params  # w_{t,m}^k, leaves [...] or [B, ...]
  reports: dict[Any, Any]  # by `Curvature.key`


class ServerState(NamedTuple):
  """What a server keeps between rounds."""

  params: types.Params  # w_t
  estimators: dict[str, influence.EstimatorState]


class Serving(NamedTuple):
  """What a server needs for `server_side` curvatures: the model, examples."""

  setup: wall.Setup
  held: on_device.Held  # examples of its own
  draws: rng.Draws  # of the round, `rng.server_draws`


def setup(
  model: types.Model,
  fed: fedavg.FedAvg,
  estimators: dict[str, influence.Estimator],
  params: types.Params,
  max_examples: int,
) -> wall.Setup:
  """Returns what every client knows; `setup.descent` is the server's part.

  Args:
    model: what is trained.
    fed: how.
    estimators: what the server keeps. Those that cannot follow this training
      are refused.
    params: w_0, or its shapes.
    max_examples: of the largest client.

  Examples:
    >>> from fedinf_jax import federation
    >>> setup = federation.setup(model, fed, ours, run.params, max_examples=20)
    >>> setup.descent.eta
    0.3
  """
  curvatures = [e.curvature for e in estimators.values()]
  eta = None
  if any(c.linear for c in curvatures):
    eta = descents.plain_rate(fed, params)
  made = wall.Setup(
    model,
    descents.Descent(fed, eta),
    min(max_examples, fed.batch_size or max_examples),
  )
  for curvature in curvatures:
    curvature.check(made)
  return made


# The participant's side.


def train(setup: wall.Setup) -> Callable:
  """Builds a participant's local training.

  Returns:
    (params, examples, draws) -> (local model, the `Client` it is now).

  Examples:
    >>> from fedinf_jax import federation, rng
    >>> from fedinf_jax.data import on_device
    >>> setup = federation.setup(model, fed, ours, run.params, max_examples=20)
    >>> draws = rng.draws(0, 1, "hospital 3")
    >>> examples = on_device.alone(*data.client(3))
    >>> local, client = federation.train(setup)(run.params, examples, draws)
    >>> jax.tree.map(np.shape, local)
    {'dense': {'bias': (3,), 'kernel': (4, 3)}}
  """
  local_training = fedavg.local_training(setup.model, setup.fed)

  def run(params: types.Params, examples: on_device.Examples, draws: rng.Draws):
    local, iterates = local_training(params, examples, draws)
    return local, wall.Client(iterates, examples, draws)

  return run


def report(
  setup: wall.Setup, curvatures: list[wall.Curvature], client: wall.Client
) -> dict[Any, Any]:
  """Makes the reports that a participant uploads, one per key.

  Examples:
    >>> from fedinf_jax import federation, rng
    >>> from fedinf_jax.data import on_device
    >>> setup = federation.setup(model, fed, ours, run.params, max_examples=20)
    >>> draws = rng.draws(0, 1, "hospital 3")
    >>> examples = on_device.alone(*data.client(3))
    >>> local, client = federation.train(setup)(run.params, examples, draws)
    >>> curvatures = [ours["ours"].curvature]
    >>> make = lambda client: federation.report(setup, curvatures, client)
    >>> reports = jax.jit(make)(client)
    >>> [rows.rows["dense"]["bias"].shape for rows in reports.values()]
    [(2, 5, 3)]
  """
  distinct = {c.key: c for c in curvatures if c.uploads}
  return {key: c.report(setup, client) for key, c in distinct.items()}


# An interactive participant's part, given every ε.
answer = wall.answer

# The server's side.


class Screening(NamedTuple):
  """Which replies a server takes, bool [B] each."""

  accepted: jax.Array  # everything that was sent is finite
  finite: dict[str, jax.Array]  # by field: "local", or a report's curvature
  restrained: dict[str, jax.Array]  # reports that were scaled down


def check_reply(
  estimators: dict[str, influence.Estimator],
  descent: descents.Descent,
  state: ServerState,
  reply: Reply,
):
  """Refuses a reply of one participant whose shapes do not fit.

  Raises:
    ValueError: naming the field.

  Examples:
    >>> from fedinf_jax import federation, rng
    >>> from fedinf_jax.data import on_device
    >>> setup = federation.setup(model, fed, ours, run.params, max_examples=20)
    >>> draws = rng.draws(0, 1, "hospital 3")
    >>> examples = on_device.alone(*data.client(3))
    >>> local, client = federation.train(setup)(run.params, examples, draws)
    >>> states = {"ours": ours["ours"].init(run.params, 6)}
    >>> state = federation.ServerState(run.params, states)
    >>> reply = federation.Reply({"dense": np.zeros(3)}, {})
    >>> federation.check_reply(ours, setup.descent, state, reply)
    Traceback (most recent call last):
        ...
    ValueError: report: local has 1 arrays; it must have one for each of the ...
  """
  wall.require_leaves("local", reply.local, state.params, lambda w: w.shape)
  stacked = jax.tree.map(lambda a: jnp.asarray(a)[None], reply.reports)
  for name, estimator in estimators.items():
    curvature, eps = estimator.curvature, state.estimators[name].eps
    if curvature.serve is not None:
      continue
    if curvature.key not in stacked:
      raise ValueError(f"report: there is none of {curvature.name}")
    received = stacked[curvature.key]
    if not curvature.interactive:
      curvature.check_report(descent, received, 1, eps)
    elif isinstance(received, wall.Answer):
      wall.check_answer(received, 1, eps)
    else:
      raise ValueError(f"report: that of {curvature.name} is not an Answer")


def screen(
  estimators: dict[str, influence.Estimator], reply: Reply
) -> tuple[Reply, Screening]:
  """Sorts out what a server must not compute with.

  A reply that is not finite is left out: masked, as a weight of zero times NaN
  is NaN. A report that expands although its curvature promised otherwise is
  scaled down.

  Args:
    estimators: by name.
    reply: of all participants, leaves [B, ...].

  Examples:
    >>> from fedinf_jax import federation
    >>> truncated = fi.truncated()
    >>> none = {"none": fi.estimator(truncated, fi.no_guard())}
    >>> reply = federation.Reply(run.params, {truncated.key: ()})
    >>> both = jax.tree.map(lambda a: jax.numpy.stack([a, a]), reply)
    >>> _, screening = federation.screen(none, both)
    >>> screening.accepted.tolist()
    [True, True]
  """
  finite = {"local": tree.finite_rows(reply.local)}
  reports, restrained = dict(reply.reports), {}
  distinct = {e.curvature.key: e.curvature for e in estimators.values()}
  for key, curvature in distinct.items():
    report = reports.get(key)
    if not jax.tree.leaves(report):
      continue
    field = " ".join(key)
    finite[field] = tree.finite_rows(report)
    report = _masked(report, finite[field])
    if not curvature.interactive:
      report, excess = curvature.restrain(report)
      if excess is not None:
        restrained[field] = excess
    reports[key] = report
  accepted = functools.reduce(jnp.logical_and, finite.values())
  reply = _masked(Reply(reply.local, reports), accepted)
  return reply, Screening(accepted, finite, restrained)


def refusals(screening: Screening, ids: Sequence[Any]) -> list[str]:
  """Says in one line each what was left out or scaled down, and whose.

  Examples:
    >>> from fedinf_jax import federation
    >>> truncated = fi.truncated()
    >>> none = {"none": fi.estimator(truncated, fi.no_guard())}
    >>> reply = federation.Reply(run.params, {truncated.key: ()})
    >>> both = jax.tree.map(lambda a: jax.numpy.stack([a, a]), reply)
    >>> broken = jax.tree.map(lambda a: a / 0, both)
    >>> _, screening = federation.screen(none, broken)
    >>> federation.refusals(screening, ["ann", "bob"])[0]
    "client 'ann': local is not finite; its reply is left out"
  """
  lines = []
  for field, finite in screening.finite.items():
    lines += [
      f"client {ids[k]!r}: {field} is not finite; its reply is left out"
      for k in np.flatnonzero(~np.asarray(finite)).tolist()
    ]
  for field, excess in screening.restrained.items():
    lines += [
      f"client {ids[k]!r}: the report {field} expands, which it must not; it is"
      " scaled down"
      for k in np.flatnonzero(np.asarray(excess)).tolist()
    ]
  return lines


def _masked(values, keep):
  """Puts zeros in place of the rows that are not kept: leaves [B, ...]."""
  pick = jax.vmap(lambda keep, a: jnp.where(keep, a, 0))
  return jax.tree.map(lambda a: pick(keep, a), values)


def aggregate(
  params: types.Params, local: types.Params, base: jax.Array
) -> tuple[types.Params, influence.ModelChange]:
  """Returns w_t, and what the round did to the model.

  Args:
    params: w_{t-1}.
    local: w_{t,m}^k, leaves [B, ...].
    base: a_k, [B].

  Examples:
    >>> from fedinf_jax import federation
    >>> local = jax.tree.map(lambda a: np.stack([a, a + 2]), run.params)
    >>> shares = np.array([0.5, 0.5], np.float32)
    >>> params, change = federation.aggregate(run.params, local, shares)
    >>> moved = params["dense"]["bias"] - run.params["dense"]["bias"]
    >>> round(float(moved[0]), 3)
    1.0
  """
  # Nobody replied: nothing changes.
  anybody = base.sum() > 0
  new = jax.tree.map(
    lambda a, w: jnp.where(anybody, a, w), fedavg.aggregate(local, base), params
  )
  updates = jax.tree.map(lambda a, w: a - w[None], local, params)
  return new, influence.ModelChange(updates, tree.subtract(params, new))


def end_round(
  estimators: dict[str, influence.Estimator],
  descent: descents.Descent,
  state: ServerState,
  reply: Reply,
  who: removals.Removals,
  clients: jax.Array,
  counts: jax.Array,
  round_: jax.Array,
  hits: jax.Array | None = None,
  serving: Serving | None = None,
) -> tuple[ServerState, Screening]:
  """Does all that a server does once every participant has replied.

  Args:
    estimators: by name.
    descent: how participants train.
    state: after the round before.
    reply: of all participants, leaves [B, ...]. The `Answer` of an interactive
      curvature stands among the reports, under the curvature's key.
    who: all R removals, such as `removals.leave_one_out(K)`.
    clients: int32 [B], the participants as positions.
    counts: int [B], their n_k.
    round_: [] 1-based.
    hits: int [H], the removals that they are in, padded with R; None: any.
    serving: for estimators whose curvature is the server's own.

  Returns:
    The state after the round, in which only accepted replies took part; and
    the screening.

  Examples:
    >>> from fedinf_jax import federation, removals
    >>> truncated = fi.truncated()
    >>> none = {"none": fi.estimator(truncated, fi.no_guard())}
    >>> reply = federation.Reply(run.params, {truncated.key: ()})
    >>> both = jax.tree.map(lambda a: jax.numpy.stack([a, a]), reply)
    >>> setup = federation.setup(model, fed, none, run.params, max_examples=20)
    >>> states = {"none": none["none"].init(run.params, 6)}
    >>> state = federation.ServerState(run.params, states)
    >>> who, cohort = removals.leave_one_out(6), np.array([3, 4])
    >>> state, screening = federation.end_round(
    ...   none, setup.descent, state, both, who, cohort, np.array([20, 20]), 1
    ... )
    >>> jax.tree.map(np.shape, state.estimators["none"].eps)
    {'dense': {'bias': (6, 3), 'kernel': (6, 4, 3)}}
  """
  reply, screening = screen(estimators, reply)
  counts = jnp.where(screening.accepted, counts, 0)
  attendance = removals.attendance(
    who, clients, counts, tree.dtype_of(state.params), hits=hits
  )
  params, change = aggregate(state.params, reply.local, attendance.base)
  updates = _masked(change.updates, screening.accepted)
  participants = wall.Participants(updates, counts)
  updated = {}
  for name, estimator in estimators.items():
    if estimator.curvature.serve is None:
      received = reply.reports.get(estimator.curvature.key, ())
    else:
      received = _serve(name, estimator, serving, state, participants)
    updated[name] = estimator.update(
      descent, state.estimators[name], received, attendance, round_, change
    )
  return ServerState(params, updated), screening


def _serve(name, estimator, serving, state, participants):
  """Makes the server's own report of a round."""
  if serving is None:
    raise ValueError(
      f"estimators: {name!r} is server_side; give serving=federation.Serving("
      "setup, held, draws), with examples of the server's own"
    )
  setup, held, draws = serving
  return estimator.curvature.serve(
    setup, held, state.params, participants, draws
  )
