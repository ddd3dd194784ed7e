"""influence.csv is the table of the run; explanations; several seeds."""

import csv
import dataclasses
import functools
import io
import subprocess
import sys

import numpy as np
import pytest
from rich import console as rich_console

from experiments import seeds
from experiments.configs import quickstart
from experiments.configs import setting2
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax.running import explaining
from fedinf_jax.running import finishing
from fedinf_jax.running import loop
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.simulation import history
from fedinf_jax.valuation import owners
from tests import binaries
from tests import workdirs

MODEL = fi.models.logreg(4, 3)
FED = fi.FedAvg(rounds=6, cohort_size=3, local_steps=2, learning_rate=0.4)
TRUNCATED = {"truncated": fi.estimator(fi.truncated(), fi.no_guard())}


@functools.cache
def make_data():
  draw = np.random.default_rng(0)
  return fi.FederatedData.from_clients(
    [(draw.normal(size=(n, 4)), draw.integers(0, 3, n)) for n in [9, 15] * 4],
    num_classes=3,
  ).split(0.6, seed=0)


def make_task(explain=None):
  train, test = make_data()
  return tasks.Task(
    name="test",
    model=MODEL,
    train=train,
    x=test.x,
    y=test.y,
    owners=owners.read(test, len(test.x), train.ids),
    explain=explain,
    fed=FED,
    recipe={"exact": "all", "evaluate_every": 2},
    estimators=TRUNCATED,
    descriptions={"truncated": "truncated()"},
    exact=True,
    evaluate_every=2,
    source="made",
  )


def train(task, folder):
  screen = rich_console.Console(file=io.StringIO(), width=200)
  return loop.train(task, folder, screen, loop.Saving())


def rows(path):
  with open(path, newline="") as file:
    return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  folder = tmp_path_factory.mktemp("finishing") / "w"
  task = make_task()
  finishing.finish(task, folder, train(task, folder))
  return folder


@functools.cache
def directly():
  """The same run in Python."""
  train, test = make_data()
  return fi.simulate(
    MODEL, train, FED, estimators=TRUNCATED, exact=True,
    evaluate=test, evaluate_every=2,
  )  # fmt: skip


def test_influence_csv_is_the_table_of_the_run(finished):
  found = rows(finished / "influence.csv")
  expected = directly().table(make_data()[1]).to_dict()
  assert list(found[0]) == list(expected)
  for name, values in expected.items():
    cells = [row[name] for row in found]
    if name == "client_id" or name.startswith("effect_"):
      assert cells == list(map(str, values))
    else:  # FIL over time has six digits in history.jsonl.
      numbers = [float(cell or "nan") for cell in cells]
      np.testing.assert_allclose(
        numbers, np.array(values, float), rtol=1e-4, atol=1e-10
      )
  contents = workdir.read(finished)
  effects = contents.columns["effect_exact"]
  assert contents.summary["effects"]["exact"] == {
    word: list(effects).count(word)
    for word in ("helps", "hurts", "cannot tell")
  }


@pytest.mark.slow
def test_the_first_order_has_fil_and_fia_alone(tmp_path):
  task = make_task()._replace(
    passes={"first": tasks.Backwards(0)},
    descriptions={"truncated": "", "first": ""},
    exact=False,
  )
  finishing.finish(task, tmp_path / "w", train(task, tmp_path / "w"))
  columns = workdir.read(tmp_path / "w").columns
  assert np.isfinite(columns["fil_first"]).all()
  for title in ("fil_own_first", "fil_low_first", "fil_exact"):
    assert np.isnan(columns[title]).all()
  assert set(columns["effect_first"]) == set(columns["effect_exact"]) == {""}


def test_a_prediction_is_explained_also_after_the_run(finished, tmp_path):
  before = binaries.files(finished)
  task = make_task(explain=7)
  state = train(task, finished).state
  line = explaining.explain(task, finished, state)
  after = binaries.files(finished)
  assert after.keys() - before.keys() == {"explain_7.csv"}
  found = rows(finished / "explain_7.csv")
  run, (_, test) = directly(), make_data()
  x, y = test.x[7:8], test.y[7:8]
  present = fi.metrics.predictions(MODEL.apply(run.params, x), y)[0]
  said = int(present.argmax())
  for name in ("exact", "truncated"):
    change = run.influence(fi.metrics.predictions, x, y, of=name)[:, 0]
    for title, label in (("predicted", said), ("true", int(y[0]))):
      cells = [float(row[f"{title}_{name}"]) for row in found]
      np.testing.assert_allclose(cells, change[:, label], atol=1e-10)
  assert {(r["predicted_label"], r["true_label"]) for r in found} == {
    (str(said), str(y[0]))
  }
  change = np.asarray(run.influence(fi.metrics.predictions, x, y, of="exact"))
  worst = int(change[:, 0, said].argmin())
  assert line.startswith(f"Example 7: the model says {said} with probability")
  assert f"without {make_data()[0].ids[worst]}" in line.split(",")[0]
  (finished / "explain_7.csv").unlink()


