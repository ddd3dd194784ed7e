"""The pass backwards by the server's own curvature, without the clients."""

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import backwards
from fedinf_jax import checks
from fedinf_jax import federation
from fedinf_jax import rng
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from fedinf_jax.simulation import devices as device_grid
from tests import cases
from tests import reference_adjoint as literal

ETA, STEPS = 0.4, 3
COHORTS = np.array([[3, 0], [4, 1], [2, 3], [0, 2], [4, 3]])
FED = fi.FedAvg(rounds=5, cohort_size=2, local_steps=STEPS, learning_rate=ETA)
FISHER = fi.fisher(num_samples=20, layerwise=False, per="round")
SERVED = fi.server_side(FISHER)
MATCHED = fi.server_side(FISHER, match=True)


def go(curvature=SERVED, fed=FED, make=fi.adjoint, **options):
  model, data = cases.mlp()
  x, y = cases.make_data((4,), sizes=(7, 8)).pooled()
  return make(
    model, data, fed, x, y, directions=5, curvature=curvature,
    **{"server_data": cases.server_data(), "cohorts": COHORTS, **options},
  )  # fmt: skip


def history(cohorts=COHORTS):
  model, data = cases.mlp()
  params = checks.params(None, model, 0, data)
  return params, literal.history(model, data, FED, cohorts, params, 0)


def server_matrix(params, w):
  """(I − ηF)^m of the server's examples at w, [P, P]."""
  model, _ = cases.mlp()
  unravel = flatten_util.ravel_pytree(params)[1]
  loss = lambda w, x, y: model.loss(model.apply(unravel(w), x[None]), y[None])[
    0
  ]
  g = jax.jit(jax.vmap(jax.grad(loss), (None, 0, 0)))(w, *cases.server_data())
  g = np.asarray(g)
  return np.linalg.matrix_power(
    np.eye(g.shape[1]) - ETA / len(g) * g.T @ g, STEPS
  )


@pytest.mark.parametrize("window", [None, 3])
def test_equals_the_recursion_written_out(window):
  found = go(window=window)
  params, rounds = history()
  z, row = np.zeros((6, 6)), np.asarray(found.basis)
  for r in rounds[::-1][:window]:
    for k, a in r.share.items():
      z[k] += a / (1 - a) * row @ (r.after - r.local[k])
    row = row @ server_matrix(params, r.before)
  np.testing.assert_allclose(found.coordinates, z, rtol=0, atol=1e-10)
  exact = go(curvature=None, server_data=None)
  assert np.abs(z - np.asarray(exact.coordinates)).max() > 1e-3


@pytest.mark.parametrize("curvature", [SERVED, MATCHED], ids=["one", "matched"])
def test_a_server_that_kept_its_rounds_finds_the_same(curvature):
  model, data = cases.mlp()
  window = 4
  found = go(curvature, window=window, own_part=False)
  params, rounds = history()
  estimators = {"ours": fi.estimator(curvature, fi.no_guard())}
  setup = federation.setup(model, FED, estimators, params, 14)
  unravel = flatten_util.ravel_pytree(params)[1]
  held = on_device.Held(*map(jnp.asarray, cases.server_data()), None, None)
  kept = []
  for t, (cohort, r) in enumerate(zip(COHORTS, rounds, strict=True), start=1):
    local = np.stack([r.local[k] for k in cohort])
    before, after = np.asarray(r.before), np.asarray(r.after)
    updates = jax.vmap(unravel)(jnp.asarray(local - before))
    draws = rng.server_draws(jax.random.key(0), jnp.int32(t))
    report = curvature.serve(
      setup,
      held,
      unravel(before),
      wall.Participants(updates, data.num_examples[cohort]),
      draws,
    )
    shares = jnp.array([r.share[k] for k in cohort])
    kept.append(backwards.Kept(report, after - local, cohort, shares))
  z = backwards.score_kept(
    curvature, setup.descent, kept[-window:], found.basis, params, 6
  )
  np.testing.assert_allclose(found.coordinates, z, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_rounds_in_which_not_everybody_replied():
  cohorts = [[3, 0], [4], [2, 3], [], [0, 4]]
  found = go(cohorts=cohorts, own_part=False)
  params, rounds = history(cohorts)
  z, row = np.zeros((6, 6)), np.asarray(found.basis)
  for r in rounds[::-1]:
    for k, a in r.share.items():
      alone = a == 1
      moved = r.before - r.after if alone else r.after - r.local[k]
      z[k] += (1 if alone else a / (1 - a)) * row @ moved
    if r.share:
      row = row @ server_matrix(params, r.before)
  np.testing.assert_allclose(found.coordinates, z, rtol=0, atol=1e-10)


def test_the_more_rounds_the_nearer_to_all_of_them():
  whole = np.asarray(go().influence)
  off = [
    np.abs(np.asarray(go(window=w).influence) - whole).max() for w in (1, 3, 5)
  ]
  assert off[0] > off[1] > off[2] == 0


@pytest.mark.slow
def test_distributed_it_is_the_same():
  fed = fi.FedAvg(**{**vars(FED), "batch_size": 4})
  mesh = device_grid.grid(jax.devices()[:4], 1)
  for curvature in (SERVED, MATCHED):
    found, alone = (go(curvature, fed, mesh=m) for m in (mesh, None))
    np.testing.assert_allclose(
      found.influence, alone.influence, rtol=0, atol=1e-10
    )


@pytest.mark.parametrize(
  ("options", "words"),
  [
    ({"curvature": fi.fisher()}, "curvature must be None or"),
    ({"curvature": fi.server_side(fi.fisher())}, "curvature must be None or"),
    ({"server_data": None}, "'curvature' is server_side and needs server_data"),
    ({"curvature": None}, "no estimator is server_side"),
    ({"window": -2}, "window is -2"),
  ],
)
def test_what_is_refused(options, words):
  with pytest.raises(ValueError, match=words):
    go(**options)
