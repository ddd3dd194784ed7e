"""A participant's messages in one round, as the attacker sees them."""

from collections.abc import Callable
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
  rows: types.Params  # the first step's, leaves [S, P_j]; or None


def sender(
  model: fi.Model,
  fed: fi.FedAvg,
  params: types.Params,
  num_examples: int,
  curvature: wall.Curvature | None,
) -> Callable[..., Messages]:
  """Builds a participant by the functions that a real one calls.

  Args:
    model: the model.
    fed: how it trains.
    params: w_{t-1}.
    num_examples: n_k.
    curvature: what it is asked for, beside training; None: nothing.

  Returns:
    (x [n_k, ...], y [n_k], seed of its draws) -> Messages.
  """
  estimators = {}
  if curvature is not None:
    estimators = {"asked": fi.estimator(curvature, fi.no_guard())}
  setup = federation.setup(model, fed, estimators, params, num_examples)
  asked = [e.curvature for e in estimators.values()]

  @jax.jit
  def participate(own, draws):
    local, client = federation.train(setup)(params, own, draws)
    reports = federation.report(setup, asked, client)
    update = jax.tree.map(jnp.subtract, local, params)
    rows = None
    if curvature is not None:
      rows = jax.tree.map(lambda a: a[0], reports[curvature.key].rows)
    return Messages(update, rows)

  def send(x: np.ndarray, y: np.ndarray, seed: int) -> Messages:
    return participate(on_device.alone(x, y), rng.draws(seed, 1, "client"))

  return send


def stacked(messages: list[types.Params]) -> types.Params:
  """Puts the rows of several uploads under one another."""
  return jax.tree.map(lambda *a: jnp.concatenate(a), *messages)
