"""How reproducible the truth is: jitter, reliability, and repeats in a run."""

import contextlib
import functools
import io
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich import console as rich_console
from scipy import stats

from experiments import seeds
from experiments.configs import quickstart
from experiments.configs import setting2
from experiments.configs import setting3_small
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax import rng
from fedinf_jax.report import sentences
from fedinf_jax.report import verdict
from fedinf_jax.running import finishing
from fedinf_jax.running import interrupts
from fedinf_jax.running import loop
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import repeats
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.simulation import devices
from tests import binaries
from tests import workdirs

FED = fi.FedAvg(rounds=6, cohort_size=3, local_steps=2, learning_rate=0.4)
MODEL = fi.models.logreg(4, 3)


def make_data(num_clients, seed=0):
  draw = np.random.default_rng(seed)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)), draw.integers(0, 3, n))
      for n in draw.choice([6, 12], num_clients)
    ],
    num_classes=3,
  )


def exact_fil(model, data, fed, x, y, params):
  run = fi.simulate(model, data, fed, exact=True, params=params)
  return np.asarray(run.influence(fi.metrics.loss, x, y, of="exact"))


def chaotic_model():
  """A model whose local steps iterate the logistic map w ← 3.9 w (1 − w).

  The gradient of w²(3.9 w / 3 − 1.45) is 3.9 w² − 2.9 w: a step of size one
  leads to the map. Clients differ by a factor of 3.9, which is their only
  example.
  """

  def loss(outputs, y):
    del y
    w, r = outputs[:, 0], outputs[:, 1]
    return r * w**3 / 3 - (r - 1) * w**2 / 2

  def apply(params, x):
    w = jnp.broadcast_to(params["w"], (len(x), 1))
    return jnp.concatenate([w, x], axis=1)

  init = lambda key: {"w": jnp.full((1,), 0.3) + 0 * jax.random.normal(key)}
  return fi.Model(init, apply, loss)


@functools.cache
def convex(jitter=0.0, seed=0):
  """Returns the exact FIL of `make_task`, from another starting point."""
  task = make_task()
  w = fi.jitter(MODEL.init(rng.stream_key(0, rng.Stream.INIT)), jitter, seed)
  return exact_fil(MODEL, task.train, FED, task.x, task.y, w)


def repeated(model, data, fed, x, y):
  """Returns the exact FIL from two starting points a hair apart."""
  w = model.init(jax.random.key(0))
  starts = w, fi.jitter(w, 1e-5, seed=1)
  found = [exact_fil(model, data, fed, x, y, start) for start in starts]
  assert np.isfinite(found).all()
  assert np.std(found[0]) > 0
  return found


def test_a_convex_problem_is_reproducible():
  agreed = fi.reliability(convex(), convex(jitter=1e-5, seed=1))
  assert np.std(convex()) > 0
  assert min(agreed) > 1 - 1e-6


def test_a_chaotic_map_is_not():
  fed = fi.FedAvg(rounds=60, cohort_size=3, local_steps=2, learning_rate=1.0)
  rates = np.random.default_rng(0).uniform(3.85, 3.95, 20)
  clients = [(np.array([[r]]), np.zeros(1)) for r in rates]
  data = fi.FederatedData.from_clients(clients)
  x, y = np.array([[3.9]]), np.zeros(1)
  agreed = fi.reliability(*repeated(chaotic_model(), data, fed, x, y))
  assert agreed.pearson < 0.5
  assert agreed.spearman < 0.5


def test_reliability_is_that_of_attenuation():
  # A common part of variance 4 and noise of variance 1: ρ = 4/5.
  draw = np.random.default_rng(0)
  truth = 2 * draw.normal(size=200_000)
  noisy = [truth + draw.normal(size=len(truth)) for _ in range(3)]
  pearson = lambda a, b: stats.pearsonr(a, b)[0]
  two, three = fi.reliability(*noisy[:2]), fi.reliability(*noisy)
  assert two.pearson == pytest.approx(0.8, abs=0.01)
  assert two.pearson == pytest.approx(pearson(*noisy[:2]))
  assert two.spearman == pytest.approx(stats.spearmanr(*noisy[:2])[0])
  # Nothing that does not know the noise does better than the common part.
  assert two.ceiling == pytest.approx(pearson(truth, noisy[0]), abs=0.01)
  for found, count in ((two, 2), (three, 3)):
    mean = np.mean(noisy[:count], axis=0)
    expected = pearson(truth, mean)
    assert found.ceiling_mean == pytest.approx(expected, abs=0.01)
  pairs = [pearson(a, b) for a, b in itertools.combinations(noisy, 2)]
  assert three.pearson == pytest.approx(np.mean(pairs))


