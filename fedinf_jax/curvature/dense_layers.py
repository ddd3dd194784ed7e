"""Dense layers, whose gradients of single examples are outer products.

A kernel that multiplies one vector a of an example has the gradient a δᵀ, δ
that of the product. Products of such gradients are products of products,

    ⟨a_s δ_sᵀ, a_t δ_tᵀ⟩ = (a_s·a_t) (δ_s·δ_t),

A + B operations instead of A B. Such kernels are found in the traced program
of the model, so any model has them that multiplies by a parameter.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
from jax.extend import core
import jax.numpy as jnp

from fedinf_jax import types
from fedinf_jax.linalg import low_rank


class Outer(NamedTuple):
  """Gradients of a kernel: row s is left_s right_sᵀ."""

  left: jax.Array  # [S, A]
  right: jax.Array  # [S, B]


class PerExample(NamedTuple):
  """Gradients of S examples."""

  rows: types.Params  # leaves [S, P_j]
  outer: tuple[Outer | None, ...]  # of each leaf; None: no such product

  def scaled(self, factor: jax.Array) -> "PerExample":
    """Returns every row times its factor, [S]."""
    times = lambda a: a * factor[:, None].astype(a.dtype)
    scale = lambda o: o and o._replace(left=times(o.left))
    return PerExample(
      jax.tree.map(times, self.rows), tuple(map(scale, self.outer))
    )


def plain(rows: types.Params) -> PerExample:
  """Returns rows, leaves [S, P_j], of which no such product is known."""
  return PerExample(rows, (None,) * len(jax.tree.leaves(rows)))


def products(
  a: PerExample, b: PerExample, block: Sequence[int] | None = None
) -> jax.Array:
  """Returns the products of all rows of a with all rows of b.

  Args:
    a: gradients of S examples.
    b: gradients of S' examples.
    block: the leaves to sum over; None: all.
  """
  flat = [jax.tree.leaves(g.rows) for g in (a, b)]
  total: Any = 0
  for j in range(len(a.outer)) if block is None else block:
    p, q = a.outer[j], b.outer[j]
    if p is None or q is None:
      total += low_rank.matmul(flat[0][j], flat[1][j].T)
    else:
      left = low_rank.matmul(p.left, q.left.T)
      total += left * low_rank.matmul(p.right, q.right.T)
  return total


def gradients(
  apply: Callable, loss: Callable, params: types.Params, examples: Any
) -> PerExample:
  """Returns the gradient of every example.

  Args:
    apply: of the model.
    loss: (outputs of one example, its y) -> [].
    params: w.
    examples: x [S, ...] and y, a pytree of [S, ...].
  """
  x, y = examples
  leaves, structure = jax.tree.flatten(params)
  shapes = jax.eval_shape(lambda *args: args, params, x[:1])
  traced = jax.make_jaxpr(apply)(*shapes)
  kernels = _kernels(traced.jaxpr, len(leaves))
  others = {j: a for j, a in enumerate(leaves) if j not in kernels}
  # To be added to the products: the gradients of these are δ.
  product = lambda kernel: kernel.equation.outvars[0].aval
  taps = {
    j: jnp.zeros(product(k).shape, product(k).dtype) for j, k in kernels.items()
  }

  def of_one(x, y):
    def value(others, taps):
      given = [others.get(j, a) for j, a in enumerate(leaves)]
      outputs, vectors = _run(traced, [*given, x[None]], kernels, taps)
      return loss(outputs[0], y), vectors

    return jax.grad(value, (0, 1), has_aux=True)(others, taps)

  (rows, deltas), vectors = jax.vmap(of_one)(x, y)
  outer = {}
  for j, kernel in kernels.items():
    sides = [a[j].reshape(len(x), -1) for a in (vectors, deltas)]
    outer[j] = Outer(*(sides if kernel.rows_first else sides[::-1]))
    rows[j] = outer[j].left[:, :, None] * outer[j].right[:, None, :]
  flat = [rows[j].reshape(len(x), -1) for j in range(len(leaves))]
  return PerExample(
    jax.tree.unflatten(structure, flat),
    tuple(outer.get(j) for j in range(len(leaves))),
  )


class _Kernel(NamedTuple):
  """Where a traced model multiplies by a kernel."""

  equation: Any  # kernel and vector in some order -> product
  operand: int  # 0 or 1, which of them is the kernel
  rows_first: bool  # the kernel is [A, B], with A summed over


def _kernels(jaxpr, num_leaves):
  """Returns {leaf: _Kernel} of what multiplies one vector, once."""
  found = {}
  for j, leaf in enumerate(jaxpr.invars[:num_leaves]):
    reads = [
      (e, i) for e in jaxpr.eqns for i, v in enumerate(e.invars) if v is leaf
    ]
    if len(reads) != 1 or any(v is leaf for v in jaxpr.outvars):
      continue
    equation, operand = reads[0]
    if equation.primitive is not lax.dot_general_p or leaf.aval.ndim != 2:
      continue
    summed, batch = equation.params["dimension_numbers"]
    vector = equation.invars[1 - operand].aval
    if len(summed[0]) != 1 or any(map(len, batch)):
      continue
    (axis,) = summed[operand]
    if vector.size == leaf.aval.shape[axis]:
      found[j] = _Kernel(equation, operand, axis == 0)
  return found


def _run(traced, arguments, kernels, taps):
  """Evaluates a traced model, with `taps` added to the kernels' products.

  Returns:
    Its output, and the vectors that the kernels multiply.
  """
  jaxpr, vectors = traced.jaxpr, {}
  known = dict(zip(jaxpr.constvars, traced.consts, strict=True))
  known |= dict(zip(jaxpr.invars, arguments, strict=True))
  leaf_of = {id(k.equation): j for j, k in kernels.items()}
  for equation in jaxpr.eqns:
    made = _evaluate(jaxpr, equation, known)
    leaf = leaf_of.get(id(equation))
    if leaf is not None:
      vectors[leaf] = known[equation.invars[1 - kernels[leaf].operand]]
      made = [made[0] + taps[leaf]]
    known |= dict(zip(equation.outvars, made, strict=True))
  (out,) = jaxpr.outvars
  constant = isinstance(out, core.Literal)
  return jnp.asarray(out.val) if constant else known[out], vectors


def _evaluate(jaxpr, equation, known):
  """Returns what one equation of a jaxpr makes of known variables."""
  reads = dict.fromkeys(v for v in equation.invars if isinstance(v, core.Var))
  alone = core.Jaxpr(
    constvars=(),
    invars=list(reads),
    outvars=equation.outvars,
    eqns=[equation],
    effects=equation.effects,
    debug_info=jaxpr.debug_info._replace(arg_names=None, result_paths=None),
  )
  run = core.jaxpr_as_fun(core.ClosedJaxpr(alone, ()))
  return run(*(known[v] for v in reads))
