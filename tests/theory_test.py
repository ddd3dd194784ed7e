"""γ against explicit Hessians, the three cases, and the two theorems' laws."""

import functools

from flax import linen as nn
import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import theory
from tests import reference

FEATURES, CLASSES = 4, 3
SEED, ROUND = 11, 2


class TwoLayers(nn.Module):
  @nn.compact
  def __call__(self, x):
    dense = functools.partial(nn.Dense, use_bias=False)  # Compiles sooner.
    return dense(CLASSES, name="out")(nn.tanh(dense(5, name="hidden")(x)))


SOFTMAX = fi.models.logreg(FEATURES, CLASSES)
MLP = fi.models.from_flax(
  TwoLayers(), np.zeros((1, FEATURES)), fi.models.cross_entropy
)
CURVATURE = np.array([1.0, 2.0, 4.0])
# ½ Σ_j c_j (w_j − x_j)²: the Hessian is diag(c), at every w and client.
QUADRATIC = fi.Model(
  init=lambda key: {"w": jax.random.normal(key, (3,))},
  apply=lambda params, x: params["w"][None] - x,
  loss=lambda outputs, y: jnp.square(outputs) @ CURVATURE / 2 + 0 * y,
)


def make_data(features=FEATURES, dtype=np.float64, sizes=(3, 14, 14, 7)):
  draw = np.random.default_rng(5)
  return fi.FederatedData.from_clients(
    [
      (
        draw.normal(size=(n, features)).astype(dtype),
        draw.integers(0, CLASSES, n),
      )
      for n in sizes
    ],
    ids=[f"client-{k}" for k in range(len(sizes))],
    num_classes=CLASSES,
  )


def settings(learning_rate, **changes):
  return fi.FedAvg(
    **{
      "rounds": 3,
      "cohort_size": 3,
      "local_steps": 3,
      "learning_rate": learning_rate,
      **changes,
    }
  )


def draw_params(model):
  draw = np.random.default_rng(6)
  shapes = jax.eval_shape(model.init, jax.random.key(0))
  return jax.tree.map(lambda a: draw.normal(size=a.shape), shapes)


def explicit_gamma(model, data, fed, w, cohort):
  """γ from jax.hessian's diagonal blocks and dense eigenvalues."""
  flat, unravel = flatten_util.ravel_pytree(w)
  ends = np.cumsum([a.size for a in jax.tree.leaves(w)])

  def loss(v, x, y):
    return model.loss(model.apply(unravel(v), x), y).mean()

  derivatives = jax.jit(
    lambda *args: (jax.grad(loss)(*args), jax.hessian(loss)(*args))
  )
  total, gamma = data.num_examples[cohort].sum(), 0
  for k in cohort:
    (x, y), v = data.client(k), flat
    product = np.ones(len(ends))
    for i in range(fed.local_steps):
      rows = np.arange(len(x))
      if fed.batch_size is not None:
        rows = reference.client_batch(
          SEED, data.ids[k], ROUND, i, len(x), fed.batch_size
        )
      gradient, hessian = derivatives(v, x[rows], y[rows])
      for j, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        block = np.asarray(hessian)[first:end, first:end]
        spectrum = np.linalg.eigvalsh(block)
        product[j] *= np.abs(1 - fed.learning_rate * spectrum).max()
      v = v - fed.learning_rate * gradient
    gamma += data.num_examples[k] / total * product
  return gamma


@pytest.mark.parametrize(
  ("model", "batch_size", "learning_rate", "case"),
  [
    # A constant added to all logits changes nothing: λ = 0 in both layers.
    (SOFTMAX, None, 0.5, [2, 2]),
    (MLP, 6, 0.5, [3, 2]),  # Convex in its last layer alone.
  ],
  ids=["softmax", "mlp_mini_batch"],
)
def test_gamma_equals_that_of_explicit_hessians(
  model, batch_size, learning_rate, case
):
  data, cohort = make_data(), np.array([2, 3, 1])
  fed = settings(learning_rate, batch_size=batch_size)
  w = draw_params(model)
  found = theory.round_theory(model, data, fed, w, cohort, ROUND, seed=SEED)
  expected = explicit_gamma(model, data, fed, w, cohort)
  # Lanczos steps reach the size of the largest layer: rounding is all.
  assert (found.width < 1e-12 * expected).all()
  np.testing.assert_array_less(np.abs(found.gamma - expected), found.width)
  assert found.layer_names == fi.tree.names(w)
  np.testing.assert_array_equal(found.case, case)


def test_flat_directions_are_case_2_in_float32():
  data = make_data(dtype=np.float32)
  w = draw_params(SOFTMAX)
  found = theory.round_theory(SOFTMAX, data, settings(0.1), w, [0, 1, 2], ROUND)
  np.testing.assert_array_equal(found.case, 2)
  np.testing.assert_allclose(found.gamma, 1, atol=1e-7)


