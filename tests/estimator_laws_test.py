"""Laws that estimators must obey, whatever their numbers are."""

import functools

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import curvature
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import tangent
from fedinf_jax import theory
from tests import influence_test as cases

ravel = jax.jit(jax.vmap(lambda e: flatten_util.ravel_pytree(e)[0]))


def close(a, b, **tolerance):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, **tolerance), a, b)


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
    regression(), data, fed, estimators={"basic": basic}, exact=True
  )
  state = init()
  for _ in range(fed.rounds):
    state = step(state)
    run = fi.Run.of(regression(), state)
    close(run.eps["basic"], run.exact_eps, rtol=0, atol=1e-9)
  assert np.abs(run.exact_eps["w"]).max() > 0.01


def simulate(estimators, case=cases.logreg, eta=0.4, rounds=5, **kwargs):
  model, data = case()
  fed = fi.FedAvg(
    rounds=rounds, cohort_size=3, local_steps=2, learning_rate=eta
  )
  return fi.simulate(model, data, fed, estimators=estimators, **kwargs)


def test_participants_that_train_from_every_counterfactual_are_exact():
  """On a network that no linearisation follows, an emptied cohort included."""
  both = {
    "difference": fi.estimator(fi.exact_difference(), fi.no_guard()),
    "hessian": fi.estimator(fi.exact_hessian(), fi.no_guard()),
  }
  groups = np.array([[1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0]], bool)
  run = simulate(both, cases.mlp, 2.0, removals=groups, exact=True)
  close(run.eps["difference"], run.exact_eps, rtol=0, atol=1e-10)
  off = jax.tree.map(lambda a, b: np.abs(a - b).max(), run.eps["hessian"],
                     run.exact_eps)  # fmt: skip
  assert max(jax.tree.leaves(off)) > 1e-3


def test_equal_by_definition():
  none = fi.no_guard()
  run = simulate(
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
  close(run.eps["rank S"], run.eps["fisher"], rtol=0, atol=1e-13)
  close(run.eps["dense"], run.eps["layerwise"], rtol=0, atol=1e-13)
  close(run.eps["steps"], run.eps["layerwise"], rtol=0, atol=1e-13)
  # Nothing trips at this learning rate: a guard changes nothing.
  for guard in ("lwet", "fine"):
    assert not run.health[guard].truncated_at.any()
    for a, b in zip(*(jax.tree.leaves(run.eps[n]) for n in (guard, "fisher")),
                    strict=True):  # fmt: skip
      ulp = np.spacing(np.abs(b).max())
      np.testing.assert_allclose(a, b, rtol=0, atol=4 * ulp)
  assert run.health["lwet"].layer_names == ("dense/bias", "dense/kernel")
  assert (run.health["lwet"].growth < 1).all()


def one_client(case, k=3, params=None, round_=1, eta=0.4, steps=1):
  """A participant's setup and context, outside of any run."""
  model, data = case()
  fed = fi.FedAvg(rounds=1, cohort_size=1, local_steps=steps, learning_rate=eta)
  params = model.init(jax.random.key(1)) if params is None else params
  params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params)
  packed = packing.clients(data)
  size = int(data.num_examples.max())
  examples = packing.take(packed, jnp.int32(k), size)
  draws = rng.Draws(jax.random.key(0), jnp.int32(round_), packed.words[k])
  train = jax.jit(fedavg.local_training(model, fed))
  _, iterates = train(params, examples, draws)
  setup = curvature.Setup(model, fed, eta, size)
  return setup, curvature.Client(iterates, examples, draws)


def matrix(report):
  """GᵀG of the first step, whole: ηF."""
  g = np.concatenate(
    [np.asarray(r)[0] for r in jax.tree.leaves(report.rows)], 1
  )
  return g.T @ g


@functools.partial(jax.jit, static_argnums=0)
def hessian(setup, client):
  """ηH of the first step, whole."""
  w = jax.tree.map(lambda a: a[0], client.iterates)
  gradient = curvature._step_gradient(setup, client, 0)
  return setup.eta * curvature._hessian_blocks(gradient, w, layerwise=False)[0]


