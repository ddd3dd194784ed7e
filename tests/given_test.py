"""A report of a run that no recipe has made: its files, page and figures."""

import dataclasses
import html
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import report
from fedinf_jax.report import drawing
from fedinf_jax.report import figures
from fedinf_jax.running import given
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from tests import cases
from tests import workdirs

X, Y = cases.server_data()
OWN = [None, *["client-1"] * 5, *["client-4"] * 14]
FED = fi.FedAvg(rounds=8, cohort_size=3, local_steps=2, learning_rate=0.4)
BOTH = {
  "one": fi.estimator(fi.truncated(), fi.lwet()),
  "<two>": fi.estimator(fi.truncated(), fi.no_guard()),
}


@pytest.fixture(scope="module")
def run():
  model, data = cases.logreg()
  return fi.simulate(
    model, data, FED, estimators=BOTH, exact=True, evaluate=(X, Y),
    evaluate_every=3,
  )  # fmt: skip


@pytest.fixture(scope="module")
def folder(run, tmp_path_factory):
  place = tmp_path_factory.mktemp("given") / "my run"
  page = fi.report.write(run, place, test=(X, Y), owners=OWN)
  assert page == place / "report.html"
  return place


@pytest.fixture(scope="module")
def groups():
  """Groups of clients, some of them replayed, and no history."""
  model, data = cases.logreg()
  return fi.simulate(
    model,
    data,
    FED,
    estimators=BOTH,
    exact=[0, 2],
    removals=[["client-0", "client-3"], ["client-2"], ["client-4", "client-5"]],
  )


def words(folder):
  page = (folder / "report.html").read_text("utf-8")
  page = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
  return html.unescape(" ".join(re.sub("<[^>]*>", " ", page).split()))


def test_the_files_are_those_of_a_recipe(run, folder, tmp_path):
  there = {path.name for path in folder.iterdir()}
  recipe = workdirs.write(tmp_path, clients=6)
  assert {p.name for p in recipe.iterdir()} <= there
  assert not list(folder.rglob("*.tmp"))
  assert workdir.read(folder).names == ["one", "<two>"]  # As they were given.
  of = ["exact", "one", "<two>"]
  table = run.table(X, Y, of=of, owners=OWN).to_csv()
  assert (folder / records.INFLUENCE).read_text() == table
  contents = workdir.read(folder)
  summary = contents.summary
  assert summary["name"] == "my run" and summary["seed"] == 0
  assert (summary["clients"], summary["rounds"]) == (6, 8)
  assert (summary["train_examples"], summary["test_examples"]) == (43, 20)
  assert contents.rounds == [3, 6, 8]
  for name, fil in run.history.fil.items():
    np.testing.assert_allclose(contents.history[name], fil, rtol=1e-5)
  np.testing.assert_allclose(
    [line["loss"] for line in contents.metrics], run.history.loss
  )
  found = run.agreement(X, Y)["one"]
  one = summary["estimators"]["one"]
  assert one["fil_pearson"] == pytest.approx(found.pearson)
  assert one["fip_relative_error"] == pytest.approx(found.fip_relative_error)
  assert one["description"] == "truncated + lwet"
  assert one["upload_models"] == 0
  assert contents.metrics[-1]["estimators"]["one"]["fil_pearson"] == (
    pytest.approx(found.pearson)
  )
  config = contents.config["config"]
  assert config["fed"]["learning_rate"] == 0.4
  assert config["retrained"] == "6 of 6" and not contents.is_recipe
  assert "notes" not in summary
  assert contents.clients["drawn"][2] == [
    t + 1 for t, cohort in enumerate(run.cohorts) if 2 in cohort
  ]
  _, data = cases.logreg()
  labels = np.bincount(data.client(2)[1], minlength=3)
  assert contents.clients["labels"][2] == labels.tolist()


def test_the_page_says_who(run, folder):
  said = words(folder)
  assert "my run · 6 clients · 8 rounds · 3 per round" in said
  contents = workdir.read(folder)
  assert all(html.unescape(v) in said for v in contents.summary["verdict"])
  assert "Settings" in said and "The whole recipe" not in said
  assert "experiments.run" not in said


