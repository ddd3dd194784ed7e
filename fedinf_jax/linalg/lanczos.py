"""Eigenvalues of a symmetric matrix that is known by its products only."""

from collections.abc import Callable

import jax
from jax import lax
import jax.numpy as jnp

Matvec = Callable[[jax.Array], jax.Array]  # [P] -> [P], linear and symmetric

ULPS = 10  # Of ‖A‖: what is left of A q below this is rounding, no direction.


def eigh(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Returns eigenvalues and eigenvectors of one symmetric matrix [n, n].

  On a processor, matrices of a batch follow one another. Together, jaxlib's
  kernel gives parts of them to XLA's thread pool and waits for these on a
  thread of that pool: several devices that do so at once wait for ever.
  """
  if jax.default_backend() != "cpu":
    return tuple(jnp.linalg.eigh(matrix))
  return _eigh_alone(matrix)


@jax.custom_batching.sequential_vmap
def _eigh_alone(matrix):
  return tuple(jnp.linalg.eigh(matrix))


def lanczos(
  matvec: Matvec, start: jax.Array, num_steps: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Builds an orthonormal basis of the Krylov space of A and `start`.

      A q_i = β_{i-1} q_{i-1} + α_i q_i + β_i q_{i+1}

  Every q is orthogonalised against all before it, twice. Once the space is
  exhausted (β = 0), all further q, α and β are zero.

  Args:
    matvec: v -> A v.
    start: [P], not zero; a random one meets every eigenvalue.
    num_steps: n; may exceed P.

  Returns:
    basis [n, P] with rows q_i; alpha [n]; beta [n], whose last entry couples
    the basis to what lies outside it.
  """

  def step(carry, i):
    basis, q, scale = carry
    basis = basis.at[i].set(q)
    image = matvec(q)
    scale = jnp.maximum(scale, jnp.linalg.norm(image))
    once = image - _dot(_dot(basis, image), basis)
    rest = once - _dot(_dot(basis, once), basis)
    beta = jnp.linalg.norm(rest)
    new = beta > ULPS * jnp.finfo(beta.dtype).eps * scale
    q_next, beta = _unit(jnp.where(new, rest, 0)), jnp.where(new, beta, 0)
    return (basis, q_next, scale), (_dot(q, image), beta)

  basis = jnp.zeros((num_steps, *start.shape), start.dtype)
  first = basis, _unit(start), jnp.zeros((), start.dtype)
  (basis, _, _), (alpha, beta) = lax.scan(step, first, jnp.arange(num_steps))
  return basis, alpha, beta


def extreme_eigenvalues(
  matvec: Matvec, start: jax.Array, num_steps: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
  """Estimates the smallest and the largest eigenvalue from within.

  Ritz values θ lie between the extreme eigenvalues, and within the residual
  |β_n s_n| = ‖A y − θ y‖ of each lies an eigenvalue (up to rounding).

  Args:
    matvec: v -> A v.
    start: [P], not zero.
    num_steps: n.

  Returns:
    low, high, low_residual, high_residual: all [].
  """
  _, beta, theta, s, count = _ritz(matvec, start, num_steps)
  residual = beta[-1] * jnp.abs(s[-1])
  return theta[0], theta[count - 1], residual[0], residual[count - 1]


def largest_eigenpairs(
  matvec: Matvec, start: jax.Array, rank: int, num_steps: int
) -> tuple[jax.Array, jax.Array]:
  """Estimates the eigenpairs of largest absolute value.

  Args:
    matvec: v -> A v.
    start: [P], not zero.
    rank: r.
    num_steps: n, best larger than r. One Krylov space sees one direction of
      each eigenspace.

  Returns:
    values [r], |values| descending; vectors [r, P], orthonormal. Both zero
    where there are fewer than r pairs.
  """
  basis, _, theta, s, count = _ritz(matvec, start, num_steps)
  found = jnp.arange(num_steps) < count
  order = jnp.argsort(jnp.where(found, -jnp.abs(theta), 1))[:rank]
  found = found[order]
  values = jnp.where(found, theta[order], 0)
  vectors = _dot(jnp.where(found, s[:, order], 0).T, basis)
  fill = max(rank - num_steps, 0)
  return jnp.pad(values, (0, fill)), jnp.pad(vectors, ((0, fill), (0, 0)))


def _ritz(matvec, start, num_steps):
  """Returns basis, β, the Ritz values θ (ascending), s, and how many are real.

  Ritz vectors are y_j = Σ_i s_ij q_i.
  """
  basis, alpha, beta = lanczos(matvec, start, num_steps)
  # The exhausted steps' own eigenvalue is put above all others (Gershgorin),
  # where none of their eigenvectors mix.
  above = 2 * jnp.abs(alpha).max() + 4 * beta.max()
  real = jnp.append(True, beta[:-1] > 0)
  alpha = jnp.where(real, alpha, jnp.where(above > 0, above, 1))
  off = jnp.diag(beta[:-1], 1)
  theta, s = eigh(jnp.diag(alpha) + off + off.T)
  return basis, beta, theta, s, real.sum()


def _unit(v):
  """Returns v / ‖v‖, and zero for zero."""
  norm = jnp.linalg.norm(v)
  return v / jnp.where(norm > 0, norm, 1)


def _dot(a, b):
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
