"""The binaries, started as a user starts them."""

import csv
import dataclasses
import html
import io
import json
import pathlib
import signal
import sys
import time

import numpy as np
import pytest
from rich import console as rich_console

from experiments import cleansing
from experiments import debugging
from experiments import seeds
from experiments.configs import quickstart
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax.recipes import estimators
from fedinf_jax.report import remedies
from fedinf_jax.running import loop
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.valuation import owners
from tests import binaries


def small(**changes):
  """Returns the recipe of the smallest run: 20 clients, 10 rounds."""
  config = quickstart.get_config()
  config.scale = 0.1
  config = recipes.scaled(config)
  config.mesh = "none"
  config.update_from_flattened_dict(changes)
  return config


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def rows(path):
  with open(path, newline="") as file:
    return list(csv.DictReader(file))


def test_from_the_first_round_to_the_report(enable_x32, tmp_path):
  folder = tmp_path / "w"
  command = (
    "--config=quickstart",
    "--config.scale=0.1",
    "--config.exact=15",
    f"--workdir={folder}",
  )
  done = binaries.start("run", *command)
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  check_screen(folder, done.stdout)
  check_metrics(folder)
  check_influence(folder)
  check_layers(folder)
  check_summary(folder)

  before = binaries.files(folder, clock=True)
  check_another_run_is_refused(folder)
  done = binaries.start("run", *command)
  assert done.returncode == 0, done.stderr
  assert done.stdout.startswith(f"{folder}: this run is finished\n")
  assert "comes nearest: without it the test loss would" in done.stdout
  assert done.stdout.endswith(f"report: {folder}/report.html\n")
  assert binaries.files(folder, clock=True) == before
  check_cleansing(folder)


def check_screen(folder, printed):
  assert printed.startswith(
    "quickstart: LEAF synthetic data (made here): 20 clients"
  )
  assert "\nround 1/10, loss " in printed
  # Screen and page have one verdict: of five clients nothing exact is known.
  page = " ".join((folder / "report.html").read_text().split())
  sentences = [
    line
    for line in printed.splitlines()
    if line.startswith(("No client", "Measured by"))
  ]
  assert "helps for sure" in sentences[0]
  assert "hurts for sure" in sentences[1]
  assert sentences[2] == (
    "Measured by ours, same upload (relu), which agrees best with retraining"
    " without 15 of the 20 clients."
  )
  for sentence in sentences:
    assert sentence in page
  assert printed.endswith(f"report: {folder}/report.html\n")
  for name in ("figures/fig3_scatter.svg", "clients.json", "config.json"):
    assert (folder / name).stat().st_size > 100


def check_metrics(folder):
  metrics = lines(folder / "metrics.jsonl")
  assert [line["round"] for line in metrics] == list(range(1, 11))
  for line in metrics:
    assert set(line["estimators"]) == {"both", "relu", "matched"}
    for values in line["estimators"].values():
      assert set(values) == {
        *("fil_pearson", "fil_spearman", "fia_pearson", "fip_error"),
        *("fip_relative_error", "truncated_fraction"),
      }
  assert metrics[-1]["estimators"]["relu"]["fil_pearson"] > 0.99


def check_influence(folder):
  found = rows(folder / "influence.csv")
  assert list(found[0]) == [
    *("client_id", "num_examples", "times_selected", "last_drawn"),
    *(
      f"{title}_{name}"
      for name in ("exact", "both", "matched", "relu")
      for title in (
        *("fil", "fia", "fil_own", "fil_others", "fil_low", "fil_high"),
        *("fil_mean", "sign_held", "effect"),
      )
    ),
  ]
  assert len(found) == 20
  assert sum(int(row["times_selected"]) for row in found) == 10 * 10
  known = [row for row in found if row["fil_exact"]]
  assert len(known) == 15
  exact, relu = (
    np.array([float(row[f"fil_{n}"]) for row in known])
    for n in ("exact", "relu")
  )
  last = lines(folder / "metrics.jsonl")[-1]["estimators"]["relu"]
  pearson = np.corrcoef(exact, relu)[0, 1]
  np.testing.assert_allclose(pearson, last["fil_pearson"], rtol=1e-6)
  # Nobody's removal changes an accuracy by a fraction of an example.
  fia = np.array([float(row["fia_exact"]) for row in known])
  summary = json.loads((folder / "summary.json").read_text())
  np.testing.assert_allclose(
    fia * summary["test_examples"],
    np.rint(fia * summary["test_examples"]),
    atol=1e-4,
  )
  assert (fia == 0).any()


def check_layers(folder):
  found = rows(folder / "layers.csv")
  assert list(found[0]) == [
    *("round", "client", "layer", "estimator", "error", "norm")
  ]
  # Rounds, clients, layers, estimators and the ground truth.
  assert len(found) == 10 * 3 * 2 * 4
  for row in found:
    if row["estimator"] == "exact":
      assert float(row["error"]) == 0
    else:
      assert float(row["error"]) >= 0


