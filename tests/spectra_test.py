"""Cores of spectra, by products and by eigenvalues."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedinf_jax.linalg import spectra

CASES = [
  (spectrum, scale)
  for spectrum in spectra.SPECTRA
  for scale in (0.0, 1e-6, 0.3, 5.0, 300.0)
  if spectrum or scale < 1  # Gradient descent itself would diverge.
]


@pytest.mark.parametrize(("spectrum", "scale"), CASES)
@pytest.mark.parametrize("power", [1, 2, 5])
def test_a_core_makes_its_spectrum(spectrum, scale, power):
  draw = np.random.default_rng(0)
  g = draw.normal(size=(6, 9))
  g *= np.sqrt(scale / max(np.linalg.norm(g, 2) ** 2, 1e-30))
  for dtype, tolerance in ((np.float64, 1e-10), (np.float32, 2e-5)):
    x = jnp.asarray(g @ g.T, dtype)
    core = jax.jit(spectra.core, static_argnums=(1, 2))(x, spectrum, power)
    made = np.eye(9) - g.T @ np.asarray(core, np.float64) @ g
    values, u = np.linalg.eigh(g.T @ g)
    away = np.asarray(spectra.taken_away(jnp.asarray(values), spectrum, power))
    expected = np.eye(9) - (u * away) @ u.T
    np.testing.assert_allclose(made, expected, atol=tolerance)
