"""The adjoint in a run, and clients that are replayed after a screening."""

import contextlib
import csv
import functools
import io
import json
import shutil

import numpy as np
import pytest
from rich import console as rich_console

from experiments import cleansing
from experiments.configs import quickstart
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax.recipes import estimators as named
from fedinf_jax.report import sentences
from fedinf_jax.running import finishing
from fedinf_jax.running import interrupts
from fedinf_jax.running import loop
from fedinf_jax.running import passes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.valuation import owners
from tests import binaries

FED = fi.FedAvg(rounds=6, cohort_size=3, local_steps=2, learning_rate=0.4)
MODEL = fi.models.logreg(4, 3)
ESTIMATORS = {"truncated": fi.estimator(fi.truncated(), fi.no_guard())}


@functools.cache
def make_data(num_clients=9):
  draw = np.random.default_rng(0)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)), draw.integers(0, 3, n))
      for n in draw.choice([6, 12], num_clients)
    ],
    num_classes=3,
  )


def make_task(exact="none", pass_rounds=1, directions=3):
  x, y = make_data(5).pooled()
  return tasks.Task(
    name="test",
    model=MODEL,
    train=make_data(),
    x=x,
    y=y,
    owners=owners.read(make_data(5), len(x), make_data().ids),
    fed=FED,
    recipe={"exact": exact, "evaluate_every": 2},
    estimators=ESTIMATORS,
    passes={"adjoint": tasks.Backwards(directions)} if directions else {},
    pass_rounds=pass_rounds,
    descriptions={"truncated": "truncated()", "adjoint": "adjoint()"}
    if directions
    else {"truncated": "truncated()"},
    exact=recipes.exact_rows(exact, 9, 0),
    evaluate_every=2,
    tracked=2,
    source="made",
  )


def train(task, folder):
  screen = rich_console.Console(file=io.StringIO(), width=200)
  trained = loop.train(task, folder, screen, loop.Saving())
  return trained, screen.file.getvalue()


def finish(task, folder):
  trained, printed = train(task, folder)
  finishing.finish(task, folder, trained)
  return printed


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


def column(folder, name):
  with open(folder / "influence.csv", newline="") as file:
    return [row[name] for row in csv.DictReader(file)]


