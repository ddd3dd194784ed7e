"""The models are those of LEAF and of the paper."""

from flax import linen as nn
from flax import nnx
import jax
from jax import lax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import models
from fedinf_jax import tree
from tests import jaxprs

SIZES = {
  "setting1": (fi.models.logreg(60, 5), 305),
  "setting2": (
    fi.models.cnn(widths=(4, 8), dense=32, activation=None, pool="stride"),
    15_534,
  ),
  "setting3": (fi.models.cnn(), 57_694),
  "smallest": (fi.models.cnn(widths=(2, 4), dense=16), 4_462),
  "leaf": (fi.models.cnn(**fi.models.LEAF_CNN), 6_603_710),
}


@pytest.mark.parametrize("name", SIZES)
def test_number_of_parameters(name):
  model, expected = SIZES[name]
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  assert sum(a.size for a in jax.tree.leaves(shapes)) == expected


def test_kernels_are_glorot_uniform_and_biases_zero():
  params = jax.jit(SIZES["setting3"][0].init)(jax.random.key(0))
  fans = {"conv1": 25 * 9, "conv2": 25 * 24, "dense1": 848, "dense2": 126}
  for name, fan in fans.items():
    bound = np.sqrt(6 / fan)
    kernel = np.abs(params[name]["kernel"])
    assert 0.9 * bound < kernel.max() <= bound
    assert not params[name]["bias"].any()


@pytest.mark.parametrize(
  ("pool", "activation"), [("max", "relu"), ("avg", "relu"), ("stride", None)]
)
def test_cnn_equals_flax_convolutions_and_pools(pool, activation):
  class Plain(nn.Module):
    @nn.compact
    def __call__(self, x):
      act = nn.relu if activation else lambda a: a
      for i, width in enumerate((3, 4)):
        strides = 2 if pool == "stride" else 1
        x = act(nn.Conv(width, (5, 5), strides=strides, name=f"conv{i + 1}")(x))
        if pool != "stride":
          reduce = nn.max_pool if pool == "max" else nn.avg_pool
          x = reduce(x, (2, 2), strides=(2, 2))
      x = act(nn.Dense(6, name="dense1")(x.reshape(x.shape[0], -1)))
      return nn.Dense(62, name="dense2")(x)

  x = jnp.asarray(np.random.default_rng(0).uniform(size=(5, 28, 28, 1)))
  ours = models.cnn(widths=(3, 4), dense=6, activation=activation, pool=pool)
  plain = models.from_flax(Plain(), x, models.cross_entropy)
  params = tree.cast(jax.jit(ours.init)(jax.random.key(1)), jnp.float64)
  loss = lambda model: (
    lambda w: model.loss(model.apply(w, x), jnp.arange(5)).sum()
  )
  np.testing.assert_allclose(
    jax.jit(ours.apply)(params, x), jax.jit(plain.apply)(params, x), atol=1e-12
  )
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12),
    jax.jit(jax.grad(loss(ours)))(params),
    jax.jit(jax.grad(loss(plain)))(params),
  )


@pytest.mark.parametrize("pool", ["avg", "stride"])
def test_cnn_1_is_one_linear_map(pool):
  model = models.cnn(widths=(2, 3), dense=4, activation=None, pool=pool)
  params = tree.cast(jax.jit(model.init)(jax.random.key(0)), jnp.float64)
  a, b = np.random.default_rng(0).uniform(size=(2, 1, 28, 28, 1))
  f = lambda x: jax.jit(model.apply)(params, x)
  np.testing.assert_allclose(f(a + b), f(a) + f(b) - f(0 * a), atol=1e-12)


def test_leaf_logreg_has_a_sigmoid_on_its_logits():
  convex, leaf = models.logreg(4, 3), models.logreg(4, 3, "sigmoid")
  params = convex.init(jax.random.key(0))
  x = np.random.default_rng(0).normal(size=(6, 4))
  np.testing.assert_allclose(
    leaf.apply(params, x), 1 / (1 + np.exp(-convex.apply(params, x)))
  )
  with pytest.raises(ValueError, match="activation is 'sigmoyd'; it must be"):
    models.logreg(4, 3, "sigmoyd")
  with pytest.raises(ValueError, match="pool is 'mean'"):
    models.cnn(pool="mean")


