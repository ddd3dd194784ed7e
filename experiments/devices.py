"""Which devices a recipe asks for."""

import jax

from fedinf_jax import sharding


def shape(wanted) -> tuple[int, int]:
  """Reads "auto", "none", a number of devices N, or N × M as "NxM".

  N devices share the removals; of N × M, M share the parameters of each.
  """
  wanted = str(wanted)
  if wanted == "auto":
    return jax.device_count(), 1
  if wanted == "none":
    return 1, 1
  parts = wanted.split("x")
  if len(parts) > 2 or not all(p.isdecimal() and int(p) for p in parts):
    raise ValueError(
      f'mesh is {wanted!r}; it must be "auto", "none", a number of devices or,'
      ' to cut parameters as well, two: "4x2"'
    )
  return int(parts[0]), int(parts[1]) if len(parts) == 2 else 1


def mesh(wanted) -> jax.sharding.Mesh | None:
  """Returns the mesh that a recipe asks for; None: one device."""
  removals, params = shape(wanted)
  count, there = removals * params, jax.device_count()
  if count > there:
    raise ValueError(f"mesh is {wanted!r}; there are {there} devices")
  if jax.process_count() > 1 and count < there:
    raise ValueError(
      f"mesh is {wanted!r}; several processes use all of their {there} devices"
    )
  if count == 1:
    return None
  return sharding.grid(jax.devices()[:count], params)
