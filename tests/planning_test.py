"""What --plan says is what the compiled program needs."""

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import memory
from fedinf_jax.recipes import estimators as named
from fedinf_jax.running import planning
from fedinf_jax.running import task as tasks
from fedinf_jax.simulation import devices
from tests import binaries

CLIENTS, FEATURES, CLASSES = 800, 1000, 10


def make_task(names, *, exact):
  draw = np.random.default_rng(0)
  data = fi.data.partition.iid(
    draw.standard_normal((20 * CLIENTS, FEATURES), np.float32),
    draw.integers(0, CLASSES, 20 * CLIENTS).astype(np.int32),
    num_clients=CLIENTS,
    seed=0,
    num_classes=CLASSES,
  )
  return tasks.Task(
    name="noise",
    model=fi.models.logreg(FEATURES, CLASSES),
    train=data,
    x=data.x[:9],
    y=data.y[:9],
    fed=fi.FedAvg(rounds=6, cohort_size=8, local_steps=2, learning_rate=0.01),
    estimators=named.build(names),
    exact=exact,
  )


@pytest.mark.parametrize(
  ("names", "exact", "shapes"),
  [
    ("both", False, [(1, 1), (8, 1), (4, 2)]),
    ("truncated", True, [(1, 1), (4, 1)]),
  ],
)
@pytest.mark.slow
def test_memory_falls_as_planned(enable_x32, names, exact, shapes):
  task = make_task(names, exact=exact)
  drawn = tasks.selected(task) > 0
  replayed = CLIENTS if exact else 0
  sizes = planning.sizes_of(task, task.estimators, replayed, drawn)
  before = np.inf
  for shape in shapes:
    count = np.prod(shape)
    mesh = devices.grid(jax.devices()[:count], shape[1]) if count > 1 else None
    program = tasks.lower(task._replace(mesh=mesh))
    compiled = memory.compiled_bytes(program.compile())
    planned = planning.plan(sizes, planning.Machine(*shape, 1e11)).memory
    assert 0.8 < planned / compiled < 1.2, (shape, planned, compiled)
    assert compiled < before
    before = compiled


def test_operations_are_distributed():
  sizes = planning.Sizes(
    clients=1000,
    params=10_000,
    participants=8,
    uploads=(4 * 40 * 10_000,),
    propagations=(4 * 40 * 10_000,),
    training=6e7,
    replayed=1000,
  )
  one, eight, cut = (
    planning.plan(sizes, planning.Machine(*shape, 1e12, 1e10))
    for shape in ((1, 1), (8, 1), (4, 2))
  )
  assert one.traffic == 0
  for part in ("training", "propagation", "replay"):
    assert getattr(eight, part) == getattr(one, part) / 8
    assert getattr(cut, part) == getattr(eight, part)
  assert eight.state < one.state / 7
  assert cut.working < eight.working  # Uploads are cut, too.
  assert cut.traffic < eight.traffic
  assert eight.seconds == eight.operations / 1e12 + eight.traffic / 1e10
  machine = planning.Machine(8, 1, 1e12, 1e10, memory=1e6)
  assert planning.bottleneck(sizes, machine) == "memory"
  slow = planning.Machine(8, 1, 1e15, 1e6)
  assert planning.bottleneck(sizes, slow) == "traffic"


@pytest.mark.parametrize(
  ("wanted", "shape"),
  [("auto", (8, 1)), ("none", (1, 1)), ("5", (5, 1)), ("4x2", (4, 2))],
)
def test_devices_of_a_recipe(wanted, shape):
  assert devices.parse_shape(wanted) == shape
  mesh = devices.parse(wanted)
  assert shape == (1, 1) if mesh is None else mesh.devices.shape == shape


@pytest.mark.parametrize("wanted", ["all", "0", "2x2x2", "-1", "9", "8x2"])
def test_devices_that_do_not_exist(wanted):
  with pytest.raises(ValueError, match="mesh is"):
    devices.parse(wanted)


def test_plans_on_the_screen():
  done = binaries.start("run", "--plan", "--config.mesh=64x2", *binaries.SMALL)
  assert done.returncode == 0, done.stderr
  assert "64 × 2 device(s)" in done.stdout
  assert "memory in all" in done.stdout
  done = binaries.start("plan", "--params=1e4,1e8")
  assert done.returncode == 0, done.stderr
  lines = [line.split() for line in done.stdout.splitlines() if "1e" in line]
  assert len(lines) == 6
  assert lines[0][1:6:2] == ["1e4", "1e4", "1"]
