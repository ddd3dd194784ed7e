"""The same rounds of FedAvg by fedjax, for comparison.

fedjax is no dependency of the project: pip install -r requirements-fedjax.txt.
"""

import itertools
import time

import jax
import jax.numpy as jnp
import numpy as np

# fedjax 0.0.17 was written for a JAX that still had it.
jax.tree_map = jax.tree.map  # type: ignore[attr-defined]  # it is gone
import fedjax  # noqa: E402
from fedjax.algorithms import fed_avg  # noqa: E402

REPEATS = 10


def algorithm_seconds(federation) -> float:
  """Times fedjax's own `federated_averaging`, as its users run it.

  The same clients and cohort, and as many steps and examples per round: it
  draws batches of one size, here the cohort's mean.
  """
  model, fed = federation.model, federation.fed
  clients = _cohort(federation)
  size = round(np.mean([len(y) for _, _, y in clients]))
  gradient = _gradient(model)
  algorithm = fed_avg.federated_averaging(
    lambda w, batch, key: gradient(w, batch),
    client_optimizer=fedjax.optimizers.sgd(fed.learning_rate),
    server_optimizer=fedjax.optimizers.sgd(1.0),
    client_batch_hparams=fedjax.ShuffleRepeatBatchHParams(
      batch_size=size, num_epochs=None, num_steps=fed.local_steps
    ),
  )
  datasets = [
    (k, fedjax.ClientDataset({"x": x, "y": y})) for k, x, y in clients
  ]
  rounds = itertools.count()

  def one_round(state):
    keys = jax.random.split(jax.random.PRNGKey(next(rounds)), len(datasets))
    cohort = [(k, d, key) for (k, d), key in zip(datasets, keys, strict=True)]
    return algorithm.apply(state, cohort)[0]

  return _least(one_round, algorithm.init(model.init(jax.random.key(0))))


def core_seconds(federation) -> float:
  """Times fedjax's `for_each_client` alone: whole clients, already placed."""
  model, fed = federation.model, federation.fed
  gradient = _gradient(model)

  def step(w, batch):
    descend = lambda a, g: a - fed.learning_rate * g
    return jax.tree.map(descend, w, gradient(w, batch))

  train = fedjax.for_each_client(
    client_init=lambda shared, client: shared,
    client_step=step,
    client_final=lambda shared, w: w,
  )
  clients = _cohort(federation)
  counts = {k: len(y) for k, _, y in clients}
  cohort = [
    (k, [{"x": jnp.asarray(x), "y": jnp.asarray(y)}] * fed.local_steps, None)
    for k, x, y in clients
  ]

  def one_round(w):
    local = ((w, counts[k]) for k, w in train(w, cohort))
    return fedjax.tree_util.tree_mean(local)

  return _least(one_round, model.init(jax.random.key(0)))


def _cohort(federation):
  """Returns (id, x, y) of every participant."""
  clients = list(federation.data.clients())
  return [(str(k), *clients[k]) for k in federation.cohorts[0]]


def _gradient(model):
  loss = lambda w, batch: model.loss(
    model.apply(w, batch["x"]), batch["y"]
  ).mean()
  return jax.grad(loss)


def _least(one_round, state):
  """Returns the least time of a round; the first compiles."""
  took = []
  for _ in range(1 + REPEATS):
    started = time.perf_counter()
    state = one_round(state)
    jax.block_until_ready(jax.tree.leaves(state))
    took.append(time.perf_counter() - started)
  return min(took[1:])
