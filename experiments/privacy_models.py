"""The networks that are attacked, written for one image at a time.

Gradient matching differentiates gradients of single images. The library's CNN
is made for many models on shared images, and takes six times as long for that;
these have the same parameters and the same outputs.
"""

from collections.abc import Callable
from typing import NamedTuple

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np

import fedinf_jax as fi

CLASSES = 62


class Attacked(NamedTuple):
  """A CNN, and what an attacker computes with it."""

  model: fi.Model
  features: Callable  # (params, image) -> what the first dense layer reads
  logits: Callable  # (params, image) -> [C]
  variation: float  # weight of the total variation prior
  rate: float  # of Adam on images


def setting2() -> Attacked:
  """The CNN of setting 2: strided, without activations."""
  model = fi.models.cnn(
    CLASSES, widths=(4, 8), dense=32, activation=None, pool="stride"
  )
  return _attacked(model, smooth=True, variation=1e-4, rate=0.05)


def setting3() -> Attacked:
  """The CNN of setting 3: ReLU and max-pooling."""
  model = fi.models.cnn(CLASSES)
  return _attacked(model, smooth=False, variation=2e-2, rate=0.02)


def dense_first(hidden: int = 64) -> fi.Model:
  """A network whose first layer is dense: it reads the images themselves."""
  example = jax.ShapeDtypeStruct((1, 28, 28, 1), jnp.float32)
  return fi.models.from_flax(
    _DenseFirst(hidden), example, fi.models.cross_entropy, fi.models.categorical
  )


class _DenseFirst(nn.Module):
  hidden: int

  @nn.compact
  def __call__(self, x):
    x = nn.relu(nn.Dense(self.hidden, name="dense1")(x.reshape(len(x), -1)))
    return nn.Dense(CLASSES, name="dense2")(x)


def _attacked(model, *, smooth, variation, rate):
  """Writes the network as a function of one image."""

  def features(params, x):
    for name in ("conv1", "conv2"):
      x = _convolve(params[name], x, stride=2 if smooth else 1)
      if not smooth:
        h, w, c = x.shape
        x = jax.nn.relu(x).reshape(h // 2, 2, w // 2, 2, c).max((1, 3))
    return x.reshape(-1)

  def logits(params, x):
    x = _dense(params["dense1"], features(params, x))
    return _dense(params["dense2"], x if smooth else jax.nn.relu(x))

  return Attacked(model, features, logits, variation, rate)


def _dense(layer, x):
  return x @ layer["kernel"] + layer["bias"]


def _convolve(layer, x, stride):
  """A 5 × 5 convolution with the padding of "SAME", by patches.

  Patches are picked by two products, which compile and differentiate faster
  than fifty slices.
  """
  kernel = layer["kernel"]
  taps, channels = kernel.shape[0], kernel.shape[2]
  side = len(x) // stride
  before = 2 if stride == 1 else 1
  out, tap, pixel = np.ogrid[:side, :taps, : len(x)]
  pick = jnp.asarray(out * stride + tap - before == pixel, x.dtype)
  patches = jnp.einsum("oia,pjb,abc->opijc", pick, pick, x)
  patches = patches.reshape(side * side, taps * taps * channels)
  made = patches @ kernel.reshape(-1, kernel.shape[-1]) + layer["bias"][None]
  return made.reshape(side, side, -1)
