"""Flower's federations get what the simulation measures."""

import pytest

pytest.importorskip(
  "flwr", reason="flwr wants older packages; .ci/run has an environment for it"
)

import csv
import json
import pathlib
import shutil
import signal
import subprocess
import sys

import jax
import numpy as np
import optax

import fedinf_jax as fi
from fedinf_jax import flower
from fedinf_jax.flower import store
from fedinf_jax.running import lock
from fedinf_jax.server import policy
from fedinf_jax.server import rounds
from tests import federations
from tests.flower import grids
from tests.flower import scripts

ROOT = pathlib.Path(__file__).parent.parent.parent


def played(mode, client, **options):
  made = grids.strategy(mode, **options)
  grid = grids.InProcess(client, grids.nodes())
  made.start(grid, num_rounds=5)
  return made, grid


def test_silent_clients_in_numpy_need_not_change():
  nodes = grids.nodes()
  made, grid = played(
    "silent", grids.numpy_client(), identify=flower.mapped(nodes)
  )
  federations.assert_same(made.ledger, federations.simulated("silent"))
  assert set(grid.sent) == {"train"}


@pytest.mark.parametrize("mode", federations.MODES)
def test_all_modes_get_what_the_simulation_measures(mode):
  made, grid = played(mode, grids.jax_client(mode))
  federations.assert_same(made.ledger, federations.simulated(mode))
  asked = {"train", "query.identity"}
  assert set(grid.sent) == asked | (
    {"train.influence"} if mode == "interactive" else set()
  )


def same(a, b):
  """Asserts that two ledgers hold the same of everyone."""
  assert sorted(a.ids) == sorted(b.ids)
  rows = np.array([b.ids.index(i) for i in a.ids])
  for name in a.state.estimators:
    close = lambda x, y: np.testing.assert_allclose(
      x, y[rows], rtol=0, atol=1e-6
    )
    jax.tree.map(close, a.eps(name), b.eps(name))


def scripted(tmp_path, step, *, name="run", **options):
  """Plays a federation in a folder of this name."""
  return scripts.play(tmp_path / name, step, **options)


def in_a_process(*arguments):
  command = [sys.executable, "-m", "tests.flower.scripts", *arguments]
  return subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, check=False
  )


def test_clients_come_and_go_and_a_server_is_killed(tmp_path):
  found = in_a_process(str(tmp_path / "parts"), "6", "6")
  assert found.returncode == -signal.SIGKILL, found.stderr[-2000:]
  history = tmp_path / "parts" / "history.jsonl"
  assert len(history.read_text().splitlines()) == 6  # One too many.
  history.write_text(history.read_text()[:-9])  # And torn.
  found = in_a_process(str(tmp_path / "parts"), "6")
  assert found.returncode == 0, found.stderr[-2000:]
  assert "Resuming after round 5" in found.stderr + found.stdout
  found = in_a_process(str(tmp_path / "whole"), "6")
  assert found.returncode == 0, found.stderr[-2000:]
  for file in (
    "influence.csv", "history.jsonl", "metrics.jsonl", "attendance.jsonl",
  ):  # fmt: skip
    first, second = (tmp_path / n / file for n in ("whole", "parts"))
    assert first.read_bytes() == second.read_bytes()
  whole = scripted(tmp_path, scripts.attendance, name="whole")
  assert whole.ledger.round == 6 and "client-1" in whole.ledger.ids
  # By hand, with the same attendance and without Flower.
  ids = federations.data().ids

  def there(t):
    out = {"client-1"} if t < 3 else set()
    return [
      i for i in ids if i not in out | ({"client-4"} if t in (4, 5) else set())
    ]

  made = federations.server()
  cohort = lambda t, _: made.cohort(t, there(t))
  same(whole.ledger, federations.play("silent", cohort, num_rounds=6))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """The workdir of a federation of three rounds, and its ledger."""
  folder = tmp_path_factory.mktemp("finished") / "run"
  with pytest.MonkeyPatch.context() as patch:
    from flwr.supercore import task_identity

    for name in ("_task_id", "_run_id", "_node_id"):
      patch.setattr(task_identity.TaskIdentity, name, 1)
    made = scripts.play(folder, lambda *_: None, num_rounds=3)
  return folder, made.ledger


@pytest.fixture
def copied(finished, tmp_path):
  shutil.copytree(finished[0], tmp_path / "run")
  return tmp_path / "run"


def started(folder, mode="silent", *, num_rounds=3, **options):
  made = grids.strategy(mode, workdir=folder, **options)
  grid = grids.InProcess(grids.jax_client(mode), grids.nodes())
  made.start(grid, num_rounds=num_rounds)
  return made


@pytest.mark.parametrize(
  "mode, options", [("upload", {}), ("silent", {"seed": 3})]
)
def test_a_workdir_of_another_federation_is_refused(copied, mode, options):
  before = {p: p.read_bytes() for p in copied.glob("*.*")}
  with pytest.raises(ValueError, match=r"workdir: .* another model, seed"):
    started(copied, mode, **options)
  assert {p: p.read_bytes() for p in copied.glob("*.*")} == before


def test_other_data_of_the_server_are_refused(copied):
  made = grids.strategy(workdir=copied)
  made._data = federations.server_data(seed=10), made._data[1]
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  with pytest.raises(ValueError, match=r"workdir: .* training, data or"):
    made.start(grid, num_rounds=3)


@pytest.mark.parametrize("content", ["{", "{}", '{"ids": 3}'])
def test_a_damaged_checkpoint_is_passed_over(finished, copied, caplog, content):
  (copied / "checkpoints" / "clients-3.json").write_text(content)
  again = started(copied)
  assert "the checkpoint of round 3 cannot be used" in caplog.text
  same(again.ledger, finished[1])