def test_fisher_with_enough_samples_uses_every_example_once():
  setup, client = one_client(cases.logreg)
  model, data = cases.logreg()
  x, y = data.client(3)
  w = jax.tree.map(lambda a: a[0], client.iterates)
  gradient = jax.grad(lambda w, x, y: model.loss(model.apply(w, x), y)[0])
  g = np.stack(
    [
      flatten_util.ravel_pytree(gradient(w, x[[i]], y[[i]]))[0]
      for i in range(len(x))
    ]
  )
  report = fi.fisher(num_samples=50).report(setup, client)
  np.testing.assert_allclose(
    matrix(report), setup.eta * g.T @ g / len(x), atol=1e-13
  )


@pytest.mark.parametrize("name", ["clip", "relu", "exp", "implicit"])
def test_spectra_never_expand_and_begin_as_gradient_descent(name):
  x = np.concatenate([[0], np.geomspace(1e-8, 1e4, 200)])
  f = 1 - np.asarray(curvature.SPECTRA[name](jnp.asarray(x)))
  assert (np.abs(f) <= 1).all()
  small = x <= 0.1
  assert (np.abs(f - (1 - x))[small] <= x[small] ** 2 + 1e-16).all()
  if name in ("relu", "clip"):
    np.testing.assert_allclose(f[x <= 1], (1 - x)[x <= 1], atol=1e-15)
  negative = curvature.SPECTRA[name](jnp.array([-0.3, -5.0]))
  np.testing.assert_array_equal(negative, 0)  # Left alone: f = 1.


@pytest.mark.parametrize("layerwise", [True, False])
def test_no_spectrum_lets_the_operator_expand(layerwise):
  # At a rate at which gradient descent does.
  setup, client = one_client(cases.mlp, eta=30.0, steps=2)
  start = jax.tree.map(lambda a: a[0], client.iterates)
  eye = jax.vmap(flatten_util.ravel_pytree(start)[1])(jnp.eye(43))
  names = (None, "clip", "relu", "exp", "implicit")
  makers = [fi.fisher(layerwise=layerwise, spectrum=name) for name in names]

  @jax.jit
  def carry(eye):
    return [
      curvature.propagate(c, setup, c.report(setup, client), eye)
      for c in makers
    ]

  norms = [np.linalg.norm(ravel(p), 2) for p in carry(eye)]
  assert norms[0] > 1.5
  assert max(norms[1:]) <= 1 + 1e-12


def test_sampled_labels_are_unbiased_for_gauss_newton_and_observed_are_not():
  setup, client = one_client(cases.logreg)
  sampled = fi.fisher(labels="sampled")

  @jax.jit
  @jax.vmap
  def draw(round_):
    again = client._replace(draws=client.draws._replace(round=round_))
    rows = jax.tree.leaves(sampled.report(setup, again).rows)
    g = jnp.concatenate([r[0] for r in rows], axis=1)
    return g.T @ g

  draws = np.asarray(draw(jnp.arange(3000, dtype=jnp.int32)))
  # For softmax regression the Gauss–Newton matrix is the Hessian.
  truth = hessian(setup, client)
  error = draws.std(0) / np.sqrt(len(draws))
  z = np.abs(draws.mean(0) - truth) / np.maximum(error, 1e-12)
  assert z.max() < 5 and 0.5 < z.mean() < 1.2
  observed = matrix(fi.fisher().report(setup, client))
  z = np.abs(observed - truth) / np.maximum(error, 1e-12)
  assert z.max() > 20
  assert np.linalg.norm(observed - truth) > 0.2 * np.linalg.norm(truth)


def small_cnn_1():
  model = fi.models.cnn(
    3, widths=(1, 2), dense=2, activation=None, pool="stride"
  )
  return model, cases.make_data((28, 28, 1), sizes=(3, 5, 4, 12, 2, 5))


