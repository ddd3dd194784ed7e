"""What gradient descent makes of eigenvalues, and gentler ways than its own.

A step of gradient descent multiplies an eigenvector whose eigenvalue is x = ηs
by 1 − x; a spectrum f multiplies it by f(x) instead. m equal steps take
1 − f(x)^m of it away.
"""

import functools

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax.linalg import lanczos

# 1 − f(x): what a step takes away. None is gradient descent itself. Negative
# curvature would expand; the others leave it alone.
SPECTRA = {
  None: lambda x: x,
  "clip": lambda x: jnp.clip(x, 0, 2),
  "relu": lambda x: jnp.clip(x, 0, 1),
  "exp": lambda x: -jnp.expm1(-jnp.maximum(x, 0)),
  "implicit": lambda x: jnp.maximum(x, 0) / (1 + jnp.maximum(x, 0)),
}
# The largest 1 − f(x): what each promises. Above 2, a step expands.
BOUNDS = {None: None, "clip": 2.0, "relu": 1.0, "exp": 1.0, "implicit": 1.0}
TAYLOR = 8  # Terms of the exponential's series, for arguments below 1/2.

matmul = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def taken_away(x: jax.Array, spectrum: str | None, power: int) -> jax.Array:
  """Returns 1 − f(x)^power."""
  away = SPECTRA[spectrum](x)
  return away if power == 1 else 1 - (1 - away) ** power


def ratio(x: jax.Array, spectrum: str | None, power: int) -> jax.Array:
  """Returns (1 − f(x)^power) / x, and its limit `power` at 0."""
  tiny = jnp.finfo(x.dtype).tiny
  away = taken_away(x, spectrum, power)
  return jnp.where(x > tiny, away / jnp.maximum(x, tiny), power)


def core(gram: jax.Array, spectrum: str | None, power: int) -> jax.Array:
  """Returns C = (1 − f(X)^power) X⁻¹ of a Gram matrix X = GGᵀ, [S, S].

  Then I − GᵀCG is f(GᵀG)^power. By products alone where that is possible:
  an eigendecomposition of a few hundred rows takes as long as a whole round.
  """
  if spectrum is None:
    return _series(gram, power)
  if spectrum == "exp":
    return _exponential(gram, power)
  by_eigenvalues = lambda x: _by_eigenvalues(x, spectrum, power)
  if spectrum not in ("relu", "clip"):
    return by_eigenvalues(gram)
  # Up to its bound, the spectrum is gradient descent itself.
  return lax.cond(
    _largest(gram) <= BOUNDS[spectrum],
    lambda x: _series(x, power),
    by_eigenvalues,
    gram,
  )


def _largest(matrix):
  """Bounds the largest eigenvalue: Gershgorin's circles, Frobenius' norm."""
  circles = jnp.abs(matrix).sum(-1).max()
  return jnp.minimum(circles, jnp.linalg.norm(matrix))


def _series(x, power):
  """Returns Σ_{i < power} (I − X)^i."""
  eye = jnp.eye(len(x), dtype=x.dtype)
  total = eye
  for _ in range(power - 1):
    total = eye + total - matmul(x, total)
  return total


def _exponential(x, power):
  """Returns (1 − e^(−power X)) X⁻¹, by scaling and doubling.

  With φ(A) = (e^A − 1) A⁻¹: φ(2A) = φ(A) (e^A + 1) / 2.
  """
  eye = jnp.eye(len(x), dtype=x.dtype)
  doublings = jnp.ceil(jnp.log2(jnp.maximum(2 * power * _largest(x), 1)))
  a = -(power / 2**doublings) * x
  phi = eye
  for j in range(TAYLOR, 1, -1):
    phi = eye + matmul(a, phi) / j

  def double(_, carry):
    phi, exponential = carry
    phi = matmul(phi, exponential + eye) / 2
    return phi, matmul(exponential, exponential)

  start = phi, eye + matmul(a, phi)
  phi, _ = lax.fori_loop(0, doublings.astype(jnp.int32), double, start)
  return power * phi


def _by_eigenvalues(x, spectrum, power):
  values, u = lanczos.eigh(x)
  return matmul(u * ratio(values, spectrum, power)[None], u.T)
