"""Participants as mixtures of the server's examples."""

import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.curvature import dense_layers
from fedinf_jax.curvature import matching
from tests import cases


def test_simplex_weights_find_a_known_mixture():
  draw = np.random.default_rng(0)
  g = draw.normal(size=(12, 40))
  truth = np.zeros((3, 12))
  truth[0, [1, 4, 7]] = 1 / 3
  truth[1, 5] = 1
  truth[2] = draw.dirichlet(np.ones(12))
  found = np.asarray(matching.simplex_weights(g @ g.T, truth @ g @ g.T))
  assert (found >= 0).all()
  np.testing.assert_allclose(found.sum(1), 1, atol=1e-12)
  np.testing.assert_allclose(found, truth, atol=2e-3)


def matched_estimators(c):
  matched = fi.server_side(c, match=True)
  return {
    "matched": fi.estimator(matched, fi.no_guard()),
    "fine": fi.estimator(matched, fi.lwet(per="participant")),
    "one": fi.estimator(fi.server_side(c), fi.no_guard()),
  }


@pytest.mark.parametrize("layerwise", [True, False])
def test_clients_whose_examples_the_server_has_are_recovered(layerwise):
  x, y = cases.server_data(count=14)
  parts = ([0, 3, 5], [1, 2], [4, 6, 6, 7], [8, 9, 10], [11], [12, 13])
  data, many = (
    fi.FederatedData.from_clients(
      [(x[np.repeat(p, times)], y[np.repeat(p, times)]) for p in parts],
      num_classes=cases.CLASSES,
    )
    # Few examples may differ from the server's by chance, and are not trusted.
    for times in (1, 1000)
  )
  fed = fi.FedAvg(rounds=4, cohort_size=3, local_steps=1, learning_rate=0.4)
  model, _ = cases.mlp()
  c = fi.fisher(
    num_samples=14, per="round", layerwise=layerwise, spectrum="relu"
  )
  own = fi.simulate(
    model, data, fed, estimators={"own": fi.estimator(c, fi.no_guard())}
  )
  own = cases.ravel(own.eps["own"])
  run = fi.simulate(
    model, many, fed, estimators=matched_estimators(c), server_data=(x, y)
  )
  matched, fine, one = (
    cases.ravel(run.eps[n]) for n in ("matched", "fine", "one")
  )
  size = np.linalg.norm(own)
  assert np.linalg.norm(matched - own) < 1e-2 * size  # The solver's.
  assert np.linalg.norm(one - own) > 0.02 * size
  np.testing.assert_allclose(fine, matched, atol=1e-12)  # Nothing grows.
  drawn = np.isfinite(run.health["matched"].residual)
  assert (run.health["matched"].residual[drawn] < 1e-2).all()
  assert run.health["one"].residual is None


def test_a_client_unlike_the_server_s_examples_has_a_residual():
  x, y = cases.server_data(count=14)
  clients = [(x[:5], y[:5]), (x[5:9], y[5:9])]
  clients += [(-9 * x[9:], (y[9:] + 1) % cases.CLASSES)]
  data = fi.FederatedData.from_clients(clients, num_classes=cases.CLASSES)
  fed = fi.FedAvg(rounds=2, cohort_size=3, local_steps=1, learning_rate=0.1)
  model, _ = cases.mlp()
  c = fi.fisher(num_samples=14, per="round", layerwise=False)
  run = fi.simulate(
    model, data, fed, estimators=matched_estimators(c), server_data=(x, y)
  )
  residual = np.asarray(run.health["matched"].residual)
  assert (residual[:2] < 0.02).all() and residual[2] > 0.3


def _gradients(g, targets):
  rows = dense_layers.plain({"w": g})
  return matching.Gradients(rows, rows), dense_layers.plain({"w": targets})


def test_mixtures_are_shrunk_as_far_as_chance_explains_them():
  draw = np.random.default_rng(1)
  g = draw.normal(size=(10, 30)) + 1.0
  targets = g[:4].mean(0)[None] + 0.1
  mix = lambda count: matching.mixtures(
    *_gradients(g, targets), np.array([count]), num_rows=10, local_steps=1
  )
  found = np.asarray(mix(10**9).weights)
  mean = g.mean(0)
  variance = np.square(g - mean).sum(1).mean()
  away = np.square(targets[0] - mean).sum()
  for count in (1, 30, 1000):
    apart = max(0, 1 - variance / count / away)
    expected = apart * found + (1 - apart) / 10
    np.testing.assert_allclose(mix(count).weights, expected, atol=1e-6)
  assert 0 < 1 - variance / 30 / away < 0.9
  alike = np.full_like(found, 0.1)
  np.testing.assert_allclose(mix(1).weights, alike, atol=1e-12)


def test_few_rows_are_those_that_mixtures_need_and_a_random_rest():
  draw = np.random.default_rng(2)
  g = draw.normal(size=(40, 60))
  targets = g[[33, 37]]
  found = matching.mixtures(
    *_gradients(g, targets), np.array([9, 9]), num_rows=12, local_steps=1
  )
  chosen = np.asarray(found.chosen)
  assert {33, 37} <= set(chosen[:6].tolist())
  assert chosen[6:].tolist() == list(range(6))
  np.testing.assert_allclose(np.asarray(found.weights).sum(1), 1, atol=1e-9)
