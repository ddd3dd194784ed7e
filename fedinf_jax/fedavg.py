"""Federated averaging (Section 2 of the paper): local training, aggregation."""

import dataclasses
import functools

import jax
from jax import lax
import jax.numpy as jnp
import optax

from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types


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
      if name == "batch_size" and value is None:
        continue
      if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it must be an integer >= 1")
    if (self.learning_rate is None) == (self.client_optimizer is None):
      raise ValueError("give exactly one of learning_rate and client_optimizer")
    if self.learning_rate is not None and not 0 < self.learning_rate < jnp.inf:
      raise ValueError(
        f"learning_rate is {self.learning_rate}; it must be positive and finite"
      )

  @property
  def optimizer(self) -> optax.GradientTransformation:
    """The local optimiser."""
    return self.client_optimizer or optax.sgd(self.learning_rate)


def batch(
  fed: FedAvg, examples: packing.Examples, draws: rng.Draws, step: jax.Array
):
  """Returns the examples of one local step.

  Args:
    fed: the configuration.
    examples: the client's slice, L rows.
    draws: the client's draws of this round.
    step: [] which local step.

  Returns:
    x [Q, ...], y [Q, ...], own [Q]: Q = L, or min(batch_size, L) drawn without
    replacement. Only `own` rows count; they are neighbours.
  """
  x, y, first, count = examples
  limit = x.shape[0]
  if fed.batch_size is None:
    row = jnp.arange(limit) - first
    own = (row >= 0) & (row < count)
  else:
    size = min(fed.batch_size, limit)
    key = draws.key(rng.Stream.BATCH, step)
    index, own = rng.choose(key, count, size=size, limit=limit)
    x, y = x[first + index], y[first + index]
  return x, y, own


def step_loss(model: types.Model, params, x, y, own) -> jax.Array:
  """Returns L(w, D), the mean loss over the rows that are `own`."""
  per_example = model.loss(model.apply(params, x), y)
  own = own.astype(per_example.dtype)
  # An empty lane has no examples: its loss is 0, not NaN.
  return jnp.vdot(own, per_example) / jnp.maximum(own.sum(), 1)


def local_training(model: types.Model, fed: FedAvg):
  """Builds a participant's local training, Equation (2).

      w_{t,i}^k = w_{t,i-1}^k - η ∇L(w_{t,i-1}^k, D^k),   i = 1 … m

  (or the optimiser's step in place of -η∇L).

  Returns:
    train(params, examples, draws) -> (w_{t,m}^k, the iterates w_{t,i}^k for
    i = 0 … m-1 as leaves [M, ...]).
  """
  gradient = jax.grad(functools.partial(step_loss, model))

  def train(params, examples, draws):
    def step(carry, i):
      w, opt_state = carry
      g = gradient(w, *batch(fed, examples, draws, i))
      update, opt_state = fed.optimizer.update(g, opt_state, w)
      return (optax.apply_updates(w, update), opt_state), w

    start = params, fed.optimizer.init(params)
    (params, _), iterates = lax.scan(step, start, jnp.arange(fed.local_steps))
    return params, iterates

  return train


def over_wave(function, sizes: tuple[int, ...], operand_axis=None):
  """Builds what every client of a wave does, vmapped over the wave.

  Args:
    function: (operand, examples, draws) -> result, of one client.
    sizes: rows of the size classes.
    operand_axis: None: all clients share the operand; 0: each has its own.

  Returns:
    call(operand, packed, root, round_, wave [G], size_class) -> results, leaves
    [G, ...].
  """

  def of_size(size, operand, packed, root, round_, wave):
    slices = [packing.take(packed, client, size) for client in wave]
    examples = jax.tree.map(lambda *lanes: jnp.stack(lanes), *slices)
    draws = rng.Draws(root, round_, packed.words[wave])
    lanes = rng.Draws(None, None, 0)
    axes = operand_axis, 0, lanes
    return jax.vmap(function, axes)(operand, examples, draws)

  def call(operand, packed, root, round_, wave, size_class):
    branches = [functools.partial(of_size, size) for size in sizes]
    return lax.switch(size_class, branches, operand, packed, root, round_, wave)

  return call


def weights(counts: jax.Array, dtype) -> jax.Array:
  """Returns n_k / N(C_t) along the last axis; zeros where N is zero."""
  total = counts.sum(-1, keepdims=True)
  return counts.astype(dtype) / jnp.maximum(total, 1).astype(dtype)


def aggregate(local_models, counts: jax.Array) -> types.Params:
  """Averages local models by size, Equation (3).

  Args:
    local_models: leaves [B, ...].
    counts: [B], the n_k.
  """
  dtype = jax.tree.leaves(local_models)[0].dtype
  return tree.weighted_sum(weights(counts, dtype), local_models)
