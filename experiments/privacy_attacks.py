"""What somebody who sees a participant's messages can make of them.

The attacker is a server that is curious but honest: it follows the protocol,
and knows the model and how participants train. Gradients of mixed examples are
unmixed by algebra; images are found by matching gradients (Zhu et al. 2019;
cosines, signs and total variation as Geiping et al. 2020).
"""

from collections.abc import Callable
from typing import NamedTuple
import warnings

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax
from scipy import optimize

from experiments import privacy_models
import fedinf_jax as fi
from fedinf_jax import types

PAPER = 0.9  # What images are supposed to be before anything is known.
IMAGE = (28, 28, 1)
FEATURES = 5.0  # Inputs of a layer alone say less: more weight of the prior.


class Unmixed(NamedTuple):
  """What `unmix` finds."""

  inputs: jax.Array  # [S, A], what the dense layer read
  # Of each example, up to a factor, leaves [S, P_j]; None: not determined.
  gradients: types.Params | None


def read_off(kernel: jax.Array, bias: jax.Array) -> jax.Array:
  """Reads inputs off gradients x ⊗ δ of a kernel and δ of its bias.

  Args:
    kernel: gradients of single examples, [S, A, B].
    bias: [S, B].

  Returns:
    x [S, A], from the entries where δ is largest.
  """
  place = jnp.abs(bias).argmax(1)[:, None]
  column = jnp.take_along_axis(kernel, place[:, None], 2)[..., 0]
  return column / jnp.take_along_axis(bias, place, 1)


def unmix(
  kernel: jax.Array, bias: jax.Array, rows: types.Params, count: int
) -> Unmixed:
  """Unmixes S' rows that are unknown combinations R G of S gradients.

  A dense layer's gradients are [x; 1] ⊗ δ. Their mixtures are a tensor
  Σ_s R_s ⊗ [x_s; 1] ⊗ δ_s, whose factors come from an eigenproblem (Jennrich's
  algorithm) where two of the three have S independent columns: R and x if
  nothing was left out (S' = S), x and δ if rows are missing.

  Args:
    kernel: of a dense layer, [S', A B].
    bias: of the same, [S', B].
    rows: all of the upload, leaves [S', P_j].
    count: S, how many gradients were mixed.
  """
  mixed, outputs = bias.shape
  with jax.enable_x64(True):
    double = lambda a: jnp.asarray(np.asarray(a, np.float64))
    tensor = jnp.concatenate(
      [double(kernel).reshape(mixed, -1, outputs), double(bias)[:, None]], 1
    )
    if mixed >= count:
      inverse = jnp.linalg.pinv(_first_factor(tensor, count))
      alone = jnp.einsum("st,tab->sab", inverse, tensor)
      x = jnp.linalg.svd(alone, full_matrices=False)[0][:, :, 0]
      gradients = jax.tree.map(lambda a: inverse @ double(a), rows)
    else:
      tensor = tensor.transpose(1, 2, 0)
      x, gradients = _first_factor(tensor, count).T, None
    found = Unmixed(x[:, :-1] / x[:, -1:], gradients)
    return jax.tree.map(lambda a: np.asarray(a, np.float32), found)


def _first_factor(tensor, count):
  """Returns the a of a tensor Σ_s a_s ⊗ b_s ⊗ c_s, as columns [A, S].

  Of two combinations A D B' and A D' B' of its slices, the quotient A D/D' A⁺
  has the columns of A as eigenvectors.

  Args:
    tensor: [A, B, C], with S independent vectors b.
    count: S.
  """
  flat = tensor.reshape(len(tensor), -1)
  basis = jnp.linalg.svd(flat, full_matrices=False)[0][:, :count]
  inner = jnp.einsum("as,abc->sbc", basis, tensor)
  draw = np.random.default_rng(0).normal(size=(2, tensor.shape[2]))
  one, two = jnp.einsum("sbc,nc->nsb", inner, jnp.asarray(draw))
  vectors = jnp.linalg.eig(one @ jnp.linalg.pinv(two))[1]
  return basis @ vectors.real


def match(
  objective: Callable[[jax.Array], jax.Array],
  shape: tuple[int, ...],
  *,
  steps: int,
  rate: float,
  variation: float,
  seed: int = 0,
) -> jax.Array:
  """Finds images [..., H, W, 1] of small objective and total variation.

  Args:
    objective: images -> [], the sum of what is to be small.
    shape: of the images.
    steps: of Adam, on the signs of the derivative.
    rate: the first step's size; it falls to nothing along a cosine.
    variation: weight of the mean absolute difference of neighbouring pixels.
    seed: of the starting point.
  """
  adam = optax.adam(optax.cosine_decay_schedule(rate, steps))

  def penalised(x):
    rough = jnp.abs(jnp.diff(x, axis=-2)).mean((-3, -2, -1))
    rough += jnp.abs(jnp.diff(x, axis=-3)).mean((-3, -2, -1))
    return objective(x) + variation * rough.sum()

  def step(carry, _):
    x, state = carry
    update, state = adam.update(jnp.sign(jax.grad(penalised)(x)), state)
    return (jnp.clip(x + update, 0, 1), state), None

  x = PAPER + 0.05 * jax.random.normal(jax.random.key(seed), shape)
  return lax.scan(step, (x, adam.init(x)), None, length=steps)[0][0]


