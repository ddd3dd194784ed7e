"""Which devices a recipe asks for."""

import jax

from fedinf_jax import sharding


def mesh(wanted) -> jax.sharding.Mesh | None:
  """Reads "auto", "none", a number of devices N, or N × M as "NxM".

  N devices share the removals; of N × M, M share the parameters of each.
  """
  wanted, there = str(wanted), jax.device_count()
  if wanted == "auto":
    return sharding.resolve("auto")
  if wanted == "none":
    if jax.process_count() > 1:
      raise ValueError("mesh is 'none'; several processes need one: 'auto'")
    return None
  parts = wanted.split("x")
  if len(parts) > 2 or not all(p.isdecimal() and int(p) for p in parts):
    raise ValueError(
      f'mesh is {wanted!r}; it must be "auto", "none", a number of devices or,'
      ' to cut parameters as well, two: "4x2"'
    )
  removals, params = int(parts[0]), int(parts[1]) if len(parts) == 2 else 1
  if removals * params > there:
    raise ValueError(f"mesh is {wanted!r}; there are {there} devices")
  if jax.process_count() > 1 and removals * params < there:
    raise ValueError(
      f"mesh is {wanted!r}; several processes use all of their {there} devices"
    )
  return sharding.grid(jax.devices()[: removals * params], params)
