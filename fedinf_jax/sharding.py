"""How a run is spread over devices: a mesh of removals × parameters.

Rows (ε, guard flags, replayed models: one for each removal) are cut along
`removals`. Where uploads have a column for each parameter, ε and uploads are
cut along `params`, too; all else has its rows spread over both axes.
Participants train on all devices. `None` instead of a mesh is one device.
"""

from collections.abc import Callable
import functools
import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

Spec = jax.sharding.PartitionSpec

REMOVALS, PARAMS = "removals", "params"
ALL = (REMOVALS, PARAMS)
ROWS = Spec(ALL)  # Rows over all devices.
WHOLE = Spec()  # The same on every device.


class Layout(NamedTuple):
  """What lies where."""

  mesh: jax.sharding.Mesh | None
  num_rows: int  # of every estimator: removals, and nobody to fill up with
  columns: frozenset[str] = frozenset()  # estimators cut along `params`, too
  own_data: bool = False  # a device has the clients that train on it, no others

  def axes(self, name: str) -> tuple[str, ...]:
    """Returns the axes that an estimator's rows are spread over."""
    return (REMOVALS,) if name in self.columns else ALL

  def rows_each(self, name: str) -> int:
    """Returns how many rows of an estimator a device has."""
    if self.mesh is None:
      return self.num_rows
    return self.num_rows // math.prod(
      self.mesh.shape[a] for a in self.axes(name)
    )

  def own_rows(self, name: str, rows):
    """Within `split`: numbers of rows as the device counts its own.

    Rows of other devices get the first number that is not taken.
    """
    if self.mesh is None:
      return rows
    count = self.rows_each(name)
    own = rows - lax.axis_index(self.axes(name)) * count
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


def grid(devices, along_params: int) -> jax.sharding.Mesh:
  """Arranges devices as a mesh with so many along `params`."""
  return jax.sharding.Mesh(np.reshape(devices, (-1, along_params)), ALL)


def num_devices(mesh) -> int:
  """Returns how many devices there are to share the work."""
  return 1 if mesh is None else mesh.size


def padded(number: int, mesh) -> int:
  """Rounds a number of rows up to a multiple of the devices."""
  return -(-number // num_devices(mesh)) * num_devices(mesh)


def dealt(mesh, number: int) -> np.ndarray:
  """Deals out things like cards: the order in which parts of them are equal.

  Numbers beyond the last fill up.
  """
  return np.arange(padded(number, mesh)).reshape(-1, mesh.size).T.ravel()


def split(function: Callable, mesh, axes, in_specs, out_specs) -> Callable:
  """Lets each device run `function` on its own part.

  Args:
    function: sees the rows of one device as if they were all.
    mesh: None: the function itself.
    axes: the axes that the parts are along.
    in_specs: of the arguments, `Spec(axes)` or WHOLE, prefixes of their trees.
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
  """Says within a program where arrays are to lie (specs: a prefix)."""
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
  """Returns `before` and PARAMS for the leaves whose first axis can be cut.

  The others, such as biases with fewer numbers than devices, stay whole.
  """
  parts = mesh.shape[PARAMS]

  def spec(a):
    cut = a.ndim > 0 and parts > 1 and a.shape[0] % parts == 0
    return Spec(*before, PARAMS) if cut else before

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
  """Makes arrays with a row for each device, each process its devices' own.

  Args:
    mesh: the devices, in the order of their rows.
    make: (number of a device) -> arrays of one shape on all devices.
  """
  lie = jax.sharding.NamedSharding(mesh, ROWS)
  own = [
    i
    for i, device in enumerate(mesh.devices.flat)
    if device.process_index == jax.process_index()
  ]
  made = [make(i) for i in own]
  return [
    jax.make_array_from_single_device_arrays(
      (mesh.size, *parts[0].shape),
      lie,
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


def whole(tree):
  """Returns small arrays in full on every device: hosts can read them."""
  mesh = mesh_of(tree)
  return tree if mesh is None else _gather(mesh)(tree)


@functools.lru_cache(maxsize=8)
def _gather(mesh):
  everywhere = jax.sharding.NamedSharding(mesh, WHOLE)
  return jax.jit(lambda tree: tree, out_shardings=everywhere)
