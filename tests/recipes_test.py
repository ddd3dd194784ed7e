"""Recipes become tasks; a recipe that cannot be is refused."""

import json
import os
import re
import sys

from absl import flags
import jax
import ml_collections
from ml_collections import config_flags
import numpy as np
import pytest

from experiments import launch
from experiments.configs import quickstart
from experiments.configs import setting1
from experiments.configs import setting1_convex
from experiments.configs import setting2
from experiments.configs import setting3
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax.recipes import estimators
from fedinf_jax.running import task as tasks

FEW = {"num_clients": 5, "examples": 8, "test_examples": 10}


def own_config():
  config = quickstart.get_config()
  config.data, config.model = {"kind": "own"}, {}
  config.server_examples, config.estimators = 0, "relu"
  config.mesh, config.fed.cohort_size = "none", 2
  return config


def own_problem(**changed):
  made, held_out = fi.FederatedData.from_clients(
    [(np.eye(4, 3, dtype=np.float32), np.arange(4) % 3) for _ in range(5)]
  ).split(0.5, 0)
  problem = recipes.Problem(made, held_out, "mine", fi.models.logreg(3, 3))
  return lambda config: problem._replace(**changed)


def test_a_recipe_may_bring_its_problem():
  task = recipes.build("mine", own_config(), None, own_problem())
  assert task.train.num_clients == 5 and len(task.x) == 10
  assert task.source == "mine" and not task.stand_in
  tasks.simulator(task)
  config = own_config()
  config.scale, config.server_from = 0.5, "others"
  config.server_examples, config.estimators = 4, "server"
  spare = recipes.unowned(np.eye(6, 3, dtype=np.float32), np.arange(6) % 3)
  config = recipes.scaled(config)
  task = recipes.build("mine", config, None, own_problem(spare=spare))
  assert task.fed.rounds == 50 and len(task.server_data.x) == 4


@pytest.mark.parametrize(
  ("get_problem", "words"),
  [
    (None, "only the recipe that brings these data"),
    (lambda config: 5, "get_problem returned a int"),
    (lambda config: config.nothing, "get_problem(config) fails"),
    (own_problem(model=None), "model is a NoneType"),
    (own_problem(held_out=(1, 2)), "held_out is a tuple"),
    (own_problem(source=3), "source is 3; it is a text"),
  ],
)
def test_a_problem_that_is_none_is_refused(get_problem, words):
  with pytest.raises(ValueError, match=re.escape(words)):
    recipes.build("mine", own_config(), None, get_problem)


def test_own_data_and_other_data_are_not_mixed_up():
  config = quickstart.get_config()
  config.mesh = "none"
  with pytest.raises(ValueError, match=r"set data\.kind to 'own'"):
    recipes.build("mine", config, None, own_problem())
  config = own_config()
  config.server_from = "stand_in"
  with pytest.raises(ValueError, match="none for own data"):
    recipes.check(config)
  config = own_config()
  config.fed.optimizer = "sdg"
  with pytest.raises(ValueError, match="optimizer"):
    recipes.check(config)


def small(config, **data):
  config = config.get_config()
  config.fed.cohort_size, config.mesh = 2, "none"
  config.data.update(data)
  return config


@pytest.fixture(scope="module")
def writers(tmp_path_factory):
  """The same writers as an .npz and as LEAF's folder."""
  folder = tmp_path_factory.mktemp("femnist")
  everyone = fi.data.glyphs(6, 14, seed=1)
  train, test = everyone.split(10 / 14, seed=0)
  arrays = {"users": np.array(everyone.ids)}
  for name, part in (("train", train), ("test", test)):
    greys = np.rint(255 * part.x).astype(np.uint8).reshape(-1, 784)
    arrays[f"x_{name}"], arrays[f"y_{name}"] = greys, part.y
    arrays[f"u_{name}"] = np.repeat(np.arange(6), part.num_examples)
    clients = zip(part.ids, part.clients(), strict=True)
    leaf = {
      "users": list(part.ids),
      "num_samples": part.num_examples.tolist(),
      "user_data": {
        i: {
          "x": (np.rint(255 * x) / 255).round(6).reshape(-1, 784).tolist(),
          "y": y.tolist(),
        }
        for i, (x, y) in clients
      },
    }
    (folder / "leaf" / name).mkdir(parents=True)
    (folder / "leaf" / name / "all.json").write_text(json.dumps(leaf))
  np.savez(folder / "writers.npz", **arrays)
  return folder


