"""Federated averaging (Section 2 of the paper): local training, aggregation."""

import dataclasses

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


def batch(fed: FedAvg, examples: packing.Examples, key: jax.Array):
  """Returns the examples of one local step.

  Args:
    fed: the configuration.
    examples: the client's slice, L rows.
    key: the step's key.

  Returns:
    x [Q, ...], y [Q, ...], own [Q]: Q = L, or min(batch_size, L) drawn without
    replacement; rows that are not `own` do not count.
  """
  x, y, first, count = examples
  limit = x.shape[0]
  if fed.batch_size is None:
    row = jnp.arange(limit) - first
    own = (row >= 0) & (row < count)
  else:
    size = min(fed.batch_size, limit)
    index, own = rng.choose(key, count, size=size, limit=limit)
    x, y = x[first + index], y[first + index]
  return x, y, own


def local_training(model: types.Model, fed: FedAvg):
  """Builds a participant's local training, Equation (2).

      w_{t,i}^k = w_{t,i-1}^k - η ∇L(w_{t,i-1}^k, D^k),   i = 1 … m

  (or the optimiser's step in place of -η∇L).

  Returns:
    train(params, examples, key) -> (w_{t,m}^k, the iterates w_{t,i}^k for
    i = 0 … m-1 as leaves [M, ...]); `key` belongs to (round, client).
  """

  def loss(params, x, y, own):
    per_example = model.loss(model.apply(params, x), y)
    own = own.astype(per_example.dtype)
    # An empty lane has no examples: its loss is 0, not NaN.
    return jnp.vdot(own, per_example) / jnp.maximum(own.sum(), 1)

  def train(params, examples, key):
    def step(carry, i):
      w, opt_state = carry
      gradient = jax.grad(loss)(
        w, *batch(fed, examples, jax.random.fold_in(key, i))
      )
      update, opt_state = fed.optimizer.update(gradient, opt_state, w)
      return (optax.apply_updates(w, update), opt_state), w

    start = params, fed.optimizer.init(params)
    (params, _), iterates = lax.scan(step, start, jnp.arange(fed.local_steps))
    return params, iterates

  return train


def wave_training(model: types.Model, fed: FedAvg, sizes: tuple[int, ...]):
  """Builds the local training of a wave, vmapped over its clients.

  Returns:
    train(params, packed, key, round_, clients [G], size_class) -> the local
    models w_{t,m}^k, leaves [G, ...]; `key` is that of the batch stream.
  """
  train_one = local_training(model, fed)

  def of_size(size, params, packed, key, round_, wave):
    slices = [packing.take(packed, client, size) for client in wave]
    examples = jax.tree.map(lambda *lanes: jnp.stack(lanes), *slices)
    keys = jax.vmap(rng.client_key, (None, None, 0))(
      key, round_, packed.words[wave]
    )
    return jax.vmap(train_one, (None, 0, 0))(params, examples, keys)[0]

  def train(params, packed, key, round_, wave, size_class):
    branches = [lambda *args, size=size: of_size(size, *args) for size in sizes]
    return lax.switch(size_class, branches, params, packed, key, round_, wave)

  return train


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
