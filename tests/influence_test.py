"""Every estimator against its literal twin, round by round, flag by flag."""

from collections.abc import Callable
from collections.abc import Collection
from typing import NamedTuple

import jax
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import rng
from tests import cases
from tests import reference_influence as twin

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
  *("exact", "dense", "fisher", "fisher relu", "fisher rank exp"),
  *("lowrank round", "truncated"),
)
GUARDED = ("exact", "layerwise", "fisher", "fisher whole")


class Case(NamedTuple):
  """A run that estimators and their twins go through."""

  make: Callable  # () -> (model, data)
  settings: dict  # of FedAvg
  names: Collection[str]  # of curvatures
  groups: bool = False  # remove groups, one of which empties a cohort
  guarded: bool = False  # with every guard
  slow: bool = False


PLAIN_RATE = {"learning_rate": 0.4}
CASES = {
  "logreg": Case(cases.logreg, PLAIN_RATE, KINDS),
  "all": Case(cases.logreg, PLAIN_RATE, ALL, slow=True),
  "groups": Case(cases.logreg, PLAIN_RATE, GUARDED, groups=True, guarded=True),
  "trips": Case(
    cases.mlp,
    {"learning_rate": 2.0},
    ("layerwise", "fisher whole"),
    guarded=True,
  ),
  "mini_batch": Case(
    cases.mlp, {**PLAIN_RATE, "batch_size": 4}, ("exact", "fisher")
  ),
  "momentum": Case(
    cases.mlp,
    {"client_optimizer": MOMENTUM},
    ("exact", "layerwise", "dense steps", "fisher"),
    groups=True,
    slow=True,
  ),
  "decay": Case(
    cases.logreg,
    {"client_optimizer": DECAY},
    ("exact", "dense", "fisher whole rank", "lowrank"),
    slow=True,
  ),
  "adam": Case(
    cases.logreg,
    {"client_optimizer": optax.adam(0.1)},
    EXACT,
    guarded=True,
    slow=True,
  ),
  "cnn": Case(
    cases.small_cnn,
    {"learning_rate": 0.5},
    ("exact", "layerwise", "fisher", "fisher relu"),
    slow=True,
  ),
}


@pytest.mark.parametrize(
  "name",
  [
    pytest.param(name, marks=[pytest.mark.slow] if case.slow else [])
    for name, case in CASES.items()
  ],
)
def test_equals_its_twin(name):
  case = CASES[name]
  model, data = case.make()
  rounds = 3 if name == "cnn" else 5
  fed = fi.FedAvg(rounds=rounds, cohort_size=3, local_steps=2, **case.settings)
  seed = 4
  cohorts = rng.cohorts(seed, rng.id_words(data.ids), rounds, 3)
  removals = np.eye(data.num_clients, dtype=bool)
  if case.groups:
    cohorts, removals = cases.COHORTS, cases.GROUPS
  params = jax.tree.map(
    lambda a: np.asarray(a, np.float64), model.init(jax.random.key(1))
  )
  guards = GUARDS if case.guarded else ("none",)
  pairs = {f"{c}/{guard}": (c, guard) for c in case.names for guard in guards}
  init, step = fi.simulator(
    model,
    data,
    fed,
    estimators={
      label: fi.estimator(ALL[c][0], GUARDS[guard])
      for label, (c, guard) in pairs.items()
    },
    removals=cases.GROUPS if case.groups else None,
    cohorts=cohorts,
    params=params,
    seed=seed,
  )
  expected = {
    label: twin.estimate(
      model, fed, data, params, cohorts, removals, seed, ALL[c][1], guard
    )
    for label, (c, guard) in pairs.items()
  }
  state = init()
  for t in range(1, rounds + 1):
    state = step(state)
    for label, e in expected.items():
      np.testing.assert_allclose(
        cases.ravel(state.estimators[label].eps),
        e.eps[t],
        rtol=1e-8,
        atol=1e-8,
        err_msg=f"{label}, round {t}",
      )
  for label, e in expected.items():
    got = np.asarray(state.estimators[label].guard.truncated_at)
    np.testing.assert_array_equal(got, e.truncated_at, err_msg=label)
    if name == "trips" and not label.endswith("none"):
      assert got.any(), label  # The comparison is of something.