def check_summary(folder):
  summary = json.loads((folder / "summary.json").read_text())
  assert summary["clients"] == 20
  assert summary["rounds"] == 10
  assert summary["num_params"] == 305
  assert not summary["stand_in"]
  assert set(summary["versions"]) >= {"fedinf_jax", "jax", "numpy"}
  assert len(summary["data_digest"]) == 32
  for values in summary["estimators"].values():
    # Five steps of as many gradients as the largest client has examples.
    assert values["upload_bytes_per_participant"] % (5 * 305 * 4) == 0
    assert values["fip_relative_error"] >= 0
    assert values["last_quarter"]["fil_pearson"] > 0


def check_another_run_is_refused(folder):
  same = recipes.build("quickstart", small(exact="15"), None)
  assert loop.is_finished(same, folder)
  slower = small(**{"exact": "15", "fed.learning_rate": 0.01})
  for other, message in (
    (
      recipes.build("quickstart", slower, None),
      f"^--workdir={folder} holds another run: its config.fed.learning_rate is"
      " 0.03, not 0.01; choose another --workdir, or delete that one$",
    ),
    (same._replace(x=same.x + 1), "its data.digest is"),
  ):
    with pytest.raises(ValueError, match=message):
      loop.is_finished(other, folder)
    with pytest.raises(ValueError, match=message):
      loop.train(other, folder, rich_console.Console(quiet=True), loop.Saving())


def test_a_task_that_cannot_run_leaves_no_file(tmp_path):
  task = recipes.build("quickstart", small(), None)
  for wrong, message in (
    (task._replace(fed=dataclasses.replace(task.fed, cohort_size=21)), "is 21"),
    (task._replace(evaluate_every=0), "must not be zero"),
  ):
    with pytest.raises(ValueError, match=message):
      loop.train(
        wrong, tmp_path / "w", rich_console.Console(quiet=True), loop.Saving()
      )
    assert not (tmp_path / "w").exists()


def check_cleansing(folder):
  """Cleanses from the checkpoint that the run has kept."""
  done = binaries.start(
    "cleanse",
    f"--workdir={folder}",
    "--fractions=0.2",
    "--repeats=2",
  )
  assert done.returncode == 0, done.stderr
  found = json.loads((folder / "cleanse.json").read_text())
  assert found["round"] == 7
  assert len(found["curves"]) == 2 * (1 + 4 + 2)
  summary = json.loads((folder / "summary.json").read_text())
  for curve in found["curves"]:
    assert curve["rounds"] == [7, 8, 9, 10]
    assert curve["removed"] == (4 if curve["fraction"] else 0)
    if curve["fraction"] == 0 and curve["way"] == "one_set":
      # With nobody removed, it is the run itself.
      np.testing.assert_allclose(curve["loss"][-1], summary["loss"], rtol=1e-6)
  page = (folder / "report.html").read_text()
  assert "Fig. 4" in page or "Figure 4" in page


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
  config = small(**{"data.num_clients": 60, "corrupt.fraction": 0.2})
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


def test_the_spread_over_seeds():
  assert seeds.parse(["3", "10"]) == [3, 10]
  with pytest.raises(ValueError, match="--seeds: 'one' is not"):
    seeds.parse(["3", "one"])
  estimator = dict.fromkeys(
    ("fil_spearman", "fia_pearson", "fip_relative_error", "truncated_fraction")
  )
  summaries = [
    {
      "name": "quickstart",
      "source": "noise",
      "seed": seed,
      "loss": loss,
      "accuracy": 0.5,
      "estimators": {
        "both": {
          **estimator,
          "fil_pearson": pearson,
          "last_quarter": {"fil_pearson": 0.5},
        }
      },
    }
    for seed, loss, pearson in ((3, 0.4, 0.8), (4, 0.8, 0.9))
  ]
  found = seeds.spread(summaries)
  assert found["seeds"] == [3, 4]
  assert found["loss"]["values"] == [0.4, 0.8]
  np.testing.assert_allclose(found["loss"]["mean"], 0.6)
  np.testing.assert_allclose(found["loss"]["std"], 0.4 / np.sqrt(2))
  both = found["estimators"]["both"]
  np.testing.assert_allclose(both["fil_pearson"]["mean"], 0.85)
  assert both["fil_spearman"] == {"values": [None, None]}
  assert both["last_quarter_fil_pearson"]["min"] == 0.5