def test_scale_shrinks_everything_together():
  config = setting3.get_config()
  config.scale = 0.1
  scaled = recipes.scaled(config)
  assert scaled.fed.rounds == 200
  assert scaled.data.num_clients == 20  # Not fewer than two cohorts.
  assert scaled.data.examples == 15
  assert scaled.evaluate_every == 5
  assert scaled.cleanse_round == 150
  assert config.fed.rounds == 2000


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5])
def test_a_scale_out_of_range_is_refused(scale):
  config = quickstart.get_config()
  config.scale = scale
  with pytest.raises(ValueError, match="scale is"):
    recipes.scaled(config)


def test_synthetic_data_shrink_too():
  config = small(setting1, num_clients=20)
  whole = recipes.build("test", config, None)
  config.scale = 0.3
  part = recipes.build("test", config, None)
  assert part.train.num_clients == 20
  assert len(part.train.x) < 0.4 * len(whole.train.x)


def test_leaf_and_npz_give_the_same_problem(writers):
  for config in (setting2, setting3):
    config = small(config, **FEW)
    made = [
      recipes.build("test", config, str(writers / name))
      for name in ("writers.npz", "leaf")
    ]
    assert tasks.digest(made[0]) == tasks.digest(made[1])
    assert not made[0].stand_in
    assert made[0].train.num_clients == 5
    assert made[0].train.num_examples.max() == 8
    images = len(made[0].x)
    if config.server_from == "held_out":  # Else they are no test images.
      images += len(made[0].server_data.x)
    assert images == 10


def test_a_prepared_tfds_folder_is_read(writers, tmp_path):
  fi.data.femnist.prepare_tfds(writers / "leaf", tmp_path / "tfds")
  config = small(setting3, **FEW)
  made, other = (
    recipes.build("test", config, str(path))
    for path in (tmp_path / "tfds", writers / "leaf")
  )
  assert made.source == "FEMNIST from TFDS"
  assert tasks.digest(made) == tasks.digest(other)


def test_without_data_the_glyph_writers_stand_in():
  made = recipes.build("test", small(setting3, **FEW), None)
  assert made.stand_in
  assert "stand-in for FEMNIST" in made.source


def test_by_writer_keeps_writers_and_iid_mixes_them(writers):
  path = str(writers / "writers.npz")
  by_writer = recipes.build("test", small(setting3, **FEW), path)
  assert all(str(i).startswith("writer_") for i in by_writer.train.ids)
  iid = recipes.build("test", small(setting2, **FEW), path)
  assert iid.train.ids == tuple(range(5))


@pytest.mark.parametrize(
  "data,message",
  [
    ({"num_clients": 7}, "data.num_clients is 7; the data have 6 writers"),
    ({"examples": 90, "kind": "femnist_iid"}, "need 450 images; the data"),
  ],
)
def test_a_recipe_that_cannot_be_is_refused(writers, data, message):
  config = small(setting3, **{**FEW, **data})
  with pytest.raises(ValueError, match=message):
    recipes.build("test", config, str(writers / "writers.npz"))


def test_planted_clients_are_named_and_part_of_the_digest():
  config = small(setting3, **FEW)
  clean = recipes.build("test", config, None)
  config.corrupt.kind, config.corrupt.fraction = "flip_labels", 0.4
  spoiled = recipes.build("test", config, None)
  assert len(spoiled.bad) == 2
  assert tasks.digest(clean) != tasks.digest(spoiled)
  changed = [
    k
    for k in range(5)
    if (clean.train.client(k)[1] != spoiled.train.client(k)[1]).any()
  ]
  assert [spoiled.train.ids[k] for k in changed] == list(spoiled.bad)


