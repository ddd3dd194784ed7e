"""Guards (Section 4.1): when sequential influence is dropped.

Layer-wise examination and truncation (LWET): a layer whose sequential
influence grows is in Case 3 of Theorem 1, and its error would grow with it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Guard(NamedTuple):
  """A rule; use `no_guard` or `lwet`."""

  per: str | None  # "layer", "participant", or None: never
  tolerance: float | None  # relative growth that rounding may explain


def no_guard() -> Guard:
  """Keeps everything that is finite."""
  return Guard(None, None)


def lwet(*, per: str = "layer", tolerance: float | None = None) -> Guard:
  """Drops for good what once grew.

  Args:
    per: "layer": a removal's layer, once ‖(Mε)_(j)‖ > ‖ε_(j)‖. "participant": a
      participant's term in it, once ‖(P_kε)_(j)‖ > ‖ε_(j)‖ (the paper's
      fine-grained version).
    tolerance: growth that is forgiven; None: 16 units in the last place.
  """
  if per not in ("layer", "participant"):
    raise ValueError(f'per is {per!r}; it must be "layer" or "participant"')
  if tolerance is not None and not 0 <= tolerance < float("inf"):
    raise ValueError(f"tolerance is {tolerance}; it must be finite and >= 0")
  return Guard(per, tolerance)


def grows(guard: Guard, gain: jax.Array, square: jax.Array) -> jax.Array:
  """Returns where ‖Pε‖ exceeds ‖ε‖ by more than the tolerance.

  Args:
    guard: the rule.
    gain: ‖Pε‖² − ‖ε‖², as ‖d‖² − 2εᵀd with d = ε − Pε.
    square: ‖ε‖².
  """
  tolerance = guard.tolerance
  if tolerance is None:
    tolerance = 16 * float(jnp.finfo(gain.dtype).eps)
  return gain > (2 + tolerance) * tolerance * square
