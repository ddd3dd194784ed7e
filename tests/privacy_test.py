"""Attacks on uploads, and what defences promise."""

import functools
import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize
from scipy import stats

from experiments import privacy_attacks as attacks
from experiments import privacy_defences as defences
from experiments import privacy_models
from experiments import privacy_uploads as uploads
import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import rng
from fedinf_jax.curvature import gradients
from fedinf_jax.data import on_device

FED = fi.FedAvg(rounds=1, cohort_size=1, local_steps=2, learning_rate=0.1)
OBSERVED = gradients.Options("observed", 1, None, None)
DRAW = np.random.default_rng(0)
X, Y = DRAW.normal(size=(9, 12)), DRAW.integers(0, 5, 9)


def participant(curvature, x=X, y=Y, max_examples=9):
  """Returns the setup, and a client with some examples."""
  model = fi.models.logreg(12, 5)
  params = model.init(jax.random.key(0))
  params = jax.tree.map(lambda a: jnp.asarray(a, jnp.float64), params)
  estimators = {"asked": fi.estimator(curvature, fi.no_guard())}
  setup = federation.setup(model, FED, estimators, params, max_examples)
  own, draws = on_device.alone(x, y), rng.draws(0, 1, "client")
  return setup, federation.train(setup)(params, own, draws)[1]


@functools.cache
def release(mechanism, num_samples):
  """Builds (x, y) -> what a client with these examples releases."""

  @jax.jit
  def run(x, y):
    curvature = defences.private_fisher(mechanism)
    setup, client = participant(curvature, x, y)
    return defences.release(setup, client, num_samples, OBSERVED, mechanism)

  return run


def rows_of(mechanism, x=X, y=Y, num_samples=6):
  released = release(mechanism, num_samples)(x, y)
  flat = np.concatenate([np.asarray(a) for a in jax.tree.leaves(released)], 1)
  return flat / np.sqrt(FED.learning_rate / num_samples)


def of_logreg(count, **options):
  """Uploads of a logistic regression, and the inputs behind them."""
  model, x, y = fi.models.logreg(12, 5), X[:count], Y[:count]
  curvature = fi.fisher(
    num_samples=count, labels="sampled", layerwise=False, **options
  )
  params = model.init(jax.random.key(0))
  send = uploads.sender(model, FED, params, count, curvature)
  return send(x, y, 0).rows, x


def test_inputs_are_read_off_single_gradients():
  rows, x = of_logreg(6)
  kernel = rows["dense"]["kernel"].reshape(6, 12, 5)
  found = attacks.read_off(kernel, rows["dense"]["bias"])
  np.testing.assert_allclose(attacks.paired(np.asarray(found), x), x, atol=1e-5)


@pytest.mark.parametrize("rank", [None, 3])
def test_rotation_and_compression_are_undone(rank):
  count = 6 if rank is None else 5  # δ has five entries, which sum to zero.
  count = count if rank is None else 4
  rows, x = of_logreg(count, spectrum="relu", rank=rank)
  kernel, bias = (rows["dense"][name] for name in ("kernel", "bias"))
  assert len(bias) == (rank or count)
  found = attacks.unmix(kernel, bias, rows, count)
  np.testing.assert_allclose(attacks.paired(found.inputs, x), x, atol=1e-4)
  assert (found.gradients is None) == (rank is not None)
  if rank is None:  # Rows are single gradients again, up to a factor.
    again = found.gradients["dense"]
    by_row = attacks.read_off(again["kernel"].reshape(6, 12, 5), again["bias"])
    np.testing.assert_allclose(
      attacks.paired(np.asarray(by_row), x), x, atol=1e-4
    )


@pytest.mark.parametrize("name", ["setting2", "setting3"])
def test_attacked_networks_are_the_library_s(name):
  net = getattr(privacy_models, name)()
  params = net.model.init(jax.random.key(1))
  x = jax.random.uniform(jax.random.key(2), (3, 28, 28, 1), jnp.float32)
  ours = jax.vmap(net.logits, (None, 0))(params, x)
  np.testing.assert_allclose(ours, net.model.apply(params, x), atol=1e-5)


def test_gradient_matching_finds_an_image(enable_x32):
  # A tiny network that is linear in its input: 12 × 12 blocks of an image.
  shrink = lambda x: x.reshape(7, 4, 7, 4).mean((1, 3)).reshape(-1)
  dense = lambda layer, a: a @ layer["kernel"] + layer["bias"]
  logits = lambda w, x: dense(w["dense2"], dense(w["dense1"], shrink(x)))
  net = privacy_models.Attacked(
    None, lambda w, x: shrink(x), logits, 1e-4, 0.02
  )
  draw = np.random.default_rng(1)
  layer = lambda a, b: {
    "kernel": jnp.asarray(draw.normal(size=(a, b)) / 7, jnp.float32),
    "bias": jnp.zeros(b),
  }
  params = {"dense1": layer(49, 20), "dense2": layer(20, 10)}
  # An image of blocks, as the network sees no more than these.
  image = np.kron(draw.uniform(size=(7, 7)), np.ones((4, 4)))
  image = jnp.asarray(image[None, :, :, None], jnp.float32)
  loss = lambda w, x: -jax.nn.log_softmax(logits(w, x))[3]
  rows = jax.vmap(jax.grad(loss), (None, 0))(params, image)
  found = attacks.Attacker(net, 400).from_gradients(params, rows)
  seen = lambda a: np.asarray(jax.vmap(shrink)(a))
  assert attacks.psnr(seen(found), seen(image))[0] > 30