def small(recipe=quickstart, **changes):
  config = recipe.get_config()
  config.scale, config.mesh = 0.1, "none"
  config.update_from_flattened_dict(changes)
  return recipes.scaled(config)


def test_test_examples_keep_their_owners():
  task = recipes.build("quickstart", small(), None)
  assert len(task.owners.group) == len(task.x)
  assert (task.owners.client >= 0).all()
  other = recipes.build(
    "quickstart", small(server_examples=0, estimators="both"), None
  )
  # Every owner's rows are rows that it has held out.
  everyone = fi.data.synthetic(num_clients=20).split(0.1, seed=0)[0]
  for k in (0, 5, 19):
    mine = {x.tobytes() for x in everyone.client(k)[0]}
    at = other.owners.client[other.owners.group] == k
    assert {x.tobytes() for x in other.x[at]} <= mine
  assert tasks.digest(task) != tasks.digest(task._replace(owners=None))
  images = small(setting2, **{"data.examples": 6, "data.test_examples": 30})
  assert recipes.build("setting2", images, None).owners is None


CLOCKED = """
import sys, time
from experiments import launch, run
from fedinf_jax.running import finishing

table, spent = finishing._table, []

def clocked(*args):
  started = time.process_time()
  found = table(*args)
  spent.append(time.process_time() - started)
  return found

finishing._table = clocked
try:
  launch.run(run.main)
finally:
  print("spent", sum(spent), time.process_time(), file=sys.stderr)
"""


@pytest.mark.slow
def test_owners_and_intervals_cost_a_tenth_of_quickstart_at_most(tmp_path):
  """In processor seconds of the whole recipe, compiled as users have it.

  The table is made once, at the end; history is read off the logs for it.
  """
  command = [sys.executable, "-c", CLOCKED, f"--workdir={tmp_path / 'w'}"]
  done = subprocess.run(
    command, cwd=binaries.ROOT, env=binaries.environment(),
    capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  word, spent, whole = done.stderr.splitlines()[-1].split()
  assert word == "spent"
  assert 0 < float(spent) < 0.1 * (float(whole) - float(spent))


def test_explaining_beyond_the_test_set_is_one_line():
  with pytest.raises(
    ValueError, match=r"^explain is 9999; the test examples ar"
  ):
    recipes.build("quickstart", small(explain=9999), None)
  images = small(setting2, **{"data.test_examples": 30, "explain": 30})
  with pytest.raises(
    ValueError, match=r"^explain is 30; the test examples are"
  ):
    recipes.check(images)  # before any data are made
  with pytest.raises(
    ValueError, match=r"^explain is -2; it must be at least -1"
  ):
    recipes.check(small(explain=-2))
  task = recipes.build("quickstart", small(explain=3), None)
  assert task.explain == 3 and "explain" not in task.recipe


def test_mean_and_spread_of_every_client_over_seeds(tmp_path):
  found = [
    workdir.read(workdirs.write(tmp_path / str(seed), rounds=5))
    for seed in range(3)
  ]
  shifted = [
    contents._replace(
      ids=contents.ids[::-1],
      columns={
        name: values[::-1] if name.startswith("effect") else values[::-1] + i
        for name, values in contents.columns.items()
      },
    )
    for i, contents in enumerate(found)
  ]
  table = list(csv.DictReader(io.StringIO(seeds.clients(shifted))))
  assert [row["client_id"] for row in table] == found[0].ids[::-1]
  fil = found[0].columns["fil_relu"][::-1]
  np.testing.assert_allclose(
    [float(row["fil_relu"]) for row in table], fil + 1, rtol=1e-9
  )
  np.testing.assert_allclose(
    [float(row["fil_std_relu"]) for row in table], 1, rtol=1e-6
  )
  # 1 ± 1 over three seeds says nothing; the same thrice says all.
  assert {row["effect_relu"] for row in table} == {"cannot tell"}
  same = csv.DictReader(io.StringIO(seeds.clients(found)))
  for row, value in zip(same, fil[::-1], strict=True):
    expected = {1: "helps", -1: "hurts", 0: "cannot tell"}[np.sign(value)]
    assert row["effect_relu"] == expected
  alone = list(csv.DictReader(io.StringIO(seeds.clients(found[:1]))))
  assert {row["effect_relu"] for row in alone} == {""}
  assert {row["fil_std_relu"] for row in alone} == {""}


def test_the_history_of_a_run_is_that_of_its_log(finished):
  contents = workdir.read(finished)
  table = dataclasses.asdict(directly().table(make_data()[1]))["columns"]
  found = history.over_time(contents.rounds, contents.history["exact"])
  np.testing.assert_allclose(found.mean, table["fil_mean_exact"], rtol=1e-4)
  np.testing.assert_allclose(found.sign_held, table["sign_held_exact"])
