"""Models of the paper's experiments, and the way in for any Flax module."""

from collections.abc import Callable
from collections.abc import Sequence
import itertools
import math
from typing import Any

from flax import linen as nn
from flax import nnx
import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import networks
from fedinf_jax import types

# Widths of LEAF's own FEMNIST network: p = 6,603,710.
LEAF_CNN = {"widths": (32, 64), "dense": 2048}

Activation = Callable[[jax.Array], jax.Array] | str | None


def from_flax(
  module: nn.Module,
  example_input: Any,
  loss: Callable[[jax.Array, jax.Array], jax.Array],
  sample: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> types.Model:
  """Wraps a Flax module that has parameters only (no batch statistics).

  Args:
    module: maps inputs [N, ...] to outputs [N, ...].
    example_input: one batch, [N, ...]; its values are ignored.
    loss: (outputs [N, ...], y [N, ...]) -> [N].
    sample: (key, outputs) -> labels drawn from the predictive distribution.

  Examples:
    >>> from flax import linen as nn
    >>> loss, sample = fi.models.cross_entropy, fi.models.categorical
    >>> dense = fi.models.from_flax(nn.Dense(3), x[0], loss, sample)
    >>> dense.apply(dense.init(jax.random.key(0)), x[0]).shape
    (20, 3)
  """
  if isinstance(module, nnx.Module):
    raise ValueError(
      f"{type(module).__name__} is a module of flax.nnx; from_flax takes those"
      " of flax.linen, from_nnx a function that makes one of flax.nnx"
    )
  if not isinstance(module, nn.Module):
    raise ValueError(f"module is {module!r}; it must be a flax.linen.Module")
  for name, function in (("loss", loss), ("sample", sample)):
    if not callable(function) and not (name == "sample" and function is None):
      raise ValueError(f"{name} is {function!r}; it must be a function")
  spec = example_input
  if not isinstance(spec, jax.ShapeDtypeStruct):
    example = checks.array("example_input", example_input)
    shape = (1, *example.shape[1:]) if example.ndim else ()
    spec = jax.ShapeDtypeStruct(shape, example.dtype)
  # Compiled: one by one, a CNN's initial operations take eight seconds. Once:
  # `module.init` is another object each time it is looked up.
  compiled_init = jax.jit(module.init)

  def init(key):
    variables = compiled_init(key, jnp.zeros(spec.shape, spec.dtype))
    extra = sorted(set(variables) - {"params"})
    if extra:
      raise ValueError(
        f"{type(module).__name__} keeps variables beside its parameters"
        f" ({', '.join(extra)}); only parameters can be influenced"
      )
    return variables["params"]

  apply: Any = lambda params, x: module.apply({"params": params}, x)
  return types.Model(init, apply, loss, sample)


def from_nnx(
  make: Callable[[nnx.Rngs], nnx.Module],
  loss: Callable[[jax.Array, jax.Array], jax.Array],
  sample: Callable[[jax.Array, jax.Array], jax.Array] | None = None,
) -> types.Model:
  """Wraps a module of flax.nnx that has parameters only.

  Args:
    make: rngs -> module, such as lambda rngs: Network(rngs=rngs).
    loss: as in `from_flax`.
    sample: as in `from_flax`.

  Examples:
    >>> from flax import nnx
    >>> linear = fi.models.from_nnx(
    ...   lambda rngs: nnx.Linear(4, 3, rngs=rngs), fi.models.cross_entropy
    ... )
    >>> linear.apply(linear.init(jax.random.key(0)), test[0]).shape
    (40, 3)
  """
  if isinstance(make, nnx.Module) or not callable(make):
    raise ValueError(
      f"make is {type(make).__name__}; it must be a function that takes"
      " nnx.Rngs and makes the module"
    )
  abstract = checks.call(
    "make fails", nnx.eval_shape, lambda: make(nnx.Rngs(0))
  )
  graph, *states = nnx.split(abstract, nnx.Param, ...)
  params, rest = states
  if jax.tree.leaves(rest):
    raise ValueError(
      f"{type(abstract).__name__} keeps variables beside its parameters"
      f" ({', '.join(rest)}); only parameters can be influenced"
    )

  @jax.jit
  def init(key):
    return nnx.to_pure_dict(nnx.state(make(nnx.Rngs(key)), nnx.Param))

  def apply(values, x):
    state = jax.tree.map(lambda a: a, params)  # A copy, to be filled.
    nnx.replace_by_pure_dict(state, values)
    return nnx.merge(graph, state)(x)

  return types.Model(init, apply, loss, sample)


def logreg(
  num_features: int, num_classes: int, logit_activation: Activation = None
) -> types.Model:
  """Makes multinomial logistic regression (setting 1).

  Args:
    num_features: D.
    num_classes: C; p = (D + 1) C.
    logit_activation: LEAF's `log_reg` puts "sigmoid" on its outputs and then
      treats them as logits, which costs convexity; None is the convex model.

  Examples:
    >>> model = fi.models.logreg(4, 3)
    >>> model.apply(model.init(jax.random.key(0)), test[0]).shape
    (40, 3)
  """
  checks.positive_integer("num_features", num_features)
  checks.positive_integer("num_classes", num_classes)
  memory.require(
    f"a model of {num_features} features", 4 * num_features * num_classes
  )
  module = networks.LogReg(num_classes, _activation(logit_activation))
  return _classifier(module, (1, num_features))


def cnn(
  num_classes: int = 62,
  *,
  widths: Sequence[int] = (8, 16),
  dense: int = 64,
  activation: Activation = "relu",
  pool: str = "max",
  image_shape: Sequence[int] = (28, 28, 1),
) -> types.Model:
  """Makes LEAF's FEMNIST network at any width, for images [N, H, W, C].

  Two 5 × 5 convolutions, each followed by `activation` and a halving of both
  sides, then a hidden dense layer and the output layer.

  Args:
    num_classes: C.
    widths: channels of the two convolutions.
    dense: units of the hidden layer.
    activation: "relu" (CNN 2) or None (CNN 1).
    pool: how sides are halved: "max", "avg", or "stride" (a convolution of
      stride 2). Without an activation, "avg" and "stride" make the network one
      linear map of its input.
    image_shape: H, W and channels; sides that 4 does not divide are padded.

  Examples:
    >>> small = fi.models.cnn(10, widths=(2, 4), dense=8)
    >>> sum(a.size for a in jax.tree.leaves(small.param_shapes()))
    1922
  """
  checks.one_of("pool", pool, ("max", "avg", "stride"))
  checks.positive_integer("num_classes", num_classes)
  checks.positive_integer("dense", dense)
  if not isinstance(widths, Sequence) or len(widths) != 2:
    raise ValueError(f"widths is {widths!r}; it must be two numbers")
  first, second = (checks.positive_integer("widths", w) for w in widths)
  height, width, channels = _image_shape(image_shape)
  places = -(-height // 4) * -(-width // 4)
  memory.require(
    f"a network of widths {first}, {second} and dense = {dense}",
    4
    * (
      25 * first * (channels + second) + dense * (places * second + num_classes)
    ),
  )
  module = networks.CNN(
    num_classes, (first, second), dense, _activation(activation), pool
  )
  return _classifier(module, (1, *image_shape))


def _image_shape(shape):
  """Returns H, W and C."""
  if not isinstance(shape, Sequence) or len(shape) != 3:
    raise ValueError(
      f"image_shape is {shape!r}; it must be height, width and channels"
    )
  return [checks.positive_integer("image_shape", side) for side in shape]


def mlp(
  num_features: int | Sequence[int],
  num_classes: int | None,
  *,
  hidden: Sequence[int] = (64,),
  activation: Activation = "relu",
) -> types.Model:
  """Makes dense layers: a classifier, or a regression of one number.

  Args:
    num_features: D, or the shape of an example, which is laid flat.
    num_classes: C; None: outputs are one number per example, [N], the loss is
      `mse` and labels are drawn by `gaussian`.
    hidden: widths of the hidden layers; (): a linear model.
    activation: of the hidden layers.

  Examples:
    >>> network = fi.models.mlp(4, 3, hidden=(8,))
    >>> network.apply(network.init(jax.random.key(0)), test[0]).shape
    (40, 3)
    >>> line = fi.models.mlp(4, None, hidden=())
    >>> line.apply(line.init(jax.random.key(0)), test[0]).shape
    (40,)
  """
  shape = num_features
  shape = shape if isinstance(shape, Sequence) else (shape,)
  shape = [checks.positive_integer("num_features", d) for d in shape]
  if num_classes is not None:
    checks.positive_integer("num_classes", num_classes)
  if not isinstance(hidden, Sequence):
    raise ValueError(f"hidden is {hidden!r}; it must be a list of widths")
  hidden = tuple(checks.positive_integer("hidden", w) for w in hidden)
  widths = (math.prod(shape), *hidden, num_classes or 1)
  memory.require(
    f"a network of widths {', '.join(map(str, widths))}",
    4 * sum(a * b for a, b in itertools.pairwise(widths)),
  )
  module = networks.MLP(num_classes, hidden, _activation(activation))
  if num_classes is not None:
    return _classifier(module, (1, *shape))
  example = jax.ShapeDtypeStruct((1, *shape), jnp.result_type(float))
  return from_flax(module, example, mse, gaussian)


def cross_entropy(logits, labels):
  """Returns -log softmax(logits)[label], [N].

  Examples:
    >>> fi.models.cross_entropy(np.zeros((1, 2), np.float32), np.array([0]))
    Array([0.6931472], dtype=float32)
  """
  # Classes first: vector units run along examples, not along a few classes.
  # A one-hot product: indexing would make the gradient a scatter.
  z = logits.T
  z = z - lax.stop_gradient(z.max(0, keepdims=True))
  one_hot = jax.nn.one_hot(labels, len(z), axis=0, dtype=z.dtype)
  return jnp.log(jnp.exp(z).sum(0)) - (one_hot * z).sum(0)


def categorical(key, logits):
  """Draws labels from softmax(logits), [N].

  One random number per label, where `jax.random.categorical` draws one for
  every class: a tenth of the time where many labels are drawn.

  Examples:
    >>> fi.models.categorical(jax.random.key(0), outputs).shape
    (40,)
  """
  classes = logits.shape[-1]
  # A product: a cumulative sum along so short an axis takes longer.
  up_to = jnp.matmul(
    jax.nn.softmax(logits),
    jnp.triu(jnp.ones((classes, classes), logits.dtype)),
    precision=lax.Precision.HIGHEST,
  )
  u = jax.random.uniform(key, (*logits.shape[:-1], 1), logits.dtype)
  return (up_to[..., :-1] <= u * up_to[..., -1:]).sum(-1)


def mse(outputs, y):
  """Returns the squared error of outputs [N, ...] shaped like y, [N].

  Examples:
    >>> fi.models.mse(np.array([1.0, 3.0]), np.array([1.0, 1.0])).tolist()
    [0.0, 4.0]
  """
  if outputs.shape != y.shape:
    raise ValueError(
      f"mse: outputs have shape {list(outputs.shape)}, y has {list(y.shape)};"
      " they must agree"
    )
  return jnp.square(outputs - y).reshape(len(y), -1).mean(-1)


def gaussian(key, outputs):
  """Draws targets around outputs [N, ...], such that `mse` is -log p(y) + c.

  Examples:
    >>> fi.models.gaussian(jax.random.key(0), outputs).shape
    (40, 3)
  """
  variance = outputs[0].size / 2
  noise = jax.random.normal(key, outputs.shape, outputs.dtype)
  return outputs + variance**0.5 * noise


def _classifier(module, input_shape):
  return from_flax(
    module,
    jax.ShapeDtypeStruct(input_shape, jnp.result_type(float)),
    cross_entropy,
    categorical,
  )


def _activation(spec: Activation):
  if callable(spec):
    example = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    problem = "activation fails on an array"
    made = checks.call(problem, jax.eval_shape, spec, example)
    if getattr(made, "shape", None) != example.shape:
      raise ValueError("activation must return an array of its input's shape")
    return spec
  checks.one_of("activation", spec, networks.ACTIVATIONS)
  return networks.ACTIVATIONS[spec]
