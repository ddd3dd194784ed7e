"""Models of the paper's experiments, and the way in for any Flax module."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from flax import linen as nn
from flax import nnx
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import checks
from fedinf_jax import memory
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
  """
  if isinstance(module, nnx.Module):
    raise ValueError(
      f"{type(module).__name__} is a module of flax.nnx; from_flax takes those"
      " of flax.linen. Give fi.Model(init, apply, loss) pure functions instead,"
      " made with nnx.split and nnx.merge"
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


def logreg(
  num_features: int, num_classes: int, logit_activation: Activation = None
) -> types.Model:
  """Makes multinomial logistic regression (setting 1).

  Args:
    num_features: D.
    num_classes: C; p = (D + 1) C.
    logit_activation: LEAF's `log_reg` puts "sigmoid" on its outputs and then
      treats them as logits, which costs convexity; None is the convex model.
  """
  checks.positive_integer("num_features", num_features)
  checks.positive_integer("num_classes", num_classes)
  memory.require(
    f"a model of {num_features} features", 4 * num_features * num_classes
  )
  module = _LogReg(num_classes, _activation(logit_activation))
  return _classifier(module, (1, num_features))


def cnn(
  num_classes: int = 62,
  *,
  widths: Sequence[int] = (8, 16),
  dense: int = 64,
  activation: Activation = "relu",
  pool: str = "max",
) -> types.Model:
  """Makes LEAF's FEMNIST network at any width, for images [N, 28, 28, 1].

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
  """
  checks.one_of("pool", pool, ("max", "avg", "stride"))
  checks.positive_integer("num_classes", num_classes)
  checks.positive_integer("dense", dense)
  if not isinstance(widths, Sequence) or len(widths) != 2:
    raise ValueError(f"widths is {widths!r}; it must be two numbers")
  first, second = (checks.positive_integer("widths", w) for w in widths)
  memory.require(
    f"a network of widths {first}, {second} and dense = {dense}",
    4 * (25 * first * (1 + second) + dense * (49 * second + num_classes)),
  )
  module = _CNN(
    num_classes, (first, second), dense, _activation(activation), pool
  )
  return _classifier(module, (1, 28, 28, 1))


def cross_entropy(logits, labels):
  """Returns -log softmax(logits)[label], [N]."""
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
  checks.one_of("activation", spec, ACTIVATIONS)
  return ACTIVATIONS[spec]


def _identity(a):
  return a


ACTIVATIONS = {
  None: _identity,
  "relu": jax.nn.relu,
  "sigmoid": jax.nn.sigmoid,
  "tanh": jnp.tanh,
  "gelu": jax.nn.gelu,
  "silu": jax.nn.silu,
  "softplus": jax.nn.softplus,
  "elu": jax.nn.elu,
}


def _dense(features, name):
  return nn.Dense(
    features, name=name, kernel_init=nn.initializers.glorot_uniform()
  )


def _kernel_and_bias(module, shape):
  # float32 as in Flax's own layers: the draws must not depend on x64.
  kernel = nn.initializers.glorot_uniform(), shape, jnp.float32
  bias = nn.initializers.zeros, shape[-1:], jnp.float32
  return module.param("kernel", *kernel), module.param("bias", *bias)


class _LogReg(nn.Module):
  num_classes: int
  activation: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x):
    return self.activation(_ClassesFirst(self.num_classes, name="dense")(x)).T


class _ClassesFirst(nn.Module):
  """A dense layer with outputs [F, N].

  The kernels of many models are then the rows of one product with the examples,
  and what follows runs along examples.
  """

  features: int

  @nn.compact
  def __call__(self, x):
    kernel, bias = _kernel_and_bias(self, (x.shape[1], self.features))
    kernel, bias, x = nn.dtypes.promote_dtype(kernel, bias, x)
    return lax.dot_general(kernel, x, (((0,), (1,)), ((), ()))) + bias[:, None]


class _CNN(nn.Module):
  num_classes: int
  widths: tuple[int, int]
  dense: int
  activation: Callable[[jax.Array], jax.Array]
  pool: str

  @nn.compact
  def __call__(self, x):
    n, h, w, c = x.shape
    x = x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5)
    for i, (width, tile) in enumerate(zip(self.widths, (4, 2), strict=True)):
      layer = _Conv(
        width, tile, self.activation, self.pool, name=f"conv{i + 1}"
      )
      x = layer(x)
    x = x.reshape(n, -1)
    x = self.activation(_dense(self.dense, "dense1")(x))
    return _dense(self.num_classes, "dense2")(x)