@pytest.mark.parametrize(
  "case",
  [cases.logreg, pytest.param(small_cnn_1, marks=pytest.mark.slow)],
)
def test_exact_and_approximate_hessians_through_training(case, capsys):
  """Prints how far apart they are, by layers, as a share of ‖H‖."""
  eta = 0.4 if case is cases.logreg else 0.1
  case = functools.cache(case)  # One model, so that jit knows it again.
  model, data = case()
  reports = {
    labels: jax.jit(fi.fisher(labels=labels).report, static_argnums=0)
    for labels in ("observed", "sampled")
  }
  fed = fi.FedAvg(rounds=60, cohort_size=6, local_steps=2, learning_rate=eta)
  init, step = fi.simulator(model, data, fed)
  state, distances = init(), {}
  for stage, rounds in (("start", 0), ("middle", 30), ("end", 30)):
    state = step(state, rounds) if rounds else state
    setup, client = one_client(case, params=state.params, eta=eta)
    true = _diagonal(hessian(setup, client), state.params)
    for labels, report in reports.items():
      f = matrix(report(setup, client))
      gap = np.linalg.norm(_diagonal(f, state.params) - true)
      distances[stage, labels] = gap / np.linalg.norm(true)
  with capsys.disabled():
    shown = ", ".join(f"{' '.join(k)} {d:.2f}" for k, d in distances.items())
    print(f"\n{case.__name__}: ‖F − H‖/‖H‖ {shown}")
  assert all(0 < d < 10 for d in distances.values())
  # Model and data agree better at the end: the paper's argument.
  assert distances["end", "observed"] < distances["start", "observed"]


def _diagonal(matrix, params):
  sizes = [a.size for a in jax.tree.leaves(params)]
  owner = np.repeat(np.arange(len(sizes)), sizes)
  return np.where(owner[:, None] == owner, matrix, 0)


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
    assert np.isfinite(ravel(run.eps[name])).all()
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
    at = np.asarray(state.estimators["lwet"].truncated_at)
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
    fi.from_exact(state._replace(rows=None), "basic")


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
      close(run.eps[name], run.exact_eps, atol=1e-15)
      close(
        run.eps[name],
        jax.tree.map(lambda w: -w[None], run.params),
        atol=1e-15,
      )
      assert not run.health[name].truncated_at.any()
  else:
    error = lambda name: np.linalg.norm(
      ravel(run.eps[name]) - ravel(run.exact_eps)
    )
    assert error("basic") < 0.1 * error("both") < 0.1 * error("truncated")


SHARED = {
  "both": fi.estimator(fi.fisher(num_samples=4), fi.lwet()),
  "fine": fi.estimator(fi.fisher(num_samples=4), fi.lwet(per="participant")),
  "relu": fi.estimator(
    fi.fisher(layerwise=False, spectrum="relu"), fi.no_guard()
  ),
}


def test_chunks_of_uploads_change_nothing():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(n, 4)), draw.integers(0, 3, n))
     for n in (90, 2, 30, 14, 61, 20)]
  )  # fmt: skip
  fed = fi.FedAvg(rounds=5, cohort_size=4, local_steps=2, learning_rate=2.0)
  runs = [
    fi.simulate(
      fi.models.logreg(4, 3), data, fed, estimators=SHARED, upload_chunk=chunk
    )
    for chunk in (None, 1)
  ]
  for name in SHARED:
    close(runs[0].eps[name], runs[1].eps[name], rtol=0, atol=1e-12)
    close(runs[0].health[name].truncated_at, runs[1].health[name].truncated_at)


