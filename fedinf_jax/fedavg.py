"""Federated averaging (Section 2 of the paper): local training, aggregation."""

import dataclasses

import jax
from jax import lax
import jax.numpy as jnp
import optax

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import on_device


@dataclasses.dataclass(frozen=True, kw_only=True)
class FedAvg:
  """What FedAvg runs with.

  Attributes:
    rounds: T.
    cohort_size: B = |C_t|.
    local_steps: m.
    learning_rate: η of plain gradient descent; or give `client_optimizer`.
    client_optimizer: any optax optimiser; its state starts fresh each round.
    batch_size: examples a local step draws; None: all of the client's.

  Examples:
    >>> import optax
    >>> momentum = optax.sgd(0.1, momentum=0.9)
    >>> other = fi.FedAvg(
    ...   rounds=9, cohort_size=3, local_steps=2, client_optimizer=momentum
    ... )
    >>> other.optimizer is momentum, fed.learning_rate
    (True, 0.3)
  """

  rounds: int
  cohort_size: int
  local_steps: int
  learning_rate: float | None = None
  client_optimizer: optax.GradientTransformation | None = None
  batch_size: int | None = None

  def __post_init__(self):
    for name in ("rounds", "cohort_size", "local_steps", "batch_size"):
      value = getattr(self, name)
      if not (name == "batch_size" and value is None):
        # NumPy's integers become Python's.
        value = checks.positive_integer(name, value)
        object.__setattr__(self, name, value)
    # The cohorts are known before the first round; of a local model, one
    # parameter is the least.
    memory.require(
      f"rounds = {self.rounds} of cohort_size = {self.cohort_size}",
      4 * self.rounds * self.cohort_size,
    )
    memory.require(f"local_steps = {self.local_steps}", 4 * self.local_steps)
    for name in ("rounds", "local_steps"):
      if getattr(self, name) >= 2**31:
        raise ValueError(f"{name} is {getattr(self, name)}; at most 2^31 - 1")
    if (self.learning_rate is None) == (self.client_optimizer is None):
      raise ValueError("give exactly one of learning_rate and client_optimizer")
    if self.learning_rate is not None:
      rate = checks.positive("learning_rate", self.learning_rate)
      object.__setattr__(self, "learning_rate", rate)

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """The local optimiser."""
    return self.client_optimizer or optax.sgd(self.learning_rate)


def batch(
  fed: FedAvg,
  examples: on_device.Examples,
  draws: rng.Draws,
  step: jax.Array | int,
):
  """Returns the examples of one local step.

  Args:
    fed: the configuration.
    examples: the client's slice, N of them.
    draws: the client's draws of this round.
    step: [] which local step.

  Returns:
    x [Q, ...], y [Q, ...], own bool [Q]: Q = N, or min(batch_size, N) drawn
    without replacement. Only those that are the client's own count; they stand
    side by side.
  """
  x, y, first, count = examples
  limit = x.shape[0]
  if fed.batch_size is None:
    index = jnp.arange(limit) - first
    return x, y, (index >= 0) & (index < count)
  size = min(fed.batch_size, limit)
  key = draws.key(rng.Stream.BATCH, step)
  index, own = rng.choose(key, count, size=size, limit=limit)
  return x[first + index], y[first + index], own


def step_loss(
  model: types.Model,
  fed: FedAvg,
  examples: on_device.Examples,
  draws: rng.Draws,
  step: jax.Array | int,
):
  """Returns w -> L(w, D), the mean loss over the examples of a local step."""
  x, y, own = batch(fed, examples, draws, step)

  def loss(params):
    per_example = model.loss(model.apply(params, x), y)
    weight = own.astype(per_example.dtype)
    # A lane without a client has no examples: its loss is 0, not NaN.
    return jnp.vdot(weight, per_example) / jnp.maximum(weight.sum(), 1)

  return loss


def local_training(model: types.Model, fed: FedAvg):
  """Builds a participant's local training, Equation (2).

      w_{t,i}^k = w_{t,i-1}^k - η ∇L(w_{t,i-1}^k, D^k),   i = 1 … m

  (or the optimiser's step in place of -η∇L).

  Returns:
    train(params, examples, draws) -> (w_{t,m}^k, the iterates w_{t,i}^k for
    i = 0 … m-1 as leaves [M, ...]).
  """

  def train(params, examples, draws):
    def step(carry, i):
      w, opt_state = carry
      g = jax.grad(step_loss(model, fed, examples, draws, i))(w)
      update, opt_state = fed.optimizer.update(g, opt_state, w)
      return (optax.apply_updates(w, update), opt_state), w

    start = params, fed.optimizer.init(params)
    (params, _), iterates = lax.scan(step, start, jnp.arange(fed.local_steps))
    return params, iterates

  return train


def weights(counts: jax.Array, dtype) -> jax.Array:
  """Returns a_k = n_k / N along the last axis; zeros where N is zero."""
  total = counts.sum(-1, keepdims=True)
  return counts.astype(dtype) / jnp.maximum(total, 1).astype(dtype)


def aggregate(local_models: types.Params, shares: jax.Array) -> types.Params:
  """Averages local models, Equation (3).

      w_t = Σ_{k∈C_t} a_k w_{t,m}^k,   a_k = n_k / N(C_t)

  Args:
    local_models: leaves [B, ...].
    shares: a_k, [B], from `weights`.
  """
  return tree.weighted_sum(shares, local_models)
