"""Whether a model and examples go together, before anything is compiled.

One place for all who train or evaluate: a run, its influence on a metric, the
baselines and the theory refuse the same things in the same words.
"""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import models
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.data import packing


class Example(NamedTuple):
  """What the examples of a data set look like."""

  x: jax.ShapeDtypeStruct  # of one input, [...]
  y: jax.ShapeDtypeStruct  # of one label or target, [...]


def example_of(data: federated.FederatedData) -> Example:
  """Returns what the clients' examples look like."""
  one = lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype)
  return Example(one(data.x), one(data.y))


def training(
  model: types.Model, data: federated.FederatedData, fed: fedavg.FedAvg
) -> types.Params:
  """Checks what is to be trained, and returns the shapes of its parameters.

  Args:
    model: what to train.
    data: the clients.
    fed: how.
  """
  federated.check(data)
  if not isinstance(fed, fedavg.FedAvg):
    raise ValueError(f"fed is a {type(fed).__name__}; it must be a fi.FedAvg")
  _hashable("fed", fed)
  optimizer = fed.client_optimizer
  if not isinstance(optimizer, optax.GradientTransformation | None):
    raise ValueError(
      f"client_optimizer is {optimizer!r}; it must be one of optax's, such as"
      " optax.sgd(0.1)"
    )
  params = param_shapes(model)
  # The local steps are numbered by an array of the longest integers.
  memory.require(f"local_steps is {fed.local_steps}: it", 8 * fed.local_steps)
  if fed.client_optimizer is not None:  # It is tried on random gradients.
    tried = fed.local_steps * memory.tree_bytes(params)
    memory.require(f"local_steps is {fed.local_steps}: it", tried)
  shape = lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype)
  outputs = _outputs(model, params, shape(data.x))
  if model.loss is models.cross_entropy:
    num_classes = _num_classes(outputs)
    data.require_labels(num_classes, f"the model's {num_classes} outputs ask")
  _losses(model, outputs, shape(data.y))
  return params


def require_model(model: types.Model):
  """Refuses what is no model: functions that a program is remembered by."""
  if not isinstance(model, types.Model):
    raise ValueError(
      f"model is a {type(model).__name__}; it must be a fi.Model, such as"
      " fi.models.from_flax makes"
    )
  for name in ("init", "apply", "loss"):
    if not callable(model._asdict()[name]):
      raise ValueError(f"model: {name} is not a function")
  if model.sample is not None and not callable(model.sample):
    raise ValueError("model: sample is neither a function nor None")
  _hashable("model", model)


def param_shapes(model: types.Model) -> types.Params:
  """Returns the shapes of a model's parameters, which must be floats."""
  require_model(model)
  params = checks.call("model: init fails", model.param_shapes)
  leaves = jax.tree.leaves(params)
  if not leaves or not all(
    jnp.issubdtype(a.dtype, jnp.floating) for a in leaves
  ):
    raise ValueError(
      "model: init must return a pytree of floating arrays, at least one"
    )
  memory.require("model: its parameters", memory.tree_bytes(params))
  return params


def evaluation(
  model: types.Model,
  params: types.Params,
  metric: Any,
  examples: tuple[Any, Any],
  like: Example | None = None,
  num_models: int = 1,
) -> tuple[Any, Any]:
  """Checks test or validation examples, and what a metric makes of them.

  Args:
    model: the model.
    params: its parameters, or their shapes.
    metric: (outputs, y) -> array; see `Run.influence`.
    examples: (x [N, ...], y [N, ...]).
    like: what the training data look like; None: not known.
    num_models: how many models are evaluated.

  Returns:
    x and y as arrays of dtypes that JAX keeps.
  """
  x, y = (_array(f, a) for f, a in zip("xy", examples, strict=True))
  if len(x) != len(y) or not len(x):
    raise ValueError(
      f"x has shape {list(x.shape)} and y {list(y.shape)}; they must hold the"
      " same number of examples, at least one"
    )
  for name, found, wanted in zip("xy", (x, y), like or (), strict=False):
    _like(name, found, wanted)
  outputs = _outputs(model, params, _shape(x))
  classes = any(metric is known for known in metrics.OF_LABELS)
  if classes or model.loss is models.cross_entropy:
    _labels(y, outputs)
  value = _value(metric, model, outputs, _shape(y))
  held = num_models * memory.tree_bytes(value)
  memory.require(f"metric: {num_models:,} of its values", held)
  return x, y