@pytest.mark.parametrize(
  "change,message",
  [
    ({"fed.rounds": 0}, "rounds is 0; it must be"),
    ({"evaluate_every": 0}, "evaluate_every is 0; it must be at least 1"),
    ({"tracked": -1}, "tracked is -1; it must be at least 0"),
    ({"estimators": "both,nope"}, "estimators: 'nope' is unknown; there are"),
    ({"exact": "201"}, 'exact is .201.; it must be "all", "none" or'),
    ({"mesh": "some"}, "mesh is 'some'"),
    ({"data.kind": "nope"}, "data.kind is 'nope'; it must be one of synthetic"),
    ({"model.kind": "nope"}, "model.kind is 'nope'; it must be one of logreg"),
    ({"corrupt.kind": "rng"}, "corrupt.kind is 'rng'; it must be one of flip"),
    ({"corrupt.kind": "add_noise"}, "corrupt.fraction is 0.0; it must lie"),
    ({"model.logit_activation": "one_hot"}, "activation is 'one_hot'; it must"),
    ({"seed": 2**32}, "seed is 4294967296; it must be an integer in 0"),
    ({"fed.learning_rate": 1e300}, "fed.learning_rate is 1e[+]300; it must"),
    ({"fed.rounds": 10**12}, r"rounds = 1000\d* .* need 40,000,000,000,000 b"),
    ({"data.num_clients": 10**9}, r"data.num_clients = .* 2,400,000,000,000 b"),
    ({"fed.local_steps": 10**12}, r"local_steps = 10* would need 4,000,000,00"),
    ({"fed.local_steps": 10**9}, r"fed.local_steps = 10* local models would"),
    ({"model.dense": -1}, "model.dense is -1; it must be at least 1"),
    ({"model.dense": 10**12}, "a network of widths 8, 16 .* bytes of memory"),
    ({"model.widths": (4,)}, r"model.widths is \(4,\); it must be two whole"),
    ({"data.test_examples": 10**12}, "data.test_examples = 10* would need"),
  ],
)
def test_a_recipe_is_checked_before_its_data_are_made(change, message):
  of_images = {"model.dense", "model.widths", "data.test_examples"}
  recipe = setting3 if of_images & change.keys() else quickstart
  config = recipe.get_config()
  config.update_from_flattened_dict(change)
  with pytest.raises(ValueError, match=message):
    recipes.check(config)


def test_a_recipe_without_a_key_is_refused_whatever_its_scale():
  for scale in (1.0, 0.5):
    config = quickstart.get_config()
    config.scale = scale
    config.data.kind = "zzz"
    with pytest.raises(ValueError, match=r"data.kind is 'zzz'; it must be one"):
      recipes.scaled(config)
    config.data.kind = "femnist_iid"
    with pytest.raises(ValueError, match=r"the recipe has no key data\.exa"):
      recipes.scaled(config)
  with pytest.raises(ValueError, match="the recipe has no key seed"):
    recipes.check(ml_collections.ConfigDict())
  with pytest.raises(ValueError, match="the recipe is a list; get_config must"):
    recipes.scaled([])


def test_a_pipe_among_the_data_is_refused_and_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / "all.json")
  for path in (tmp_path, tmp_path / "all.json"):
    with pytest.raises(ValueError, match=r"all\.json is neither a file nor a"):
      recipes.build("test", small(setting3, **FEW), str(path))


def test_kinds_of_bad_clients_are_looked_up_in_a_table():
  recipes.check_kinds(list(recipes.CORRUPTIONS))
  with pytest.raises(ValueError, match="--kinds: 'rng' is unknown; there are"):
    recipes.check_kinds(["flip_labels", "rng"])
  with pytest.raises(ValueError, match="--kinds is empty"):
    recipes.check_kinds([])


@pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")
def test_what_a_recipe_raises_is_one_line(tmp_path, monkeypatch):
  path = tmp_path / "recipe.py"
  for content, message in (
    ("def get_config(): return 1 / 0", "--config cannot be read: ZeroDivision"),
    ("def get_config(): int('x')", "--config cannot be read: ValueError: inva"),
    ("def get_config(: pass", f"--config: {path}, line 1: invalid syntax"),
    ("", "--config has no such key: module 'config_config' has no attribute"),
  ):
    path.write_text(content)
    # A module of that name would be filled once more.
    monkeypatch.delitem(sys.modules, "config_config", raising=False)
    values = flags.FlagValues()
    config_flags.DEFINE_config_file("config", None, "", values)
    with pytest.raises(Exception) as caught:
      values(["run", f"--config={path}"])
    line = str(launch.recipe_error(caught.value))
    assert line.startswith(message)
    assert "\n" not in line


def test_a_name_of_a_recipe_stands_for_its_file():
  path = str(launch.CONFIGS / "setting2.py")
  given = launch.with_recipe_files
  assert given(["run", "--config=setting2", "--config.seed=1"]) == [
    *("run", f"--config={path}", "--config.seed=1")
  ]
  assert given(["run", "--config", "setting2"]) == ["run", "--config", path]
  for argv in (["run", f"--config={path}"], ["run", "--config=mine.py"]):
    assert given(argv) == argv
  with pytest.raises(
    ValueError, match=r"--config=nope: .* quickstart, setting"
  ):
    given(["run", "--config=nope"])


