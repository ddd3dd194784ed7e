"""Shared cases: small clients, small models, and how to compare trees."""

import contextlib
import functools
import signal

from flax import linen as nn
import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np

import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import models
from fedinf_jax import rng
from fedinf_jax.data import on_device

CLASSES = 3


class MLP(nn.Module):
  """Two layers with a tanh: non-convex, coupled, small."""

  @nn.compact
  def __call__(self, x):
    return nn.Dense(CLASSES)(nn.tanh(nn.Dense(5)(x)))


@functools.cache
def make_data(shape, sizes=(1, 2, 9, 14, 5, 12)):
  draw = np.random.default_rng(3)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, *shape)), draw.integers(0, CLASSES, n))
      for n in sizes
    ],
    ids=[f"client-{k}" for k in range(len(sizes))],
    num_classes=CLASSES,
  )


GROUPS = np.zeros((3, 6), bool)
GROUPS[0, [0, 3]] = True
GROUPS[1, [1, 2, 4]] = True  # Empties a cohort below.
# Row 2 removes nobody.
COHORTS = np.array([[3, 0, 5], [4, 1, 2], [5, 3, 1], [0, 2, 3], [4, 3, 5]])


@functools.cache
def logreg():
  return models.logreg(4, CLASSES), make_data((4,))


@functools.cache
def mlp():
  model = models.from_flax(
    MLP(), np.zeros((1, 4)), models.cross_entropy, jax.random.categorical
  )
  return model, make_data((4,))


class SmallCNN(nn.Module):
  """A convolution, a pool and a dense layer."""

  @nn.compact
  def __call__(self, x):
    x = nn.avg_pool(nn.relu(nn.Conv(2, (3, 3))(x)), (2, 2), strides=(2, 2))
    return nn.Dense(CLASSES)(x.reshape(x.shape[0], -1))


@functools.cache
def small_cnn():
  shape = (6, 6, 1)
  model = models.from_flax(
    SmallCNN(), np.zeros((1, *shape)), models.cross_entropy,
    jax.random.categorical,
  )  # fmt: skip
  return model, make_data(shape, sizes=(3, 5, 4, 6, 2, 5))


ravel = jax.jit(jax.vmap(lambda e: flatten_util.ravel_pytree(e)[0]))


def close(a, b, **tolerance):
  """Compares two trees."""
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


@contextlib.contextmanager
def patience(seconds):
  """Ends what takes longer with an error."""

  def give_up(number, frame):
    raise TimeoutError(f"more than {seconds} s")

  before = signal.signal(signal.SIGALRM, give_up)
  signal.alarm(seconds)
  try:
    yield
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def in_double(params):
  return jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params)


def regression():
  """Least squares: quadratic, with another Hessian for every client."""
  return fi.Model(
    init=lambda key: {
      "w": jax.random.normal(key, (4, 2)),
      "b": jnp.zeros(2),
    },
    apply=lambda params, x: x @ params["w"] + params["b"][None],
    loss=lambda outputs, y: jnp.square(outputs - y).sum(1),
  )


def simulate(estimators, case=logreg, eta=0.4, rounds=5, **kwargs):
  model, data = case()
  fed = fi.FedAvg(
    rounds=rounds, cohort_size=3, local_steps=2, learning_rate=eta
  )
  return fi.simulate(model, data, fed, estimators=estimators, **kwargs)


def one_client(case, k=3, params=None, round_=1, eta=0.4, steps=1):
  """A participant after its local training, outside of any run."""
  model, data = case()
  fed = fi.FedAvg(rounds=1, cohort_size=1, local_steps=steps, learning_rate=eta)
  params = model.init(jax.random.key(1)) if params is None else params
  largest = int(data.num_examples.max())
  setup = federation.setup(model, fed, {"it": FISHER}, params, largest)
  train = jax.jit(federation.train(setup))
  examples = on_device.take(on_device.put(data), jnp.int32(k), largest)
  draws = rng.draws(0, round_, data.ids[k])
  _, client = train(in_double(params), examples, draws)
  return setup, client


# Makes a setup linear; any estimator that propagates would do.
FISHER = fi.estimator(fi.fisher(), fi.no_guard())


def server_data(shape=(4,), count=20, seed=8):
  """Makes examples that a server holds."""
  draw = np.random.default_rng(seed)
  x = draw.normal(size=(count, *shape))
  return x, draw.integers(0, CLASSES, count)