@pytest.mark.slow
def test_seeds_are_repeated_and_their_spread_is_written(tmp_path):
  done = binaries.start(
    "run",
    "--config.scale=0.1",
    "--config.estimators=truncated",
    "--seeds=3,4",
    f"--workdir={tmp_path}",
  )
  assert done.returncode == 0, done.stderr
  assert "each client over these seeds:" in done.stdout
  assert len(rows(tmp_path / "seeds.csv")) == 20
  found = json.loads((tmp_path / "seeds.json").read_text())
  assert found["seeds"] == [3, 4]
  each = [
    json.loads((tmp_path / f"seed_{s}" / "summary.json").read_text())["loss"]
    for s in (3, 4)
  ]
  assert each[0] != each[1]
  assert found["loss"]["values"] == each
  assert set(found["estimators"]["truncated"]["fil_pearson"]) >= {"mean", "std"}


TINY = {
  "setting1": ("--config.scale=0.02", "--config.estimators=both"),
  "setting1_convex": ("--config.scale=0.02", "--config.estimators=truncated",
                      "--config.exact=5"),
  "setting2": ("--config.scale=0.02", "--config.estimators=truncated"),
  "setting3": ("--config.scale=0.002", "--config.estimators=both",
               "--config.exact=none"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_every_recipe_runs_end_to_end(name, tmp_path):
  done = binaries.start(
    "run",
    f"--config=experiments/configs/{name}.py",
    f"--workdir={tmp_path}",
    *TINY[name],
  )
  assert done.returncode == 0, done.stderr
  summary = json.loads((tmp_path / "summary.json").read_text())
  images = name in ("setting2", "setting3")
  assert summary["stand_in"] == images
  for text in (done.stdout, (tmp_path / "report.html").read_text()):
    assert ("stand-in for FEMNIST" in " ".join(text.split())) == images
  if images:
    cleanse_images(tmp_path, summary["estimators"])


def cleanse_images(folder, estimators):
  """Cleanses a run with a CNN; its page shows what comes of it."""
  done = binaries.start(
    *(
      "cleanse",
      f"--workdir={folder}",
      f"--estimator={next(iter(estimators))}",
    ),
    *("--fractions=0.1", "--repeats=1"),
  )
  assert done.returncode == 0, done.stderr
  said = remedies.cleansed(workdir.read(folder))
  assert said in json.loads((folder / "summary.json").read_text())["verdict"]
  page = (folder / "report.html").read_text()
  assert html.escape(said) in page.partition('id="cleansing"')[2]


MISTAKES = {
  "run --config=setting2 --config.fed.rounds=abc": (
    "flag --config.fed.rounds=abc"
  ),
  "run --config=setting2 --config.nope=3": (
    "--config has no such key: \"'nope'\"; --help lists them"
  ),
  "run --config=quickstart nope": "unexpected argument 'nope'",
  "run --config=SYNTAX.py": "SYNTAX.py, line 1: ",
  "debug --kinds=rng": (
    "--kinds: 'rng' is unknown; there are flip_labels, add_noise"
  ),
  "cost --scale=0": "error: --scale=0.0 must be above 0 and at most 1\n",
  "report": "/w is not a finished run: it has no summary.json; start",
}


def test_mistakes_are_one_line_and_help_is_no_mistake(tmp_path):
  (tmp_path / "SYNTAX.py").write_text("def get_config(:")
  words = lambda line: [
    word.replace("=", f"={tmp_path}/") if word.endswith(".py") else word
    for word in line.split()
  ]
  started = {
    line: binaries.begin(*words(line), f"--workdir={tmp_path / 'w'}")
    for line in (*MISTAKES, "run --config=setting2 --help")
  }
  for line, process in started.items():
    printed, error = process.communicate(timeout=200)
    if line in MISTAKES:
      assert process.returncode == 2, (line, error)
      assert error.startswith("error: ")
      assert MISTAKES[line] in error
      assert error.count("\n") == 1
      assert printed == ""
    else:
      assert process.returncode == 0, error
      check_help(printed)
  assert not (tmp_path / "w").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_an_interrupt_during_the_start_is_one_line(tmp_path):
  process = binaries.begin("run", f"--workdir={tmp_path / 'w'}")
  # Modules are being imported.
  maps = pathlib.Path(f"/proc/{process.pid}/maps")
  while "numpy" not in maps.read_text():
    time.sleep(0.01)
  process.send_signal(signal.SIGINT)
  printed, error = process.communicate(timeout=60)
  assert (process.returncode, printed, error) == (130, "", "interrupted\n")
  assert not (tmp_path / "w").exists()


def check_help(printed):
  words = printed.split()
  assert "--config.fed.rounds=500" in words  # of setting2
  assert "--config.model.dense=32" in words
  assert "--checkpoint_minutes=1.0" in words
  for name in ("quickstart", "setting3", "lowrank", "both_fine"):
    assert name in words
  assert "fisher() + lwet(per='participant')" in printed
  assert len(printed.splitlines()) < 100