@pytest.mark.parametrize("name", ["both", "fine"])
def test_chunks_of_removals_change_nothing(name, monkeypatch):
  data = cases.make_data((4,), sizes=(9, 8, 7, 12, 6, 5, 8))
  fed = fi.FedAvg(rounds=4, cohort_size=3, local_steps=2, learning_rate=2.0)
  guard = fi.lwet(per="participant" if name == "fine" else "layer")
  runs = []
  # All seven at once; then three at a time, and one of them twice.
  for chunk in (None, 3):
    if chunk:
      monkeypatch.setattr(memory, "chunk_size", lambda *_, size=chunk: size)
    estimator = fi.estimator(fi.fisher(num_samples=2), guard)
    estimators = {name: estimator}
    runs.append(
      fi.simulate(fi.models.logreg(4, 3), data, fed, estimators=estimators)
    )
  close(runs[0].eps[name], runs[1].eps[name], rtol=0, atol=1e-12)
  truncated = runs[0].health[name].truncated_at
  close(truncated, runs[1].health[name].truncated_at)
  assert (np.asarray(truncated) > 0).any()


@pytest.mark.parametrize("num_samples", [1, 8])  # Compact form and recursion.
def test_the_fine_guard_needs_nobody_to_come_twice(num_samples):
  curvature_ = fi.fisher(num_samples=num_samples)
  fine = fi.estimator(curvature_, fi.lwet(per="participant"))
  coarse = fi.estimator(curvature_, fi.no_guard())
  run = simulate({"fine": fine, "none": coarse}, rounds=1)
  close(run.eps["fine"], run.eps["none"])


@pytest.mark.slow
def test_jit_equals_eager():
  chosen = {name: SHARED[name] for name in ("both", "fine")}
  make = functools.partial(
    simulate, chosen, rounds=2, removals=np.eye(6, dtype=bool)[:3]
  )
  compiled = make()
  with jax.disable_jit():
    eager = make()
  for name in chosen:
    for a, b in zip(*(jax.tree.leaves(run.eps[name]) for run in
                      (compiled, eager)), strict=True):  # fmt: skip
      ulp = np.spacing(np.abs(b).max())
      np.testing.assert_allclose(a, b, rtol=0, atol=4 * ulp)


def test_one_program_and_no_buffer_of_removals_by_participants_by_parameters(
  compilations,
):
  features, classes, num_clients, cohort = 300, 10, 64, 48
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [
      (draw.normal(size=(6, features)), draw.integers(0, classes, 6))
      for _ in range(num_clients)
    ]
  )
  fed = fi.FedAvg(
    rounds=3, cohort_size=cohort, local_steps=1, learning_rate=0.1
  )
  small = {
    "coarse": fi.estimator(fi.fisher(num_samples=3), fi.lwet()),
    "fine": fi.estimator(fi.fisher(num_samples=3), fi.lwet(per="participant")),
    "layerwise": fi.estimator(fi.layerwise_hessian(), fi.lwet()),
  }
  init, step = fi.simulator(
    fi.models.logreg(features, classes), data, fed, estimators=small
  )
  state = init()
  program = jax.jit(step).lower(state).compile()
  whole = num_clients * cohort * (features + 1) * classes * 8
  assert program.memory_analysis().temp_size_in_bytes < whole / 2
  state = jax.block_until_ready(step(state))
  before = len(compilations)
  jax.block_until_ready(step(state, 2))
  assert len(compilations) == before


def federation_round(case, estimator, state, params, cohort, round_, fed):
  """One round as clients and a server would do it, apart from each other."""
  model, data = case
  packed = packing.clients(data)
  largest = int(data.num_examples.max())
  setup = curvature.Setup(model, fed, fed.learning_rate, largest)
  train = fedavg.local_training(model, fed)

  @jax.jit
  def client(k, params, eps):
    examples = packing.take(packed, k, largest)
    draws = rng.Draws(jax.random.key(0), jnp.int32(round_), packed.words[k])
    local, iterates = train(params, examples, draws)
    context = curvature.Client(iterates, examples, draws)
    if not estimator.curvature.uploads:
      return local, fi.answer(estimator.curvature, setup, context, eps)
    return local, estimator.curvature.report(setup, context)

  sent = [client(jnp.int32(k), params, state.eps) for k in cohort]
  stack = lambda trees: jax.tree.map(lambda *a: jnp.stack(a), *trees)
  local, report = (stack(part) for part in zip(*sent, strict=True))
  counts = jnp.asarray(data.num_examples[cohort])
  new = fedavg.aggregate(local, counts)
  base = fedavg.weights(counts, jnp.float64)
  left = jnp.where(np.arange(6)[:, None] == cohort[None], 0, counts[None])
  participants = influence.Participants(
    report, influence.shares_of(left, counts, base), base, jnp.asarray(cohort)
  )
  updates = jax.tree.map(lambda a, w: a - w[None], local, params)
  change = jax.tree.map(jnp.subtract, params, new)
  # Told whom the round misses, the server does less for the same.
  hits = jnp.asarray([*cohort, 6])  # The last one is filling.
  update = (
    estimator.update
    if round_ < 3
    else functools.partial(estimator.update, hits=hits)
  )
  state = update(setup, state, participants, round_, updates, change)
  return state, new, (setup, participants, updates, change)


