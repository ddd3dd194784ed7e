"""Finding bad clients, by `experiments.debug`."""

import html
import io
import json

import numpy as np
import pytest
from rich import console as rich_console

from experiments import cleansing
from experiments import debugging
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax.recipes import estimators
from fedinf_jax.report import remedies
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.valuation import owners
from tests import binaries


def flippers(seed):
  """Returns 24 clients of 20 examples each, five with wrong labels.

  Of equal size on purpose: where some hold five examples, as in LEAF's data,
  a bad one among these does too little harm to be found, even by retraining.
  """
  draw = np.random.default_rng(seed)
  centres = draw.normal(size=(3, 4))

  def examples(count):
    y = draw.integers(0, 3, count)
    x = centres[y] + draw.normal(size=(count, 4))
    return x.astype(np.float32), y

  clients = [examples(20) for _ in range(24)]
  data = fi.FederatedData.from_clients(clients, num_classes=3)
  train, bad = fi.data.corrupt.flip_labels(data, 5, seed=seed)
  x, y = examples(600)
  return tasks.Task(
    name="flippers",
    model=fi.models.logreg(4, 3),
    train=train,
    x=x,
    y=y,
    fed=fi.FedAvg(rounds=20, cohort_size=8, local_steps=2, learning_rate=0.1),
    recipe={"exact": "all", "evaluate_every": 10},
    estimators=estimators.build("relu", None),
    descriptions={"relu": "relu"},
    exact=True,
    evaluate_every=10,
    seed=seed,
    source="made",
    bad=bad,
  )


@pytest.mark.slow
def test_debugging_finds_planted_label_flippers(enable_x32, tmp_path):
  screen = rich_console.Console(file=io.StringIO())
  debugging.debug(
    flippers(seed=0), "flip_labels", tmp_path / "w", screen, sweeps=1
  )
  found = workdir.read(tmp_path / "w").debug
  assert len(found["bad"]) == 5
  assert (found["validation_examples"], found["test_examples"]) == (300, 300)
  assert found["rounds"] == [10, 20]
  for score in found["scores"].values():
    assert len(score["over_time"]) == 2
    assert score["over_time"][-1] == score["auroc"]
  assert set(found["scores"]) == {
    *("fil_exact", "fil_relu", "gtg_shapley"),
    *("update_norm", "cosine", "cosine_others", "dig_fl"),
  }
  for score in ("fil_exact", "fil_relu"):  # Both 1 for each of ten seeds.
    assert found["scores"][score]["auroc"] > 0.9
    assert found["scores"][score]["precision_at_k"] >= 0.8
  assert set(found["gain"]) == {"nobody", "the bad ones", *found["scores"]}
  loss = {who: gain["loss"] for who, gain in found["gain"].items()}
  assert loss["fil_relu"] < loss["nobody"]
  contents = workdir.read(tmp_path / "w")
  said = remedies.debugged(contents)
  assert said[0].startswith("Debugging helped: of 5 bad clients (flip_labels)")
  assert said[1].startswith("A simpler score does as well: ")
  summary = json.loads((tmp_path / "w" / "summary.json").read_text())
  page = (tmp_path / "w" / "report.html").read_text()
  for line in said:
    assert line in summary["verdict"]
    assert f">{html.escape(line)}</li>" in page
  assert "5 of them" in summary["notes"][0]


def test_bad_clients_are_scored_on_the_validation_half_alone(enable_x32):
  task = flippers(seed=0)
  owned = task._replace(owners=owners.read([*range(24)] * 25, 600, range(24)))
  half, scored = tasks.halves(owned), tasks.on_validation(owned)
  np.testing.assert_array_equal(scored.x, task.x[half.validation])
  np.testing.assert_array_equal(scored.y, task.y[half.validation])
  whose = lambda o: o.client[o.group]
  np.testing.assert_array_equal(
    whose(scored.owners), whose(owned.owners)[half.validation]
  )
  assert scored.owners.counts.sum() == 300
  assert tasks.about(scored).config["measured_on"] == "validation"
  # What is on the test half has no say.
  y = task.y.copy()
  y[half.test] = 0
  again = tasks.on_validation(task._replace(y=y))
  assert tasks.digest(again) == tasks.digest(tasks.on_validation(task))


def test_noise_is_strong_enough_to_harm(enable_x32):
  config = binaries.small(**{"data.num_clients": 60, "corrupt.fraction": 0.2})
  config.corrupt.kind = "add_noise"
  task = recipes.build("quickstart", config, None)
  retrain = cleansing.trainer(task, tasks.halves(task), 0)
  bad = task.train.positions(task.bad)
  loss = [retrain(np.array(out, int)).one_set[-1][0] for out in ([], bad)]
  assert loss[1] < loss[0]


@pytest.mark.slow
def test_debugging_is_done_once(tmp_path):
  command = (
    *binaries.SMALL,
    "--config.exact=none",
    "--kinds=flip_labels",
    "--fraction=0.15",
    "--seeds=3,4",
    "--shapley_sweeps=0",
    f"--workdir={tmp_path}",
  )
  done = binaries.start("debug", *command)
  assert done.returncode == 0, done.stderr
  spread = json.loads((tmp_path / "debug_seeds.json").read_text())
  spread = spread["flip_labels"]
  assert spread["seeds"] == [3, 4] and spread["bad"] == 3
  assert f"flip_labels: {spread['verdict']}" in done.stdout
  folder = tmp_path / "flip_labels" / "seed_3"
  auroc = [
    workdir.read(folder.with_name(name)).debug["scores"]["dig_fl"]["auroc"]
    for name in ("seed_3", "seed_4")
  ]
  assert spread["scores"]["dig_fl"]["auroc"]["values"] == auroc
  found = json.loads((folder / "debug.json").read_text())
  assert len(found["bad"]) == 3
  assert set(found["scores"]) == {
    *("fil_both", "update_norm", "cosine", "cosine_others", "dig_fl"),
  }
  before = binaries.files(folder, clock=True)
  done = binaries.start("debug", *command[:-2], command[-1])
  assert f"{folder}: this run is finished" in done.stdout
  assert binaries.files(folder, clock=True) == before
  done = binaries.start(
    *("cleanse", f"--workdir={folder}", "--estimator=both"),
    *("--fractions=0.2", "--repeats=1"),
  )
  assert done.returncode == 0, done.stderr
  found = workdir.read(folder)
  assert found.cleanse["validation_examples"] < found.summary["test_examples"]


@pytest.mark.slow
def test_debugging_a_cnn_by_every_score_on_made_images(tmp_path):
  done = binaries.start(
    *("debug", "--config=setting2", "--config.scale=0.02"),
    *("--config.data.num_clients=10", "--config.adjoint_rounds=1"),
    *("--config.fed.rounds=2", "--config.evaluate_every=1"),
    *("--kinds=add_noise", "--fraction=0.2", f"--workdir={tmp_path}"),
  )
  assert done.returncode == 0, done.stderr
  contents = workdir.read(tmp_path / "add_noise")
  assert contents.summary["stand_in"]
  assert len(contents.debug["scores"]) == 10
  first, last = contents.debug["scores"]["fil_adjoint"]["over_time"]
  assert first is None and 0 <= last <= 1
