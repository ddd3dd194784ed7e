"""Laws of the pass backwards: derivative, projection, order, own part."""

import functools

import jax
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import checks
from tests import cases
from tests import reference_adjoint as literal

SGD = {"learning_rate": 0.4}
MOMENTUM = {"client_optimizer": optax.sgd(0.3, momentum=0.9)}
# Where a gradient is zero, the root of Adam has no derivative without it.
ADAM = {"client_optimizer": optax.adam(0.05, eps_root=1e-8)}
# A round of one client, or of nobody else than it (client 5 is never drawn).
COHORTS = np.array([[3, 0], [4, 1], [2, 3], [0, 2], [4, 3]])
ALONE = [[3], [1], [3], [4], [1]]
# Not everybody replies: clients 3 and 4 are alone at times, once nobody does.
RAGGED = [[3, 0], [4], [2, 3], [], [0, 4, 2], [3], [4, 1]]


def make_fed(cohorts, batch_size=None, **optimizer):
  return fi.FedAvg(
    rounds=len(cohorts), cohort_size=max(map(len, cohorts)), local_steps=3,
    batch_size=batch_size, **(optimizer or SGD),
  )  # fmt: skip


@functools.cache
def held_out():
  return cases.make_data((4,), sizes=(7, 8)).pooled()


def go(case, cohorts, fed=None, seed=4, **options):
  model, data = case()
  fed = fed or make_fed(cohorts)
  x, y = held_out()
  return fi.adjoint(
    model, data, fed, x, y, cohorts=cohorts, seed=seed, **options
  )


def retold(case, cohorts, fed=None, seed=4, scaled=None):
  model, data = case()
  params = checks.params(None, model, seed, data)
  fed = fed or make_fed(cohorts)
  rounds = literal.history(
    model, data, fed, cohorts, params, seed, scaled=scaled
  )
  return rounds, literal.loss_of(model, *held_out(), params)


KINDS = {
  "logreg": (cases.logreg, COHORTS, {}),
  "mlp, batches": (cases.mlp, COHORTS, {"batch_size": 4}),
  "momentum": (cases.mlp, COHORTS, MOMENTUM),
  "logreg, momentum": (cases.logreg, COHORTS, MOMENTUM | {"batch_size": 4}),
  "adam, batches": (cases.logreg, COHORTS, ADAM | {"batch_size": 4}),
  "mlp, adam": (cases.mlp, COHORTS, ADAM),
  "alone": (cases.mlp, ALONE, {}),
  "ragged": (cases.mlp, RAGGED, {}),
  "logreg, ragged": (cases.logreg, RAGGED, ADAM | {"batch_size": 4}),
}


DEFAULT = "mlp, batches"
SLOW = [
  kind if kind == DEFAULT else pytest.param(kind, marks=pytest.mark.slow)
  for kind in KINDS
]


@pytest.mark.parametrize("kind", SLOW)
def test_derivative_is_that_of_the_weights(kind):
  case, cohorts, changes = KINDS[kind]
  fed = make_fed(cohorts, **changes)
  found = go(case, cohorts, fed, directions=0)
  rounds, loss = retold(case, cohorts, fed)
  gradient = jax.grad(loss)(rounds[-1].after)
  np.testing.assert_allclose(
    found.derivative, literal.derivative(rounds, gradient, 6), atol=1e-12
  )
  h, differences = 2e-5, np.zeros(6)
  for k in range(6):
    ends = [
      loss(retold(case, cohorts, fed, scaled=(k, factor))[0][-1].after)
      for factor in (1 - h, 1 + h)
    ]
    differences[k] = (ends[0] - ends[1]) / (2 * h)
  # 1e-11: what subtracting two losses near 1 leaves, over 2h.
  np.testing.assert_allclose(
    found.derivative, differences, rtol=1e-6, atol=1e-11
  )
  assert found.derivative[5] == 0 and found.influence[5] == 0
  if kind == "alone":  # Nothing depends on the weight of who has no company.
    assert not differences.any()
  else:
    assert np.abs(differences[:5]).min() > 1e-6
    assert np.abs(differences).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DEFAULT, "alone", "ragged"])