def test_reliability_is_about_what_all_know():
  a, b = np.array([1.0, 2, 3, np.nan, 5]), np.array([1.0, 2, 4, 7, np.nan])
  expected = stats.pearsonr(a[:3], b[:3])[0]
  assert fi.reliability(a, b).pearson == pytest.approx(expected)
  assert fi.reliability(a[:3], -b[:3]).ceiling == 0
  assert fi.reliability(a[:2], b[:2]) == (None, None, None, None)
  assert fi.reliability(np.ones(4), b[:4]).ceiling is None


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: fi.reliability([1.0], [1.0, 2.0]), r"a has shape \[1\] and b \[2"),
    (lambda: fi.reliability([[1.0]], [[1.0]]), r"both must be \[R\]"),
    (lambda: fi.reliability([1], [1], [1, 2]), r"and others\[0\] \[2\]"),
    (lambda: fi.reliability("a", [1.0]), "a is not a rectangular array"),
    (lambda: fi.jitter({"w": jnp.ones(2)}, -1.0), "scale is -1.0; it must be"),
    (lambda: fi.jitter({"w": jnp.ones(2)}, seed=-1), "seed is -1; it must be"),
    (lambda: fi.jitter({"w": jnp.arange(2)}), "jitter moves floating arrays"),
  ],
)
def test_what_is_wrong_is_one_line(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def test_jitter_moves_each_layer_by_its_spread():
  params = {
    "a": jnp.asarray(50 * np.random.default_rng(0).normal(size=(100, 100))),
    "b": jnp.zeros(10_000, jnp.float32),
  }
  moved = fi.jitter(params, 1e-3, seed=4)
  away = jax.tree.map(lambda a, b: float((a - b).std()), moved, params)
  assert away == pytest.approx({"a": 50e-3, "b": 1e-3}, rel=0.05)
  assert moved["b"].dtype == jnp.float32
  again, other = (fi.jitter(params, 1e-3, seed=seed) for seed in (4, 5))
  same = lambda a, b: bool((a == b).all())
  assert all(jax.tree.leaves(jax.tree.map(same, moved, again)))
  assert not any(jax.tree.leaves(jax.tree.map(same, moved, other)))
  still = fi.jitter(params, 0.0)
  assert all(jax.tree.leaves(jax.tree.map(same, params, still)))


def make_task(**changes):
  x, y = make_data(5, seed=1).pooled()
  task = tasks.Task(
    name="test",
    model=MODEL,
    train=make_data(9),
    x=x,
    y=y,
    fed=FED,
    recipe={"exact": "all", "evaluate_every": 2},
    estimators={"truncated": fi.estimator(fi.truncated(), fi.no_guard())},
    descriptions={"truncated": "truncated()"},
    exact=True,
    exact_repeats=3,
    jitter=0.5,  # Far enough to see.
    evaluate_every=2,
    tracked=2,
    source="made",
  )
  return task._replace(**changes)


def finish(task, folder):
  screen = rich_console.Console(file=io.StringIO(), width=200)
  trained = loop.train(task, folder, screen, loop.Saving())
  finishing.finish(task, folder, trained)
  return screen.file.getvalue()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run with two repeats, and what it printed."""
  folder = tmp_path_factory.mktemp("repeats") / "w"
  return folder, finish(make_task(), folder)


def lines(path):
  return [json.loads(line) for line in path.read_text().splitlines()]


@functools.cache
def directly():
  """Exact FIL of the run and of its repeats, by fi.simulate: [3, R]."""
  return np.stack([convex(), *(convex(jitter=0.5, seed=i) for i in (1, 2))])


def test_repeats_are_the_replay_from_other_starting_points(finished):
  folder, printed = finished
  assert "repeat 1 of 2: retraining from a starting point 0.5 away" in printed
  found = json.loads((folder / "repeats.json").read_text())["repeats"]
  at = [(r["repeat"], r["round"]) for r in found]
  assert at == [(1, 2), (1, 4), (1, 6), (2, 2), (2, 4), (2, 6)]
  for r in found:
    if r["round"] == 6:
      np.testing.assert_allclose(
        r["fil"], directly()[r["repeat"]], rtol=1e-5, atol=1e-9
      )
  assert not (folder / "repeats").exists()


def test_every_agreement_stands_beside_its_ceiling(finished):
  folder, _ = finished
  metrics = lines(folder / "metrics.jsonl")
  last = metrics[-1]["reliability"]
  assert set(last) == set(records.Reliability._fields)
  assert (last["repeats"], last["clients"]) == (3, 9)
  expected = fi.reliability(*directly())._asdict()
  assert {k: last[k] for k in expected} == pytest.approx(expected, rel=1e-4)
  task = make_task()
  run = fi.simulate(MODEL, task.train, FED, estimators=dict(task.estimators))
  fil = run.influence(fi.metrics.loss, task.x, task.y, of="truncated")
  pearson = stats.pearsonr(fil, directly().mean(0))[0]
  found = last["estimators"]["truncated"]["fil_pearson"]
  assert found == pytest.approx(pearson, rel=1e-4)
  summary = workdir.read(folder).summary["reliability"]
  assert summary["jitter"] == 0.5
  assert summary["last"] == last
  late = [line["reliability"] for line in metrics if line["round"] > 4.5]
  assert summary["last_quarter"]["ceiling"] == pytest.approx(
    np.mean([line["ceiling"] for line in late])
  )
  shown = records.Metrics(
    round=6,
    loss=1.0,
    accuracy=0.5,
    estimators={"truncated": records.Agreement(*[0.5] * 6)},
    reliability=records.Reliability(**last),
  )
  assert f"ceiling {last['ceiling']:.3f}" in progress.words(shown)


@pytest.mark.slow
def test_a_run_without_repeats_has_the_files_it_always_had(tmp_path):
  finish(make_task(exact_repeats=1), tmp_path / "w")
  assert not (tmp_path / "w" / "repeats.json").exists()
  assert "reliability" not in lines(tmp_path / "w" / "metrics.jsonl")[0]
  summary = json.loads((tmp_path / "w" / "summary.json").read_text())
  assert "reliability" not in summary
  assert not repeats.asked(make_task(exact=False))


@pytest.mark.slow
def test_repeats_are_not_repeated_unless_they_are_damaged(
  finished, monkeypatch, capsys
):
  folder, _ = finished
  before = binaries.files(folder)
  with monkeypatch.context() as patch:
    patch.setattr(tasks, "repeated", None)
    finish(make_task(), folder)
  assert binaries.files(folder) == before
  (folder / "repeats.json").write_text("{")
  finish(make_task(), folder)
  assert "repeats.json cannot be read" in capsys.readouterr().err
  assert binaries.files(folder) == before


@pytest.mark.slow
def test_killed_during_a_repeat_it_ends_with_the_same_bytes(
  finished, tmp_path, monkeypatch
):
  written = []

  def killed(folder, *args):
    written.append(folder)
    if len(written) == 5:  # The second round of the second repeat.
      raise MemoryError
    return append(folder, *args)

  append = records.append_round
  with monkeypatch.context() as patch:
    patch.setattr(records, "append_round", killed)
    with pytest.raises(MemoryError):
      finish(make_task(), tmp_path / "w")
  assert written[-1] == tmp_path / "w" / "repeats" / "2"
  printed = finish(make_task(), tmp_path / "w")
  assert "repeat 1 of 2" not in printed
  assert "repeat 2 of 2" in printed
  assert binaries.files(tmp_path / "w") == binaries.files(finished[0])


@pytest.mark.slow
def test_stopped_again_and_again_it_resumes(finished, tmp_path, monkeypatch):
  asked = itertools.count(1)
  stop = lambda: contextlib.nullcontext(lambda: next(asked) % 3 == 0)
  monkeypatch.setattr(interrupts, "stop_requests", stop)
  stops = []
  for _ in range(40):
    try:
      finish(make_task(), tmp_path / "w")
      break
    except KeyboardInterrupt as stopped:
      stops.append(stopped.args[0])
  assert len(stops) > 2
  assert binaries.files(tmp_path / "w") == binaries.files(finished[0])


@pytest.mark.slow
def test_repeats_on_several_devices_are_the_same(finished, tmp_path):
  finish(make_task(mesh=devices.parse("4")), tmp_path / "w")
  for name in ("pearson", "spearman", "ceiling", "ceiling_mean"):
    one, many = (
      [line["reliability"][name] for line in lines(place / "metrics.jsonl")]
      for place in (finished[0], tmp_path / "w")
    )
    np.testing.assert_allclose(many, one, rtol=0, atol=1e-6)


def test_some_of_the_replayed_clients_are_repeated():
  task = make_task(exact=[0, 2, 3, 5, 8], repeat_clients=3)
  rows = tasks.repeated(task, 1).exact
  assert len(rows) == 3
  assert rows == sorted(rows)
  assert set(rows) < set(task.exact)
  assert tasks.repeated(task, 2).exact == rows
  everyone = tasks.repeated(make_task(repeat_clients=99), 1).exact
  assert everyone == list(range(9))
  assert tasks.repeated(make_task(), 1).exact is True


def test_recipes_repeat_where_the_truth_is_not_reproducible():
  for recipe, expected in (
    (quickstart, (1, None)),
    (setting2, (2, None)),
    (setting3_small, (2, 30)),
  ):
    config = recipes.scaled(recipe.get_config())
    config.data.num_clients, config.fed.cohort_size = 5, 2
    config.mesh = "none"
    if "examples" in config.data:
      config.data.update(examples=6, test_examples=10)
    task = recipes.build("test", config, None)
    assert (task.exact_repeats, task.repeat_clients) == expected
    # Without repeats, a workdir says what it always said.
    assert ("jitter" in task.recipe) == (task.exact_repeats > 1)
    config.exact = "none"
    assert recipes.build("test", config, None).exact_repeats == 1


@pytest.mark.parametrize(
  ("key", "value", "message"),
  [
    ("exact_repeats", 0, "exact_repeats is 0; it must be at least 1"),
    ("repeat_clients", "2", "repeat_clients is '2'; it must be"),
    ("repeat_clients", "some", "repeat_clients is 'some'; it must be"),
    ("jitter", 0.0, "jitter is 0.0; it must lie between 0 and 1"),
  ],
)
def test_recipes_that_cannot_be_are_refused(key, value, message):
  config = quickstart.get_config()
  config[key] = value
  with pytest.raises(ValueError, match=message):
    recipes.check(config)


def test_screen_and_page_say_how_far_the_truth_agrees_with_itself(tmp_path):
  folder = workdirs.write(tmp_path / "w", repeats=2, exact="12")
  contents = workdir.read(folder)
  last = contents.summary["reliability"]["last"]
  assert (last["repeats"], last["clients"]) == (2, 12)
  said = sentences.write(contents)[1]
  (line,) = said.truth
  assert line.startswith(
    "The truth itself: retraining without each of 12 clients, from starting"
    " points 1e−5 apart, agrees with itself to Pearson 0.9"
  )
  ceilings = said.trust["relu"]
  assert f"(ceilings {last['ceiling']:.3f} and 0.9" in ceilings
  report.write(folder)
  page = " ".join((folder / "report.html").read_text().split())
  assert '<th scope="col">ceiling of Pearson</th>' in page
  assert line in page


@pytest.mark.parametrize(
  ("reliability", "key"),
  [(None, "weak"), (0.9, "fair"), (0.6, "good"), (0.2, "none")],
)
def test_nobody_is_blamed_for_noise_of_the_truth(reliability, key):
  found = {"fil_pearson": 0.79, "fil_spearman": 0.79}
  measured = {**found, "nonfinite_fraction": 0.0, "last_quarter": found}
  part = {"pearson": reliability, "spearman": reliability}
  repeated = {"last": part, "last_quarter": part} if reliability else None
  grade = verdict.grade(measured, has_exact=True, repeated=repeated)
  assert grade.key == key
  wrong = {**measured, "fil_pearson": -0.99}
  grade = verdict.grade(wrong, has_exact=True, repeated=repeated)
  assert grade.key == ("none" if key == "none" else "bad")


@pytest.mark.parametrize("damage", ["missing", "round", "clients", "metrics"])
def test_files_that_do_not_hold_together_are_named(tmp_path, damage):
  folder = workdirs.write(tmp_path / "w", repeats=2, rounds=20)
  path, name = folder / "repeats.json", "repeats.json"
  content = json.loads(path.read_text())
  if damage == "missing":
    path.unlink()
  elif damage == "round":
    content["repeats"].pop()
  elif damage == "clients":
    content["repeats"][0]["fil"].pop()
  else:
    name = "metrics.jsonl"
    first, *rest = lines(folder / name)
    del first["reliability"]
    text = "".join(json.dumps(line) + "\n" for line in (first, *rest))
    (folder / name).write_text(text)
  if damage in ("round", "clients"):
    path.write_text(json.dumps(content))
  with pytest.raises(ValueError, match=f"does not hold together: {name}"):
    workdir.read(folder)


def test_the_spread_over_seeds_has_its_ceiling(tmp_path):
  folder = workdirs.write(tmp_path / "w", repeats=2)
  summary = workdir.read(folder).summary
  found = seeds.spread([summary, summary])
  expected = summary["reliability"]["last"]["ceiling"]
  assert found["ceiling"]["mean"] == pytest.approx(expected)
  screen = rich_console.Console(file=io.StringIO(), width=100)
  screen.print(seeds.table(found))
  assert "(ceiling)" in screen.file.getvalue()