class Attacker:
  """Searches for images on one network, each search compiled once.

  Attributes:
    net: the network.
    steps: of each search.
  """

  def __init__(self, net: privacy_models.Attacked, steps: int):
    self.net, self.steps = net, steps
    self._gradients = jax.jit(self._from_gradients)
    self._inputs = jax.jit(self._from_inputs)
    self._update = jax.jit(self._from_update, static_argnames=("fed",))

  def from_gradients(
    self, params: types.Params, rows: types.Params
  ) -> np.ndarray:
    """Finds the image behind each gradient.

    Args:
      params: where the gradients were taken.
      rows: of single examples, up to a factor, leaves [N, P_j].

    Returns:
      Images [N, 28, 28, 1].
    """
    # p − onehot(y), times a factor: the label's entry is the largest.
    labels = jnp.abs(rows["dense2"]["bias"]).argmax(1)
    return np.asarray(self._gradients(params, rows, labels))

  def from_inputs(self, params: types.Params, inputs: np.ndarray) -> np.ndarray:
    """Finds images that the first dense layer would see as `inputs`, [N, A]."""
    return np.asarray(self._inputs(params, inputs))

  def from_update(
    self,
    params: types.Params,
    update: types.Params,
    labels: np.ndarray,
    fed: fi.FedAvg,
  ) -> np.ndarray:
    """Finds the images that a client trained on, from FedAvg's update alone.

    Args:
      params: w_{t-1}.
      update: of N clients, leaves [N, ...].
      labels: of their n images each, [N, n]: granted to the attacker.
      fed: how they trained.

    Returns:
      Images [N, n, 28, 28, 1].
    """
    return np.asarray(self._update(params, update, labels, fed=fed))

  def _from_gradients(self, params, rows, labels):
    def objective(x):
      found = jax.vmap(jax.grad(self._loss), (None, 0, 0))(params, x, labels)
      return (1 - jnp.abs(cosines(found, rows))).sum()

    return self._match(objective, (len(labels), *IMAGE), self.net.variation)

  def _from_inputs(self, params, inputs):
    def objective(x):
      found = jax.vmap(self.net.features, (None, 0))(params, x)
      square = lambda a: (a**2).sum(1)
      return (square(found - inputs) / square(inputs)).sum()

    return self._match(
      objective, (len(inputs), *IMAGE), FEATURES * self.net.variation
    )

  def _from_update(self, params, update, labels, fed):
    def train(x, labels):
      loss = lambda w: jax.vmap(self._loss, (None, 0, 0))(w, x, labels).mean()
      w = params
      for _ in range(fed.local_steps):
        g = jax.grad(loss)(w)
        w = jax.tree.map(lambda a, g: a - fed.learning_rate * g, w, g)
      return jax.tree.map(jnp.subtract, w, params)

    def objective(x):
      return (1 - cosines(jax.vmap(train)(x, labels), update)).sum()

    return self._match(
      objective, (*labels.shape, *IMAGE), self.net.variation / labels.shape[1]
    )

  def _loss(self, params, x, label):
    return -jax.nn.log_softmax(self.net.logits(params, x))[label]

  def _match(self, objective, shape, variation):
    return match(
      objective, shape, steps=self.steps, rate=self.net.rate,
      variation=variation,
    )  # fmt: skip


def cosines(a: types.Params, b: types.Params) -> jax.Array:
  """Returns the cosine of each of N vectors with its partner, [N]."""

  def products(a, b):
    flat = lambda p: p.reshape(len(p), -1)
    parts = jax.tree.map(lambda p, q: (flat(p) * flat(q)).sum(1), a, b)
    return sum(jax.tree.leaves(parts))

  # A gradient that vanishes has no direction: its cosine is 0, not NaN.
  tiny = jnp.finfo(jnp.float32).tiny
  return products(a, b) / jnp.sqrt(products(a, a) * products(b, b) + tiny)


def psnr(found: np.ndarray, true: np.ndarray) -> np.ndarray:
  """Returns 10 log₁₀(1 / mean squared error) of images in [0, 1], [N]."""
  errors = ((found - true) ** 2).reshape(len(true), -1).mean(1)
  return -10 * np.log10(np.maximum(errors, 1e-12))


def paired(found: np.ndarray, true: np.ndarray) -> np.ndarray:
  """Sorts what was found such that it fits best, as order has no meaning.

  Args:
    found: [N, ...].
    true: [N, ...].
  """
  distances = ((found[:, None] - true[None]) ** 2).reshape(
    len(found), len(true), -1
  )
  rows, columns = optimize.linear_sum_assignment(distances.sum(-1))
  return found[rows[np.argsort(columns)]]


def correlations(found: np.ndarray | jax.Array, true: np.ndarray) -> np.ndarray:
  """Returns |Pearson| of each of N vectors with the one it fits best, [N]."""
  count = len(true)
  table = np.abs(np.corrcoef(found, true)[: len(found), len(found) :])
  rows, columns = optimize.linear_sum_assignment(-table)
  best = np.zeros(count)
  best[columns] = table[rows, columns]
  return best


def independent_components(mixtures: np.ndarray, count: int) -> np.ndarray:
  """Unmixes inputs by their independence (Cocktail Party Attack).

  Args:
    mixtures: each a combination of S inputs, [Q, A].
    count: S.

  Returns:
    The inputs up to factors and signs, [S, A].
  """
  from sklearn import decomposition  # Of this experiment's requirements alone.

  ica = decomposition.FastICA(
    count, whiten="unit-variance", max_iter=2000, tol=1e-3, random_state=0
  )
  with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Of what has not converged, we see.
    return ica.fit_transform(np.asarray(mixtures, np.float64).T).T