def server_examples(
  model: types.Model,
  params: types.Params,
  serving: Mapping[str, int | None],
  server_data: Any,
  like: Example | None = None,
) -> tuple[Any, Any, list[str] | None] | None:
  """Checks the examples that a server holds for curvatures of its own.

  Args:
    model: the model.
    params: its parameters, or their shapes.
    serving: name of each estimator whose curvature the server makes → how many
      examples it draws per round; None: all.
    server_data: (x [N, ...], y [N, ...]), or a FederatedData whose clients own
      them; None: there are none.
    like: what the training data look like; None: not known.

  Returns:
    x, y and the owners' ids as text, [N], or None; None without server_data.
  """
  if server_data is None:
    if serving:
      raise ValueError(
        f"estimators: {next(iter(serving))!r} is server_side and needs"
        " server_data=(x, y), examples that the server holds"
      )
    return None
  if not serving:
    raise ValueError(
      "server_data is given, but no estimator is server_side(curvature)"
    )
  ids = None
  if isinstance(server_data, federated.FederatedData):
    ids = [str(server_data.ids[k]) for k in server_data.owners]
    server_data = server_data.pooled()
  try:
    x, y = server_data
    x, y = evaluation(model, params, metrics.loss, (x, y), like)
  except (TypeError, ValueError) as error:
    raise ValueError(
      "server_data must be a pair (x, y) like the clients' examples, or a"
      f" FederatedData: {error}"
    ) from error
  for name, wanted in serving.items():
    if wanted is not None and len(x) < wanted:
      raise ValueError(
        f"server_data has {len(x)} examples; {name!r} draws {wanted} of them"
        " per round. Give more, or num_examples="
      )
  return x, y, ids


def _array(name, value):
  """Returns x or y; values that cannot be read are not checked."""
  if not checks.readable(value):
    return value
  array = packing.examples(name, value)
  checks.finite(name, array)
  return packing.labels(array) if name == "y" else array


def _like(name, found, wanted):
  """Requires the training data's example shape and kind of dtype."""
  same_kind = _kind(found.dtype) == _kind(wanted.dtype)
  if found.shape[1:] != wanted.shape or not same_kind:
    raise ValueError(
      f"{name} has examples of shape {list(found.shape[1:])}, {found.dtype};"
      f" the training data's have shape {list(wanted.shape)}, {wanted.dtype}"
    )


def _kind(dtype):
  return jnp.issubdtype(dtype, jnp.floating), np.dtype(dtype).kind == "b"


def _outputs(model, params, x):
  dims = "".join(f", {d}" for d in x.shape[1:])
  problem = f"model: apply does not accept inputs of shape [N{dims}]"
  return checks.call(problem, jax.eval_shape, model.apply, params, x)


def _losses(model, outputs, y):
  """Requires one number per example."""
  problem = f"model: the loss does not accept labels of shape {list(y.shape)}"
  losses = checks.call(problem, jax.eval_shape, model.loss, outputs, y)
  array = isinstance(losses, jax.ShapeDtypeStruct)
  if not array or losses.shape != y.shape[:1]:
    found = f"shape {list(losses.shape)}" if array else type(losses).__name__
    raise ValueError(
      f"model: for {y.shape[0]} examples the loss returns {found}; it must"
      " return one number per example, [N] (the mean is taken later)"
    )
  if not jnp.issubdtype(losses.dtype, jnp.floating):
    raise ValueError(
      f"model: the loss returns {losses.dtype}; it must return floats"
    )


def _value(metric, model, outputs, y):
  """Returns the shape of a metric, which must be an array of numbers."""
  if metric is metrics.loss or isinstance(metric, metrics.OfLosses):
    _losses(model, outputs, y)
  if metric is metrics.loss:
    return jax.ShapeDtypeStruct((), jnp.float32)
  if not callable(metric):
    raise ValueError(
      f"metric is {metric!r}; it must be a function of (outputs, y), such as"
      " fi.metrics.accuracy"
    )
  _hashable("metric", metric)
  value = checks.call(
    "metric", jax.eval_shape, metrics.of_model(metric, model), outputs, y
  )
  numbers = isinstance(value, jax.ShapeDtypeStruct) and (
    jnp.issubdtype(value.dtype, jnp.floating)
    or jnp.issubdtype(value.dtype, jnp.signedinteger)
  )
  if not numbers:
    found = getattr(value, "dtype", type(value).__name__)
    raise ValueError(
      f"metric: returns {found}; it must return one array of numbers, floats or"
      " signed integers, of which a difference can be taken"
    )
  return value


def _num_classes(outputs):
  """Returns the width of a classifier's outputs."""
  if not isinstance(outputs, jax.ShapeDtypeStruct) or len(outputs.shape) < 2:
    found = getattr(outputs, "shape", type(outputs).__name__)
    raise ValueError(
      f"model: labels need outputs [N, C], one column per class, not {found}"
    )
  return outputs.shape[-1]


def _labels(y, outputs):
  """Requires labels that are columns of the outputs."""
  num_classes = _num_classes(outputs)
  integers = jnp.issubdtype(y.dtype, jnp.integer)
  if not integers or y.shape != outputs.shape[:-1]:
    raise ValueError(
      f"y is {y.dtype} of shape {list(y.shape)}; the model's outputs of shape"
      f" {list(outputs.shape)} ask for one integer label per example"
    )
  if not checks.readable(y):
    return
  known = ((y >= 0) & (y < num_classes)).reshape(len(y), -1).all(1)
  if not known.all():
    row = int(np.argmin(known))
    raise ValueError(
      f"y has a label outside 0 … {num_classes - 1} (example {row} is {y[row]})"
    )


def _shape(array):
  return jax.ShapeDtypeStruct(array.shape, array.dtype)


def _hashable(name, value):
  """Requires what a compiled program can be remembered by."""
  try:
    hash(value)
  except TypeError as error:
    raise ValueError(
      f"{name} cannot be hashed ({error}); use functions and plain numbers, no"
      " arrays"
    ) from error
