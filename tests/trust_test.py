"""What agreement to expect where nobody is replayed."""

import io
import math

import jax
import numpy as np
import pytest
from rich import console as rich_console

from experiments import calibrating
import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax.report import sentences
from fedinf_jax.report import verdict
from fedinf_jax.running import finishing
from fedinf_jax.running import loop
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.simulation import signs as signs_
from fedinf_jax.valuation import trust

GOOD = trust.Signs(
  check=0.99, smoothness=0.98, redrawn=0.99, growth=1.0, truncated=0.0,
  residual=0.0,
)  # fmt: skip
WORSE = trust.Signs(
  check=0.2, smoothness=0.1, redrawn=0.3, growth=40.0, truncated=0.5,
  residual=0.9,
)  # fmt: skip
SLOPES = trust.Calibration(
  start=0.1, slopes=(0.5, 0.4, 0.3, 0.2, 0.6, 0.7), errors=(-0.5, 0.4)
)


def make_data(num_clients, seed=0):
  draw = np.random.default_rng(seed)
  clients = []
  for k in range(num_clients):
    x = draw.normal(size=(12, 4)).astype(np.float32) + 0.5 * (k % 3)
    clients.append((x, draw.integers(0, 3, 12)))
  return fi.FederatedData.from_clients(clients)


MODEL = fi.models.logreg(4, 3)
FED = fi.FedAvg(rounds=12, cohort_size=6, local_steps=3, learning_rate=0.1)
ESTIMATORS = {
  "basic": fi.estimator(fi.exact_hessian(), fi.no_guard()),
  "truncated": fi.estimator(fi.truncated(), fi.no_guard()),
}


def test_the_formula_is_fishers_z():
  found = trust.expected(WORSE, SLOPES)
  z = 0.1 + 0.5 * math.atanh(0.2) + 0.4 * math.atanh(0.1)
  z += 0.3 * math.atanh(0.3) - 0.2 * math.log(40)
  z -= 0.6 * 0.5 + 0.7 * 0.9
  assert found.pearson == pytest.approx(math.tanh(z))
  assert found.low == pytest.approx(math.tanh(z - 0.5))
  assert found.high == pytest.approx(math.tanh(z + 0.4))
  assert found.signs == WORSE
  assert "examples to 0.20" in found.reasons[0]
  at = {w: i for i, r in enumerate(found.reasons) for w in r.split()}
  assert at["×40"] < at["0.90)"]  # 0.2 · log 40 = .74, and 0.7 · 0.9 = .63.
  assert trust.expected(trust.Signs(1, 1, 1, 1, 0, 0), SLOPES).reasons == []


@pytest.mark.parametrize("calibration", [SLOPES, trust.CALIBRATION])
@pytest.mark.parametrize("field", trust.Signs._fields)
def test_a_worse_sign_never_raises_what_is_expected(calibration, field):
  for start in (GOOD, WORSE):
    good, bad = getattr(GOOD, field), getattr(WORSE, field)
    values = np.linspace(good, bad, 9).tolist()
    found = [
      trust.expected(start._replace(**{field: v}), calibration).pearson
      for v in values
    ]
    assert all(np.diff(found) <= 0)


def test_what_was_learnt_tells_good_from_bad():
  good, bad = trust.expected(GOOD), trust.expected(WORSE)
  assert -1 < bad.low < bad.pearson < bad.high < 1
  assert bad.pearson < 0.5 < 0.9 < good.pearson
  lost = trust.expected(GOOD._replace(growth=math.inf))
  assert (lost.pearson, lost.low, lost.reasons) == (
    0.0,
    -1.0,
    ["it overflowed"],
  )


def test_fit_finds_what_made_the_rows():
  draw = np.random.default_rng(0)
  rows = [
    trust.Signs(*draw.uniform(-0.2, 0.9, 3), *draw.uniform(1, 9, 1), *u)
    for u in draw.uniform(0, 1, (60, 2))
  ]
  made = [trust.expected(r, SLOPES).pearson for r in rows]
  found = trust.fit(rows, made)
  np.testing.assert_allclose(found.start, SLOPES.start, atol=1e-6)
  np.testing.assert_allclose(found.slopes, SLOPES.slopes, atol=1e-6)


def test_smoothness_is_one_where_effects_add_up():
  a, b = np.random.default_rng(0).normal(size=(2, 50))
  assert trust.smoothness(np.stack([a, b, a + b])) == pytest.approx(1)
  cos = lambda u, v: u @ v / math.sqrt(u @ u * (v @ v))
  expected = (cos(3 * a - b, a) + cos(2 * a, b)) / 2
  assert trust.smoothness(np.stack([a, b, 3 * a])) == pytest.approx(expected)
  assert trust.cosine(np.zeros(3), np.zeros(3)) == 1
  assert trust.cosine(np.zeros(3), np.ones(3)) == 0