SHARED_OR_ASKED = {
  "both": SHARED["both"],
  "fine": SHARED["fine"],
  "asked": fi.estimator(fi.exact_hessian(), fi.lwet(per="participant")),
  "asked for models": fi.estimator(fi.exact_difference(), fi.no_guard()),
}


@pytest.mark.parametrize("name", SHARED_OR_ASKED)
def test_a_federation_gets_what_the_simulation_measures(name):
  case = cases.mlp()
  model, data = case
  fed = fi.FedAvg(rounds=3, cohort_size=3, local_steps=2, learning_rate=2.0)
  params = jax.tree.map(
    lambda a: jnp.asarray(a, jnp.float64), model.init(jax.random.key(1))
  )
  estimator = SHARED_OR_ASKED[name]
  run = fi.simulate(
    model, data, fed, estimators={name: estimator}, params=params
  )
  state = estimator.init(params, 6, 6)
  cohorts = rng.cohorts(0, rng.id_words(data.ids), 3, 3)
  for t, cohort in enumerate(cohorts, start=1):
    state, params, last = federation_round(
      case, estimator, state, params, cohort, t, fed
    )
  close(state.eps, run.eps[name], rtol=0, atol=1e-12)
  close(state.truncated_at, run.health[name].truncated_at)
  setup, participants, updates, change = last
  if name == "both":
    asked = fi.estimator(fi.exact_hessian(), fi.no_guard())
    with pytest.raises(ValueError, match="exact_hessian has nothing that a"):
      asked.update(setup, state, participants, 4, updates, change)
  fewer = jax.tree.map(lambda a: a[..., 1:], participants.report)
  wrong = participants._replace(report=fewer)
  with pytest.raises(ValueError, match=r"report: Dense_0/bias has shape"):
    estimator.update(setup, state, wrong, 4, updates, change)
  wrong = participants._replace(shares=participants.shares[:, :2])
  with pytest.raises(ValueError, match="report: 3 participants for 2 shares"):
    estimator.update(setup, state, wrong, 4, updates, change)


def test_estimators_share_uploads():
  setup, client = one_client(cases.logreg)
  keys = {
    fi.fisher().key,
    fi.fisher(layerwise=False).key,
    fi.fisher(labels="sampled").key,
    fi.fisher(rank=3).key,
    fi.fisher(rank=3, layerwise=False).key,
  }
  assert len(keys) == 4  # The first two send the same gradients.
  report = fi.fisher(num_samples=4).report(setup, client)
  shapes = [r.shape for r in jax.tree.leaves(report.rows)]
  assert shapes == [(1, 4, 3), (1, 4, 12)]
  report = fi.fisher(num_samples=6, rank=4).report(setup, client)
  shapes = [r.shape for r in jax.tree.leaves(report.rows)]
  assert shapes == [(1, 3, 3), (1, 4, 12)]  # min(rank, S_k, P_j)
  vectors, values = fi.lowrank_hessian(rank=5).report(setup, client)
  assert [r.shape for r in jax.tree.leaves(vectors)] == [(1, 5, 3), (1, 5, 12)]
  assert values.shape == (1, 5)
  assert fi.truncated().report(setup, client) == ()