def test_a_federation_does_not_begin_anew_silently(copied):
  for path in (copied / "checkpoints").glob("clients-*.json"):
    path.unlink()
  before = (copied / "attendance.jsonl").read_bytes()
  with pytest.raises(ValueError, match="has checkpoints, but none that this"):
    started(copied)
  assert (copied / "attendance.jsonl").read_bytes() == before


def test_a_workdir_belongs_to_one_server(copied):
  with (
    lock.owned(copied),
    pytest.raises(ValueError, match="is in use by process"),
  ):
    started(copied)
  place = copied / "a file"
  place.write_text("")
  with pytest.raises(ValueError, match=r"workdir: .* is not a folder"):
    grids.strategy(workdir=place)


def test_the_hook_remembers_what_it_counted(tmp_path):
  """A server that is started anew in every round leaves out the same."""
  hook = lambda: policy.leave_out_harmful(evaluations=3, errors=1e-6, most=0.4)
  whole = started(tmp_path / "whole", num_rounds=4, on_round=hook())
  assert whole.left_out
  for t in (2, 4):
    parts = started(tmp_path / "parts", num_rounds=t, on_round=hook())
  assert parts.left_out == whole.left_out
  same(parts.ledger, whole.ledger)


def test_a_round_in_which_all_are_refused_changes_nothing(caplog):
  made = grids.strategy()
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  ledgers, aggregate = [made.ledger], made.aggregate_train

  def aggregated(server_round, replies):
    if server_round == 2:
      for message in replies:
        del message.content["metrics"]
    found = aggregate(server_round, replies)
    ledgers.append(made.ledger)
    return found

  made.aggregate_train = aggregated
  made.start(grid, num_rounds=3)
  assert caplog.text.count("metrics: there are 0 records; it must be one") == 3
  assert [ledger.round for ledger in ledgers] == [0, 1, 2, 3]
  assert ledgers[2].state is ledgers[1].state
  assert ledgers[3].times.sum() == 6


def test_with_everybody_left_out_rounds_are_empty(tmp_path):
  hook = lambda t, table: list(table.ids)
  made = started(tmp_path / "run", num_rounds=6, on_round=hook)
  assert made.ledger.round == 6 and set(made.left_out) == set(made.ledger.ids)
  lines = (tmp_path / "run" / "attendance.jsonl").read_text().splitlines()
  assert '"clients": []' in lines[-1]


def test_the_report_is_written_live(tmp_path):
  scripted(tmp_path, scripts.attendance, num_rounds=3, report=True)
  page = (tmp_path / "run" / "report.html").read_text()
  assert "client-1" in page or "client-2" in page
  assert not (tmp_path / "run" / "report.html.tmp").exists()


def test_output_is_rewritten_every_n_rounds(tmp_path):
  made = grids.strategy(workdir=tmp_path / "run", evaluate_every=2)
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  result = made.start(grid, num_rounds=5)
  for name in ("history.jsonl", "metrics.jsonl"):
    lines = (tmp_path / "run" / name).read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [2, 4]
  lines = (tmp_path / "run" / "attendance.jsonl").read_text().splitlines()
  assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4, 5]
  assert set(result.train_metrics_clientapp) == {2, 4}  # helps/ID, harms/ID
  with open(tmp_path / "run" / "influence.csv", newline="") as file:
    last = {r["client_id"]: int(r["last_drawn"]) for r in csv.DictReader(file)}
  assert max(last.values()) == 4  # What round 5 brought is not in it yet.


def test_extremes_go_into_flowers_logs():
  made = grids.strategy()
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  result = made.start(grid, num_rounds=2)
  last = result.train_metrics_clientapp[2]
  table = made.table()
  worst, best = table.ids[table.order()[0]], table.ids[table.order()[-1]]
  assert last[f"harms/{worst}"] == table.fil.min() < 0
  assert last[f"helps/{best}"] == table.fil.max() > 0


def test_whom_the_hook_names_takes_no_part_any_more():
  hook = lambda t, table: ["client-2"] if t == 2 else []
  made = grids.strategy(on_round=hook)
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  times = []
  inner = made.aggregate_train

  def count(*args):
    found = inner(*args)
    k = (
      made.ledger.ids.index("client-2")
      if "client-2" in made.ledger.ids
      else None
    )
    times.append(None if k is None else int(made.ledger.times[k]))
    return found

  made.aggregate_train = count
  made.start(grid, num_rounds=5)
  assert made.left_out == ("client-2",)
  assert times[1] == times[-1]
  bad = grids.strategy(on_round=lambda t, table: ["nobody"])
  with pytest.raises(ValueError, match="on_round: 'nobody' is no client's id"):
    bad.start(grid, num_rounds=1)


def test_a_strategy_that_is_no_average_is_refused():
  made = grids.strategy()
  average = made._inner.aggregate_train

  def double(round_, replies):
    arrays, metrics = average(round_, replies)
    for key, value in arrays.items():
      arrays[key] = type(value)(value.numpy() * 2)
    return arrays, metrics

  made._inner.aggregate_train = double
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  with pytest.raises(ValueError, match="inner: FedAvg does not average"):
    made.start(grid, num_rounds=1)


def test_an_optimizer_is_known_again_in_another_process():
  def made(momentum):
    fed = fi.FedAvg(
      rounds=3, cohort_size=3, local_steps=2,
      client_optimizer=optax.sgd(0.1, momentum=momentum),
    )  # fmt: skip
    estimators = {"none": fi.estimator(fi.truncated(), fi.no_guard())}
    server = rounds.server(
      federations.MODEL, fed, estimators, federations.params(), max_examples=14
    )
    return store.fingerprint(server, federations.params())

  assert made(0.9) == made(0.9) != made(None)
