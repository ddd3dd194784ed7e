"""Metrics against their definitions, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import metrics

OUTPUTS = np.random.default_rng(0).normal(size=(40, 5))
OUTPUTS[:, 4] -= 20  # Never predicted …
Y = np.random.default_rng(1).integers(0, 4, 40)
Y[:2] = 4  # … yet present; class 3 is made absent but predicted.
Y[Y == 3] = 2


def literal(name):
  predicted = OUTPUTS.argmax(1)
  classes = sorted(set(predicted) | set(Y))
  share = lambda hit, of: hit.sum() / max(of.sum(), 1)
  right = lambda c: (predicted == c) & (c == Y)
  p = np.exp(OUTPUTS) / np.exp(OUTPUTS).sum(1, keepdims=True)
  return {
    "cross_entropy": -np.log(p[np.arange(40), Y]).mean(),
    "accuracy": (predicted == Y).mean(),
    "precision": np.mean([share(right(c), predicted == c) for c in classes]),
    "recall": np.mean([share(right(c), c == Y) for c in classes]),
    "per_class_accuracy": [
      share(right(c), c == Y) if (c == Y).any() else np.nan for c in range(5)
    ],
    "predictions": p,
  }[name]


@pytest.mark.parametrize(
  "name",
  [
    "cross_entropy",
    "accuracy",
    "precision",
    "recall",
    "per_class_accuracy",
    "predictions",
  ],
)
def test_equals_its_definition(name):
  value = getattr(metrics, name)(jnp.asarray(OUTPUTS), jnp.asarray(Y))
  np.testing.assert_allclose(value, literal(name), rtol=1e-12)


def test_mse_and_the_model_s_own_loss():
  outputs, y = jnp.array([1.0, 2.0, 4.0]), jnp.array([1.0, 0.0, 3.0])
  assert metrics.mse(outputs, y) == pytest.approx(5 / 3)
  with pytest.raises(ValueError, match=r"outputs have shape \(3, 1\)"):
    metrics.mse(outputs[:, None], y)
  model = fi.Model(None, None, lambda outputs, y: jnp.abs(outputs - y))
  assert metrics.of_model(metrics.loss, model)(outputs, y) == pytest.approx(1)
  with pytest.raises(ValueError, match="without a model"):
    metrics.loss(outputs, y)


def test_influence_is_the_difference_of_the_metric():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(9, 3)), draw.integers(0, 4, 9)) for _ in range(6)],
    num_classes=4,
  )
  fed = fi.FedAvg(rounds=3, cohort_size=4, local_steps=2, learning_rate=0.5)
  run = fi.simulate(fi.models.logreg(3, 4), data, fed, exact=True)
  x, y = data.pooled()
  for metric in (
    metrics.loss,
    metrics.cross_entropy,
    metrics.accuracy,
    metrics.precision,
    metrics.recall,
    metrics.per_class_accuracy,
    metrics.predictions,
    lambda outputs, y: metrics.mse(outputs, jax.nn.one_hot(y, 4)),
  ):
    influence = run.influence(metric, x, y, of="exact")
    score = jax.jit(
      lambda w, metric=metric: metrics.of_model(metric, run.model)(
        run.model.apply(w, x), jnp.asarray(y)
      )
    )
    for r in range(6):
      without = jax.tree.map(lambda w, e, r=r: w + e[r], run.params,
                             run.exact_eps)  # fmt: skip
      np.testing.assert_allclose(
        influence[r], score(without) - score(run.params), atol=1e-12
      )
  with pytest.raises(ValueError, match="of is 'both'"):
    run.influence(metrics.loss, x, y, of="both")
