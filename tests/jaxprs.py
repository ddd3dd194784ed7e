"""A look inside traced programs."""

import jax.extend


def equations(jaxpr):
  """Yields every equation of a jaxpr, those of nested ones included."""
  for equation in jaxpr.eqns:
    yield equation
    for nested in jax.extend.core.jaxprs_in_params(equation.params):
      yield from equations(nested)
