"""An estimator that fits, for those who do not want to choose."""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedinf_jax import curvature as curvatures
from fedinf_jax import fedavg
from fedinf_jax import guards
from fedinf_jax import influence
from fedinf_jax import presets
from fedinf_jax import types
from fedinf_jax.curvature import descent
from fedinf_jax.data import federated
from fedinf_jax.data import packing

_MOST = 1000  # of the server's examples in a round


class Choice(NamedTuple):
  """An estimator, and the reason for it."""

  estimator: influence.Estimator
  name: str  # to call it by in `estimators={name: estimator}`
  why: str


def default_estimator(
  fed: fedavg.FedAvg,
  *,
  model: types.Model | None = None,
  server_data: Any = None,
) -> Choice:
  """Chooses an estimator that fits the local optimiser, and says why.

  With examples of the server, nothing is uploaded for it; without, participants
  upload gradients, or what else their optimiser allows.

  Args:
    fed: how participants train.
    model: whether its labels can be drawn matters, and so do its parameters to
      an optimiser that treats them differently; None: they can.
    server_data: as of `simulate`.

  Returns:
    Choice(estimator, name, why).

  Examples:
    >>> choice = fi.default_estimator(fed)
    >>> choice.name, choice.why
    ('relu', 'local training is plain gradient descent, so participants ...')
    >>> served = fi.default_estimator(fed, server_data=test)
    >>> chosen = {served.name: served.estimator}
    >>> run = fi.simulate(
    ...   model, data, fed, estimators=chosen, server_data=test
    ... )
    >>> run.influence(fi.metrics.loss, *test, of="server").shape
    (6,)
  """
  if not isinstance(fed, fedavg.FedAvg):
    raise ValueError(f"fed is a {type(fed).__name__}; it must be a fi.FedAvg")
  if model is not None and not isinstance(model, types.Model):
    raise ValueError(
      f"model is a {type(model).__name__}; it must be a fi.Model"
    )
  draws = model is None or model.sample is not None
  linear, plain = _optimizer(fed, model)
  if server_data is not None:
    return _of_server(_count(server_data), plain and draws, linear)
  if not linear:
    return Choice(
      presets.paper_basic(),
      "basic",
      "client_optimizer is not linear in the gradients, so participants are"
      " interactive: each is sent every ε and answers",
    )
  if plain and draws:
    return Choice(
      presets.same_upload(),
      "relu",
      "local training is plain gradient descent, so participants upload"
      " gradients of labels that the model draws",
    )
  if plain:
    return Choice(
      presets.small_upload(),
      "lowrank",
      "the model cannot draw labels (it has no sample), so participants upload"
      " eigenvectors of their Hessian",
    )
  return Choice(
    presets.named("lowrank_step"),
    "lowrank_step",
    "client_optimizer is linear but not plain gradient descent, so participants"
    " upload eigenvectors of each step's Hessian",
  )


def _of_server(count, fisher, linear):
  """Returns the choice where the server has so many examples."""
  if fisher:
    return Choice(
      presets.named("server", server_examples=count),
      "server",
      "the server has examples, so participants upload nothing for it",
    )
  curvature = (
    curvatures.lowrank_hessian(rank=50)
    if linear
    else curvatures.exact_hessian()
  )
  served = curvatures.server_side(curvature, num_examples=min(_MOST, count))
  return Choice(
    influence.estimator(served, guards.no_guard()),
    "server_hessian",
    "the server has examples, so participants upload nothing for it; the"
    f" Hessian is {'in few eigenvectors' if linear else 'whole'}, which fits"
    " the optimiser and the model",
  )


def _optimizer(fed, model):
  """Returns whether it is linear, and whether it is plain gradient descent."""
  params = {"w": jax.ShapeDtypeStruct((3,), jnp.result_type(float))}
  if model is not None:
    params = model.param_shapes()
  try:
    return True, descent.plain_rate(fed, params) is not None
  except ValueError:  # It says that the optimiser is not linear.
    return False, False


def _count(server_data):
  """Returns how many examples the server has."""
  if isinstance(server_data, federated.FederatedData):
    return len(server_data.x)
  if not isinstance(server_data, tuple | list) or len(server_data) != 2:
    raise ValueError(
      f"server_data is a {type(server_data).__name__}; it must be (x, y)"
    )
  return len(packing.examples("server_data: y", server_data[1]))