def test_labels_are_sampled_from_the_predictive_distribution():
  model = models.logreg(2, 3)
  logits = jnp.log(jnp.array([0.5, 0.2, 0.3]))
  outputs = jnp.broadcast_to(logits, (20_000, 3))
  labels = model.sample(jax.random.key(0), outputs)
  share = np.bincount(labels, minlength=3) / 20_000
  np.testing.assert_allclose(share, [0.5, 0.2, 0.3], atol=0.018)  # 5 sd


def test_no_model_has_a_scatter_or_gather_in_its_gradient():
  for name in ("setting1", "setting2", "setting3"):
    model, _ = SIZES[name]
    params = jax.eval_shape(model.init, jax.random.key(0))
    x = jnp.zeros((2, 60) if name == "setting1" else (2, 28, 28, 1))
    loss = lambda w, model=model, x=x: model.loss(
      model.apply(w, x), jnp.zeros(2, int)
    ).sum()
    text = str(jax.make_jaxpr(jax.grad(loss))(params))
    assert " gather[" not in text and "scatter" not in text


def test_a_module_with_batch_statistics_is_refused():
  module = nn.Sequential([nn.Dense(3), nn.BatchNorm(use_running_average=True)])
  model = models.from_flax(module, np.zeros((1, 2)), models.cross_entropy)
  with pytest.raises(ValueError, match=r"Sequential keeps .*\(batch_stats\)"):
    model.init(jax.random.key(0))


def test_patches_are_shared_by_all_models():
  # vmapped over models, the first layer is one product without a batch axis.
  model = models.cnn(widths=(2, 3), dense=4)
  params = jax.eval_shape(
    jax.vmap(model.init), jax.random.split(jax.random.key(0), 5)
  )
  x = jnp.zeros((2, 28, 28, 1))
  jaxpr = jax.make_jaxpr(jax.vmap(model.apply, (0, None)))(params, x)
  dots = [
    e for e in jaxprs.equations(jaxpr.jaxpr) if e.primitive is lax.dot_general_p
  ]
  assert dots[0].params["dimension_numbers"][1] == ((), ())


@pytest.mark.parametrize(
  "change,message",
  [
    ({"dense": -1}, "dense is -1; it must be an integer >= 1"),
    ({"num_classes": 0}, "num_classes is 0; it must be"),
    ({"widths": (4,)}, r"widths is \(4,\); it must be two numbers"),
    ({"widths": (4, 0.5)}, "widths is 0.5; it must be"),
    ({"dense": 10**12}, "dense = 10* would need [0-9,]* bytes of memory"),
    ({"activation": "one_hot"}, "activation is 'one_hot'; it must be None"),
  ],
)
def test_a_network_that_cannot_be_is_refused(change, message):
  with pytest.raises(ValueError, match=message):
    models.cnn(**change)


def test_labels_are_drawn_as_often_as_they_are_likely():
  likely = np.array([0.5, 0.2, 0.0, 0.3])
  logits = jnp.broadcast_to(jnp.log(likely), (20_000, 4))
  drawn = models.categorical(jax.random.key(0), logits)
  share = np.bincount(drawn, minlength=4) / len(drawn)
  np.testing.assert_allclose(share, likely, atol=0.02)
  assert not share[2]


