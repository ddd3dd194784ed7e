"""Every estimator against its literal twin, round by round, flag by flag."""

import functools

from flax import linen as nn
import jax
from jax import flatten_util
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import models
from fedinf_jax import rng
from tests import reference_influence as twin

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


def logreg():
  return models.logreg(4, CLASSES), make_data((4,))


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


def small_cnn():
  shape = (6, 6, 1)
  model = models.from_flax(
    SmallCNN(), np.zeros((1, *shape)), models.cross_entropy,
    jax.random.categorical,
  )  # fmt: skip
  return model, make_data(shape, sizes=(3, 5, 4, 6, 2, 5))


# name: (our curvature, its twin); spectra and ranks for plain descent only.
LINEAR = {
  "layerwise": (fi.layerwise_hessian(), twin.Curvature("layerwise")),
  "dense": (fi.dense_hessian(), twin.Curvature("layerwise")),
  "dense steps": (
    fi.dense_hessian(upload="steps"),
    twin.Curvature("layerwise"),
  ),
  "dense whole": (fi.dense_hessian(layerwise=False), twin.Curvature("exact")),
  "fisher": (fi.fisher(num_samples=4), twin.Curvature("fisher", 4)),
  "fisher all": (fi.fisher(), twin.Curvature("fisher")),
  "fisher whole": (
    fi.fisher(num_samples=4, layerwise=False, labels="sampled"),
    twin.Curvature("fisher", 4, "sampled", False),
  ),
  "fisher rank": (
    fi.fisher(num_samples=6, rank=2),
    twin.Curvature("fisher", 6, rank=2),
  ),
  "fisher whole rank": (
    fi.fisher(num_samples=6, layerwise=False, rank=3),
    twin.Curvature("fisher", 6, layerwise=False, rank=3),
  ),
  # A rank at which Lanczos takes P steps, so that its eigenpairs are exact.
  "lowrank": (fi.lowrank_hessian(rank=17), twin.Curvature("lowrank", rank=17)),
  "truncated": (fi.truncated(), twin.Curvature("truncated")),
}
EXACT = {"exact": (fi.exact_hessian(), twin.Curvature("exact"))}
PLAIN = {
  "lowrank round": (
    fi.lowrank_hessian(rank=4, per="round"),
    twin.Curvature("lowrank", rank=4, per="round"),
  ),
  "lowrank relu": (
    fi.lowrank_hessian(rank=4, spectrum="relu"),
    twin.Curvature("lowrank", rank=4, spectrum="relu"),
  ),
  **{
    f"fisher {spectrum}": (
      fi.fisher(num_samples=5, labels="sampled", layerwise=False,
                spectrum=spectrum),
      twin.Curvature("fisher", 5, "sampled", False, spectrum=spectrum),
    )
    for spectrum in ("clip", "relu", "exp", "implicit")
  },
  "fisher rank exp": (
    fi.fisher(num_samples=5, rank=2, spectrum="exp"),
    twin.Curvature("fisher", 5, rank=2, spectrum="exp"),
  ),
}  # fmt: skip
GUARDS = {
  "none": fi.no_guard(),
  "lwet": fi.lwet(),
  "lwet_participant": fi.lwet(per="participant"),
}
MOMENTUM = optax.sgd(0.4, momentum=0.7, nesterov=True)
DECAY = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.3, 0.5))

ALL = {**LINEAR, **EXACT, **PLAIN}
# One of each kind; "all" has the rest.
KINDS = (
  *("exact", "layerwise", "dense", "fisher", "fisher whole", "fisher relu"),
  *("fisher rank exp", "lowrank", "lowrank round", "truncated"),
)
GUARDED = ("exact", "layerwise", "fisher", "fisher whole")

# model, settings, names of curvatures, removals, cohorts
CASES = {
  "logreg": (logreg, {"learning_rate": 0.4}, KINDS, None, None),
  "all": (logreg, {"learning_rate": 0.4}, ALL, None, None),
  "groups": (logreg, {"learning_rate": 0.4}, GUARDED, GROUPS, COHORTS),
  "trips": (mlp, {"learning_rate": 2.0}, ("layerwise", "fisher whole"), None,
            None),
  "mini_batch": (mlp, {"learning_rate": 0.4, "batch_size": 4},
                 ("exact", "fisher"), None, None),
  "momentum": (mlp, {"client_optimizer": MOMENTUM},
               ("exact", "layerwise", "dense steps", "fisher"), GROUPS,
               COHORTS),
  "decay": (logreg, {"client_optimizer": DECAY},
            ("exact", "dense", "fisher whole rank", "lowrank"), None, None),
  "adam": (logreg, {"client_optimizer": optax.adam(0.1)}, EXACT, None, None),
  "cnn": (small_cnn, {"learning_rate": 0.5},
          ("exact", "layerwise", "fisher", "fisher relu"), None, None),
}  # fmt: skip


SLOW = ("all", "cnn", "momentum", "decay", "adam")


@pytest.mark.parametrize(
  "case",
  [
    pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else [])
    for case in CASES
  ],
)
def test_equals_its_twin(case):
  make, settings, names, removals, cohorts = CASES[case]
  model, data = make()
  rounds = 3 if case == "cnn" else 5
  fed = fi.FedAvg(rounds=rounds, cohort_size=3, local_steps=2, **settings)
  seed = 4
  params = jax.tree.map(
    lambda a: np.asarray(a, np.float64), model.init(jax.random.key(1))
  )
  pairs = {
    (name, guard)
    for name in names
    for guard in GUARDS
    if guard == "none" or (case in ("groups", "trips", "adam"))
  }
  label = lambda pair: "/".join(pair)
  init, step = fi.simulator(
    model,
    data,
    fed,
    estimators={
      label(pair): fi.estimator(ALL[pair[0]][0], GUARDS[pair[1]])
      for pair in pairs
    },
    removals=removals,
    cohorts=cohorts,
    params=params,
    seed=seed,
  )
  if cohorts is None:
    cohorts = rng.cohorts(seed, rng.id_words(data.ids), rounds, 3)
  rows = np.eye(data.num_clients, dtype=bool) if removals is None else removals
  expected = {
    label((name, guard)): twin.estimate(
      model, fed, data, params, cohorts, rows, seed, ALL[name][1], guard
    )
    for name, guard in pairs
  }
  state = init()
  ravel = jax.jit(jax.vmap(lambda e: flatten_util.ravel_pytree(e)[0]))
  for t in range(1, rounds + 1):
    state = step(state)
    for name, e in expected.items():
      np.testing.assert_allclose(
        ravel(state.estimators[name].eps),
        e.eps[t],
        rtol=1e-8,
        atol=1e-8,
        err_msg=f"{name}, round {t}",
      )
  for name, e in expected.items():
    got = np.asarray(state.estimators[name].truncated_at)
    np.testing.assert_array_equal(got, e.truncated_at, err_msg=name)
    if case == "trips" and not name.endswith("none"):
      assert got.any(), name  # The comparison is of something.
