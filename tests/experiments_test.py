"""The binaries, started as a user starts them."""

import csv
import json

import numpy as np
import pytest

from tests import binaries


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A finished small run: (its folder, what it printed)."""
  folder = tmp_path_factory.mktemp("run")
  done = binaries.start(
    "run",
    "--config.scale=0.1",
    f"--workdir={folder / 'w'}",
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  return folder / "w", done.stdout


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_main_job_says_who_helps_and_who_hurts(finished):
  folder, printed = finished
  assert "help most; without them the test loss would rise by" in printed
  assert "hurt most; without them the test loss would fall by" in printed
  assert "LEAF synthetic data (made here): 20 clients" in printed
  assert f"report: {folder}/report.html" in printed.replace("\n", "")
  for name in ("report.html", "figures/heat_map.png", "config.json"):
    assert (folder / name).stat().st_size > 100


def test_metrics_have_a_line_for_each_evaluated_round(finished):
  metrics = lines(finished[0] / "metrics.jsonl")
  assert [line["round"] for line in metrics] == list(range(1, 11))
  for line in metrics:
    assert set(line["estimators"]) == {"both", "relu"}
    for values in line["estimators"].values():
      assert set(values) == {
        *("fil_pearson", "fil_spearman", "fia_pearson", "fip_error"),
        *("fip_relative_error", "truncated_fraction"),
      }
  assert metrics[-1]["estimators"]["relu"]["fil_pearson"] > 0.99


def test_influence_has_a_row_for_each_client(finished):
  folder = finished[0]
  with open(folder / "influence.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == [
    *("client_id", "num_examples", "times_selected", "fil_exact", "fia_exact"),
    *("fil_both", "fia_both", "fil_relu", "fia_relu"),
  ]
  assert len(rows) == 20
  assert sum(int(row["times_selected"]) for row in rows) == 10 * 10
  exact, relu = (
    np.array([float(row[f"fil_{n}"]) for row in rows])
    for n in ("exact", "relu")
  )
  last = lines(folder / "metrics.jsonl")[-1]["estimators"]["relu"]
  pearson = np.corrcoef(exact, relu)[0, 1]
  np.testing.assert_allclose(pearson, last["fil_pearson"], rtol=1e-6)
  # Nobody's removal changes an accuracy by a fraction of an example.
  fia = np.array([float(row["fia_exact"]) for row in rows])
  summary = json.loads((folder / "summary.json").read_text())
  np.testing.assert_allclose(
    fia * summary["test_examples"],
    np.rint(fia * summary["test_examples"]),
    atol=1e-4,
  )
  assert (fia == 0).any()


def test_layers_are_those_of_tracked_clients(finished):
  with open(finished[0] / "layers.csv", newline="") as file:
    rows = list(csv.DictReader(file))
  assert list(rows[0]) == [
    *("round", "client", "layer", "estimator", "error", "norm")
  ]
  # Rounds, clients, layers, estimators and the ground truth.
  assert len(rows) == 10 * 3 * 2 * 3
  for row in rows:
    if row["estimator"] == "exact":
      assert float(row["error"]) == 0
    else:
      assert float(row["error"]) >= 0


def test_the_summary_says_what_was_run_and_what_it_costs(finished):
  summary = json.loads((finished[0] / "summary.json").read_text())
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


def test_a_finished_run_started_again_changes_nothing(finished):
  folder, _ = finished
  before = binaries.files(folder)
  done = binaries.start("run", "--config.scale=0.1", f"--workdir={folder}")
  assert done.returncode == 0, done.stderr
  assert "resuming after round 10" in done.stdout
  assert binaries.files(folder) == before


def test_another_run_is_refused_and_nothing_is_lost(finished):
  folder, _ = finished
  before = binaries.files(folder)
  done = binaries.start(
    "run",
    "--config.scale=0.1",
    "--config.fed.learning_rate=0.01",
    f"--workdir={folder}",
  )
  assert done.returncode == 2
  assert done.stderr == (
    f"error: --workdir={folder} holds another run: its"
    " config.fed.learning_rate is 0.03, not 0.01; choose another --workdir, or"
    " delete that one\n"
  )
  assert binaries.files(folder) == before


def test_cleansing_goes_on_from_the_kept_checkpoint(finished):
  folder, _ = finished
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


def test_seeds_are_repeated_and_their_spread_is_written(tmp_path):
  done = binaries.start(
    "run",
    "--config.scale=0.1",
    "--config.estimators=truncated",
    "--seeds=3,4",
    f"--workdir={tmp_path}",
  )
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / "seeds.json").read_text())
  assert found["seeds"] == [3, 4]
  each = [
    json.loads((tmp_path / f"seed_{s}" / "summary.json").read_text())["loss"]
    for s in (3, 4)
  ]
  assert each[0] != each[1]
  assert found["loss"]["values"] == each
  np.testing.assert_allclose(found["loss"]["mean"], np.mean(each))
  np.testing.assert_allclose(found["loss"]["std"], np.std(each, ddof=1))
  assert set(found["estimators"]["truncated"]["fil_pearson"]) >= {"mean", "std"}


def test_debugging_finds_planted_label_flippers(tmp_path):
  done = binaries.start(
    "debug",
    "--config.scale=0.2",
    "--config.estimators=relu",
    "--config.exact=none",
    "--kinds=flip_labels",
    "--fraction=0.15",
    f"--workdir={tmp_path}",
  )
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / "flip_labels" / "debug.json").read_text())
  assert len(found["bad"]) == 6
  assert set(found["scores"]) == {
    *("fil_relu", "update_norm", "cosine", "cosine_others"),
    *("dig_fl", "gtg_shapley"),
  }
  assert found["scores"]["fil_relu"]["auroc"] > 0.6
  assert set(found["gain"]) == {
    *("nobody", "the bad ones", *found["scores"]),
  }
  assert (tmp_path / "flip_labels" / "report.html").exists()


TINY = {
  "setting1": ("--config.scale=0.02", "--config.estimators=both"),
  "setting1_convex": ("--config.scale=0.02", "--config.estimators=truncated",
                      "--config.exact=5"),
  "setting2": ("--config.scale=0.02", "--config.estimators=truncated"),
  "setting3": ("--config.scale=0.002", "--config.estimators=both",
               "--config.exact=none"),
}  # fmt: skip


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
  assert summary["num_params"] == {"setting2": 15534, "setting3": 57694}.get(
    name, 305
  )


BAD = {
  "value": ("--config.fed.rounds=0", "error: rounds is 0; it must be"),
  "type": ("--config.fed.rounds=abc", "error: flag --config.fed.rounds=abc"),
  "key": ("--config.nope=3", "error: --config has no such key: \"'nope'\""),
  "flag": ("--nope", "error: Unknown command line flag 'nope'"),
  "argument": ("nope", "error: unexpected argument 'nope'"),
  "config": ("--config=nope.py", "nope.py [Errno 2] No such file"),
  "seeds": ("--seeds=one", "error: --seeds: 'one' is not"),
  "workdir": ("--workdir=/dev/null/w", "error: [Errno 20] Not a directory"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(name, tmp_path):
  argument, message = BAD[name]
  done = binaries.start("run", f"--workdir={tmp_path / 'w'}", argument)
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.count("\n") == 1
  assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("kind", ["missing", "empty", "text"])
def test_an_unreadable_data_folder_is_one_line(kind, tmp_path):
  path = tmp_path / "data"
  if kind == "empty":
    path.mkdir()
  elif kind == "text":
    path.write_text("not an npz")
  done = binaries.start(
    "run",
    "--config=experiments/configs/setting2.py",
    f"--data_dir={path}",
    f"--workdir={tmp_path / 'w'}",
  )
  assert done.returncode == 2
  assert str(path) in done.stderr
  assert done.stderr.count("\n") == 1
  assert not (tmp_path / "w").exists()
