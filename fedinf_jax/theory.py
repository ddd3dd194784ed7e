"""The theory of one round (Theorems 1 and 2): how much an error grows."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.data import on_device
from fedinf_jax.linalg import hessian_products
from fedinf_jax.linalg import lanczos

MIN_EXAMPLES = 16  # Fewer cost no less time.
ULPS = 16  # Units in the last place of ‖H‖ that its eigenvalues are trusted to.


class Theory(NamedTuple):
  """What one round does, at worst, to an error in each layer's ε."""

  gamma: np.ndarray  # float64 [L]
  width: np.ndarray  # float64 [L], how far above gamma the truth may lie
  # int [L]. 1: γ + width < 1, the error stays bounded; 3: γ > 1 by more than
  # rounding, it grows exponentially; 2: neither, γ = 1, it grows with t.
  case: np.ndarray
  layer_names: tuple[str, ...]


def round_theory(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  params: types.Params,
  cohort,
  round_: int,
  *,
  seed: int = 0,
  num_steps: int = 20,
) -> Theory:
  """Measures γ of Theorem 1 in one round of an actual run, layer by layer.

      γ_(j) = Σ_k a_k Π_i ‖I − ηH_{t,i,(j)}^k‖
            = Σ_k a_k Π_i max(|1 − ηλ_i^k|, |1 − ηΛ_i^k|)

  with a_k = n_k / N(C_t) and λ, Λ the extreme eigenvalues of layer j's block of
  participant k's Hessian at its step i. Lanczos finds them from within: γ > 1
  is certain but for rounding, while γ < 1 trusts that they lie no further out
  than their residuals say. More steps narrow the width.

  Args:
    model: the model.
    data: the K clients.
    fed: the run's settings; plain gradient descent, η = fed.learning_rate.
    params: w_{t-1}.
    cohort: int [B], C_t as positions of clients.
    round_: t, from 1.
    seed: the run's seed.
    num_steps: Lanczos steps per Hessian.

  Examples:
    >>> found = fi.theory.round_theory(
    ...   model, data, fed, run.params, [0, 1], 1, num_steps=4
    ... )
    >>> found.layer_names, found.gamma.shape
    (('dense/bias', 'dense/kernel'), (2,))
  """
  agreement.training(model, data, fed)
  checks.seed(seed)
  if checks.positive_integer("round_", round_) >= 2**31:
    raise ValueError(f"round_ is {round_}; it must be below 2^31")
  checks.positive_integer("num_steps", num_steps)
  if fed.learning_rate is None:
    raise ValueError(
      "γ is that of plain gradient descent; give learning_rate, not"
      " client_optimizer"
    )
  cohort = _checked(cohort, data.num_clients)
  params = checks.params(params, model, seed, data)
  clients, root = on_device.put(data), jax.random.key(seed)
  spectra = []
  for k in cohort:
    # Sizes in powers of two, so that few programs serve all clients.
    size = max(int(data.num_examples[k]), MIN_EXAMPLES)
    spectrum = _spectrum(
      params,
      clients,
      rng.Draws(root, jnp.int32(round_), clients.words[k]),
      jnp.int32(k),
      model=model,
      fed=fed,
      size=min(1 << (size - 1).bit_length(), len(data.x)),
      num_steps=num_steps,
    )
    if not np.isfinite(spectrum).all():
      raise ValueError(
        f"round {round_}: the Hessian of client {data.ids[k]!r} is not finite;"
        " a smaller learning rate may help"
      )
    spectra.append(spectrum)

  counts = data.num_examples[cohort]
  # In float64, whatever the run's dtype: 1 − ηλ would round ηλ away.
  eigenvalues = np.moveaxis(np.asarray(spectra, np.float64), -1, 0)
  low, high, low_residual, high_residual = eigenvalues
  gamma, width, case = _gamma(
    *(fed.learning_rate, low, high, low_residual, high_residual),
    *(counts / counts.sum(), spectra[0].dtype),
  )
  return Theory(
    gamma=gamma, width=width, case=case, layer_names=tree.names(params)
  )


def _checked(cohort, num_clients):
  cohort = checks.array("cohort", cohort)
  if (
    cohort.ndim != 1
    or not len(cohort)
    or not np.issubdtype(cohort.dtype, np.integer)
    or not np.isin(cohort, np.arange(num_clients)).all()
  ):
    raise ValueError(
      f"cohort is {cohort}; it must list clients 0 … {num_clients - 1}"
    )
  return cohort


