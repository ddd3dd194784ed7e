"""How a run is distributed over devices: a mesh of removals × parameters.

What has a row per removal (ε, guard flags, replayed models) is split along
`removals`. Where reports have a column per parameter, ε and reports are split
along `params`, too; all else has its removals distributed over both axes.
Participants train on all devices. `None` instead of a mesh is one device.
"""

from collections.abc import Callable
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

Spec = jax.sharding.PartitionSpec

REMOVALS, PARAMS = "removals", "params"
ALL = (REMOVALS, PARAMS)
# Any: a specification stands for all arrays of a tree, or for one.
SPLIT: Any = Spec(ALL)  # The first axis over all devices.
REPLICATED: Any = Spec()  # The same on every device.


class Layout(NamedTuple):
  """What lies where."""

  mesh: jax.sharding.Mesh | None
  num_removals: int  # of every estimator, padded to a multiple of the devices
  columns: frozenset[str] = frozenset()  # estimators split along `params`, too
  own_data: bool = False  # a device has the clients that train on it, no others

  def axes(self, name: str) -> tuple[str, ...]:
    """Returns the axes that an estimator's removals are distributed over."""
    return (REMOVALS,) if name in self.columns else ALL

  def removals_each(self, name: str) -> int:
    """Returns how many removals of an estimator a device has."""
    if self.mesh is None:
      return self.num_removals
    return self.num_removals // math.prod(
      self.mesh.shape[a] for a in self.axes(name)
    )

  def own_removals(self, name: str, numbers):
    """Within `per_device`: numbers of removals as the device counts its own.

    Those of other devices get the first number that is not taken.
    """
    if self.mesh is None:
      return numbers
    count = self.removals_each(name)
    own = numbers - lax.axis_index(self.axes(name)) * count
    return jnp.where((own >= 0) & (own < count), own, count)


def resolve(mesh) -> jax.sharding.Mesh | None:
  """Reads a mesh as users give it.

  Args:
    mesh: None: one device; "auto": all devices along `removals`, if there are
      several; or a Mesh with an axis `removals` and, if wanted, one `params`.

  Returns:
    A mesh with both axes, left to the compiler where we do not say otherwise.
  """
  if mesh is None:
    return None
  if isinstance(mesh, str) and mesh == "auto":
    if jax.device_count() == 1:
      return None
    return grid(jax.devices(), 1)
  if not isinstance(mesh, jax.sharding.Mesh):
    raise ValueError(f'mesh is {mesh!r}; it must be None, "auto" or a Mesh')
  if mesh.axis_names == ALL:
    return jax.sharding.Mesh(mesh.devices, ALL)
  if mesh.axis_names == (REMOVALS,):
    return grid(mesh.devices, 1)
  raise ValueError(
    f"mesh has axes {mesh.axis_names}; it must have ({REMOVALS!r},) or {ALL}"
  )


