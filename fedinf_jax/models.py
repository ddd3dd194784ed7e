"""Models of the paper's experiments, and the way in for any Flax module."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from fedinf_jax import types

# Widths of LEAF's own FEMNIST network: p = 6,603,710.
LEAF_CNN = {"widths": (32, 64), "dense": 2048}

MAX_BAND = 2**18  # Entries of the largest banded matrix a convolution makes.

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
  spec = jax.eval_shape(jnp.asarray, example_input)

  def init(key):
    variables = module.init(key, jnp.zeros(spec.shape, spec.dtype))
    extra = sorted(set(variables) - {"params"})
    if extra:
      raise ValueError(
        f"{type(module).__name__} keeps variables beside its parameters"
        f" ({', '.join(extra)}); only parameters can be influenced"
      )
    return variables["params"]

  return types.Model(
    init, lambda params, x: module.apply({"params": params}, x), loss, sample
  )


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
  if pool not in ("max", "avg", "stride"):
    raise ValueError(f'pool is {pool!r}; it must be "max", "avg" or "stride"')
  module = _CNN(
    num_classes, tuple(widths), dense, _activation(activation), pool
  )
  return _classifier(module, (1, 28, 28, 1))


def cross_entropy(logits, labels):
  """Returns -log softmax(logits)[label], [N]."""
  # A one-hot product: indexing would make the gradient a scatter.
  return optax.softmax_cross_entropy(
    logits, jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
  )


def _classifier(module, input_shape):
  return from_flax(
    module, jnp.zeros(input_shape), cross_entropy, jax.random.categorical
  )


def _activation(spec: Activation):
  if isinstance(spec, str):
    function = getattr(jax.nn, spec, None)
    if function is None:
      raise ValueError(f"activation {spec!r} is not a function of jax.nn")
    return function
  return spec or (lambda a: a)


def _dense(features, name):
  return nn.Dense(
    features, name=name, kernel_init=nn.initializers.glorot_uniform()
  )


class _LogReg(nn.Module):
  num_classes: int
  activation: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x):
    return self.activation(_dense(self.num_classes, "dense")(x))


class _CNN(nn.Module):
  num_classes: int
  widths: tuple[int, ...]
  dense: int
  activation: Callable[[jax.Array], jax.Array]
  pool: str

  @nn.compact
  def __call__(self, x):
    for i, width in enumerate(self.widths):
      x = nn.Conv(
        width,
        (5, 5),
        strides=2 if self.pool == "stride" else 1,
        kernel_init=nn.initializers.glorot_uniform(),
        conv_general_dilated=_matmul_conv,
        name=f"conv{i + 1}",
      )(x)
      x = self.activation(x)
      if self.pool != "stride":
        x = _halve(x, self.pool)
    x = x.reshape(x.shape[0], -1)
    x = self.activation(_dense(self.dense, "dense1")(x))
    return _dense(self.num_classes, "dense2")(x)


def _halve(x, pool):
  """Pools 2 × 2 windows from strided slices: any derivative of it is cheap."""
  if pool == "max":
    x = jnp.maximum(x[:, ::2], x[:, 1::2])
    return jnp.maximum(x[:, :, ::2], x[:, :, 1::2])
  n, h, w, c = x.shape
  return x.reshape(n, h // 2, 2, w // 2, 2, c).mean((2, 4))


def _matmul_conv(x, kernel, window_strides, padding, **unused):
  """Convolves [N, H, W, I] with [h, w, I, O] as one matrix product.

  With many models at once (vmap over removals) a convolution becomes a grouped
  one, slow on every backend; a product does not. Few channels make patches
  times a kernel a product with a tiny side, so those are convolved along the
  columns by a banded matrix instead: more operations, at a far higher rate.
  """
  h, w, c, features = kernel.shape
  n = x.shape[0]
  sh, sw = window_strides
  pads = lax.padtype_to_pads(x.shape[1:3], (h, w), window_strides, padding)
  x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
  width = x.shape[2]
  rows = (x.shape[1] - h) // sh + 1
  cols = (width - w) // sw + 1
  stripes = [x[:, i : i + rows * sh : sh] for i in range(h)]
  if h * width * c * cols * features <= MAX_BAND:
    # band[i, o, k]: tap k of output column o reads input column i.
    i, o, k = np.ogrid[:width, :cols, :w]
    band = jnp.asarray(i == o * sw + k, kernel.dtype)
    matrix = jnp.einsum("iok,hkcf->hicof", band, kernel)
    matrix = matrix.reshape(h * width * c, cols * features)
    left = jnp.stack(stripes, axis=2).reshape(n * rows, h * width * c)
  else:
    patches = [
      a[:, :, j : j + cols * sw : sw] for a in stripes for j in range(w)
    ]
    left = jnp.stack(patches, axis=-2).reshape(n * rows * cols, h * w * c)
    matrix = kernel.reshape(h * w * c, features)
  return (left @ matrix).reshape(n, rows, cols, features)