@pytest.mark.parametrize(
  ("learning_rate", "case"),
  [(1e-6, 1), (0.5, 2), (0.51, 3)],
)
def test_a_strongly_convex_quadratic_is_case_1_below_2_over_the_largest(
  learning_rate, case
):
  data = make_data(features=3)
  found = theory.round_theory(
    QUADRATIC, data, settings(learning_rate), {"w": np.ones(3)}, [3, 1], 1
  )
  np.testing.assert_array_equal(found.case, [case])
  exact = np.abs(1 - learning_rate * CURVATURE).max() ** 3
  np.testing.assert_allclose(found.gamma, exact, rtol=1e-14)


def test_few_lanczos_steps_err_from_within_and_say_so():
  data, fed, w = make_data(), settings(20.0), draw_params(SOFTMAX)
  few = theory.round_theory(SOFTMAX, data, fed, w, [1, 2], 1, num_steps=4)
  exact = explicit_gamma(SOFTMAX, data, fed, w, [1, 2])
  assert few.gamma[1] < 0.9995 * exact[1]
  assert (exact < few.gamma + few.width).all()
  np.testing.assert_array_equal(few.case, 3)  # The rate is too large.


@pytest.mark.parametrize(
  ("high", "residual", "case"),
  [(1.5, 0.1, 1), (1.5, 0.6, 2), (2.0, 0.0, 2), (2.1, 0.5, 3)],
)
def test_above_1_from_within_is_above_1(high, residual, case):
  spectra = np.reshape([0.5, high, 0, residual], (4, 1, 1, 1))
  gamma, width, found = theory._gamma(1.0, *spectra, np.ones(1), np.float64)
  np.testing.assert_allclose(gamma, high - 1)
  np.testing.assert_allclose(width, residual, atol=1e-13)
  np.testing.assert_array_equal(found, case)


def test_one_program_serves_rounds_and_clients_of_a_size(compilations):
  data, fed = make_data(features=3), settings(0.3)
  measure = lambda cohort, t: theory.round_theory(
    QUADRATIC, data, fed, {"w": np.ones(3)}, cohort, t
  )
  measure([1], 1)
  compilations.clear()
  measure([0], 2)
  assert not compilations


def test_errors_are_refused_by_name():
  data, w = make_data(features=3), {"w": np.ones(3)}
  adam = settings(None, client_optimizer=optax.adam(0.1))
  with pytest.raises(ValueError, match="plain gradient descent"):
    theory.round_theory(QUADRATIC, data, adam, w, [0], 1)
  for cohort in ([], [4], [-1], [0.5], [[0]]):
    with pytest.raises(ValueError, match=r"must list clients 0 … 3"):
      theory.round_theory(QUADRATIC, data, settings(0.1), w, cohort, 1)
  broken = QUADRATIC._replace(
    loss=lambda outputs, y: jnp.sqrt(-jnp.abs(outputs).sum(1)) + 0 * y
  )
  with pytest.raises(ValueError, match=r"round 7: .*client-1"):
    theory.round_theory(broken, data, settings(0.1), w, [1], 7)


@pytest.mark.parametrize("t", [1, 7, 1000])
def test_amplification_is_the_geometric_sum(t):
  gamma = np.array([0, 0.3, 1 - 1e-6, 1 - 1e-13, 1, 1 + 1e-13, 1 + 1e-6, 1.5])
  expected = (gamma[:, None] ** np.arange(t)).sum(1)
  np.testing.assert_allclose(
    theory.amplification(gamma, t), expected, rtol=1e-12
  )
  assert theory.amplification(10.0, 1000) == np.inf


def test_on_a_quadratic_no_error_is_new_and_theorem_2_holds():
  data, fed = make_data(features=3), settings(0.3)
  shrink = (1 - fed.learning_rate * CURVATURE) ** fed.local_steps
  means = np.stack([x.mean(0) for x, _ in data.clients()])  # [K, 3]

  def round_of(w, who):
    local = means[who] + shrink * (w - means[who])
    return np.average(local, axis=0, weights=data.num_examples[who])

  without = [[k for k in range(4) if k != r] for r in range(4)]
  w, everyone = np.ones(3), [0, 1, 2, 3]
  actual, replayed = w, np.stack([w] * 4)
  for t in range(1, 4):
    eps_tm1 = {"w": replayed - actual}
    combinatorial = {
      "w": np.stack([round_of(actual, who) for who in without])
      - round_of(actual, everyone)
    }
    found = theory.round_theory(
      QUADRATIC, data, fed, {"w": actual}, everyone, t
    )
    replayed = np.stack(
      [round_of(v, who) for v, who in zip(replayed, without, strict=True)]
    )
    actual = round_of(actual, everyone)
    eps_t = {"w": replayed - actual}
    one_step = {"w": shrink * eps_tm1["w"] + combinatorial["w"]}
    np.testing.assert_allclose(theory.new_error(eps_t, one_step), 0, atol=1e-15)
    norms = theory.fip_norms(eps_t)
    np.testing.assert_allclose(norms, np.linalg.norm(eps_t["w"], axis=1))
    truncated = theory.new_error(eps_t, combinatorial)
    bound = theory.theorem2_bound(found.gamma, theory.fip_norms(eps_tm1).max())
    assert (np.asarray(truncated) <= bound + 1e-15).all()
    assert found.case == 1
