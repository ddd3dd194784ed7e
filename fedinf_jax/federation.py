"""Both sides of a round, as pure functions.

A participant trains, then reports or, where its curvature is interactive,
answers. The server aggregates, and carries every ε on. The simulation compiles
these functions into one program; a real federation calls them where they
belong. The server's side sees neither model nor data.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

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
  """
  local_training = fedavg.local_training(setup.model, setup.fed)

  def run(params: types.Params, examples: on_device.Examples, draws: rng.Draws):
    local, iterates = local_training(params, examples, draws)
    return local, wall.Client(iterates, examples, draws)

  return run


def report(
  setup: wall.Setup, curvatures: list[wall.Curvature], client: wall.Client
) -> dict[Any, Any]:
  """Makes a participant's reports, one per key; interactive ones have none."""
  distinct = {c.key: c for c in curvatures if not c.interactive}
  return {key: c.report(setup, client) for key, c in distinct.items()}


# An interactive participant's part, given every ε.
answer = wall.answer

# The server's side.


def aggregate(
  params: types.Params, local: types.Params, base: jax.Array
) -> tuple[types.Params, influence.ModelChange]:
  """Returns w_t, and what the round did to the model.

  Args:
    params: w_{t-1}.
    local: w_{t,m}^k, leaves [B, ...].
    base: a_k, [B].
  """
  new = fedavg.aggregate(local, base)
  updates = jax.tree.map(lambda a, w: a - w[None], local, params)
  return new, influence.ModelChange(updates, tree.subtract(params, new))


def end_round(
  estimators: dict[str, influence.Estimator],
  descent: descents.Descent,
  state: ServerState,
  reply: Reply,
  attendance: removals.Attendance,
  round_: jax.Array,
) -> ServerState:
  """Does all that a server does once every participant has replied.

  Args:
    estimators: by name.
    descent: how participants train.
    state: after the round before.
    reply: of all participants, leaves [B, ...]. The `Answer` of an interactive
      curvature stands among the reports, under the curvature's key.
    attendance: of these participants; see `removals.attendance`.
    round_: [] 1-based.
  """
  params, change = aggregate(state.params, reply.local, attendance.base)
  updated = {}
  for name, estimator in estimators.items():
    received = reply.reports.get(estimator.curvature.key)
    updated[name] = estimator.update(
      descent, state.estimators[name], received, attendance, round_, change
    )
  return ServerState(params, updated)