def test_all_directions_lose_nothing(kind):
  case, cohorts, changes = KINDS[kind]
  fed = make_fed(cohorts, **changes)
  rounds, loss = retold(case, cohorts, fed)
  size = len(rounds[0].before)
  found = go(case, cohorts, fed, directions=size, own_part=False)
  eps = literal.propagated(rounds, 6)
  np.testing.assert_allclose(
    found.coordinates @ found.basis, eps, rtol=0, atol=1e-9
  )
  last = rounds[-1].after
  expected = [loss(last + e) - loss(last) for e in eps]
  np.testing.assert_allclose(found.influence, expected, rtol=0, atol=1e-9)
  assert found.carried == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DEFAULT, "alone", "ragged"])
def test_own_part_is_as_written_out(kind):
  case, cohorts, changes = KINDS[kind]
  fed = make_fed(cohorts, **changes)
  rounds, loss = retold(case, cohorts, fed)
  found = go(case, cohorts, fed, directions=5)
  z = literal.corrected(rounds, found.basis, 6)
  np.testing.assert_allclose(found.coordinates, z, rtol=0, atol=1e-9)
  without = go(case, cohorts, fed, directions=5, own_part=False)
  assert np.abs(z - np.asarray(without.coordinates)).max() > 1e-4
  eps = literal.propagated(rounds, 6)
  projected = eps @ np.asarray(without.basis).T
  np.testing.assert_allclose(without.coordinates, projected, atol=1e-9)
  last = rounds[-1].after
  moved = [loss(last + e) - loss(last) for e in z @ np.asarray(found.basis)]
  np.testing.assert_allclose(found.influence, moved, rtol=0, atol=1e-9)


def test_trains_as_the_simulation_does():
  model, data = cases.mlp()
  fed = make_fed(COHORTS, batch_size=4)
  found = go(cases.mlp, COHORTS, fed, directions=0)
  run = fi.simulate(model, data, fed, cohorts=COHORTS, seed=4)
  cases.close(found.params, run.params, rtol=0, atol=1e-15)


REGRESSION = cases.regression()


def halved(copies):
  """Client 0's weight in every round, against an exact replay.

  Its examples are copies of one, so that their number is its weight and
  nothing else. Returns influence and the exact one.
  """
  draw = np.random.default_rng(1)
  sizes = 60, 60, 60
  clients = [
    (draw.normal(size=(n, 4)), draw.normal(size=(n, 2))) for n in sizes
  ]
  one = draw.normal(size=(1, 4)), draw.normal(size=(1, 2))
  copy = lambda times: tuple(np.repeat(a, times, 0) for a in one)
  # The last one is never drawn. It makes all data of one shape: one program.
  data = fi.FederatedData.from_clients(
    [copy(copies), *clients, copy(9 - copies)]
  )
  cohorts = np.array([[0, 1, 2], [0, 2, 3], [3, 1, 0], [0, 1, 3]])
  fed = fi.FedAvg(rounds=4, cohort_size=3, local_steps=2, learning_rate=0.05)
  x, y = clients[0]
  model = REGRESSION
  options = {"cohorts": cohorts, "params": model.init(jax.random.key(0))}
  found = fi.adjoint(
    model, data, fed, x, y, metric=linear, directions=0, **options
  )
  run = fi.simulate(model, data, fed, exact=[0], **options)
  exact = run.influence(linear, x, y, of="exact")
  return float(found.influence[0]), float(exact[0])


def linear(outputs, y):
  return (outputs * y).mean()


@pytest.mark.slow
def test_error_is_of_second_order_in_the_weight():
  found = np.array([halved(copies) for copies in (8, 4, 2, 1)])
  # The influence halves with the weight, and so does its relative error.
  influence, exact = found.T
  np.testing.assert_allclose(exact[1:] / exact[:-1], 0.5, atol=0.05)
  relative = np.abs(influence - exact) / np.abs(exact)
  assert (relative > 1e-6).all()
  np.testing.assert_allclose(relative[1:] / relative[:-1], 0.5, atol=0.05)