def test_groups_are_disjoint_and_take_part():
  cohorts = np.array([[1, 4], [6, 7], [4, 9]])
  a, b, both = signs_.groups(cohorts, 12, seed=3)
  assert (a.sum(), b.sum()) == (2, 2)
  assert not (a & b).any()
  np.testing.assert_array_equal(a | b, both)
  assert set(np.flatnonzero(both)) <= {1, 4, 6, 7, 9}
  many = signs_.groups(np.arange(40).reshape(8, 5), 40, seed=3)
  assert many.sum(1).tolist() == [3, 3, 6]


def test_nobody_is_in_no_group():
  cohorts = np.array([[1, 4], [6, 12], [12, 12]])  # K = 12 stands for nobody.
  a, b, _ = signs_.groups(cohorts, 12, seed=3)
  assert (a.sum(), b.sum()) == (1, 1)
  assert set(np.flatnonzero(a | b)) < {1, 4, 6}


def test_mini_batches_are_not_redrawn():
  draws = rng.draws(0, 3, "client")
  again = rng.Redrawn(*draws)
  key = lambda d, stream: jax.random.key_data(d.key(stream, 1)).tolist()
  assert key(draws, rng.Stream.BATCH) == key(again, rng.Stream.BATCH)
  for stream in (rng.Stream.EXAMPLES, rng.Stream.LABELS, rng.Stream.LANCZOS):
    assert key(draws, stream) != key(again, stream)


@pytest.fixture(scope="module")
def found():
  x, y = make_data(3, seed=1).pooled()
  return fi.trust(MODEL, make_data(30), FED, x, y, estimators=ESTIMATORS)


def test_a_convex_problem_is_smooth_and_its_hessian_is_trusted(found):
  assert list(found) == ["basic", "truncated"]
  basic, truncated = found["basic"], found["truncated"]
  assert basic.signs.smoothness > 0.9
  assert basic.signs.check > 0.99
  # Nothing is drawn but mini-batches, of which there are none.
  assert basic.signs.redrawn == pytest.approx(trust.LIMIT)
  assert basic.pearson > 0.9
  assert truncated.signs.check < 0.9
  assert truncated.pearson < basic.pearson - 0.1


@pytest.mark.slow
def test_signs_are_those_of_retraining_by_hand(found):
  data = make_data(30)
  x, y = make_data(3, seed=1).pooled()
  words = rng.id_words(data.ids)
  cohorts = rng.cohorts(0, words, 12, 6)
  rows = np.concatenate([signs_.groups(cohorts, 30, seed=i) for i in range(3)])
  run = fi.simulate(
    MODEL, data, FED, exact=True, removals=rows, estimators=ESTIMATORS
  )
  loss = lambda eps: np.asarray(
    MODEL.loss(MODEL.apply(jax.tree.map(np.add, run.params, eps), x), y)
  )
  start = MODEL.loss(MODEL.apply(run.params, x), y)
  row = lambda tree, r: jax.tree.map(lambda a: np.asarray(a[r]), tree)
  exact = np.stack([loss(row(run.exact_eps, r)) - start for r in range(9)])
  eps = run.eps["truncated"]
  estimated = np.stack([loss(row(eps, r)) - start for r in range(9)])
  z, smooth = 0, 0
  for spot in (slice(0, 3), slice(3, 6), slice(6, 9)):
    a, b = exact[spot], estimated[spot]
    z += np.arctanh((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())) / 3
    smooth += np.arctanh(trust.smoothness(a)) / 3
  signs = found["truncated"].signs
  assert signs.check == pytest.approx(np.tanh(z), rel=1e-3)
  assert signs.smoothness == pytest.approx(np.tanh(smooth), rel=1e-3)


@pytest.mark.slow
def test_growth_truncation_and_residual_are_those_of_the_run():
  """With rounds in which not everybody replied, and draws made once more."""
  data = make_data(7)
  x, y = make_data(3, seed=1).pooled()
  fed = fi.FedAvg(rounds=5, cohort_size=3, local_steps=3, learning_rate=2.0)
  cohorts = [[0, 1, 2], [3, 4], [6, 5, 0], [2], [1, 4, 6]]
  served = fi.fisher(num_samples=8, layerwise=False, per="round",
                     spectrum="relu")  # fmt: skip
  estimators = {
    "paper": fi.estimator(fi.fisher(num_samples=12), fi.lwet()),
    "sampled": fi.estimator(
      fi.fisher(num_samples=4, labels="sampled"), fi.no_guard()
    ),
    "matched": fi.estimator(fi.server_side(served, match=True), fi.no_guard()),
  }
  options = {"cohorts": cohorts, "server_data": (x, y)}
  found = fi.trust(MODEL, data, fed, x, y, estimators=estimators, **options)
  drawn = np.array([c + [7] * (3 - len(c)) for c in cohorts])
  rows = np.concatenate([signs_.groups(drawn, 7, seed=i) for i in range(3)])
  run = fi.simulate(
    MODEL, data, fed, removals=rows, estimators=estimators, **options
  )
  for name, health in run.health.items():
    signs = found[name].signs
    assert signs.growth == pytest.approx(float(health.growth.max()), rel=1e-5)
    truncated = np.asarray(health.truncated_at) > 0
    assert signs.truncated == pytest.approx(truncated.mean())
  assert found["paper"].signs.growth > 1 and found["paper"].signs.truncated > 0
  residual = np.nanmean(np.asarray(run.health["matched"].residual))
  assert found["matched"].signs.residual == pytest.approx(residual, rel=1e-4)
  assert residual > 0 == found["paper"].signs.residual
  # All twelve examples with their own labels: nothing is left to chance.
  assert found["paper"].signs.redrawn == pytest.approx(trust.LIMIT)
  assert -trust.LIMIT < found["sampled"].signs.redrawn < 0.99