@pytest.mark.parametrize(
  ("recipe", "num_params", "stand_in"),
  [
    (setting1, 305, False),
    (setting1_convex, 305, False),
    (setting2, 15534, True),
    (setting3, 57694, True),
  ],
)
def test_every_recipe_can_be_simulated(recipe, num_params, stand_in):
  config = recipe.get_config()
  config.scale, config.estimators, config.exact = 0.02, "truncated", "5"
  config.mesh = "none"
  task = recipes.build("test", recipes.scaled(config), None)
  assert task.stand_in == stand_in
  state = tasks.simulator(task).init()
  assert sum(a.size for a in jax.tree.leaves(state.params)) == num_params
  assert len(state.replayed) == 5
  assert task.keep_rounds == {max(1, round(0.02 * config.cleanse_round))}


def test_exact_rows():
  assert recipes.exact_rows("all", 9, 0) is True
  assert recipes.exact_rows("none", 9, 0) is False
  rows = recipes.exact_rows("4", 9, 0)
  assert len(set(rows)) == 4 and rows == sorted(rows)
  for bad in ("10", "0", "some", "-1"):
    with pytest.raises(ValueError, match="exact is"):
      recipes.exact_rows(bad, 9, 0)


def test_estimators_are_built_and_described_from_one_table():
  names = ",".join(fi.presets.SPECS)
  assert list(estimators.build(names)) == list(fi.presets.SPECS)
  assert estimators.build("") == {}
  assert estimators.describe("both_fine") == (
    "fisher() + lwet(per='participant')"
  )


def test_the_server_s_examples_are_no_test_examples():
  config = small(quickstart, num_clients=60)
  config.mesh = "none"
  config.server_examples, config.estimators = 0, "both"
  everything = recipes.build("test", config, None)
  assert everything.server_data is None
  config.server_examples, config.estimators = 200, "both,server,matched"
  task = recipes.build("test", config, None)
  x, y = task.server_data.pooled()
  assert len(x) == len(y) == 200
  assert len(task.x) == len(everything.x) - 200
  rows = lambda *parts: {row.tobytes() for part in parts for row in part}
  assert rows(task.x, x) == rows(everything.x)
  assert not rows(task.x) & rows(x)
  assert tasks.digest(task) != tasks.digest(everything)
  tasks.simulator(task)  # It takes them.
  parts = tasks.halves(task)
  said = tasks.describe(task)
  assert "held out: 200 curvature (the server's)" in said
  assert f"{len(parts.validation)} validation, {len(parts.test)} test" in said
  assert sorted([*parts.validation, *parts.test]) == list(range(len(task.x)))
  config.server_examples = 0
  with pytest.raises(ValueError, match="'server' needs examples of the server"):
    recipes.check(config)
  config.server_examples = 10**6
  task = recipes.build("test", config, None)
  assert len(task.server_data.x) == len(everything.x) // 2


@pytest.mark.parametrize("data", [quickstart, setting3])
def test_the_server_s_examples_may_be_from_elsewhere(data):
  config = small(data, num_clients=12)
  config.server_examples = 40
  config.update(mesh="none", estimators="matched")
  own = recipes.build("test", config, None)
  assert set(map(str, own.server_data.ids)) <= set(map(str, own.train.ids))
  for origin in ("skewed", "stand_in", "others"):
    config.server_from = origin
    other = recipes.build("test", config, None)
    if origin != "others":
      np.testing.assert_array_equal(other.x, own.x)  # Measured on the same.
    x, y = other.server_data.pooled()
    assert len(x) == len(y) <= 40 and x.dtype == own.x.dtype
    if origin == "skewed":
      assert y.max() < own.server_data.y.max()
    elif origin == "others":
      used = {a.tobytes() for a in (*other.train.x, *other.x)}
      assert not used & {a.tobytes() for a in x}
    else:
      assert not np.array_equal(x, own.server_data.x)
  config.server_from = "elsewhere"
  with pytest.raises(ValueError, match="server_from is 'elsewhere'; it must"):
    recipes.check(config)


def test_a_number_after_an_estimator_is_its_size():
  built = estimators.build("both,relu@70,lowrank@5,server@30,matched@2000", 500)
  curvatures = {name: e.curvature for name, e in built.items()}
  assert curvatures["relu@70"].num_samples == 70
  assert curvatures["server@30"].num_samples == 30
  assert curvatures["matched@2000"].num_samples == 500  # All that there are.
  assert "rank=5" in estimators.describe("lowrank@5")
  assert "num_examples=500" in estimators.describe("matched", 500)
  for wrong, message in (
    ("relu@0", "after @ there must be a number"),
    ("relu@x", "after @ there must be a number"),
    ("basic@5", "neither samples nor a rank"),
  ):
    with pytest.raises(ValueError, match=message):
      estimators.build(wrong)
