"""The theory of one round (Theorems 1 and 2): how much an error grows."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg
from fedinf_jax import lanczos
from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated

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
    num_steps: Lanczos steps a Hessian.
  """
  if fed.learning_rate is None:
    raise ValueError(
      "γ is that of plain gradient descent; give learning_rate, not"
      " client_optimizer"
    )
  cohort = np.asarray(cohort)
  if (
    cohort.ndim != 1
    or not np.issubdtype(cohort.dtype, np.integer)
    or not np.isin(cohort, np.arange(data.num_clients)).all()
  ):
    raise ValueError(
      f"cohort is {cohort}; it must list clients 0 … {data.num_clients - 1}"
    )
  if jnp.issubdtype(data.x.dtype, jnp.floating):
    params = tree.cast(params, data.x.dtype)  # As the run does.
  packed, root = packing.clients(data), jax.random.key(seed)

  spectra = []
  for k in cohort:
    # Rows in powers of two, so that few programs serve clients of all sizes.
    rows = max(int(data.num_examples[k]), packing.MIN_ROWS)
    size = min(1 << (rows - 1).bit_length(), len(data.x))
    spectrum = _spectrum(
      params,
      packed,
      rng.Draws(root, jnp.int32(round_), packed.words[k]),
      jnp.int32(k),
      model=model,
      fed=fed,
      size=size,
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
  gamma, width, case = _gamma(
    fed.learning_rate, *eigenvalues, counts / counts.sum(), spectra[0].dtype
  )
  return Theory(gamma, width, case, tree.names(params))


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
def _spectrum(params, packed, draws, client, *, model, fed, size, num_steps):
  """Returns λ, Λ and their residuals of one participant: [M, L, 4]."""
  examples = packing.take(packed, client, size)

  def one_step(i, iterate):
    rows = fedavg.batch(fed, examples, draws, i)
    leaves, treedef = jax.tree.flatten(iterate)

    def one_layer(j):
      def loss(w):
        moved = [*leaves[:j], w.reshape(leaves[j].shape), *leaves[j + 1 :]]
        return fedavg.step_loss(model, treedef.unflatten(moved), *rows)

      w = leaves[j].reshape(-1)
      _, hvp = jax.linearize(jax.grad(loss), w)
      start = jax.random.normal(jax.random.key(0), w.shape, w.dtype)
      return lanczos.extreme_eigenvalues(hvp, start, min(num_steps, w.size))

    return jnp.array([one_layer(j) for j in range(len(leaves))])

  with jax.default_matmul_precision("highest"):
    _, iterates = fedavg.local_training(model, fed)(params, examples, draws)
    return jax.vmap(one_step)(jnp.arange(fed.local_steps), iterates)


def amplification(gamma, t) -> np.ndarray:
  """Returns (1 − γ^t) / (1 − γ) of Theorem 1, which is t at γ = 1.

  Args:
    gamma: [...], >= 0.
    t: [...], rounds >= 1.
  """
  excess = np.asarray(gamma, np.float64) - 1
  with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
    growth = np.expm1(t * np.log1p(excess)) / excess
  return np.where(excess == 0, t, growth)


def fip_norms(eps: types.Params) -> jax.Array:
  """Returns ‖ε‖ of every removal: leaves [R, ...] -> [R]."""
  square = lambda a: jnp.square(a).reshape(a.shape[0], -1).sum(1)
  return jnp.sqrt(sum(square(a) for a in jax.tree.leaves(eps)))


def new_error(exact: types.Params, one_step: types.Params) -> jax.Array:
  r"""Returns the error that a round adds, the o(C) of Theorem 1, [R].

      ‖ε_t^* − M_t ε_{t-1}^* − (w_t(C_t → C_t \ r) − w_t)‖

  Args:
    exact: ε_t^*, the exact FIP after the round, leaves [R, ...].
    one_step: an estimator's ε_t, started from the exact ε_{t-1}^*; see
      `simulation.from_exact`.
  """
  return fip_norms(jax.tree.map(jnp.subtract, exact, one_step))


def theorem2_bound(gamma, C):
  """Returns γC: without sequential influence the error is at most γC + o(C).

  Args:
    gamma: γ.
    C: the largest ‖ε_t^*‖, `fip_norms(...).max()`.
  """
  return gamma * C