def test_an_mlp_is_dense_layers():
  """Against the formula, for a classifier, images and a regression."""
  draw = np.random.default_rng(0)
  for shape, outputs, hidden in (
    ((3,), 2, (5, 4)),
    ((4, 3, 1), 2, (5,)),
    ((3,), None, (5,)),
    ((3,), 2, ()),
  ):
    model = fi.models.mlp(shape, outputs, hidden=hidden, activation="tanh")
    params = model.init(jax.random.key(0))
    assert len(params) == len(hidden) + 1
    x = draw.normal(size=(6, *shape))
    expected = x.reshape(6, -1)
    for i in range(len(params)):
      layer = jax.tree.map(np.asarray, params[f"dense{i + 1}"])
      expected = expected @ layer["kernel"] + layer["bias"]
      expected = np.tanh(expected) if i < len(hidden) else expected
    expected = expected if outputs else expected[:, 0]
    np.testing.assert_allclose(model.apply(params, x), expected, rtol=1e-6)
    y = draw.normal(size=6) if outputs is None else draw.integers(0, 2, 6)
    assert model.loss(model.apply(params, x), y).shape == (6,)
  for wrong in ({"num_features": 0}, {"hidden": 3}, {"hidden": (3, 0)}):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))} is"):
      fi.models.mlp(**{"num_features": 3, "num_classes": 2} | wrong)


def test_the_squared_error_is_that_of_gaussian_targets():
  outputs = np.array([[1.0, 2.0], [3.0, 5.0]])
  np.testing.assert_allclose(fi.models.mse(outputs, outputs - [1, 3]), [5, 5])
  with pytest.raises(ValueError, match=r"\[2, 2\], y has \[2\]"):
    fi.models.mse(outputs, outputs[0])
  # The mean of exp(-mse) draws: E[mse] = Σ variance / D = D / 2.
  for shape in ((50_000,), (50_000, 4)):
    y = models.gaussian(jax.random.key(0), jnp.zeros(shape))
    expected = np.prod(shape[1:]) / 2
    assert fi.models.mse(y, 0 * y).mean() == pytest.approx(expected, rel=0.03)


class Network(nnx.Module):
  def __init__(self, rngs, extra=None):
    self.layers = nnx.List([nnx.Linear(4, 5, rngs=rngs), nnx.relu])
    self.last = nnx.Linear(5, 3, rngs=rngs)
    self.extra = extra

  def __call__(self, x):
    for layer in self.layers:
      x = layer(x)
    return self.last(x)


def test_an_nnx_module_is_a_model():
  cross_entropy = fi.models.cross_entropy
  model = fi.models.from_nnx(lambda rngs: Network(rngs), cross_entropy)
  params = jax.jit(model.init)(jax.random.key(1))
  module = Network(nnx.Rngs(jax.random.key(1)))
  x = np.random.default_rng(0).normal(size=(6, 4))
  np.testing.assert_allclose(model.apply(params, x), module(x), rtol=1e-6)
  np.testing.assert_array_equal(params["last"]["kernel"], module.last.kernel)
  g = jax.grad(lambda w: model.loss(model.apply(w, x), np.zeros(6, int)).sum())
  assert all(a.any() for a in jax.tree.leaves(g(params)))
  norm = lambda rngs: Network(rngs, nnx.BatchNorm(5, rngs=rngs))
  with pytest.raises(ValueError, match=r"Network keeps variables .*extra"):
    fi.models.from_nnx(norm, cross_entropy)
  with pytest.raises(ValueError, match=r"make is Network; .* nnx\.Rngs"):
    fi.models.from_nnx(module, cross_entropy)


def test_drawn_targets_have_the_curvature_of_the_squared_error():
  """E[g gᵀ] over drawn targets is the Hessian: Fisher information is right."""
  model = fi.models.mlp(3, None, hidden=())
  x = np.random.default_rng(0).normal(size=(1, 3))
  params = {"dense1": {"kernel": np.ones((3, 1)), "bias": np.zeros(1)}}
  flat, unravel = jax.flatten_util.ravel_pytree(params)
  loss = lambda w, y: model.loss(model.apply(unravel(w), x), y)[0]

  @jax.jit
  def both(keys):
    y = jax.vmap(lambda key: model.sample(key, model.apply(params, x)))(keys)
    g = jax.vmap(lambda y: jax.grad(loss)(flat, y))(y)
    return g.T @ g / len(g), jax.hessian(loss)(flat, y[0])

  found, expected = both(jax.random.split(jax.random.key(0), 20_000))
  np.testing.assert_allclose(found, expected, rtol=0.05)
