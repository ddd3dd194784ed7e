"""The binaries, started as a user starts them."""

import csv
import dataclasses
import html
import json
import pathlib
import signal
import sys
import time

import numpy as np
import pytest
from rich import console as rich_console

from experiments import seeds
from fedinf_jax import recipes
from fedinf_jax.report import remedies
from fedinf_jax.running import loop
from fedinf_jax.running import workdir
from tests import binaries


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
  same = recipes.build("quickstart", binaries.small(exact="15"), None)
  assert loop.is_finished(same, folder)
  slower = binaries.small(**{"exact": "15", "fed.learning_rate": 0.01})
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
  task = recipes.build("quickstart", binaries.small(), None)
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