class _Conv(nn.Module):
  """A 5 × 5 convolution, its activation and the halving of both sides.

  Images come and go in 2 × 2 blocks, [N, H/2, W/2, 2, 2, C]; `tile` of theirs
  become one.
  """

  features: int
  tile: int
  activation: Callable[[jax.Array], jax.Array]
  pool: str

  @nn.compact
  def __call__(self, x):
    kernel, bias = _kernel_and_bias(self, (5, 5, x.shape[-1], self.features))
    kernel, bias, x = nn.dtypes.promote_dtype(kernel, bias, x)
    bias = bias.reshape(1, 1, 1, 1, 1, -1)
    if self.pool == "stride":
      return self.activation(
        _tile_conv(x, kernel, self.tile, 2)[:, :, :, 0] + bias
      )
    x = _tile_conv(x, kernel, self.tile, 1)
    if self.pool == "max" and self.activation in (jax.nn.relu, _identity):
      # They never fall, so the largest stays the largest: pool first, and what
      # follows has a quarter of the numbers.
      return self.activation(_largest(x) + bias)
    x = self.activation(x + bias[None])
    return _largest(x) if self.pool == "max" else x.mean(3)


@jax.custom_jvp
def _largest(x):
  """Returns x.max(3). Of several that are the largest, the first one moves it.

  jnp.max would have them share, which takes counting and dividing.
  """
  return x.max(3)


@_largest.defjvp
def _largest_jvp(primals, tangents):
  (x,), (dx,) = primals, tangents
  y = _largest(x)
  first = jnp.full(y.shape, x.shape[3] - 1, jnp.int32)
  for place in reversed(range(x.shape[3] - 1)):
    first = jnp.where(x[:, :, :, place] == y, place, first)
  places = lax.broadcasted_iota(jnp.int32, x.shape, 3)
  return y, jnp.where(places == first[:, :, :, None], dx, 0).sum(3)


def _tile_conv(x, kernel, tile, stride):
  """Convolves blocks [N, H/2, W/2, 2, 2, C] as one matrix product.

  With many models at once (vmap over removals) a convolution becomes a grouped
  one, slow on every backend; a product does not. Patches times a kernel would
  be a product with a side of a few channels, so the outputs of a whole tile are
  computed from the window they share: some more operations, at a far higher
  rate, on far fewer copies of the input.

  Args:
    x: images in blocks.
    kernel: [5, 5, C, F].
    tile: side of the tiles, 2 or 4 pixels.
    stride: 1 or 2, with the padding of "SAME".

  Returns:
    [N, H/tile, W/tile, Q, tile/2, tile/2, F]: with stride 1, Q = 4 are the
    places in the 2 × 2 windows to pool; with stride 2, Q = 1.
  """
  n, h, w, _, _, c = x.shape
  taps, features = kernel.shape[0], kernel.shape[3]
  step = tile // 2  # All in blocks from here on; the padding is one.
  side = step + 2
  x = jnp.pad(x.reshape(n, h, w, 4 * c), ((0, 0), (1, 1), (1, 1), (0, 0)))
  windows = [
    x[:, i : i + h - step + 1 : step, j : j + w - step + 1 : step]
    for i in range(side)
    for j in range(side)
  ]
  left = jnp.concatenate(windows, -1).reshape(-1, side * side * 4 * c)
  # band[i, q, o, k]: tap k of the output at place q of window o reads pixel i.
  places = 2 // stride
  i, q, o, k = np.ogrid[: 2 * side, :places, :step, :taps]
  band = jnp.asarray(i == 2 * o + q + (stride - 1) + k, kernel.dtype)
  matrix = jnp.einsum("iqok,jrpl,klcf->ijcqropf", band, band, kernel)
  matrix = matrix.reshape(side, 2, side, 2, c, -1).transpose(0, 2, 1, 3, 4, 5)
  product = left @ matrix.reshape(side * side * 4 * c, -1)
  shape = n, h // step, w // step, places**2, step, step, features
  return product.reshape(shape)
