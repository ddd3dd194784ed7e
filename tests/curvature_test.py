"""What a curvature reports: how much, how biased, how stable."""

import functools

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import memory
from fedinf_jax.curvature import descent
from fedinf_jax.curvature import hessians
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import spectra
from tests import cases


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
  gradient = jax.grad(wall.step_loss(setup, client, 0))
  blocks = hessians.hessian_blocks(gradient, w, layerwise=False)
  return setup.descent.eta * blocks[0]


def test_fisher_with_enough_samples_uses_every_example_once():
  setup, client = cases.one_client(cases.logreg)
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
    matrix(report), setup.descent.eta * g.T @ g / len(x), atol=1e-13
  )


@pytest.mark.parametrize("name", ["clip", "relu", "exp", "implicit"])
def test_spectra_never_expand_and_begin_as_gradient_descent(name):
  x = np.concatenate([[0], np.geomspace(1e-8, 1e4, 200)])
  f = 1 - np.asarray(spectra.SPECTRA[name](jnp.asarray(x)))
  assert (np.abs(f) <= 1).all()
  small = x <= 0.1
  assert (np.abs(f - (1 - x))[small] <= x[small] ** 2 + 1e-16).all()
  if name in ("relu", "clip"):
    np.testing.assert_allclose(f[x <= 1], (1 - x)[x <= 1], atol=1e-15)
  negative = spectra.SPECTRA[name](jnp.array([-0.3, -5.0]))
  np.testing.assert_array_equal(negative, 0)  # Left alone: f = 1.


@pytest.mark.parametrize("layerwise", [True, False])
def test_no_spectrum_lets_the_operator_expand(layerwise):
  # At a rate at which gradient descent does.
  setup, client = cases.one_client(cases.mlp, eta=30.0, steps=2)
  start = jax.tree.map(lambda a: a[0], client.iterates)
  eye = jax.vmap(flatten_util.ravel_pytree(start)[1])(jnp.eye(43))
  names = (None, "clip", "relu", "exp", "implicit")
  makers = [fi.fisher(layerwise=layerwise, spectrum=name) for name in names]

  @jax.jit
  def carry(eye):
    return [
      wall.propagate(c, setup.descent, c.report(setup, client), eye)
      for c in makers
    ]

  norms = [np.linalg.norm(cases.ravel(p), 2) for p in carry(eye)]
  assert norms[0] > 1.5
  assert max(norms[1:]) <= 1 + 1e-12


def drawn_matrices(setup, client, label_draws):
  """ηF of sampled labels, drawn 3000 times."""
  sampled = fi.fisher(labels="sampled", label_draws=label_draws)

  @jax.jit
  @jax.vmap
  def draw(round_):
    again = client._replace(draws=client.draws._replace(round=round_))
    rows = jax.tree.leaves(sampled.report(setup, again).rows)
    g = jnp.concatenate([r[0] for r in rows], axis=1)
    return g.T @ g

  return np.asarray(draw(jnp.arange(3000, dtype=jnp.int32)))


def test_sampled_labels_are_unbiased_for_gauss_newton_and_observed_are_not():
  setup, client = cases.one_client(cases.logreg)
  # For softmax regression the Gauss–Newton matrix is the Hessian.
  truth = hessian(setup, client)
  for label_draws in (8, 1):
    draws = drawn_matrices(setup, client, label_draws)
    error = draws.std(0) / np.sqrt(len(draws))
    z = np.abs(draws.mean(0) - truth) / np.maximum(error, 1e-12)
    assert z.max() < 5 and 0.3 < z.mean() < 1.2
  # A model that is sure of its labels seldom draws another: more draws help.
  sure = client._replace(
    iterates=jax.tree.map(lambda a: 4 * a, client.iterates)
  )
  once, often = (
    np.square(drawn_matrices(setup, sure, n).std(0)).sum() for n in (1, 8)
  )
  assert often < 0.7 * once
  with pytest.raises(ValueError, match="label_draws is 2, which needs labels="):
    fi.fisher(label_draws=2)
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
    setup, client = cases.one_client(case, params=state.params, eta=eta)
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


def test_estimators_share_uploads():
  setup, client = cases.one_client(cases.logreg)
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
      descent.plain_rate(fed, params)
  else:
    rate = descent.plain_rate(fed, params)
    assert rate == (expected and pytest.approx(expected, rel=1e-5))
