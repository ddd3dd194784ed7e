"""Laws that estimators must obey, whatever their numbers are."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax import theory
from tests import cases


@pytest.mark.parametrize(
  "settings",
  [
    {"learning_rate": 0.05},
    {"client_optimizer": optax.sgd(0.03, momentum=0.9)},
    {"learning_rate": 0.05, "batch_size": 3},
  ],
  ids=["plain", "momentum", "mini_batch"],
)
def test_exact_on_quadratic_losses(settings):
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(n, 4)), draw.normal(size=(n, 2))) for n in (3, 9, 1, 6)]
  )
  fed = fi.FedAvg(rounds=6, cohort_size=2, local_steps=3, **settings)
  basic = fi.estimator(fi.exact_hessian(), fi.no_guard())
  init, step = fi.simulator(
    cases.regression(), data, fed, estimators={"basic": basic}, exact=True
  )
  state = init()
  for _ in range(fed.rounds):
    state = step(state)
    run = fi.Run.of(cases.regression(), state)
    cases.close(run.eps["basic"], run.exact_eps, rtol=0, atol=1e-9)
  assert np.abs(run.exact_eps["w"]).max() > 0.01


def test_participants_that_train_from_every_counterfactual_are_exact():
  """On a network that no linearisation follows, an emptied cohort included."""
  both = {
    "difference": fi.estimator(fi.exact_difference(), fi.no_guard()),
    "hessian": fi.estimator(fi.exact_hessian(), fi.no_guard()),
  }
  groups = np.array([[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]], bool)
  run = cases.simulate(both, cases.mlp, 2.0, removals=groups, exact=True)
  cases.close(run.eps["difference"], run.exact_eps, rtol=0, atol=1e-10)
  off = jax.tree.map(lambda a, b: np.abs(a - b).max(), run.eps["hessian"],
                     run.exact_eps)  # fmt: skip
  assert max(jax.tree.leaves(off)) > 1e-3


def test_equal_by_definition():
  none = fi.no_guard()
  run = cases.simulate(
    {
      "fisher": fi.estimator(fi.fisher(num_samples=6), none),
      "rank S": fi.estimator(fi.fisher(num_samples=6, rank=6), none),
      "layerwise": fi.estimator(fi.layerwise_hessian(), none),
      "dense": fi.estimator(fi.dense_hessian(), none),
      "steps": fi.estimator(fi.dense_hessian(upload="steps"), none),
      "lwet": fi.estimator(fi.fisher(num_samples=6), fi.lwet()),
      "fine": fi.estimator(
        fi.fisher(num_samples=6), fi.lwet(per="participant")
      ),
    },
    eta=0.05,
  )
  cases.close(run.eps["rank S"], run.eps["fisher"], rtol=0, atol=1e-13)
  cases.close(run.eps["dense"], run.eps["layerwise"], rtol=0, atol=1e-13)
  cases.close(run.eps["steps"], run.eps["layerwise"], rtol=0, atol=1e-13)
  # Nothing trips at this learning rate: a guard changes nothing.
  for guard in ("lwet", "fine"):
    assert not run.health[guard].truncated_at.any()
    for a, b in zip(*(jax.tree.leaves(run.eps[n]) for n in (guard, "fisher")),
                    strict=True):  # fmt: skip
      ulp = np.spacing(np.abs(b).max())
      np.testing.assert_allclose(a, b, rtol=0, atol=4 * ulp)
  assert run.health["lwet"].layer_names == ("dense/bias", "dense/kernel")
  assert (run.health["lwet"].growth < 1).all()


def test_a_dead_layer_never_trips_in_float32():
  # Layer "a" moves in round 1 only, by client 0, which is never seen again.
  model = fi.Model(
    init=lambda key: {"a": jnp.zeros(3), "b": jnp.zeros(3)},
    apply=lambda params, x: (
      params["a"][None] * x[:, :1] + params["b"][None] * (1 - x[:, :1])
    ),
    loss=lambda outputs, y: jnp.square(outputs - y).sum(1),
    sample=lambda key, outputs: outputs,
  )
  draw = np.random.default_rng(0)
  flag = lambda k: np.full((7, 1), k == 0, np.float32)
  data = fi.FederatedData.from_clients(
    [(flag(k), draw.normal(size=(7, 3)).astype(np.float32)) for k in range(6)]
  )
  cohorts = np.stack([draw.permutation(5)[:3] + 1 for _ in range(10_000)])
  cohorts[0] = [0, 1, 2]
  fed = fi.FedAvg(
    rounds=10_000, cohort_size=3, local_steps=2, learning_rate=0.01
  )
  guards = {"layer": fi.lwet(), "participant": fi.lwet(per="participant")}
  run = fi.simulate(
    model,
    data,
    fed,
    cohorts=cohorts,
    estimators={
      f"{name} {per}": fi.estimator(c, guard)
      for name, c in (
        ("fisher", fi.fisher(num_samples=3)),
        ("layerwise", fi.layerwise_hessian()),
      )
      for per, guard in guards.items()
    },
  )
  for name, health in run.health.items():
    assert not health.truncated_at[:, 0].any(), name
    moved = np.abs(run.eps[name]["a"][0])
    assert moved.max() > 1e-3  # And it is still there, 9,999 rounds later.


def test_an_unguarded_blow_up_ends_finite_and_is_listed():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n))
      for n in (9, 14, 5, 12)
    ]
  )
  fed = fi.FedAvg(rounds=300, cohort_size=2, local_steps=2, learning_rate=30.0)
  run = fi.simulate(
    fi.models.logreg(4, 3),
    data,
    fed,
    estimators={
      "loose": fi.estimator(fi.fisher(), fi.no_guard()),
      "whole": fi.estimator(fi.fisher(layerwise=False), fi.no_guard()),
      "guarded": fi.estimator(fi.fisher(), fi.lwet()),
    },
  )
  for name in ("loose", "whole", "guarded"):
    assert np.isfinite(cases.ravel(run.eps[name])).all()
  assert run.health["loose"].nonfinite_at.any()
  assert run.health["whole"].nonfinite_at.any()
  assert not run.health["loose"].truncated_at.any()
  assert run.health["guarded"].truncated_at.any()
  assert not run.health["guarded"].nonfinite_at.any()


@pytest.mark.slow
def test_lwet_never_trips_on_the_convex_setting_1():
  """The paper's claim; with the exact layer Hessians and with Fisher's."""
  train, _ = fi.data.synthetic().split(0.9, seed=0)
  single = fi.FederatedData.from_clients(
    [(x.astype(np.float32), y) for x, y in train.clients()], train.ids, 5
  )
  fed = fi.FedAvg(
    rounds=200, cohort_size=10, local_steps=5, learning_rate=0.003
  )
  # Products with exact Hessians are dear: those of 20 clients stand for all.
  some = np.eye(1000, dtype=bool)[::50]
  for curve, removals in (
    (fi.fisher(), None),
    (fi.layerwise_hessian(), some),
  ):
    run = fi.simulate(
      fi.models.logreg(60, 5),
      single,
      fed,
      estimators={"lwet": fi.estimator(curve, fi.lwet())},
      removals=removals,
    )
    assert not run.health["lwet"].truncated_at.any()
    assert (run.health["lwet"].growth > 0.9).any()


def test_a_trip_with_exact_layer_hessians_implies_gamma_above_one():
  model, data = cases.mlp()
  fed = fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=2.0)
  estimators = {"lwet": fi.estimator(fi.layerwise_hessian(), fi.lwet())}
  init, step = fi.simulator(model, data, fed, estimators=estimators)
  cohorts = rng.cohorts(0, rng.id_words(data.ids), 5, 3)
  state, tripped = init(), 0
  for t, cohort in enumerate(cohorts, start=1):
    before = jax.tree.map(np.asarray, state.params)
    state = step(state)
    at = np.asarray(state.estimators["lwet"].guard.truncated_at)
    # A removal that the cohort does not touch has the round's own weights.
    rows = np.setdiff1d(np.arange(6), cohort)
    layers = (at[rows] == t).any(0)
    if layers.any():
      gamma = theory.round_theory(model, data, fed, before, cohort, t)
      assert (gamma.gamma[layers] > 1).all() and (gamma.case[layers] == 3).all()
      tripped += layers.sum()
  assert tripped


def test_the_new_error_of_a_round_and_the_theorems():
  model, data = cases.logreg()
  fed = fi.FedAvg(rounds=6, cohort_size=3, local_steps=2, learning_rate=0.3)
  none = fi.no_guard()
  estimators = {
    "basic": fi.estimator(fi.exact_hessian(), none),
    "restarted": fi.estimator(fi.exact_hessian(), none),
    "truncated": fi.estimator(fi.truncated(), none),
  }
  init, step = fi.simulator(model, data, fed, estimators=estimators, exact=True)
  state, total, largest, worst = init(), 0.0, 0.0, 0.0
  for _ in range(fed.rounds):
    state = step(fi.from_exact(state, "restarted"))
    run = fi.Run.of(model, state)
    exact, eps = run.exact_eps, run.eps
    added = theory.new_error(exact, eps["restarted"])
    error = theory.new_error(exact, eps["basic"])
    total = total + np.asarray(added)
    largest = max(largest, float(theory.fip_norms(exact).max()))
    worst = max(worst, float(added.max()))
    # Theorem 1 in Case 2 (convex): errors add up and never grow.
    assert (np.asarray(error) <= total + 1e-12).all()
    # Theorem 2: the truncated estimator is off by γC + o(C) at most, γ = 1.
    off = theory.new_error(exact, eps["truncated"])
    bound = theory.theorem2_bound(1.0, largest) + worst
    assert float(off.max()) <= bound + 1e-12
  assert 0 < worst < 0.2 * largest  # o(C), and not nothing.
  with pytest.raises(ValueError, match="from_exact needs"):
    fi.from_exact(state._replace(replayed=None), "basic")


@pytest.mark.parametrize("num_clients", [1, 4])
def test_everyone_takes_part_and_one_client_is_all_there_is(num_clients):
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)), draw.integers(0, 3, n))
      for n in (3, 9, 5, 7)[:num_clients]
    ]
  )
  fed = fi.FedAvg(
    rounds=4, cohort_size=num_clients, local_steps=2, learning_rate=0.1
  )
  estimators = {
    "basic": fi.estimator(fi.exact_hessian(), fi.no_guard()),
    "both": fi.estimator(fi.fisher(), fi.lwet()),
    "fine": fi.estimator(fi.fisher(), fi.lwet(per="participant")),
    "truncated": fi.estimator(fi.truncated(), fi.lwet()),
  }
  model = fi.models.logreg(4, 3)
  w_0 = jax.tree.map(np.zeros_like, model.init(jax.random.key(0)))
  run = fi.simulate(
    model, data, fed, estimators=estimators, exact=True, params=w_0,
    removals=np.eye(num_clients, dtype=bool)[:1],
  )  # fmt: skip
  if num_clients == 1:  # Nobody is left: the counterfactual never moves.
    for name in estimators:
      cases.close(run.eps[name], run.exact_eps, atol=1e-15)
      cases.close(
        run.eps[name],
        jax.tree.map(lambda w: -w[None], run.params),
        atol=1e-15,
      )
      assert not run.health[name].truncated_at.any()
  else:
    error = lambda name: np.linalg.norm(
      cases.ravel(run.eps[name]) - cases.ravel(run.exact_eps)
    )
    assert error("basic") < 0.1 * error("both") < 0.1 * error("truncated")
