"""What is kept of the rounds of a run that are evaluated."""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import metrics
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.simulation import history as histories
from fedinf_jax.simulation import run as runs

EVERY = 5  # rounds between two evaluations


class Line(NamedTuple):
  """An evaluated round."""

  fil: dict[str, np.ndarray]  # [R]
  loss: float
  accuracy: float


class Recorder(NamedTuple):
  """When to evaluate, and how."""

  rounds: list[int]  # in order
  read: Callable[[runs.State], Line]


def recorder(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  evaluate: Any,
  evaluate_every: int | None,
) -> Recorder | None:
  """Prepares the evaluation of a run; None: nothing is evaluated.

  Args:
    model: what is trained.
    data: the clients.
    fed: how.
    evaluate: (x, y), or a FederatedData; None: nothing is evaluated.
    evaluate_every: rounds between two evaluations; None: EVERY.

  Raises:
    ValueError: if these do not go together.
  """
  if evaluate_every is not None:
    checks.positive_integer("evaluate_every", evaluate_every)
    if evaluate is None:
      raise ValueError("evaluate_every has no use without evaluate=(x, y)")
  if evaluate is None:
    return None
  if isinstance(evaluate, federated.FederatedData):
    evaluate = evaluate.pooled()
  if not isinstance(evaluate, tuple | list) or len(evaluate) != 2:
    raise ValueError("evaluate must be a pair (x, y), or a FederatedData")
  x, y = evaluate
  shapes = agreement.training(model, data, fed)
  like = agreement.example_of(data)
  try:
    x, y = agreement.evaluation(model, shapes, metrics.loss, (x, y), like)
  except ValueError as error:
    raise ValueError(f"evaluate: {error}") from error
  rounds = histories.evaluated(fed.rounds, evaluate_every or EVERY)
  return Recorder(rounds, _reader(model, x, y))


def _reader(model, x, y):
  def read(state):
    run = runs.Run.of(model, state, copy=False)
    fil = {
      name: run.everyone(run.influence(metrics.loss, x, y, of=name), name)
      for name in run.names
    }
    return Line(fil, *performance(model, run.params, x, y))

  return read


def performance(
  model: types.Model, params: types.Params, x: Any, y: Any
) -> tuple[float, float]:
  """Returns the mean loss and the accuracy, NaN where there are no labels."""
  loss, hits = _performance(params, x, y, model=model)
  return float(loss), float(hits)


@functools.partial(jax.jit, static_argnames="model")
def _performance(params, x, y, *, model):
  outputs = model.apply(params, x)
  hits = jnp.nan
  if jnp.issubdtype(y.dtype, jnp.integer) and y.shape == outputs.shape[:-1]:
    hits = metrics.accuracy(outputs, y)
  return model.loss(outputs, y).mean(), hits


def joined(rounds: list[int], lines: list[Line]) -> histories.History:
  """Puts together what a recorder has read."""
  fil, loss, accuracy = zip(*lines, strict=True)
  return histories.History(
    rounds=np.array(rounds),
    fil={name: np.stack([line[name] for line in fil]) for name in fil[0]},
    loss=np.array(loss),
    accuracy=np.array(accuracy),
  )
