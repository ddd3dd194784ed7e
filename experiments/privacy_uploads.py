"""A participant's messages in one round, as the attacker sees them."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device


class Messages(NamedTuple):
  """What one participant sent in one round."""

  update: types.Params  # w_{t,m}^k − w_{t-1}: FedAvg's
  rows: types.Params | None  # the first step's, leaves [S, P_j]


def send(
  model: fi.Model,
  fed: fi.FedAvg,
  params: types.Params,
  examples: tuple[np.ndarray, np.ndarray],
  curvature: wall.Curvature | None,
  seed: int = 0,
) -> Messages:
  """Plays a participant with the functions that a real one calls.

  Args:
    model: the model.
    fed: how it trains.
    params: w_{t-1}.
    examples: its own, all of them.
    curvature: what it is asked for, beside training; None: nothing.
    seed: of its draws.
  """
  estimators = {}
  if curvature is not None:
    estimators = {"asked": fi.estimator(curvature, fi.no_guard())}
  setup = federation.setup(model, fed, estimators, params, len(examples[0]))
  asked = [e.curvature for e in estimators.values()]

  @jax.jit
  def participate(params, own, draws):
    local, client = federation.train(setup)(params, own, draws)
    return local, federation.report(setup, asked, client)

  draws = rng.draws(seed, 1, "client")
  local, reports = participate(params, on_device.alone(*examples), draws)
  update = jax.tree.map(jnp.subtract, local, params)
  if curvature is None:
    return Messages(update, None)
  rows = jax.tree.map(lambda a: a[0], reports[curvature.key].rows)
  return Messages(update, rows)


def stacked(messages: list[types.Params]) -> types.Params:
  """Puts the rows of several uploads under one another."""
  return jax.tree.map(lambda *a: jnp.concatenate(a), *messages)