def test_clipped_rows_are_no_longer_than_the_bound():
  free = rows_of(defences.Mechanism(np.inf, 0.0))
  norms = np.linalg.norm(free, axis=1)
  bound = float(np.median(norms))
  clipped = rows_of(defences.Mechanism(bound, 0.0))
  after = np.linalg.norm(clipped, axis=1)
  assert (after <= bound * (1 + 1e-12)).all()
  np.testing.assert_allclose(after, np.minimum(norms, bound))
  short = norms <= bound
  np.testing.assert_allclose(clipped[short], free[short])


def test_neighbours_differ_in_one_row_by_the_sensitivity():
  bound, changed = 0.7, 0
  mechanism = defences.Mechanism(bound, 0.0)
  for replaced in range(len(X)):
    x, y = X.copy(), Y.copy()
    x[replaced], y[replaced] = -30 * X[replaced], (Y[replaced] + 1) % 5
    change = rows_of(mechanism, x, y) - rows_of(mechanism)
    count = (np.abs(change).max(1) > 0).sum()
    assert count <= 1
    changed += count
    assert np.linalg.norm(change) <= 2 * bound * (1 + 1e-12)
  assert changed == 6  # Those that are sampled.


def test_noise_is_as_large_as_was_said_and_the_same_for_neighbours():
  clean = rows_of(defences.Mechanism(0.5, 0.0))
  noise = rows_of(defences.Mechanism(0.5, 3.0)) - clean
  assert stats.kstest(noise.ravel() / (3.0 * 2 * 0.5), "norm").pvalue > 1e-3
  other = rows_of(defences.Mechanism(0.5, 3.0), -X)
  clean = rows_of(defences.Mechanism(0.5, 0.0), -X)
  np.testing.assert_allclose(other - clean, noise, atol=1e-9)


def test_padding_has_no_noise():
  mechanism = defences.Mechanism(0.5, 1.0)
  setup, client = participant(defences.private_fisher(mechanism), X[:3], Y[:3])
  released = defences.release(setup, client, 6, OBSERVED, mechanism)
  for leaf in jax.tree.leaves(released):
    assert (leaf[3:] == 0).all() and (leaf[:3] != 0).all()


@pytest.mark.parametrize("spectrum", [None, "relu"])
def test_without_clip_and_noise_it_is_the_plain_estimator(spectrum):
  options = {"num_samples": 6, "labels": "observed", "spectrum": spectrum}
  plain = fi.fisher(**options, layerwise=False, per="round")
  ours = defences.private_fisher(defences.Mechanism(np.inf, 0.0), **options)
  setup, client = participant(plain)
  eps = jax.tree.map(
    lambda a: jnp.asarray(DRAW.normal(size=(2, *a.shape))), client.start
  )
  lost = [
    c.lost(
      setup.descent, jax.tree.map(lambda a: a, c.report(setup, client)), eps
    )
    for c in (plain, ours)
  ]
  for a, b in zip(*map(jax.tree.leaves, lost), strict=True):
    np.testing.assert_allclose(a, b, atol=1e-12)


def gaussian_epsilon(multiplier, count, delta):
  """ε of `count` Gaussian mechanisms, exactly (Balle and Wang, 2018)."""
  mu = np.sqrt(count) / multiplier
  cdf = stats.norm.cdf
  excess = lambda e: (
    cdf(mu / 2 - e / mu) - np.exp(e) * cdf(-mu / 2 - e / mu) - delta
  )
  return optimize.brentq(excess, 0, 500)


@pytest.mark.parametrize("multiplier, count", [(1.0, 1), (1.0, 10), (5.0, 3)])
def test_epsilon_bounds_the_exact_one(multiplier, count):
  pytest.importorskip("dp_accounting")
  exact = gaussian_epsilon(multiplier, count, 1e-5)
  found = defences.epsilon(multiplier, count, 1e-5)
  assert exact <= found < 1.25 * exact
  assert defences.epsilon(0.0, count, 1e-5) == np.inf


def test_independent_components_are_found():
  pytest.importorskip("sklearn")
  sources = DRAW.uniform(size=(4, 2000)) ** 3
  found = attacks.independent_components(DRAW.normal(size=(10, 4)) @ sources, 4)
  assert attacks.correlations(found, sources).min() > 0.99


@pytest.mark.skipif(
  importlib.util.find_spec("dp_accounting") is not None
  and importlib.util.find_spec("sklearn") is not None,
  reason="both are installed",
)
def test_missing_packages_are_one_line(tmp_path):
  found = subprocess.run(
    [sys.executable, "-m", "experiments.privacy", f"--workdir={tmp_path}"],
    capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert found.returncode == 2
  assert len(found.stderr.splitlines()) == 1
  assert "requirements-privacy.txt" in found.stderr