def test_a_federated_test_set_owns_its_examples(run, tmp_path):
  _, data = cases.logreg()
  x, y = data.pooled()
  owners = [data.ids[k] for k in data.owners]
  made = [
    given.measure(run, *test).table.to_csv()
    for test in ((data,), ((x, y), owners))
  ]
  assert made[0] == made[1]


def test_groups_without_history(groups, tmp_path):
  fi.report.write(groups, tmp_path, test=(X, Y), name="in <groups>")
  contents = workdir.read(tmp_path)
  assert contents.rounds == [8]
  assert contents.summary["members"][2] == ["client-4", "client-5"]
  assert contents.ids[0] == "client-0 + client-3"
  said = words(tmp_path)
  assert "in <groups> · 3 groups" in said
  assert "A row is a group of clients that are left out together: 3 gr" in said
  assert "client-4 + client-5" in (tmp_path / "report.html").read_text()
  assert "Only the last round was evaluated" in said
  assert "of the 3 groups" in said


def test_advice_for_groups_names_rows(groups):
  bare = dataclasses.replace(groups, spread_exact=None, exact_rows=None)
  contents = given.contents(given.measure(bare, (X, Y)))
  lines = report.page.sentences.write(contents)[1].lines()
  (line,) = (s for s in lines if "fi.simulate" in s)
  rows = re.search(r"exact=\[([\d, ]+)\]", line)[1]
  assert {int(k) for k in rows.split(", ")} <= {0, 1, 2}


def test_a_run_of_which_little_is_known(tmp_path):
  model, data = cases.logreg()
  init, step = fi.simulator(model, data, FED, estimators=BOTH)
  run = fi.Run.of(model, step(init(), 3), data)
  fi.report.write(run, tmp_path, test=(X, Y))
  contents = workdir.read(tmp_path)
  one = contents.summary["estimators"]["one"]
  assert one["upload_models"] is one["fil_pearson"] is None
  assert contents.summary["rounds"] == 3
  assert np.isnan(contents.columns["times_selected"]).all()
  said = words(tmp_path)
  assert "not checked, as this run has no ground truth" in said
  assert re.search(r"truncated \+ lwet|one [–]", said)
  lone = fi.Run.of(model, init())
  with pytest.raises(ValueError, match=r"no ids; give Run\.of the clients"):
    fi.report.write(lone, tmp_path / "no", test=(X, Y))
  assert not (tmp_path / "no").exists()


def test_numbers_without_labels(tmp_path):
  data = fi.FederatedData.from_clients(
    [
      (x, np.stack([x[:, 0], x[:, 1]], 1))
      for x, _ in cases.logreg()[1].clients()
    ]
  )
  run = fi.simulate(cases.regression(), data, FED, exact=3, evaluate=data)
  fi.report.write(run, tmp_path, test=data)
  contents = workdir.read(tmp_path)
  assert contents.summary["accuracy"] is None
  assert contents.clients["labels"] is None and not contents.names
  assert "Measured by retraining without 3 of the 6 clients" in words(tmp_path)


def test_other_examples_than_those_of_the_history_are_told(run):
  same, other = (given.measure(run, (x, Y)).summary.notes for x in (X, X + 1.0))
  assert same is None
  assert other == [
    "What is shown over rounds was measured on the examples of"
    " fi.simulate(..., evaluate=...), all else on those of test=, which are"
    " others."
  ]


def test_a_report_is_replaced_and_a_saved_run_may_stand_beside(run, tmp_path):
  run.save(tmp_path)
  fi.report.write(run, tmp_path, test=(X, Y))
  first = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
  run.save(tmp_path)
  fi.report.write(run, tmp_path, test=(X, Y))
  again = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
  assert again.keys() == first.keys()
  assert all(again[n] == first[n] for n in first if n != "run.npz")
  # Drawn again from its files, as experiments.report does.
  (tmp_path / "report.html").unlink()
  assert fi.report.write(tmp_path) == tmp_path / "report.html"
  assert (tmp_path / "report.html").read_bytes() == first["report.html"]


def _with_a_file(folder):
  (folder / "thesis.tex").write_text("mine")


def _with_a_recipe_s_run(folder):
  workdirs.write(folder, clients=4)


