"""How participants are dealt out to devices, and what they send to all."""

import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import types
from fedinf_jax.linalg import low_rank
from fedinf_jax.simulation import devices


class Received(NamedTuple):
  """What b participants have sent."""

  local: types.Params  # w_{t,m}^k, leaves [b, ...]
  iterates: types.Params | None  # leaves [b, M, ...], for interactive ones
  reports: dict  # by key of curvature
  prepared: dict  # by name of estimator
  finite: jax.Array  # int32 [b], 0 or 1


def deal(mesh, waves, size_class, nobody):
  """Arranges waves so that each device's part has large and small clients."""
  if mesh is None:
    return waves, size_class
  order = devices.dealing_order(mesh, len(waves))
  empty = len(order) - len(waves)
  waves = jnp.pad(waves, ((0, empty), (0, 0)), constant_values=nobody)
  return waves[order], jnp.pad(size_class, (0, empty))[order]


def publish(received: Received, params, waves_shape, layout: devices.Layout):
  """Gives every device what participants have sent: its columns, or all.

  Args:
    received: of all devices, each its own participants.
    params: a model, for the shapes.
    waves_shape: number of waves, and of lanes in each.
    layout: what lies where.

  Returns:
    The same, in the order of the waves.
  """
  mesh = layout.mesh
  if mesh is None:
    return received
  num_waves, lanes = waves_shape
  axes = (devices.REMOVALS,) if layout.columns else devices.ALL
  if layout.columns:
    received = _exchange_columns(received, params, mesh, axes)
  # Where each participant belongs; those of empty waves nowhere. Summed and not
  # gathered: with more devices than participants, most have nothing to send.
  order = devices.dealing_order(mesh, num_waves)
  places = order[:, None] * lanes + np.arange(lanes)

  def sum_up(received):
    parts = math.prod(mesh.shape[a] for a in axes)
    own = jnp.asarray(places.reshape(parts, -1))[lax.axis_index(axes)]

    def one(a):
      all_ = jnp.zeros((num_waves * lanes, *a.shape[1:]), a.dtype)
      return lax.psum(all_.at[own].set(a, mode="drop"), axes)

    return jax.tree.map(one, received)

  specs = (devices.Spec(axes),), devices.REPLICATED
  return devices.per_device(sum_up, mesh, axes, *specs)(received)


def _exchange_columns(received, params, mesh, axes):
  """Lets the devices along `params` exchange columns of rows first.

  The compiler would not find this way by itself.
  """
  by = devices.Spec(axes)
  columns = devices.column_specs(mesh, params, devices.Spec(axes, None, None))
  specs = jax.tree.map(lambda _: by, received)
  for key, report in received.reports.items():
    if isinstance(report, low_rank.Rows):
      specs.reports[key] = specs.reports[key]._replace(rows=columns)
  return devices.constrain(mesh, received, specs)