def call(**changes):
  x, y = make_data(2).pooled()
  options = {"estimators": ESTIMATORS, "fed": FED, **changes}
  fed = options.pop("fed")
  return fi.trust(MODEL, make_data(7), fed, x, y, **options)


@pytest.mark.parametrize(
  ("wrong", "message"),
  [
    (lambda: call(estimators={}), "estimators is empty; it must name"),
    (lambda: call(estimators=[]), "estimators is a list; it must be a dict"),
    (lambda: call(exact=True), "exact is for simulate; trust draws its own"),
    (lambda: call(fed=3), "fed is"),
    (
      lambda: call(
        cohorts=[[1]],
        fed=fi.FedAvg(
          rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1
        ),
      ),
      "trust needs at least two clients that take part",
    ),
    (lambda: fi.valuation.expected(3), "signs is a int; it must be"),
    (
      lambda: fi.valuation.expected(GOOD._replace(check="a")),
      "check is 'a'; it must be a number",
    ),
  ],
)
def test_what_is_wrong_is_one_line(wrong, message):
  with pytest.raises(ValueError, match=message):
    wrong()


def make_task(**changes):
  x, y = make_data(3, seed=1).pooled()
  task = tasks.Task(
    name="test",
    model=MODEL,
    train=make_data(30),
    x=x,
    y=y,
    fed=FED,
    recipe={"exact": "none", "evaluate_every": 12},
    estimators={"truncated": ESTIMATORS["truncated"]},
    descriptions={"truncated": "truncated()"},
    exact=False,
    evaluate_every=12,
    source="made",
  )
  return task._replace(**changes)


@pytest.mark.slow
def test_a_task_is_checked_like_its_run(found):
  again = tasks.trust(make_task())["truncated"]
  assert again.pearson == pytest.approx(found["truncated"].pearson)
  assert again.signs == pytest.approx(found["truncated"].signs)


def test_a_run_without_truth_says_what_to_expect(found, tmp_path, monkeypatch):
  monkeypatch.setattr(tasks, "trust", lambda task: found)
  screen = rich_console.Console(file=io.StringIO(), width=200)
  trained = loop.train(make_task(), tmp_path / "w", screen, loop.Saving())
  finishing.finish(make_task(), tmp_path / "w", trained)
  contents = workdir.read(tmp_path / "w")
  written = contents.summary["estimators"]["truncated"]["trust"]
  assert written["pearson"] == pytest.approx(found["truncated"].pearson)
  assert set(written["signs"]) == set(trust.Signs._fields)
  lines = sentences.trust(contents, verdict.verdict(contents))
  pearson = found["truncated"].pearson
  expected = f"Expected agreement with retraining: Pearson {pearson:.2f} ("
  assert expected.replace("-", "−") in lines["truncated"]
  assert "because retraining without a few groups" in lines["truncated"]


def test_only_where_nobody_is_replayed():
  assert tasks.is_checked(make_task())
  assert not tasks.is_checked(make_task(exact=True))
  assert not tasks.is_checked(make_task(exact=[1, 2]))
  assert not tasks.is_checked(make_task(estimators={}))
  alone = fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1)
  assert not tasks.is_checked(make_task(fed=alone))


def test_intervals_are_of_settings_that_were_left_out():
  draw = np.random.default_rng(1)
  rows = []
  for setting in "abcdef":
    bias = draw.normal() * 0.3
    for u in draw.uniform(0.2, 0.95, (40, 3)):
      signs = trust.Signs(*u, 1.0, 0.0, 0.0)
      z = bias + float(np.dot(SLOPES.slopes, trust.features(signs)))
      rows.append(
        {
          "setting": setting,
          "pearson": math.tanh(z + 0.1 * draw.normal()),
          "signs": signs._asdict(),
        }
      )
  learnt = calibrating.calibrate(rows)
  held = [
    t.low <= row["pearson"] <= t.high
    for row in rows
    for t in [calibrating.expected(row, learnt)]
  ]
  assert 0.8 < np.mean(held) <= 1
  assert learnt.errors[0] < -0.15
  pairs = calibrating.left_out(rows)
  assert [row for row, _ in pairs] == rows
  kept = [row for row in rows if row["setting"] != "a"]
  without = calibrating.expected(rows[0], calibrating.calibrate(kept))
  assert pairs[0][1] == without
  rows[0]["signs"]["growth"] = None  # It overflowed.
  assert calibrating.expected(rows[0], learnt).reasons == ["it overflowed"]