def parse_shape(wanted) -> tuple[int, int]:
  """Reads "auto", "none", a number of devices N, or N × M as "NxM".

  N devices hold the removals; of N × M, M hold the parameters of each.
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


def parse(wanted) -> jax.sharding.Mesh | None:
  """Returns the mesh that a recipe asks for; None: one device."""
  removals, params = parse_shape(wanted)
  count, there = removals * params, jax.device_count()
  if count > there:
    raise ValueError(f"mesh is {wanted!r}; there are {there} devices")
  if jax.process_count() > 1 and count < there:
    raise ValueError(
      f"mesh is {wanted!r}; several processes use all of their {there} devices"
    )
  if count == 1:
    return None
  return grid(jax.devices()[:count], params)


def grid(devices, along_params: int) -> jax.sharding.Mesh:
  """Arranges devices as a mesh with so many along `params`."""
  return jax.sharding.Mesh(np.reshape(devices, (-1, along_params)), ALL)


def num_devices(mesh) -> int:
  """Returns how many devices there are."""
  return 1 if mesh is None else mesh.size


def padded(number: int, mesh) -> int:
  """Rounds a number of removals up to a multiple of the devices."""
  return -(-number // num_devices(mesh)) * num_devices(mesh)


def dealing_order(mesh, number: int) -> np.ndarray:
  """Deals things out like cards: the order in which devices' parts follow.

  Numbers beyond the last are padding.
  """
  return np.arange(padded(number, mesh)).reshape(-1, mesh.size).T.ravel()


def per_device(function: Callable, mesh, axes, in_specs, out_specs) -> Callable:
  """Lets each device run `function` on its own part.

  Args:
    function: sees the removals of one device as if they were all.
    mesh: None: the function itself.
    axes: the axes that the parts are along.
    in_specs: of the arguments, `Spec(axes)` or REPLICATED: prefixes of their
      trees.
    out_specs: of the results.
  """
  if mesh is None:
    return function
  return jax.shard_map(
    function,
    mesh=mesh,
    in_specs=in_specs,
    out_specs=out_specs,
    axis_names=set(axes),
    check_vma=False,
  )


def constrain(mesh, tree, specs):
  """Fixes within a program where arrays lie (specs: a prefix)."""
  if mesh is None:
    return tree
  return jax.tree.map(
    lambda spec, part: jax.tree.map(
      lambda a: lax.with_sharding_constraint(
        a, jax.sharding.NamedSharding(mesh, spec)
      ),
      part,
    ),
    specs,
    tree,
    is_leaf=lambda s: isinstance(s, Spec),
  )


def column_specs(mesh, params, before: Spec):
  """Returns `before` and PARAMS for the leaves whose first axis can be split.

  The others, such as biases with fewer numbers than devices, stay whole.
  """
  parts = mesh.shape[PARAMS]

  def spec(a):
    divides = a.ndim > 0 and parts > 1 and a.shape[0] % parts == 0
    return Spec(*before, PARAMS) if divides else before

  return jax.tree.map(spec, params)


def shardings(mesh, specs):
  """Returns the specs as what `jit` wants."""
  return jax.tree.map(
    lambda spec: jax.sharding.NamedSharding(mesh, spec),
    specs,
    is_leaf=lambda s: isinstance(s, Spec),
  )


def put(mesh, tree, specs):
  """Puts arrays that every process has on the devices (specs: a prefix).

  Each process hands out its own devices' parts only.
  """
  if mesh is None:
    return jax.tree.map(jnp.asarray, tree)

  def place(sharding, part):
    def one(a):
      if isinstance(a, jax.Array) and a.sharding == sharding:
        return a
      if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(one(jax.random.key_data(a)))
      a = np.asarray(a, jax.dtypes.canonicalize_dtype(a.dtype))
      return jax.make_array_from_callback(a.shape, sharding, lambda i: a[i])

    return jax.tree.map(one, part)

  return jax.tree.map(place, shardings(mesh, specs), tree)


def by_device(mesh, make):
  """Makes arrays with a row per device, each process its devices' own.

  Args:
    mesh: the devices, in the order of their rows.
    make: (number of a device) -> arrays of one shape on all devices.
  """
  sharding = jax.sharding.NamedSharding(mesh, SPLIT)
  own = [
    i
    for i, device in enumerate(mesh.devices.flat)
    if device.process_index == jax.process_index()
  ]
  made = [make(i) for i in own]
  return [
    jax.make_array_from_single_device_arrays(
      (mesh.size, *parts[0].shape),
      sharding,
      [
        jax.device_put(part[None], mesh.devices.flat[i])
        for i, part in zip(own, parts, strict=True)
      ],
    )
    for parts in zip(*made, strict=True)
  ]


def mesh_of(tree) -> jax.sharding.Mesh | None:
  """Returns the mesh that arrays lie on; None: one device."""
  leaf = jax.tree.leaves(tree)[0]
  if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
    return None
  return getattr(leaf.sharding, "mesh", None)


def replicate(tree):
  """Returns small arrays in full on every device: hosts can read them."""
  mesh = mesh_of(tree)
  return tree if mesh is None else _gather(mesh)(tree)


@functools.lru_cache(maxsize=8)
def _gather(mesh):
  everywhere = jax.sharding.NamedSharding(mesh, REPLICATED)
  return jax.jit(lambda tree: tree, out_shardings=everywhere)