def _gamma(eta, low, high, low_residual, high_residual, weights, dtype):
  """Returns γ, its width and its case, [L], from spectra [B, M, L]."""
  at_low, at_high = np.abs(1 - eta * low), np.abs(1 - eta * high)
  norm = np.maximum(at_low, at_high)
  norm_above = np.maximum(
    at_low + eta * low_residual, at_high + eta * high_residual
  )
  hessian_norm = np.maximum(np.abs(low), np.abs(high))
  rounding = ULPS * (
    np.finfo(dtype).eps * eta * hessian_norm + np.finfo(np.float64).eps
  )
  average = lambda factors: weights @ factors.prod(1)
  gamma, above = average(norm), average(norm_above + rounding)
  below = average(np.maximum(norm - rounding, 0))
  return gamma, above - gamma, np.select([above < 1, below > 1], [1, 3], 2)


@functools.partial(
  jax.jit, static_argnames=("model", "fed", "size", "num_steps")
)
def _spectrum(params, clients, draws, client, *, model, fed, size, num_steps):
  """Returns λ, Λ and their residuals of one participant: [M, L, 4]."""
  examples = on_device.take(clients, client, size)

  def extremes(product, layer):
    flat = lambda v: product(v.reshape(layer.shape)).reshape(-1)
    start = jax.random.normal(jax.random.key(0), (layer.size,), layer.dtype)
    return lanczos.extreme_eigenvalues(flat, start, min(num_steps, layer.size))

  def one_step(i, iterate):
    loss = fedavg.step_loss(model, fed, examples, draws, i)
    products = hessian_products.by_layer(loss, iterate)
    layers = jax.tree.leaves(iterate)
    return jnp.array(list(map(extremes, products, layers)))

  with jax.default_matmul_precision("highest"):
    _, iterates = fedavg.local_training(model, fed)(params, examples, draws)
    return jax.vmap(one_step)(jnp.arange(fed.local_steps), iterates)


def amplification(gamma, t) -> np.ndarray:
  """Returns (1 − γ^t) / (1 − γ) of Theorem 1, which is t at γ = 1.

  Args:
    gamma: [...], >= 0.
    t: [...], rounds >= 1.

  Examples:
    >>> fi.theory.amplification([0.5, 1.0], 3).tolist()
    [1.75, 3.0]
  """
  gamma, t = checks.array("gamma", gamma), checks.array("t", t)
  checks.at_least("gamma", gamma, 0)
  checks.at_least("t", t, 1)
  excess = np.asarray(gamma, np.float64) - 1
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    growth = np.expm1(t * np.log1p(excess)) / excess
  return np.where(excess == 0, t, growth)


def fip_norms(eps: types.Params) -> jax.Array:
  """Returns ‖ε‖ of every removal: leaves [R, ...] -> [R].

  Examples:
    >>> fi.theory.fip_norms(run.exact_eps).shape
    (6,)
  """
  eps = _rows("eps", eps)
  square = lambda a: jnp.square(a).reshape(a.shape[0], -1).sum(1)
  return jnp.sqrt(sum(square(a) for a in jax.tree.leaves(eps)))


def new_error(exact: types.Params, one_step: types.Params) -> jax.Array:
  r"""Returns the error that a round adds, the o(C) of Theorem 1, [R].

      ‖ε_t^* − M_t ε_{t-1}^* − (w_t(C_t → C_t \ r) − w_t)‖

  Args:
    exact: ε_t^*, the exact FIP after the round, leaves [R, ...].
    one_step: an estimator's ε_t, started from the exact ε_{t-1}^*; see
      `simulation.from_exact`.

  Examples:
    >>> fi.theory.new_error(run.exact_eps, run.exact_eps).tolist()[:2]
    [0.0, 0.0]
  """
  exact, one_step = _rows("exact", exact), _rows("one_step", one_step)
  form = lambda tree: jax.tree.map(jnp.shape, tree)
  if form(exact) != form(one_step):
    raise ValueError("exact and one_step differ in their layers or shapes")
  return fip_norms(jax.tree.map(jnp.subtract, exact, one_step))


def _rows(name, eps):
  """Returns ε as arrays, leaves [R, ...]."""
  leaves, treedef = jax.tree.flatten(eps)
  leaves = [
    a if isinstance(a, jax.Array) else jnp.asarray(checks.array(name, a))
    for a in leaves
  ]
  rows = {a.shape[:1] for a in leaves}
  if len(rows) != 1 or rows & {(), (0,)}:
    raise ValueError(f"{name} must have leaves [R, ...], with one R for all")
  return jax.tree.unflatten(treedef, leaves)


def theorem2_bound(gamma, C):
  """Returns γC: without sequential influence the error is at most γC + o(C).

  Args:
    gamma: γ.
    C: the largest ‖ε_t^*‖, `fip_norms(...).max()`.

  Examples:
    >>> float(fi.theory.theorem2_bound(gamma=1.5, C=2.0))
    3.0
  """
  gamma, C = checks.array("gamma", gamma), checks.array("C", C)
  checks.at_least("gamma", gamma, 0)
  checks.at_least("C", C, 0)
  return gamma * C
