"""The pass backwards as a program: snapshots, resuming, devices, errors."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import checks
from fedinf_jax.simulation import devices as device_grid

FED = fi.FedAvg(
  rounds=7, cohort_size=3, local_steps=2, learning_rate=0.4, batch_size=6
)
MODEL = fi.models.logreg(4, 3)


@functools.cache
def make_data(num_clients=11, dtype=np.float64):
  draw = np.random.default_rng(0)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)).astype(dtype), draw.integers(0, 3, n))
      for n in draw.integers(2, 20, num_clients)
    ],
    num_classes=3,
  )


def go(fed=FED, data=None, make=fi.adjoint, **options):
  data = data or make_data()
  options = {"directions": 4} | options
  return make(MODEL, data, fed, *make_data().pooled(), **options)


@functools.cache
def alone():
  return go()


def close(found, other, atol=1e-13):
  for name in ("influence", "derivative", "coordinates", "basis"):
    pair = [getattr(f, name) for f in (found, other)]
    np.testing.assert_allclose(*pair, rtol=0, atol=atol, err_msg=name)
  assert found.carried == pytest.approx(other.carried, abs=atol)


@pytest.mark.slow
@pytest.mark.parametrize("every", [1, 7])
def test_snapshots_change_nothing(every):
  assert np.abs(alone().influence).max() > 1e-3
  close(go(snapshot_every=every), alone())


def test_plain_descent_is_carried_as_any_optimizer_is():
  """By Hessian products forwards, and by transposing its training."""
  changes = {"learning_rate": None, "client_optimizer": optax.sgd(0.4)}
  close(go(fi.FedAvg(**{**vars(FED), **changes})), alone())


def test_directions_are_the_strongest_of_the_hessian():
  found, (x, y) = alone(), make_data().pooled()
  flat, unravel = jax.flatten_util.ravel_pytree(found.params)
  score = lambda w: MODEL.loss(MODEL.apply(unravel(w), x), y).mean()
  basis = np.asarray(found.basis)
  np.testing.assert_allclose(basis @ basis.T, np.eye(5), rtol=0, atol=1e-12)
  values, vectors = np.linalg.eigh(jax.hessian(score)(flat))
  strongest = vectors[:, np.argsort(-np.abs(values))[:4]].T
  for v in (*strongest, jax.grad(score)(flat)):
    assert np.linalg.norm(basis @ v) == pytest.approx(np.linalg.norm(v))
  within = np.square(basis @ vectors * values).sum()
  share = within / np.square(values).sum()
  # Ten random vectors tell what lies outside.
  assert 1 - found.carried == pytest.approx(1 - share, rel=0.3)


@pytest.mark.parametrize(("every", "window"), [(None, None), (2, 3)])
def test_progress(every, window):
  told = []
  tell = lambda done, rounds: told.append((done, rounds))
  options = {"snapshot_every": every, "window": window}
  found = go(progress=tell, **options)
  # Seven rounds there; on the way back it stops at snapshots.
  if window is None:
    assert told == [(i, 14) for i in (3, 6, 7, 8, 11, 14)]
    close(found, alone(), atol=0)
  else:
    assert told == [(i, 10) for i in (2, 4, 6, 7, 8, 10)]


def test_resumed_equals_uninterrupted():
  make = lambda: go(make=fi.adjoint_pass)

  def saved(state):
    """What a checkpoint holds, put into a new state."""
    leaves = [np.asarray(a) for a in jax.tree.leaves(state)]
    like = jax.tree.structure(make().init())
    return jax.tree.unflatten(like, [jnp.asarray(a) for a in leaves])

  go_ = make()
  state = go_.train(go_.init(), 4)
  state = make().train(saved(state), 3)
  state = make().turn(saved(state))
  state = make().back(saved(state), 2)  # Stops between two snapshots.
  state = make().back(saved(state), 5)
  close(make().read(saved(state)), alone(), atol=0)


def test_a_training_is_turned_again():
  go_ = go(make=fi.adjoint_pass)
  state = go_.train(go_.init(), FED.rounds)
  state = go_.back(go_.turn(state, 5), 4)
  state = go_.back(go_.turn(state), FED.rounds)
  close(go_.read(state), alone())


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 5])
def test_a_training_is_turned_at_any_round(at):
  go_ = go(make=fi.adjoint_pass)
  state = go_.train(go_.init(), FED.rounds)
  found = go_.read(go_.back(go_.turn(state, at), at))
  cohorts = checks.cohorts(None, make_data(), FED, 0)
  fed = fi.FedAvg(**{**vars(FED), "rounds": at})
  close(found, go(fed, cohorts=cohorts[:at]))


@pytest.mark.slow
def test_in_single_precision(enable_x32):
  data = make_data(dtype=np.float32)
  model = fi.models.logreg(4, 3)
  found = fi.adjoint(model, data, FED, *data.pooled(), directions=4)
  assert found.influence.dtype == found.coordinates.dtype == np.float32
  with jax.enable_x64(True):
    exact = alone()
  for name in ("influence", "derivative"):
    pair = [getattr(f, name) for f in (found, exact)]
    np.testing.assert_allclose(*pair, rtol=0, atol=2e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(8, 1), (2, 2)])
def test_devices_share_the_participants(shape):
  mesh = device_grid.grid(jax.devices()[: np.prod(shape)], shape[1])
  found = go(mesh=mesh)
  close(found, alone(), atol=1e-12)
  x, y = make_data().pooled()
  np.testing.assert_allclose(
    found.on(fi.metrics.accuracy, x, y),
    alone().on(fi.metrics.accuracy, x, y),
    atol=1e-12,
  )


def test_any_metric_at_the_moved_models():
  found, data = alone(), make_data()
  x, y = data.pooled()
  np.testing.assert_allclose(
    found.on(fi.metrics.loss, x, y), found.influence, atol=1e-15
  )
  per_class = found.on(fi.metrics.per_class_accuracy, x, y)
  assert per_class.shape == (11, 3)
  accuracy = found.on(fi.metrics.accuracy, x, y)
  k = int(np.abs(accuracy).argmax())
  flat, unravel = jax.flatten_util.ravel_pytree(found.params)
  score = lambda w: fi.metrics.accuracy(MODEL.apply(unravel(w), x), y)
  moved = score(flat + found.coordinates[k] @ found.basis) - score(flat)
  assert accuracy[k] == moved and moved != 0


@pytest.mark.slow
def test_own_metric_and_none_of_its_curvature():
  first = go(metric=fi.metrics.cross_entropy, directions=0)
  np.testing.assert_allclose(
    first.derivative, alone().derivative, rtol=0, atol=1e-12
  )
  assert first.coordinates.shape == (11, 1) and 0 <= first.carried < 1
  assert first.carried < alone().carried <= 1


def test_one_compilation_whatever_the_rounds(compilations):
  fed = fi.FedAvg(**{**vars(FED), "rounds": 41})
  go_ = go(fed, make=fi.adjoint_pass)
  state = go_.back(go_.turn(go_.train(go_.init())))
  before = len(compilations)
  state = go_.train(go_.train(state, 3), 37)
  assert len(compilations) == before
  state = go_.back(go_.back(go_.turn(state), 2), 39)
  assert len(compilations) == before
  go(fed, seed=3)  # Other cohorts, another start: only the result is read.
  assert len(compilations) <= before + 4


def test_no_array_has_clients_and_parameters():
  num_clients, size = 211, 15
  go_ = go(data=make_data(num_clients), make=fi.adjoint_pass)
  for program in go_.lower():
    text = program.as_text()
    shapes = {
      tuple(map(int, re.findall(r"\d+", found)))
      for found in re.findall(r"tensor<((?:\d+x)+)", text)
    }
    assert (FED.rounds, FED.cohort_size, 5) in shapes
    for shape in shapes:
      of_clients = {num_clients, num_clients + 1} & set(shape)
      assert not of_clients or np.prod(shape) < num_clients * size, shape


def test_models_are_kept_every_root_of_the_rounds():
  fed = fi.FedAvg(**{**vars(FED), "rounds": 90})
  for every, kept in ((None, 9), (1, 90), (90, 1)):  # Every tenth round.
    go_ = go(fed, make=fi.adjoint_pass, snapshot_every=every)
    state = jax.eval_shape(go_.init)
    found = {a.shape[0] for a in jax.tree.leaves(state.kept)}
    assert found == {kept}


@pytest.mark.slow
def test_memory_does_not_grow_with_clients():
  def needed(num_clients):
    data = make_data(num_clients)
    programs = go(data=data, make=fi.adjoint_pass, cohorts=COHORTS).lower()
    return [p.compile().memory_analysis().temp_size_in_bytes for p in programs]

  assert needed(400) == needed(100)


COHORTS = np.array([[3, 0, 5], [4, 1, 2], [5, 3, 1], [0, 2, 3]] * 2)[:7]


def counted(outputs, y):
  return (outputs.argmax(-1) == y).sum().astype(jnp.int32)


def per_example(outputs, y):
  return MODEL.loss(outputs, y)


def broken(params, x):
  return MODEL.apply(params, x) * jnp.nan


@pytest.mark.parametrize(
  "words, options",
  [
    (
      "metric: its gradient is zero everywhere",
      {"metric": fi.metrics.accuracy},
    ),
    ("metric: returns int32 of shape", {"metric": counted}),
    (r"metric: returns float64 of shape \[", {"metric": per_example}),
    ("directions is 16; the model has 15 parameters", {"directions": 16}),
    ("directions is -1; it must be", {"directions": -1}),
    ("snapshot_every is 0", {"snapshot_every": 0}),
    ("own_part is 1; it must be True or False", {"own_part": 1}),
    ("window is 0", {"window": 0}),
    ("progress is 'yes'; it must be True", {"progress": "yes"}),
    ("fed is", {"fed": 3}),
  ],
)
def test_what_is_refused(words, options, compilations):
  with pytest.raises(ValueError, match=words):
    go(**options)
  assert len(compilations) < 30  # Small things alone: no training.


@pytest.mark.slow
def test_a_small_model_has_fewer_directions_by_default():
  assert go(directions=None).basis.shape == (15, 15)


def test_examples_and_models_that_are_refused():
  x, y = make_data().pooled()
  with pytest.raises(ValueError, match="at least one"):
    fi.adjoint(MODEL, make_data(), FED, x[:0], y[:0])
  with pytest.raises(ValueError, match="gradient is not finite at the start"):
    model = MODEL._replace(apply=broken)
    fi.adjoint(model, make_data(), FED, x, y, directions=0)
  with pytest.raises(ValueError, match="round 1: the upload of client"):
    clients = [(a * 1e200, b) for a, b in make_data().clients()]
    data = fi.FederatedData.from_clients(clients, num_classes=3)
    fi.adjoint(MODEL, data, FED, x, y, directions=0)


# Squared, these parameters stay zero, and so do their gradients.
IDLE = MODEL._replace(
  init=lambda key: {"used": MODEL.init(key), "idle": jnp.zeros(3)},
  apply=lambda w, x: MODEL.apply(w["used"], x) + w["idle"][None] ** 2,
)


@pytest.mark.slow
def test_an_optimizer_without_a_derivative_says_where():
  x, y = make_data().pooled()

  def pass_by(optimizer):
    changes = {"learning_rate": None, "client_optimizer": optimizer}
    fed = fi.FedAvg(**{**vars(FED), **changes})
    return fi.adjoint(IDLE, make_data(), fed, x, y, directions=0)

  with pytest.raises(ValueError, match=r"round 7: a direction .* set eps_root"):
    pass_by(optax.adam(0.1))
  assert np.abs(pass_by(optax.adam(0.1, eps_root=1e-8)).derivative).max() > 1e-3


def test_states_that_are_refused():
  go_ = go(make=fi.adjoint_pass)
  for call, words in (
    (lambda s: go_.back(s), "turn it before back"),
    (lambda s: go_.turn(s, 1), "at is 1; 0 rounds are trained"),
    (lambda s: go_.read(s), "7 rounds left"),
    (lambda s: go_.train(s, 8), "rounds is 8; 7 rounds are left"),
    (lambda s: go_.train(s.trained), "state is a State"),
  ):
    with pytest.raises(ValueError, match=words):
      call(go_.init())
  state = go_.init()
  go_.train(state)
  with pytest.raises(ValueError, match="used up"):
    go_.train(state)
