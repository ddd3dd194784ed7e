"""How participants are dealt out to devices, and what they send to all."""

import math
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import curvature
from fedinf_jax import sharding
from fedinf_jax import types


class Heard(NamedTuple):
  """What some participants have sent."""

  local: types.Params  # w_{t,m}^k, leaves [b, ...]
  iterates: types.Params | None  # leaves [b, M, ...], where they are asked for
  uploads: dict  # by key of curvature
  grams: dict  # by name of estimator
  finite: jax.Array  # int32 [b], 0 or 1


def deal(mesh, waves, size_class, nobody):
  """Arranges waves so that each device's part has large and small clients."""
  if mesh is None:
    return waves, size_class
  order = sharding.dealt(mesh, len(waves))
  empty = len(order) - len(waves)
  waves = jnp.pad(waves, ((0, empty), (0, 0)), constant_values=nobody)
  return waves[order], jnp.pad(size_class, (0, empty))[order]


def publish(heard, params, shape, layout):
  """Gives every device what participants have sent: its columns, or all.

  Args:
    heard: of all devices, each its own participants.
    params: a model, for the shapes.
    shape: waves and lanes that there are to hear.
    layout: what lies where.

  Returns:
    The same, in the order of the waves.
  """
  mesh = layout.mesh
  if mesh is None:
    return heard
  num_waves, lanes = shape
  axes = (sharding.REMOVALS,) if layout.columns else sharding.ALL
  by = sharding.Spec(axes)
  if layout.columns:
    # First the devices along `params` exchange columns; the compiler would not
    # find this way by itself.
    cut = sharding.column_specs(mesh, params, sharding.Spec(axes, None, None))
    lie = jax.tree.map(lambda _: by, heard)
    for key, report in heard.uploads.items():
      if isinstance(report, curvature.Rows):
        lie.uploads[key] = lie.uploads[key]._replace(rows=cut)
    heard = sharding.constrain(mesh, heard, lie)

  # Where each participant belongs; those of empty waves nowhere. Summed and not
  # gathered: with more devices than participants, most have nothing to say.
  order = sharding.dealt(mesh, num_waves)
  places = order[:, None] * lanes + np.arange(lanes)

  def publish(heard):
    parts = math.prod(mesh.shape[a] for a in axes)
    own = jnp.asarray(places.reshape(parts, -1))[lax.axis_index(axes)]

    def one(a):
      all_ = jnp.zeros((num_waves * lanes, *a.shape[1:]), a.dtype)
      return lax.psum(all_.at[own].set(a, mode="drop"), axes)

    return jax.tree.map(one, heard)

  return sharding.split(publish, mesh, axes, (by,), sharding.WHOLE)(heard)