def test_an_answer_is_as_many_models_as_there_are_removals():
  model, data = cases.logreg()
  fed = fi.FedAvg(rounds=1, cohort_size=2, local_steps=3, learning_rate=0.1)
  size = memory.tree_bytes(model.init(jax.random.key(0)))
  of = lambda c, **more: fi.upload_bytes(
    model, data, fed, fi.estimator(c, fi.no_guard()), **more
  )
  assert of(fi.exact_hessian()) == data.num_clients * size
  assert of(fi.exact_difference(), num_removals=2) == 2 * size
  assert of(fi.fisher(num_samples=2)) == 3 * 2 * size
  assert of(fi.truncated()) == 0


@pytest.mark.parametrize(
  ("optimizer", "expected"),
  [
    (optax.sgd(0.25), 0.25),
    (optax.sgd(0.25, momentum=0.9), None),
    (optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.2)), None),
    (optax.sgd(optax.linear_schedule(0.1, 0.3, 2)), None),
    (optax.adam(0.1), ValueError),
    (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), ValueError),
    (optax.sign_sgd(0.1), ValueError),
  ],
)
def test_linear_optimisers_are_told_apart(optimizer, expected):
  fed = fi.FedAvg(
    rounds=1, cohort_size=1, local_steps=3, client_optimizer=optimizer
  )
  params = {"a": jnp.zeros((2, 3)), "b": jnp.zeros(2, jnp.float32)}
  if expected is ValueError:
    with pytest.raises(ValueError, match="client_optimizer is not linear"):
      tangent.plain_rate(fed, params)
  else:
    rate = tangent.plain_rate(fed, params)
    assert rate == (expected and pytest.approx(expected, rel=1e-5))


def run_momentum(c):
  model, data = cases.logreg()
  fed = fi.FedAvg(
    rounds=1,
    cohort_size=3,
    local_steps=2,
    client_optimizer=optax.sgd(0.1, momentum=0.5),
  )
  fi.simulate(
    model, data, fed, estimators={"a": fi.estimator(c, fi.no_guard())}
  )


BAD = {
  "samples": (lambda: fi.fisher(num_samples=0), "num_samples is 0"),
  "labels": (lambda: fi.fisher(labels="true"), "labels is 'true'"),
  "rank": (lambda: fi.fisher(rank=-1), "rank is -1"),
  "spectrum": (lambda: fi.fisher(spectrum="log"), "spectrum is 'log'"),
  "per": (lambda: fi.lowrank_hessian(rank=2, per="day"), "per is 'day'"),
  "upload": (lambda: fi.dense_hessian(upload="all"), "upload is 'all'"),
  "guard": (lambda: fi.lwet(per="client"), "per is 'client'"),
  "tolerance": (lambda: fi.lwet(tolerance=-1), "tolerance is -1"),
  "momentum spectrum": (
    lambda: run_momentum(fi.fisher(spectrum="exp")),
    "spectrum='exp' is defined for plain gradient descent only",
  ),
  "momentum round": (
    lambda: run_momentum(fi.lowrank_hessian(rank=2, per="round")),
    "per='round' is defined for plain gradient descent only",
  ),
  "name": (
    lambda: simulate({"exact": SHARED["both"]}),
    '"exact" is the name of the ground truth',
  ),
  "not an estimator": (
    lambda: simulate({"both": fi.fisher()}),
    "estimators: 'both' is not an estimator",
  ),
  "chunk": (lambda: simulate({}, upload_chunk=0), "upload_chunk is 0"),
  "dense": (
    lambda: fi.simulate(
      fi.models.logreg(1500, 3),
      cases.make_data((1500,)),
      fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1),
      estimators={"a": fi.estimator(fi.dense_hessian(), fi.no_guard())},
    ),
    "dense_hessian: dense/kernel has 4,500 parameters; at most 4,096",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors_say_what_would_be_right(name):
  call, message = BAD[name]
  with pytest.raises(ValueError, match=message):
    call()
