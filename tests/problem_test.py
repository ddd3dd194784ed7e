"""Recipes become data and models."""

import json

import numpy as np
import pytest

from experiments import estimators
from experiments import problem as problems
from experiments.configs import quickstart
from experiments.configs import setting1
from experiments.configs import setting2
from experiments.configs import setting3
import fedinf_jax as fi

FEW = {"num_clients": 5, "examples": 8, "test_examples": 10}


def small(config, **data):
  config = config.get_config()
  config.fed.cohort_size = 2
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
  scaled = problems.scaled(config)
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
    problems.scaled(config)


def test_synthetic_data_shrink_too():
  config = small(setting1, num_clients=20)
  whole = problems.build(config, None)
  config.scale = 0.3
  part = problems.build(config, None)
  assert part.train.num_clients == 20
  assert len(part.train.x) < 0.4 * len(whole.train.x)


def test_leaf_and_npz_give_the_same_problem(writers):
  for config in (setting2, setting3):
    config = small(config, **FEW)
    made = [
      problems.build(config, str(writers / name))
      for name in ("writers.npz", "leaf")
    ]
    assert problems.digest(made[0]) == problems.digest(made[1])
    assert not made[0].stand_in
    assert made[0].train.num_clients == 5
    assert made[0].train.num_examples.max() == 8
    assert len(made[0].x) == 10


def test_a_prepared_tfds_folder_is_read(writers, tmp_path):
  fi.data.femnist.prepare_tfds(writers / "leaf", tmp_path / "tfds")
  config = small(setting3, **FEW)
  made, other = (
    problems.build(config, str(path))
    for path in (tmp_path / "tfds", writers / "leaf")
  )
  assert made.source == "FEMNIST from TFDS"
  assert problems.digest(made) == problems.digest(other)


def test_without_data_the_glyph_writers_stand_in():
  made = problems.build(small(setting3, **FEW), None)
  assert made.stand_in
  assert "stand-in for FEMNIST" in made.source


def test_by_writer_keeps_writers_and_iid_mixes_them(writers):
  path = str(writers / "writers.npz")
  by_writer = problems.build(small(setting3, **FEW), path)
  assert all(str(i).startswith("writer_") for i in by_writer.train.ids)
  iid = problems.build(small(setting2, **FEW), path)
  assert iid.train.ids == tuple(range(5))


@pytest.mark.parametrize(
  "data,message",
  [
    ({"num_clients": 7}, "data.num_clients is 7; the data have 6 writers"),
    ({"kind": "nope"}, "data.kind is 'nope'"),
  ],
)
def test_a_recipe_that_cannot_be_is_refused(writers, data, message):
  config = small(setting3, **{**FEW, **data})
  with pytest.raises(ValueError, match=message):
    problems.build(config, str(writers / "writers.npz"))


def test_planted_clients_are_named_and_part_of_the_digest():
  config = small(setting1, num_clients=20)
  clean = problems.build(config, None)
  config.corrupt.kind, config.corrupt.fraction = "flip_labels", 0.2
  spoiled = problems.build(config, None)
  assert len(spoiled.bad) == 4
  assert problems.digest(clean) != problems.digest(spoiled)
  changed = [
    k
    for k in range(20)
    if (clean.train.client(k)[1] != spoiled.train.client(k)[1]).any()
  ]
  assert [spoiled.train.ids[k] for k in changed] == list(spoiled.bad)


@pytest.mark.parametrize(
  "kind,fraction,message",
  [
    ("nope", 0.1, "corrupt.kind is 'nope'"),
    ("flip_labels", 0.0, "corrupt.fraction is 0.0"),
  ],
)
def test_a_corruption_that_cannot_be_is_refused(kind, fraction, message):
  config = small(setting1, num_clients=20)
  config.corrupt.kind, config.corrupt.fraction = kind, fraction
  with pytest.raises(ValueError, match=message):
    problems.build(config, None)


def test_exact_rows():
  assert problems.exact_rows("all", 9, 0) is True
  assert problems.exact_rows("none", 9, 0) is False
  rows = problems.exact_rows("4", 9, 0)
  assert len(set(rows)) == 4 and rows == sorted(rows)
  for bad in ("10", "0", "some", "-1"):
    with pytest.raises(ValueError, match="exact is"):
      problems.exact_rows(bad, 9, 0)


def test_estimators_are_built_and_described_from_one_table():
  names = ",".join(estimators.SPECS)
  assert list(estimators.build(names)) == list(estimators.SPECS)
  assert estimators.build("") == {}
  assert estimators.describe("both_fine") == (
    "fisher() + lwet(per='participant')"
  )
  with pytest.raises(ValueError, match="'nope' is unknown; there are basic"):
    estimators.build("both,nope")


@pytest.mark.parametrize(
  "change",
  [
    lambda a: a.pop("users"),
    lambda a: a.update(x_train=a["x_train"].astype(np.float32)),
    lambda a: a.update(y_train=a["y_train"][:-1]),
    lambda a: a.update(u_train=a["u_train"] + 3),
    lambda a: a.update(y_train=a["y_train"] + 60),
  ],
)
def test_a_damaged_npz_is_refused(writers, tmp_path, change):
  with np.load(writers / "writers.npz") as found:
    arrays = dict(found)
  change(arrays)
  np.savez(tmp_path / "bad.npz", **arrays)
  with pytest.raises(ValueError, match=r"bad\.npz|outside 0"):
    fi.data.femnist.from_npz(tmp_path / "bad.npz")
