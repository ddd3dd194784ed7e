"""Outer products: the gradients of dense layers, and products of them."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.curvature import dense_layers
from tests import cases

COUNT = 5


def _mean_logits(params, x):
  """A kernel on a sequence, one that is read twice, one that is tied."""
  h = jnp.tanh(x @ params["sequence"]).mean(1)
  h = h @ params["twice"] + jnp.tanh(h @ params["twice"])
  return jnp.tanh(h @ params["once"]) + params["bias"][None]


def _hand_made():
  draw = np.random.default_rng(3)
  shapes = {"sequence": (4, 3), "twice": (3, 3), "once": (3, 2), "bias": (2,)}
  params = {k: jnp.asarray(draw.normal(size=s)) for k, s in shapes.items()}
  model = fi.Model(lambda key: params, _mean_logits, fi.models.cross_entropy)
  return model, params, jnp.asarray(draw.normal(size=(COUNT, 6, 4)))


def _of_case(case):
  model, data = case()
  params = model.init(jax.random.key(1))
  params = jax.tree.map(lambda a: jnp.asarray(a, float), params)
  return model, params, jnp.asarray(data.x[:COUNT], float)


MODELS = {
  # name: (model, params, x), how many kernels multiply one vector
  "logreg": (lambda: _of_case(cases.logreg), 1),
  "mlp": (lambda: _of_case(cases.mlp), 2),
  "cnn": (lambda: _of_case(cases.small_cnn), 1),
  "by hand": (_hand_made, 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_and_products_are_those_of_plain_gradients(name):
  make, num_kernels = MODELS[name]
  model, params, x = make()
  y = jnp.arange(COUNT) % 2
  one = lambda out, y: model.loss(out[None], y[None])[0]
  found = jax.jit(
    lambda w: dense_layers.gradients(model.apply, one, w, (x, y))
  )(params)
  assert sum(o is not None for o in found.outer) == num_kernels
  plain = jax.vmap(
    jax.grad(lambda w, x, y: one(model.apply(w, x[None])[0], y)), (None, 0, 0)
  )(params, x, y)
  plain = jax.tree.map(lambda a: a.reshape(COUNT, -1), plain)
  cases.close(found.rows, plain, atol=1e-12)
  scale = jnp.arange(1.0, COUNT + 1)
  other = found.scaled(scale)
  for j, rows in enumerate(jax.tree.leaves(plain)):
    expected = rows @ (rows * scale[:, None]).T
    products = dense_layers.products(found, other, [j])
    np.testing.assert_allclose(products, expected, atol=1e-12)
  total = sum(a @ a.T for a in jax.tree.leaves(plain))
  np.testing.assert_allclose(
    dense_layers.products(found, found), total, atol=1e-12
  )


def test_a_large_kernel_is_never_multiplied_by_itself():
  model = fi.models.cnn(10, widths=(2, 2), dense=8)
  x = jnp.zeros((COUNT, 28, 28, 1), jnp.float32)
  one = lambda out, y: model.loss(out[None], y[None])[0]

  def gram(params):
    y = jnp.zeros(COUNT, int)
    found = dense_layers.gradients(model.apply, one, params, (x, y))
    return dense_layers.products(found, found)

  traced = jax.make_jaxpr(gram)(model.param_shapes())
  widths = [
    e.invars[0].aval.shape[1]
    for e in traced.eqns
    if e.primitive is lax.dot_general_p
    and e.outvars[0].aval.shape == (COUNT, COUNT)
  ]
  assert len(widths) == 10 and max(widths) < 49 * 2 * 8
