"""What every client of a wave does, as one vmapped computation."""

from collections.abc import Callable
import functools
from typing import Any

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import rng
from fedinf_jax.data import on_device


def over_wave(
  function: Callable, sizes: tuple[int, ...], operand_axis=None
) -> Callable:
  """Vmaps what one client does over the clients of a wave.

  Args:
    function: (operand, examples, draws) -> result, of one client.
    sizes: examples of the size classes.
    operand_axis: None: all clients share the operand; 0: each has its own.

  Returns:
    call(operand, clients, root, round_, wave [G], size_class) -> results,
    leaves [G, ...].
  """

  def of_size(size, operand, clients, root, round_, wave):
    slices = [on_device.take(clients, client, size) for client in wave]
    examples = jax.tree.map(lambda *lanes: jnp.stack(lanes), *slices)
    draws = rng.Draws(root, round_, clients.words[wave])
    of_axes: Any = rng.Draws
    per_lane = of_axes(None, None, 0)
    axes = operand_axis, 0, per_lane
    return jax.vmap(function, axes)(operand, examples, draws)

  def call(operand, clients, root, round_, wave, size_class):
    branches = [functools.partial(of_size, size) for size in sizes]
    return lax.switch(
      size_class, branches, operand, clients, root, round_, wave
    )

  return call
