"""The model a user brings: four pure functions."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax

Params = Any  # A pytree of arrays; each leaf is one "layer" of the paper.


class Model(NamedTuple):
  """A model and its loss, as pure functions of a parameter pytree.

  `apply` treats the examples of a batch independently (no batch statistics):
  the rows of a batch may include other clients' examples with weight zero.

  Examples:
    >>> import jax.numpy as jnp
    >>> linear = fi.Model(
    ...   init=lambda key: {"w": jnp.zeros(4)},
    ...   apply=lambda params, x: x @ params["w"],
    ...   loss=lambda outputs, y: (outputs - y) ** 2,
    ... )
    >>> linear.apply(linear.init(jax.random.key(0)), test[0]).shape
    (40,)
    >>> linear.param_shapes()
    {'w': ShapeDtypeStruct(shape=(4,), dtype=float32)}
  """

  init: Callable[[jax.Array], Params]  # key -> params
  apply: Callable[[Params, jax.Array], jax.Array]  # params, x [N, ...]
  loss: Callable[[jax.Array, jax.Array], jax.Array]  # outputs, y -> [N]
  # key, outputs [N, ...] -> y [N], drawn from the predictive distribution.
  sample: Callable[[jax.Array, jax.Array], jax.Array] | None = None

  def param_shapes(self) -> Params:
    """Returns the shapes of the parameters, without making any."""
    return jax.eval_shape(lambda: self.init(jax.random.key(0)))