@functools.cache
def directly():
  return fi.adjoint(MODEL, make_data(), FED, *make_data(5).pooled(),
                    directions=3)  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run whose extremes by the adjoint are replayed, and what it printed."""
  folder = tmp_path_factory.mktemp("screening") / "w"
  return folder, finish(make_task("top:5", pass_rounds=2), folder)


@pytest.fixture(scope="module")
def page(finished, tmp_path_factory):
  """Its report, all blanks one space."""
  folder = tmp_path_factory.mktemp("report") / "w"
  shutil.copytree(finished[0], folder)
  report.write(folder)
  return " ".join((folder / "report.html").read_text().split())


def test_the_adjoint_has_its_row_in_every_table(finished, page):
  folder, _ = finished
  metrics = lines(folder / "metrics.jsonl")
  assert [line["round"] for line in metrics] == [2, 4, 6]
  for line in metrics:
    found = line["estimators"]["adjoint"]
    assert set(found) == set(records.Agreement._fields)
    known = {k for k, v in found.items() if v is not None}
    # Turned at rounds 4 and 6. Of accuracies some are equal.
    assert known <= {"fil_pearson", "fil_spearman", "fia_pearson"}
    assert {"fil_pearson", "fil_spearman"} <= known or line["round"] == 2
    assert not known or line["round"] > 2
  for name, expected in (
    ("fil_adjoint", directly().influence),
    ("fia_adjoint", directly().on(fi.metrics.accuracy, *make_data(5).pooled())),
  ):
    np.testing.assert_allclose(
      np.array(column(folder, name), float), expected, rtol=0, atol=1e-12
    )
  contents = workdir.read(folder)
  assert contents.names == ["truncated", "adjoint"]
  assert contents.with_eps == ["truncated"]
  found = contents.summary["estimators"]["adjoint"]
  assert found["upload_bytes_per_participant"] == 0
  assert found["fip_error"] is None and found["layers"] == {}
  np.testing.assert_array_equal(
    np.isfinite(contents.history["adjoint"]).all(1), [False, True, True]
  )
  assert "nothing<small>simulation only</small>" in page


def test_the_adjoint_has_own_and_others_and_intervals(finished):
  columns, test = workdir.read(finished[0]).columns, make_data(5)
  losses = lambda outputs, y: MODEL.loss(outputs, y)
  each = np.asarray(directly().on(losses, *test.pooled()))
  for k in range(9):
    own = test.owners == k
    expected = [each[k, ~own].mean()]
    found = [columns["fil_others_adjoint"][k]]
    if own.any():
      expected.append(each[k, own].mean())
      found.append(columns["fil_own_adjoint"][k])
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-12)
  assert np.isnan(columns["fil_own_adjoint"][5:]).all()
  low, high = columns["fil_low_adjoint"], columns["fil_high_adjoint"]
  fil = columns["fil_adjoint"]
  assert ((low <= fil) & (fil <= high)).all() and (low < high).any()
  # Turned at rounds 4 and 6, of which the last is in the last quarter.
  np.testing.assert_allclose(columns["fil_mean_adjoint"], fil, rtol=1e-4)
  assert set(columns["effect_adjoint"]) <= {"helps", "hurts", "cannot tell"}


def test_the_extremes_are_replayed_and_said_to_be(finished, page):
  folder, _ = finished
  rows = fi.valuation.extremes(directly().influence, 5)
  exact = column(folder, "fil_exact")
  assert [k for k, cell in enumerate(exact) if cell] == sorted(rows)
  run = fi.simulate(MODEL, make_data(), FED, exact=True)
  replayed = run.influence(fi.metrics.loss, *make_data(5).pooled(), of="exact")
  for k in rows:
    assert float(exact[k]) == pytest.approx(float(replayed[k]), abs=1e-12)
  contents = workdir.read(folder)
  said = sentences.write(contents)[1].lines()
  (verified,) = (line for line in said if line.startswith("Exact are"))
  assert "of the 5 extremes by adjoint" in verified
  assert verified.endswith("All other numbers are estimates.")
  assert " (exact), then " in said[0]
  for name in contents.names:
    words = f"({name}): over the 5 extremes by adjoint only, "
    assert any(words in line for line in said)
  assert "Only the 5 extremes by adjoint were retrained" in page


def test_the_line_of_progress_says_whom_a_correlation_is_about():
  found = records.Agreement(0.5, 0.5, None, None, None, None)
  metrics = records.Metrics(6, 1.0, 0.5, {"adjoint": found})
  words = progress.words(metrics, "extremes only")
  assert words.endswith("Pearson 0.500 (adjoint, extremes only)")


def test_a_screening_is_not_repeated(finished, monkeypatch, capsys):
  folder, _ = finished
  before = binaries.files(folder)
  task = make_task("top:5", pass_rounds=2)
  with monkeypatch.context() as patch:
    patch.setattr(passes, "prepare", None)
    finish(task, folder)
  assert binaries.files(folder) == before
  assert not (folder / "screening").exists()
  # Unless it is damaged.
  (folder / "screening.json").write_text("{")
  finish(task, folder)
  assert "screening.json cannot be read" in capsys.readouterr().err
  assert binaries.files(folder) == before


@pytest.mark.slow
def test_stopped_in_either_direction_it_resumes(
  finished, tmp_path, monkeypatch
):
  stop = lambda: contextlib.nullcontext(lambda: True)
  monkeypatch.setattr(interrupts, "stop_requests", stop)
  stops = []
  for _ in range(30):
    try:
      finish(make_task("top:5", pass_rounds=2), tmp_path / "w")
      break
    except KeyboardInterrupt as stopped:
      stops.append(stopped.args[0])
  assert any("after round 3 of 16 of the pass adjoint" in s for s in stops)
  assert any("after round 7 of 16 of the pass adjoint" in s for s in stops)
  assert any("after round 1 of 6;" in s for s in stops)
  assert binaries.files(tmp_path / "w") == binaries.files(finished[0])


@pytest.mark.slow
def test_a_named_estimator_screens(tmp_path):
  task = make_task("top:4:truncated", directions=0)
  _, printed = train(task, tmp_path)
  assert "screening by truncated" in printed
  fil = fi.simulate(MODEL, make_data(), FED, estimators=ESTIMATORS).influence(
    fi.metrics.loss, *make_data(5).pooled(), of="truncated"
  )
  chosen = tasks.verified(task, passes.read(tmp_path)).exact
  assert chosen == sorted(fi.valuation.extremes(fil, 4).tolist())
  _, printed = train(task, tmp_path)
  assert "screening by" not in printed
  assert {p.name for p in tmp_path.iterdir()} == {
    *("config.json", "metrics.jsonl", "history.jsonl", "layers.csv"),
    *("timing.jsonl", "checkpoints", "screening.json"),
  }


def test_too_many_directions_are_refused_before_anything_is_written(tmp_path):
  with pytest.raises(ValueError, match="directions is 99; the model has 15"):
    train(make_task(directions=99), tmp_path / "w")
  assert not (tmp_path / "w").exists()


def test_scores_without_extremes_are_refused():
  task = make_task("top:4:truncated")
  with pytest.raises(ValueError, match="nobody was screened by 'truncated'"):
    tasks.verified(task, [])
  nan = np.full(9, np.nan)
  scores = [records.Scores("truncated", 6, nan, nan)]
  with pytest.raises(ValueError, match="'truncated' finds no extremes: scores"):
    tasks.verified(task, scores)


@pytest.mark.parametrize(
  ("count", "rounds"),
  [(1, [6]), (2, [4, 6]), (3, [2, 4, 6]), (9, [2, 4, 6])],
)
def test_passes_are_turned_at_rounds_evenly_spread(count, rounds):
  assert tasks.turned(make_task(pass_rounds=count)) == rounds


def config_of(**changes):
  config = quickstart.get_config()
  config.mesh, config.server_examples = "none", 0
  config.estimators = "both"
  config.update_from_flattened_dict(changes)
  return config


def test_recipes_name_passes_and_screenings():
  config = config_of(estimators="adjoint@8,both", exact="top:6:both")
  task = recipes.build("test", config, None)
  assert task.passes == {"adjoint@8": tasks.Backwards(8)}
  assert list(task.estimators) == ["both"]
  assert list(task.descriptions) == ["adjoint@8", "both"]
  assert task.exact == records.Top(6, "both")
  assert task.recipe["adjoint_rounds"] == task.pass_rounds == 1
  # Who screens is an estimator of the run.
  task = recipes.build("test", config_of(exact="top:6"), None)
  assert task.passes == {"adjoint": tasks.Backwards(16)}
  assert named.describe("adjoint") == "adjoint(directions=16)"
  # A run without a pass has the files that it always had.
  assert "adjoint_rounds" not in recipes.build("t", config_of(), None).recipe


def test_a_pass_by_the_server_goes_back_through_its_window(tmp_path):
  owned = make_data(7)
  curvature = fi.server_side(
    fi.fisher(num_samples=20, spectrum="relu", layerwise=False, per="round")
  )
  task = make_task("top:4:adjoint_server@3", pass_rounds=2, directions=0)
  task = task._replace(
    passes={"adjoint_server@3": tasks.Backwards(3, curvature, 3)},
    descriptions={"truncated": "truncated()", "adjoint_server@3": "made"},
    server_data=owned,
  )
  printed = finish(task, tmp_path / "w")
  # Six rounds of training, three back from round 4 and three from round 6.
  assert "adjoint_server@3: 12 rounds of training and backwards" in printed
  directly = fi.adjoint(
    MODEL, make_data(), FED, task.x, task.y, directions=3, window=3,
    curvature=curvature, server_data=owned,
  )  # fmt: skip
  found = np.array(column(tmp_path / "w", "fil_adjoint_server@3"), float)
  np.testing.assert_allclose(found, directly.influence, rtol=0, atol=1e-6)
  report.write(tmp_path / "w")
  assert "simulation only" not in (tmp_path / "w/report.html").read_text()


def test_recipes_name_the_window_of_a_pass_by_the_server():
  config = config_of(estimators="adjoint_server@9", server_examples=50)
  task = recipes.build("test", config, None)
  asked = task.passes["adjoint_server@9"]
  assert (asked.directions, asked.window) == (16, 9)
  assert asked.rounds(4) == 4 and asked.rounds(40) == 9
  assert "num_samples=50" in task.descriptions["adjoint_server@9"]
  assert task.descriptions["adjoint_server@9"].endswith("window=9)")


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"estimators": "adjoint_server"}, "needs examples of the server's own"),
    ({"exact": "top:201"}, "exact is 'top:201'; it must be .* top:NUMBER"),
    ({"exact": "top:0"}, "exact is 'top:0'; it must"),
    ({"exact": "top:x"}, "exact is 'top:x'; it must"),
    ({"exact": "top"}, "exact is 'top'; it must"),
    ({"exact": "top:6:relu"}, "the run has the estimators both"),
    ({"exact": "top:6:adjoint@4"}, "the run has the estimators both"),
    ({"estimators": "adjoint@0"}, "'adjoint@0'; after @ there must be"),
    ({"adjoint_rounds": 0}, "adjoint_rounds is 0; it must be at least 1"),
  ],
)
def test_recipes_that_cannot_be_are_refused(change, message):
  with pytest.raises(ValueError, match=message):
    recipes.check(config_of(**change))


@pytest.mark.slow
def test_cleansing_by_the_adjoint_turns_at_its_round():
  task = make_task()
  state = tasks.simulator(task).init()
  state = tasks.simulator(task).step(state, 4)
  rows = np.arange(10)
  found = cleansing.scores(state, task, rows, "adjoint")
  go = fi.adjoint_pass(
    MODEL, make_data(), FED, task.x[rows], task.y[rows], directions=3
  )
  turned = go.read(go.back(go.turn(go.train(go.init(), 4)), 4))
  np.testing.assert_allclose(found["fil"], turned.influence, rtol=0, atol=1e-12)


SMALL = (
  "--config.scale=0.1",
  "--config.server_examples=0",
  "--config.estimators=adjoint@4,both",
  "--config.exact=top:6:adjoint@4",
)


@pytest.mark.slow
def test_screened_verified_and_cleansed_from_the_command_line(tmp_path):
  command = (*SMALL, f"--workdir={tmp_path}/w")
  done = binaries.start("run", *SMALL, "--plan")
  assert done.returncode == 0, done.stderr
  assert "adjoint@4, before the run" in " ".join(done.stdout.split())
  done = binaries.start("run", *command)
  assert done.returncode == 0, done.stderr
  assert "nothing (simulation only)" in done.stdout
  assert "Exact are the numbers of the 6 extremes by adjoint@4" in done.stdout
  done = binaries.start(
    *("cleanse", f"--workdir={tmp_path}/w", "--estimator=adjoint@4"),
    *("--fractions=0.2", "--repeats=1"),
  )
  assert done.returncode == 0, done.stderr
  found = json.loads((tmp_path / "w" / "cleanse.json").read_text())
  assert found["estimator"] == "adjoint@4"


@pytest.mark.slow
def test_bad_clients_are_looked_for_by_the_adjoint(tmp_path):
  done = binaries.start(
    *("debug", *SMALL, f"--workdir={tmp_path}/w", "--kinds=flip_labels"),
    "--shapley_sweeps=0",
  )
  assert done.returncode == 0, done.stderr
  assert "fil_adjoint@4" in done.stdout
