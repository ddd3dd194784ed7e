"""Metrics of a model: functions (outputs [N, ...], y [N, ...]) -> array.

Any such function can be handed to `Run.influence`.
"""

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import models


def loss(outputs, y):
  """Stands for the mean of the model's own loss; see `of_model`."""
  raise ValueError("metrics.loss has no meaning without a model; use of_model")


def of_model(metric, model):
  """Returns `metric`, with `loss` replaced by the loss of `model`."""
  if metric is loss:
    return lambda outputs, y: model.loss(outputs, y).mean()
  return metric


def cross_entropy(outputs, y):
  """Returns the mean cross entropy of logits [N, C]."""
  return models.cross_entropy(*_classified(outputs, y)).mean()


def accuracy(outputs, y):
  """Returns the share of examples whose largest output is the label's."""
  outputs, y = _classified(outputs, y)
  return (outputs.argmax(-1) == y).astype(outputs.dtype).mean()


def precision(outputs, y):
  """Returns precision, averaged over the classes in y or predicted."""
  hit, predicted, actual = _counts(outputs, y)
  return _macro(hit / jnp.maximum(predicted, 1), predicted + actual > 0)


def recall(outputs, y):
  """Returns recall, averaged over the classes in y or predicted."""
  hit, predicted, actual = _counts(outputs, y)
  return _macro(hit / jnp.maximum(actual, 1), predicted + actual > 0)


def mse(outputs, y):
  """Returns the mean squared error of outputs shaped like y."""
  outputs, y = _numbers("outputs", outputs), _numbers("y", y)
  if outputs.shape != y.shape:
    raise ValueError(
      f"mse: outputs have shape {outputs.shape} but y has {y.shape}"
    )
  return jnp.square(outputs - y).mean()


def per_class_accuracy(outputs, y):
  """Returns the accuracy on each class, [C]; NaN for a class not in y."""
  hit, _, actual = _counts(outputs, y)
  return jnp.where(actual > 0, hit / jnp.maximum(actual, 1), jnp.nan)


def predictions(outputs, y):
  """Returns each example's class probabilities, [N, C]; y has no say."""
  del y
  return jax.nn.softmax(_numbers("outputs", outputs))


# Those that read y as one label per example.
OF_LABELS = cross_entropy, accuracy, precision, recall, per_class_accuracy


def _classified(outputs, y):
  """Returns outputs [..., C] of a classifier and the labels [...] beside them.

  Labels [N, 1] against N outputs would be compared all with all.
  """
  outputs, y = _numbers("outputs", outputs), _numbers("y", y)
  labels = jnp.issubdtype(y.dtype, jnp.integer)
  if not labels or not outputs.ndim or outputs.shape[:-1] != y.shape:
    raise ValueError(
      f"y is {y.dtype} of shape {list(y.shape)}; outputs of shape"
      f" {list(outputs.shape)} ask for one integer label per example"
    )
  return outputs, y


def _numbers(name, value):
  """Returns an array of numbers; False and True are 0 and 1."""
  if not isinstance(value, jax.Array):
    value = jnp.asarray(checks.array(name, value))
  return value.astype(jnp.int32) if value.dtype == bool else value


def _counts(outputs, y):
  """Per class: examples rightly predicted, predicted, and actual; each [C]."""
  outputs, y = _classified(outputs, y)
  one_hot = lambda c: jax.nn.one_hot(c, outputs.shape[-1], dtype=outputs.dtype)
  predicted, actual = one_hot(outputs.argmax(-1)), one_hot(y)
  return (predicted * actual).sum(0), predicted.sum(0), actual.sum(0)


def _macro(per_class, present):
  return (per_class * present).sum() / present.sum()
