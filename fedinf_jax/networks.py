"""The networks of `models`, as Flax modules that run fast side by side."""

from collections.abc import Callable

from flax import linen as nn
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np


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


class LogReg(nn.Module):
  """One dense layer: x [N, D] to logits [N, C]."""

  num_classes: int
  activation: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x):
    """Returns logits [N, C]."""
    return self.activation(_ClassesFirst(self.num_classes, name="dense")(x)).T


class MLP(nn.Module):
  """Dense layers: x [N, ...] to outputs [N, F], or [N] where F is None."""

  num_outputs: int | None
  hidden: tuple[int, ...]
  activation: Callable[[jax.Array], jax.Array]

  @nn.compact
  def __call__(self, x):
    """Returns outputs [N, F] or [N]."""
    x = x.reshape(len(x), -1)
    for i, width in enumerate(self.hidden):
      x = self.activation(_dense(width, f"dense{i + 1}")(x))
    last = _dense(self.num_outputs or 1, f"dense{len(self.hidden) + 1}")(x)
    return last[:, 0] if self.num_outputs is None else last


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


class CNN(nn.Module):
  """LEAF's network: images [N, H, W, C] to logits."""

  num_classes: int
  widths: tuple[int, int]
  dense: int
  activation: Callable[[jax.Array], jax.Array]
  pool: str

  @nn.compact
  def __call__(self, x):
    """Returns logits [N, C]."""
    n, h, w, c = x.shape
    if h % 4 or w % 4:
      x = jnp.pad(x, ((0, 0), (0, -h % 4), (0, -w % 4), (0, 0)))
      _, h, w, _ = x.shape
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
