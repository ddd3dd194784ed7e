"""Setting 1 at full scale: the data, the windows, the precision, R = 1000."""

import functools

import jax
import numpy as np
import pytest

import fedinf_jax as fi

FED = {"cohort_size": 10, "local_steps": 5, "learning_rate": 0.003}


@functools.cache
def data(dtype=np.float32):
  everything = fi.data.synthetic()
  cast = [(x.astype(dtype), y) for x, y in everything.clients()]
  return fi.FederatedData.from_clients(cast, everything.ids, 5).split(0.9, 0)


def test_the_data_are_leaf_s():
  everything = fi.data.synthetic()
  assert everything.num_clients == 1000
  assert len(everything.x) == 107_553
  assert (everything.num_examples == 1000).sum() == 30
  assert everything.num_examples.max() == 1000
  assert np.median(everything.num_examples) == 25.5
  np.testing.assert_array_equal(
    np.bincount(everything.y), [16607, 15477, 23124, 35783, 16562]
  )
  one_class = [len(np.unique(y)) == 1 for _, y in everything.clients()]
  assert sum(one_class) == 513
  with pytest.raises(ValueError, match="num_clients is 0"):
    fi.data.synthetic(num_clients=0)


@pytest.mark.parametrize(
  ("activation", "loss", "accuracy"),
  [
    pytest.param("sigmoid", (1.33, 1.40), (0.47, 0.60), marks=pytest.mark.slow),
    (None, (0.38, 0.50), (0.83, 0.90)),
  ],
)
def test_a_thousand_rounds_land_in_the_window(activation, loss, accuracy):
  train, test = data()
  model = fi.models.logreg(60, 5, activation)
  run = fi.simulate(model, train, fi.FedAvg(rounds=1000, **FED))
  x, y = test.pooled()
  outputs = model.apply(run.params, x)
  assert loss[0] < fi.metrics.cross_entropy(outputs, y) < loss[1]
  assert accuracy[0] < fi.metrics.accuracy(outputs, y) < accuracy[1]


def test_a_thousand_removals_are_replayed_at_once():
  train, _ = data()
  run = fi.simulate(
    fi.models.logreg(60, 5), train, fi.FedAvg(rounds=4, **FED), exact=True
  )
  kernel = np.asarray(run.exact_eps["dense"]["kernel"])
  assert kernel.shape == (1000, 60, 5) and np.isfinite(kernel).all()
  assert 10 < (np.abs(kernel).max((1, 2)) > 0).sum() <= 40


@pytest.mark.slow
def test_float32_agrees_with_float64():
  """ε to 2e-5 in norm, where the norms reach 4e-2; FIL to 1e-6."""
  runs, influences = [], []
  for dtype in (np.float32, np.float64):
    train, test = data(dtype)
    run = fi.simulate(
      fi.models.logreg(60, 5, "sigmoid"),
      train,
      fi.FedAvg(rounds=300, **FED),
      exact=list(range(0, 1000, 100)),
    )
    leaves = [np.asarray(e) for e in jax.tree.leaves(run.exact_eps)]
    assert {e.dtype for e in leaves} == {np.dtype(dtype)}
    runs.append(np.concatenate([e.reshape(10, -1) for e in leaves], axis=1))
    influences.append(
      run.influence(fi.metrics.loss, *test.pooled(), of="exact")
    )
  norm = lambda a: np.linalg.norm(a, axis=1)
  assert norm(runs[1]).max() > 0.01
  assert norm(runs[0] - runs[1]).max() < 2e-5
  np.testing.assert_allclose(influences[0], influences[1], atol=1e-6)
  assert np.abs(influences[1]).max() > 1e-5
