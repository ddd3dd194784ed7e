"""Products with a Hessian, without the Hessian."""

from collections.abc import Callable

import jax


def by_layer(loss: Callable, w) -> list[Callable]:
  """Returns v -> H_(j) v of each layer j at w: no other layer moves.

  Args:
    loss: w -> [].
    w: a pytree; a layer is a leaf.
  """
  leaves, treedef = jax.tree.flatten(w)

  def product(j):
    def loss_of_layer(leaf):
      return loss(
        jax.tree.unflatten(treedef, [*leaves[:j], leaf, *leaves[j + 1 :]])
      )

    return jax.linearize(jax.grad(loss_of_layer), leaves[j])[1]

  return [product(j) for j in range(len(leaves))]