ELSE = {
  "something": (_with_a_file, r"is not empty and holds no run \(thesis\.tex\)"),
  "a recipe's": (_with_a_recipe_s_run, r"holds another run, which fi\.report"),
}


@pytest.mark.parametrize("name", ELSE)
def test_a_folder_that_holds_something_else_is_left_alone(name, run, tmp_path):
  fill, message = ELSE[name]
  fill(tmp_path)
  before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
  with pytest.raises(ValueError, match=message) as error:
    fi.report.write(run, tmp_path, test=(X, Y))
  assert str(error.value).startswith(f"folder={tmp_path}")
  assert "\n" not in str(error.value)
  assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


BAD = {
  "run": ({"run": 3}, "^run is a int; it must be what fi.simulate returned"),
  "folder": ({"folder": None}, "^folder is None; it must be a path"),
  "test": ({"test": None}, r"^test must be a pair \(x, y\)"),
  "test length": ({"test": (X, Y[:3])}, r"^x has shape \[20, 4\] and y \[3\]"),
  "owners": ({"owners": ["me"] * 20}, "^owners: 'me' .* no client of this run"),
  "owners twice": (
    {"test": cases.make_data((4,)), "owners": OWN},
    "^owners: a FederatedData for test= has them in it",
  ),
  "name": ({"name": 2.5}, "^name: 2.5 is neither a string"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_argument_writes_nothing(name, run, tmp_path):
  changes, message = BAD[name]
  asked = {"run": run, "folder": tmp_path / "r", "test": (X, Y)} | changes
  with pytest.raises(ValueError, match=message) as error:
    fi.report.write(**asked)
  assert "\n" not in str(error.value)
  assert not list(tmp_path.iterdir())


def test_a_folder_alone_takes_nothing_else(folder):
  with pytest.raises(ValueError, match=r"^run is a folder, whose report is"):
    fi.report.write(folder, owners=np.array(OWN))


FIGURES = ("learning_curve", "pearson", "scatter", "heat_map")


@pytest.mark.parametrize("name", FIGURES)
def test_figures_are_those_of_the_report(name, run, folder):
  draw = getattr(fi.report.figures, name)
  figure = draw(run, test=(X, Y), owners=OWN)
  assert isinstance(figure, matplotlib.figure.Figure)
  of_files = draw(workdir.read(folder))
  measured = fi.report.measured(run, test=(X, Y), owners=OWN)
  images = [drawing.image(f) for f in (figure, of_files, draw(measured))]
  assert images[0].png == images[1].png == images[2].png


def test_a_figure_of_a_run_that_lacks_it_says_what_it_needs(run):
  bare = dataclasses.replace(run, spread_exact=None, exact_rows=None)
  bare = dataclasses.replace(bare, history=None)
  for name in ("scatter", "pearson"):
    with pytest.raises(ValueError, match=f"^{name} has nothing to show of th"):
      getattr(figures, name)(bare, test=(X, Y))
  assert figures.heat_map(bare, test=(X, Y)).axes


def test_the_package_does_not_load_the_report():
  ask = (
    "import sys, fedinf_jax as fi\n"
    "loaded = [m for m in sys.modules if m.startswith('fedinf_jax')]\n"
    "print([m for m in loaded if 'running' in m or 'figures' in m])\n"
    "print('matplotlib' in sys.modules)\n"
    "print(fi.report.figures.scatter.__name__)\n"
    "try: fi.report.nothing\n"
    "except AttributeError as error: print(error)"
  )
  done = subprocess.run(
    [sys.executable, "-c", ask], capture_output=True, text=True, check=True
  )
  assert done.stdout.splitlines() == [
    "[]",
    "False",
    "scatter",
    "module 'fedinf_jax.report' has no attribute 'nothing'",
  ]


def test_an_estimate_that_overflowed_is_told(run, tmp_path):
  lost = jax.tree.map(lambda a: jnp.full_like(a, jnp.inf), run.eps["<two>"])
  eps = {"one": run.eps["one"], "<two>": lost}
  fi.report.write(
    dataclasses.replace(run, spread_eps=eps), tmp_path, test=(X, Y)
  )
  columns = workdir.read(tmp_path).columns
  assert np.isnan(columns["fil_<two>"]).any()
  assert np.isfinite(columns["fil_one"]).all()
