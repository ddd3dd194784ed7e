"""Distributed over devices, a run is the same run."""

import re

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import simulation
from fedinf_jax.simulation import devices as device_grid

FED = fi.FedAvg(rounds=4, cohort_size=5, local_steps=2, learning_rate=2.0)
MODEL = fi.models.logreg(4, 3)
ESTIMATORS = {
  "both": fi.estimator(fi.fisher(num_samples=3), fi.lwet()),
  "fine": fi.estimator(
    fi.fisher(num_samples=3), fi.lwet(per="participant", tolerance=0.0)
  ),
  "relu": fi.estimator(
    fi.fisher(
      num_samples=3, labels="sampled", layerwise=False, spectrum="relu"
    ),
    fi.no_guard(),
  ),
  "basic": fi.estimator(fi.exact_hessian(), fi.no_guard()),
  "dense": fi.estimator(fi.dense_hessian(), fi.lwet()),
}
MESHES = ("8", "4x2")  # Removals × parameters.


def make_data(dtype, num_clients=11):
  draw = np.random.default_rng(0)
  sizes = draw.integers(2, 9, num_clients)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)).astype(dtype), draw.integers(0, 3, n))
      for n in sizes
    ]
  )


def mesh_of(shape):
  return device_grid.grid(jax.devices()[: np.prod(shape)], shape[1])


def close(run, other, tolerance):
  """Compares everything that two runs say."""
  x, y = make_data(np.float64, 20).pooled()
  assert run.eps.keys() == other.eps.keys()
  pairs = [(run.params, other.params), (run.eps, other.eps)]
  pairs.append((run.exact_eps, other.exact_eps))
  for a, b in pairs:
    for u, v in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
      np.testing.assert_allclose(u, v, rtol=0, atol=tolerance)
  names = [*run.eps, *(["exact"] if run.exact_rows is not None else [])]
  x = x.astype(jax.tree.leaves(run.params)[0].dtype)
  for name in names:
    found = [r.influence(fi.metrics.loss, x, y, of=name) for r in (run, other)]
    np.testing.assert_allclose(*found, rtol=0, atol=tolerance)
  for name, health in run.health.items():
    np.testing.assert_array_equal(
      health.truncated_at, other.health[name].truncated_at
    )
    np.testing.assert_allclose(
      health.growth, other.health[name].growth, rtol=0, atol=1e3 * tolerance
    )


@pytest.fixture(scope="module")
def alone():
  return fi.simulate(
    MODEL, make_data(np.float64), FED, exact=True, estimators=ESTIMATORS
  )


SOME_SLOW = [pytest.param((8, 1), marks=pytest.mark.slow), (4, 2)]


@pytest.mark.parametrize("shape", SOME_SLOW, ids=MESHES)
def test_sharded_equals_unsharded(alone, shape):
  run = fi.simulate(
    MODEL,
    make_data(np.float64),  # 11 rows: no number of devices here divides them.
    FED,
    exact=True,
    estimators=ESTIMATORS,
    mesh=mesh_of(shape),
  )
  close(run, alone, 1e-10)
  assert any(np.asarray(h.truncated_at).any() for h in run.health.values())


def test_sharded_equals_unsharded_in_single_precision(enable_x32):
  some = {"relu": ESTIMATORS["relu"]}
  model, data = fi.models.logreg(4, 3), make_data(np.float32)
  run = lambda mesh: fi.simulate(
    model, data, FED, exact=True, estimators=some, mesh=mesh
  )
  close(run(mesh_of((2, 1))), run(None), 1e-6)


@pytest.mark.slow
def test_groups_some_replayed_and_uploads_in_turn():
  groups = np.random.default_rng(1).random((7, 11)) < 0.3
  run = lambda mesh: fi.simulate(
    MODEL,
    make_data(np.float64),
    FED,
    exact=[5, 2],
    removals=groups,
    estimators={"both": ESTIMATORS["both"]},
    upload_chunk=1,
    mesh=mesh,
  )
  close(run(mesh_of((2, 2))), run(None), 1e-10)


def test_devices_that_have_only_their_own_clients():
  some = {"both": ESTIMATORS["both"]}
  run = lambda mesh: fi.simulate(
    MODEL, make_data(np.float64), FED, estimators=some, mesh=mesh
  )
  close(run(mesh_of((3, 1))), run(None), 1e-10)


@pytest.mark.parametrize("shape", SOME_SLOW, ids=MESHES)
def test_no_row_of_eps_is_gathered(shape):
  num_clients, features = 203, 24
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [
      (draw.normal(size=(4, features)), draw.integers(0, 3, 4))
      for _ in range(num_clients)
    ]
  )
  some = {name: ESTIMATORS[name] for name in ("both", "fine")}
  program = simulation.lower(
    fi.models.logreg(features, 3),
    data,
    FED,
    exact=True,
    estimators=some,
    mesh=mesh_of(shape),
  )
  text = program.compile().as_text()
  rows = {204 // shape[0], 204 // 8, 204, 208 // shape[0], 208 // 8, 208}
  moved = re.findall(
    r"= (.*?) (all-gather|all-to-all|all-reduce|collective-permute"
    r"|reduce-scatter)(?:-start)?\(",
    text,
  )
  assert any(kind == "all-reduce" for _, kind in moved)  # Of uploads.
  for shapes, kind in moved:
    for dims in re.findall(r"\w+\[([\d,]+)\]", shapes):
      dims = [int(d) for d in dims.split(",")]
      # The kernel's ε, [rows, features, 3], in whole or in part.
      of_eps = rows & set(dims) and np.prod(dims) >= min(rows) * features
      # Only products u = Gε, [participants, m N_s, rows], may be summed.
      of_eps = of_eps and not {5, 6} <= set(dims)
      assert not of_eps, (kind, shapes)


def test_what_a_mesh_may_be():
  devices = np.array(jax.devices())
  assert device_grid.resolve(None) is None
  assert device_grid.resolve("auto").shape == {"removals": 8, "params": 1}
  explicit = jax.make_mesh((4, 2), ("removals", "params"))
  found = device_grid.resolve(explicit)
  assert found.shape == {"removals": 4, "params": 2}
  assert set(found.axis_types) == {jax.sharding.AxisType.Auto}
  flat = jax.sharding.Mesh(devices[:3], ("removals",))
  assert device_grid.resolve(flat).shape == {"removals": 3, "params": 1}
  for wrong, words in (
    (jax.sharding.Mesh(devices, ("x",)), "mesh has axes"),
    ("all", "mesh is 'all'"),
    (8, "mesh is 8"),
  ):
    with pytest.raises(ValueError, match=words):
      device_grid.resolve(wrong)


def test_no_device_repeats_anothers_training():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(20, 300)), draw.integers(0, 3, 20)) for _ in range(16)]
  )
  fed = fi.FedAvg(rounds=1, cohort_size=8, local_steps=1, learning_rate=0.1)
  model = fi.models.logreg(300, 3)

  def operations(mesh):
    program = simulation.lower(model, data, fed, mesh=mesh)
    return program.compile().cost_analysis()["flops"]

  assert operations("auto") < operations(None) / 4
