"""Metrics against their definitions, written out in NumPy."""

import functools

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


@pytest.mark.parametrize("metric", metrics.OF_LABELS)
def test_labels_stand_beside_the_outputs(metric):
  for y in (Y[:, None], Y[:1], Y.astype(float), Y[None], None, "a"):
    with pytest.raises(ValueError, match=r"^y is"):
      metric(OUTPUTS, y)
  with pytest.raises(ValueError, match="outputs of shape"):
    metric(OUTPUTS[:, 0], Y)


@functools.cache
def a_run():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(9, 3)), draw.integers(0, 4, 9)) for _ in range(3)],
    num_classes=4,
  )
  fed = fi.FedAvg(rounds=1, cohort_size=2, local_steps=1, learning_rate=0.5)
  return fi.simulate(fi.models.logreg(3, 4), data, fed, exact=True), data


X_TEST, Y_TEST = np.ones((5, 3)), np.zeros(5, int)
NAN = np.where(np.arange(5)[:, None] == 2, np.nan, X_TEST)
EVALUATIONS = {
  "x nan": ({"x": NAN}, r"x has a value that is not finite \(example 2\)"),
  "x width": ({"x": X_TEST[:, :2]}, r"x has examples of shape \[2\], float64"),
  "x kind": ({"x": X_TEST.astype(int)}, "x has examples of .* int64; the tr"),
  "x text": ({"x": "abc"}, "x is not a rectangular array"),
  "x masked": ({"x": np.ma.masked_invalid(NAN)}, "x has masked entries"),
  "x empty": ({"x": X_TEST[:0], "y": Y_TEST[:0]}, "at least one"),
  "y length": ({"y": Y_TEST[:1]}, r"x has shape \[5, 3\] and y \[1\]"),
  "y column": ({"y": Y_TEST[:, None]}, r"y has examples of shape \[1\]"),
  "y negative": ({"y": Y_TEST - 5}, r"outside 0 … 3 \(example 0 is -5\)"),
  "y large": ({"y": np.arange(5)}, r"outside 0 … 3 \(example 4 is 4\)"),
  "y float": ({"y": Y_TEST + 0.5}, "y has examples of .* float64; the train"),
  "y none": ({"y": None}, "y is not a rectangular array"),
  "of": ({"of": ["exact"]}, r"of is \['exact'\]; this run has 'exact'"),
  "metric": ({"metric": "loss"}, "metric is 'loss'; it must be a function"),
  "metric none": ({"metric": lambda o, y: None}, "metric: returns NoneType"),
  "metric bool": ({"metric": lambda o, y: True}, "metric: returns bool"),
  "metric bools": ({"metric": lambda o, y: o > 0}, "metric: returns bool"),
  "metric pair": ({"metric": lambda o, y: (o, o)}, "metric: returns tuple"),
  "metric unsigned": (
    {"metric": lambda o, y: y.astype(jnp.uint32)}, "metric: returns uint32",
  ),
  "metric of NumPy": (
    {"metric": lambda o, y: np.mean(np.asarray(o))}, "metric: .*NumPy|Tracer",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", EVALUATIONS)
def test_influence_is_measured_on_examples_like_the_clients(name, compilations):
  changes, message = EVALUATIONS[name]
  run, _ = a_run()
  del compilations[:]
  asked = {"metric": metrics.loss, "x": X_TEST, "y": Y_TEST, "of": "exact"}
  with pytest.raises(ValueError, match=message):
    run.influence(**(asked | changes))
  assert not compilations


def test_boolean_test_labels_are_0_and_1():
  run, _ = a_run()
  y = np.arange(5) % 2
  found = [
    run.influence(metrics.loss, X_TEST, labels, of="exact")
    for labels in (y, y == 1, jnp.asarray(y))
  ]
  np.testing.assert_array_equal(found[0], found[1])
  np.testing.assert_array_equal(found[0], found[2])


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


WHOSE = np.array(["b", "a", "b", "c", "a"])


def of_owners(losses):
  """The metrics of owners, by hand."""
  each = [np.mean(losses[np.equal(WHOSE, o)]) for o in "abc"]
  return {
    "owner_losses": (metrics.owner_losses(WHOSE), each),
    "worst_owner": (metrics.worst_owner(list(WHOSE)), max(each)),
    "gap": (
      metrics.gap(WHOSE == "b"),
      losses[WHOSE == "b"].mean() - losses[WHOSE != "b"].mean(),
    ),
  }


@pytest.mark.parametrize("name", ["owner_losses", "worst_owner", "gap"])
def test_metrics_of_owners(name):
  run, data = a_run()
  x, y = (a[:5] for a in data.pooled())
  loss = lambda w: np.asarray(run.model.loss(run.model.apply(w, x), y))
  metric, present = of_owners(loss(run.params))[name]
  value = metrics.of_model(metric, run.model)
  np.testing.assert_allclose(value(run.model.apply(run.params, x), y), present)
  found = run.influence(metric, x, y, of="exact")
  for r in range(3):
    eps = jax.tree.map(lambda e, r=r: e[r], run.exact_eps)
    without = of_owners(loss(jax.tree.map(jnp.add, run.params, eps)))[name][1]
    np.testing.assert_allclose(
      found[r], np.subtract(without, present), atol=1e-12
    )
  with pytest.raises(ValueError, match="without a model"):
    metric(OUTPUTS, Y)


@pytest.mark.parametrize(
  "make, message",
  [
    (lambda: metrics.owner_losses([]), r"owners must be \[N\]"),
    (lambda: metrics.worst_owner([[1, 2]]), r"owners must be \[N\]"),
    (lambda: metrics.worst_owner([None, "a"]), "owners cannot be sorted"),
    (lambda: metrics.gap(WHOSE == "d"), "some True and some False"),
    (lambda: metrics.gap([0, 1]), r"is_first must be bool \[N\]"),
  ],
)
def test_bad_owners_are_one_line(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_owners_of_the_wrong_length_are_refused_before_compiling(compilations):
  run, data = a_run()
  x, y = data.pooled()
  del compilations[:]
  for metric, name in (
    (metrics.worst_owner(WHOSE), "owners"),
    (metrics.gap(WHOSE == "a"), "is_first"),
  ):
    with pytest.raises(ValueError, match=f"{name} has 5 entries; there are 27"):
      run.influence(metric, x, y, of="exact")
  assert not compilations
