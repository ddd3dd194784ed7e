"""Metrics of a model: functions (outputs [N, ...], y [N, ...]) -> array.

Any such function can be handed to `Run.influence`. Where it returns an array,
influence is one, too: `per_class_accuracy` gives [R, C], `predictions` of one
example [R, 1, C] ("which clients made the model say 7 here?").
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import checks
from fedinf_jax import models
from fedinf_jax.data import packing


def loss(outputs, y):
  """Stands for the mean of the model's own loss; see `of_model`.

  Examples:
    >>> run.influence(fi.metrics.loss, *test, of="ours").shape
    (6,)
  """
  raise ValueError("metrics.loss has no meaning without a model; use of_model")


@dataclasses.dataclass(frozen=True, eq=False)
class OfLosses:
  """A metric made from the model's own loss of each example.

  Attributes:
    reduce: losses [N] -> array.

  Examples:
    >>> largest = fi.metrics.OfLosses(lambda losses: losses.max())
    >>> run.influence(largest, *test, of="ours").shape
    (6,)
  """

  reduce: Callable[[jax.Array], jax.Array]

  def __call__(self, outputs, y):
    """Has no meaning without a model."""
    return loss(outputs, y)


def owner_losses(owners: Any) -> OfLosses:
  """Returns the metric [G]: the loss of each owner's examples.

  Args:
    owners: [N], whose each example is; the G owners are sorted as by np.unique.

  Examples:
    >>> owners = np.repeat(["ann", "bob"], 20)
    >>> run.influence(fi.metrics.owner_losses(owners), *test, of="ours").shape
    (6, 2)
  """
  names, group = _groups(owners)
  return OfLosses(lambda losses: _means("owners", losses, group, len(names)))


def worst_owner(owners: Any) -> OfLosses:
  """Returns the metric of fairness: the loss of the owner who fares worst.

  Args:
    owners: [N], whose each example is.

  Examples:
    >>> owners = np.repeat(["ann", "bob"], 20)
    >>> run.influence(fi.metrics.worst_owner(owners), *test, of="ours").shape
    (6,)
  """
  names, group = _groups(owners)
  return OfLosses(
    lambda losses: _means("owners", losses, group, len(names)).max()
  )


def gap(is_first: Any) -> OfLosses:
  """Returns the loss of one group of examples, less that of all others.

  Args:
    is_first: bool [N], for example np.isin(owners, ["hospital 1"]).

  Examples:
    >>> owners = np.repeat(["ann", "bob"], 20)
    >>> apart = fi.metrics.gap(owners == "ann")
    >>> run.influence(apart, *test, of="ours").shape
    (6,)
  """
  is_first = checks.array("is_first", is_first)
  both = is_first.any() and not is_first.all()
  if is_first.dtype != bool or is_first.ndim != 1 or not both:
    raise ValueError("is_first must be bool [N], some True and some False")

  def reduce(losses):
    others, first = _means("is_first", losses, is_first.astype(int), 2)
    return first - others

  return OfLosses(reduce)


def _groups(owners):
  """Returns the distinct owners, sorted, and which of them each example has."""
  if np.ma.is_masked(owners):
    raise ValueError("owners has masked entries")
  owners = packing.listed("owners", owners)
  try:
    names, group = np.unique(np.asarray(owners), return_inverse=True)
  except (TypeError, ValueError) as error:
    raise ValueError(f"owners cannot be sorted ({error})") from error
  if group.ndim != 1 or not len(group):
    raise ValueError("owners must be [N], one for each example")
  return names, group


def _means(name, losses, group, num_groups):
  """Returns the mean loss of each group, [G]."""
  if losses.shape != group.shape:
    raise ValueError(
      f"{name} has {len(group)} entries; there are {len(losses)} examples"
    )
  total = jax.ops.segment_sum(losses, group, num_segments=num_groups)
  counts = np.bincount(group, minlength=num_groups)
  return total / counts.astype(losses.dtype)


def of_model(metric, model):
  """Returns `metric`, with the loss of `model` in it if it asks for that.

  Examples:
    >>> mean_loss = fi.metrics.of_model(fi.metrics.loss, model)
    >>> bool(mean_loss(outputs, test[1]) < 1.1)
    True
  """
  if isinstance(metric, OfLosses):
    return lambda outputs, y: metric.reduce(model.loss(outputs, y))
  if metric is loss:
    return lambda outputs, y: model.loss(outputs, y).mean()
  return metric


def cross_entropy(outputs, y):
  """Returns the mean cross entropy of logits [N, C].

  Examples:
    >>> float(fi.metrics.cross_entropy(np.zeros((5, 1)), np.zeros(5, int)))
    0.0
  """
  return models.cross_entropy(*_classified(outputs, y)).mean()


def accuracy(outputs, y):
  """Returns the share of examples whose largest output is the label's.

  Examples:
    >>> outputs = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    >>> y = np.array([0, 1, 1])
    >>> round(float(fi.metrics.accuracy(outputs, y)), 3)
    0.667
  """
  outputs, y = _classified(outputs, y)
  return (outputs.argmax(-1) == y).astype(outputs.dtype).mean()


def precision(outputs, y):
  """Returns precision, averaged over the classes in y or predicted.

  Examples:
    >>> outputs = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    >>> y = np.array([0, 1, 1])
    >>> float(fi.metrics.precision(outputs, y))
    0.75
  """
  hit, predicted, actual = _counts(outputs, y)
  return _macro(hit / jnp.maximum(predicted, 1), predicted + actual > 0)


def recall(outputs, y):
  """Returns recall, averaged over the classes in y or predicted.

  Examples:
    >>> outputs = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    >>> y = np.array([0, 1, 1])
    >>> float(fi.metrics.recall(outputs, y))
    0.75
  """
  hit, predicted, actual = _counts(outputs, y)
  return _macro(hit / jnp.maximum(actual, 1), predicted + actual > 0)


def mse(outputs, y):
  """Returns the mean squared error of outputs shaped like y.

  Examples:
    >>> float(fi.metrics.mse(np.array([1.0, 2.0]), np.array([1.0, 4.0])))
    2.0
  """
  outputs, y = _numbers("outputs", outputs), _numbers("y", y)
  if outputs.shape != y.shape:
    raise ValueError(
      f"mse: outputs have shape {outputs.shape} but y has {y.shape}"
    )
  return jnp.square(outputs - y).mean()


def per_class_accuracy(outputs, y):
  """Returns the accuracy on each class, [C]; NaN for a class not in y.

  Examples:
    >>> outputs = np.array([[2.0, 1.0], [0.0, 1.0], [3.0, 0.0]])
    >>> y = np.array([0, 1, 1])
    >>> np.asarray(fi.metrics.per_class_accuracy(outputs, y)).tolist()
    [1.0, 0.5]
  """
  hit, _, actual = _counts(outputs, y)
  return jnp.where(actual > 0, hit / jnp.maximum(actual, 1), jnp.nan)


def predictions(outputs, y):
  """Returns each example's class probabilities, [N, C]; y has no say.

  Examples:
    >>> run.influence(fi.metrics.predictions, *test, of="ours").shape
    (6, 40, 3)
  """
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
