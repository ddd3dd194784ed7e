"""Lanczos against dense eigenvalues, where it is easy and where it is not."""

import functools

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

from fedinf_jax.linalg import lanczos

P = 24


def with_spectrum(eigenvalues, seed=0):
  draw = np.random.default_rng(seed)
  q, _ = np.linalg.qr(draw.normal(size=(len(eigenvalues),) * 2))
  return (q * eigenvalues) @ q.T


DRAW = np.random.default_rng(1)
SPECTRA = {
  "indefinite": DRAW.normal(size=P),
  "definite": DRAW.uniform(1, 9, P),
  "negative": -DRAW.uniform(1, 9, P),
  "low_rank": np.append([3.0, -2.0, 0.5], np.zeros(P - 3)),
  "zero": np.zeros(P),
  "identity": np.full(P, 4.0),
  "clustered": np.append(1 + 1e-9 * np.arange(P - 3), [5.0, 5 + 1e-7, -1]),
  "graded": 10.0 ** -np.arange(P),
  "huge": 1e12 * DRAW.normal(size=P),
  "tiny": 1e-12 * DRAW.normal(size=P),
  "alone": np.array([-7.0]),
  "nothing": np.zeros(1),
}
# How many directions there are to find, where rounding leaves no doubt.
DISTINCT = {"indefinite": P, "low_rank": 4, "zero": 1, "identity": 1}
DTYPES = (np.float32, np.float64)


def case(name, dtype):
  """A matrix [P, P], its eigenvalues, a start and the size of rounding."""
  a = with_spectrum(SPECTRA[name])
  a = ((a + a.T) / 2).astype(dtype)
  start = np.random.default_rng(2).normal(size=len(a)).astype(dtype)
  exact = np.linalg.eigvalsh(a.astype(np.float64))
  return a, exact, start, 32 * np.finfo(dtype).eps * np.abs(exact).max()


def multiply(a):
  return lambda v: jnp.matmul(a, v, precision=lax.Precision.HIGHEST)


@functools.partial(jax.jit, static_argnums=2)
def basis(a, start, num_steps):
  return lanczos.lanczos(multiply(a), start, num_steps)


@functools.partial(jax.jit, static_argnums=2)
def extremes(a, start, num_steps):
  return lanczos.extreme_eigenvalues(multiply(a), start, num_steps)


@functools.partial(jax.jit, static_argnums=(2, 3))
def largest(a, start, rank, num_steps):
  return lanczos.largest_eigenpairs(multiply(a), start, rank, num_steps)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_the_basis_is_orthonormal_and_tridiagonalises(name, dtype):
  a, _, start, rounding = case(name, dtype)
  q, alpha, beta = (np.asarray(r) for r in basis(a, start, P + 6))
  assert q.dtype == alpha.dtype == beta.dtype == dtype
  real = np.append(True, beta[:-1] > 0)
  assert (np.diff(real.astype(int)) <= 0).all()
  assert real.sum() == DISTINCT.get(name, real.sum()) <= len(a)
  gram = q.astype(np.float64) @ q.T
  np.testing.assert_allclose(gram, np.diag(real), atol=30 * np.finfo(dtype).eps)
  assert not q[~real].any() and not alpha[~real].any() and beta[-1] == 0
  t = np.diag(alpha) + np.diag(beta[:-1], 1) + np.diag(beta[:-1], -1)
  np.testing.assert_allclose(q @ a @ q.T, t, atol=rounding)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_an_exhausted_space_has_the_extreme_eigenvalues(name, dtype):
  a, exact, start, rounding = case(name, dtype)
  low, high, low_residual, high_residual = extremes(a, start, P + 6)
  np.testing.assert_allclose(low, exact[0], atol=rounding)
  np.testing.assert_allclose(high, exact[-1], atol=rounding)
  assert low_residual == high_residual == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_steps", [1, 6])
@pytest.mark.parametrize("name", ["indefinite", "low_rank", "clustered"])
def test_residuals_bound_the_distance_to_an_eigenvalue(name, num_steps, dtype):
  a, exact, start, rounding = case(name, dtype)
  low, high, *residuals = extremes(a, start, num_steps)
  assert exact[0] - rounding <= low <= high <= exact[-1] + rounding
  for theta, residual in zip((low, high), residuals, strict=True):
    assert np.abs(exact - theta).min() <= residual + rounding
  if num_steps == 1:
    v = start / np.linalg.norm(start)
    np.testing.assert_allclose(low, v @ a @ v, atol=rounding)
    np.testing.assert_allclose(
      residuals[0], np.linalg.norm(a @ v - low * v), atol=rounding
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_largest_eigenpairs(name, dtype):
  rank = P + 9
  a, exact, start, rounding = case(name, dtype)
  values, vectors = (np.asarray(r) for r in largest(a, start, rank, P + 6))
  assert values.shape == (rank,) and vectors.shape == (rank, len(a))
  found = vectors.any(1)
  np.testing.assert_allclose(
    vectors.astype(np.float64) @ vectors.T,
    np.diag(found),
    atol=50 * np.finfo(dtype).eps,
  )
  assert not values[~found].any()
  assert (np.diff(np.abs(values)) <= 0).all()
  np.testing.assert_allclose(
    vectors @ a, values[:, None] * vectors, atol=rounding
  )
  if name in ("identity", "clustered"):  # One direction of each eigenspace.
    np.testing.assert_allclose(
      np.abs(values[0]), np.abs(exact).max(), atol=rounding
    )
  else:
    expected = np.zeros(rank)
    ordered = exact[np.argsort(-np.abs(exact))][:rank]
    expected[: len(ordered)] = np.abs(ordered)
    np.testing.assert_allclose(np.abs(values), expected, atol=rounding)


def test_unconverged_eigenpairs_are_those_of_the_space():
  # Eigenvalues that stand out come first, long before the space is exhausted.
  eigenvalues = np.append(np.linspace(0, 1, 197), [-30, 20, 10])
  a = with_spectrum(eigenvalues)
  start = np.random.default_rng(2).normal(size=200)
  values, vectors = largest(a, start, 3, 16)
  np.testing.assert_allclose(values, [-30, 20, 10], rtol=1e-9)
  np.testing.assert_allclose(vectors @ a, values[:, None] * vectors, atol=1e-5)


def test_vmap_equals_one_by_one():
  matrices, _, starts, _ = zip(
    *(case(n, np.float64) for n in ("indefinite", "zero", "low_rank")),
    strict=True,
  )
  many = jax.vmap(lambda a, s: extremes(a, s, 6))(
    np.stack(matrices), np.stack(starts)
  )
  for i, (a, start) in enumerate(zip(matrices, starts, strict=True)):
    one = extremes(a, start, 6)
    np.testing.assert_allclose([r[i] for r in many], one, atol=1e-12)


def test_what_is_not_finite_stays_so():
  a = with_spectrum(SPECTRA["definite"])
  a[3, 5] = np.nan
  assert np.isnan(extremes(a, np.ones(P), 6)).any()
