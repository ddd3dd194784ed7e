"""The table of a run: planted clients, own and others', over time."""

import csv
import dataclasses
import functools
import io
import operator
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedinf_jax as fi
from fedinf_jax.simulation import history
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import owners
from tests import cases

ORDINARY = 22
SELF, COMMON, OWN, NOISE, FAST, SLOW = range(6)  # what a feature is for
LINEAR = fi.Model(
  init=lambda key: {"w": jnp.zeros(6)},
  apply=lambda params, x: x @ params["w"],
  loss=lambda outputs, y: jnp.square(outputs - y),
)
FEATURES = [COMMON, NOISE, FAST, SLOW]  # in tests of intervals
REPEATS = 200
REPLAYED = [0, 2, 3]
GROUPS = np.concatenate([cases.GROUPS, np.eye(6, dtype=bool)[4:]])
TRUNCATED = {"truncated": fi.estimator(fi.truncated(), fi.no_guard())}


def examples(*pairs):
  """Returns examples (feature, target), where the feature is 1, or given."""
  x, y = np.zeros((len(pairs), 6)), np.zeros(len(pairs))
  for i, (feature, target, *size) in enumerate(pairs):
    x[i, feature], y[i] = size[0] if size else 1.0, target
  return x, y


@functools.cache
def planted():
  """Clients whose part is known, and what they hold out for testing.

  Every feature is a problem of its own, so who moves whose loss is known.
  """
  ordinary = [f"ordinary {k}" for k in range(ORDINARY)]
  # The early one ruins FAST soon and solves SLOW in the end.
  train = {
    "selfish": examples((SELF, 2.0), (SELF, 2.0)),
    "harmful": examples((COMMON, -8.0), (COMMON, -8.0)),
    "idle": examples((NOISE, 0.05), (NOISE, 0.05)),
    "early": examples((FAST, 0.5), (SLOW, 0.225, 0.15)),
  } | dict.fromkeys(ordinary, examples((COMMON, 1.0), (COMMON, 1.0)))
  test = {
    "selfish": examples((SELF, 2.0)),
    "harmful": examples((OWN, 1.0)),
    "idle": examples((COMMON, 1.0)),
    "early": examples((SLOW, 1.5)),
  }
  for k, name in enumerate(ordinary):
    sign = 1.0 if k % 2 else -1.0
    mine = 0.1 * np.cos(k)
    test[name] = examples(
      (COMMON, 1 + mine), (NOISE, sign), (FAST, mine - 0.5), (SLOW, 1.5 + mine)
    )
  make = fi.FederatedData.from_clients
  return make(train), make(test)


@functools.cache
def planted_run():
  train, test = planted()
  fed = fi.FedAvg(
    rounds=160, cohort_size=train.num_clients, local_steps=8, learning_rate=0.4
  )
  return fi.simulate(
    LINEAR, train, fed, exact=True, evaluate=test, evaluate_every=8
  )


def population(client):
  """A population of test owners in which one client has no influence.

  Every example is about one of FEATURES. Returns the mean target of each, and
  the exact influence of every client on the whole population.
  """
  run = planted_run()
  w = np.asarray(run.params["w"])[FEATURES]
  moved = w + np.asarray(run.exact_eps["w"])[:, FEATURES]
  # Mean of (w_f − y)², without a client less with it: the noise cancels.
  change = lambda mean: (moved**2 - w**2 - 2 * mean * (moved - w)).mean(1)
  mean = np.array([1.0, 0.0, -0.5, 1.5])
  k = run.ids.index(client)
  at = FEATURES.index(NOISE)
  slope = -2 * (moved[k, at] - w[at]) / len(FEATURES)
  mean[at] -= change(mean)[k] / slope
  return mean, change(mean)


def drawn_test_set(draw, mean, owners=20, each=4):
  """Owners differ from each other, and so do their examples."""
  clients = {}
  for g in range(owners):
    which = draw.integers(len(FEATURES), size=each)
    own = 0.5 * draw.normal()
    noise = 0.5 * draw.normal(size=each)
    pairs = zip(which, mean[which] + own + noise, strict=True)
    clients[f"owner {g}"] = examples(*((FEATURES[f], y) for f, y in pairs))
  return fi.FederatedData.from_clients(clients)


def test_intervals_of_a_run_cover_what_is_known_exactly():
  mean, truth = population("idle")
  k = planted_run().ids.index("idle")
  assert abs(truth[k]) < 1e-15 < np.abs(truth[:2]).min()
  draw = np.random.default_rng(0)
  covered, called = [], []
  for _ in range(REPEATS):
    found = planted_run().table(drawn_test_set(draw, mean)).columns
    low, high = found["fil_low_exact"], found["fil_high_exact"]
    covered.append((low <= truth) & (truth <= high))
    called.append(found["effect_exact"] != "cannot tell")
  for rate in np.mean(covered, axis=0):  # of each client
    assert 0.90 <= rate <= 0.99
  rates = np.mean(called, axis=0)
  assert rates[k] <= 0.05 + 2 * np.sqrt(0.05 * 0.95 / REPEATS)
  # Of this population it owns nothing, and takes its weight from others.
  assert rates[planted_run().ids.index("selfish")] > 0.5


def row(table, client):
  columns = table.to_dict()
  k = columns["client_id"].index(client)
  return {
    name.removesuffix("_exact"): values[k] for name, values in columns.items()
  }


def test_planted_clients_are_what_the_table_says():
  _, test = planted()
  table = planted_run().table(test)
  assert np.isnan(table.columns["fia_exact"]).all()  # There are no labels.
  selfish = row(table, "selfish")
  assert selfish["fil_own"] > 1
  assert abs(selfish["fil_others"]) < 1e-2 * selfish["fil_own"]
  assert selfish["effect"] == "cannot tell"  # of people like the others
  harmful = row(table, "harmful")
  assert harmful["fil_own"] == 0 and harmful["fil_others"] < -0.005
  assert harmful["effect"] == "hurts" and harmful["fil_high"] < 0
  idle = row(table, "idle")
  assert idle["effect"] == "cannot tell"
  assert idle["fil_low"] < 0 < idle["fil_high"]
  assert abs(idle["fil"]) < 0.2 * abs(harmful["fil"])
  early = row(table, "early")
  assert early["effect"] == "helps" and early["fil_mean"] > 0
  assert 0.4 < early["sign_held"] < 0.95
  k = list(table.columns["client_id"]).index("early")
  fil = planted_run().history.fil["exact"][:, k]
  assert (fil[:2] < -0.005).all() and (fil[-5:] > 0.01).all()


def test_owners_may_be_ids_and_nobody():
  _, test = planted()
  x, y = test.pooled()
  ids = [test.ids[k] for k in test.owners]
  expected = planted_run().table(test).to_csv()
  assert planted_run().table(x, y, owners=ids).to_csv() == expected
  alone = planted_run().table(x, y)
  none = planted_run().table(x, y, owners=[None] * len(x))
  assert none.to_csv() == alone.to_csv()
  assert np.isnan(alone.columns["fil_own_exact"]).all()
  np.testing.assert_allclose(
    alone.columns["fil_others_exact"],
    planted_run().influence(fi.metrics.loss, x, y, of="exact"),
    atol=1e-12,
  )
  # Examples of one owner are alike: intervals by examples are too short.
  width = lambda t: t.columns["fil_high_exact"] - t.columns["fil_low_exact"]
  early = list(alone.columns["client_id"]).index("early")
  assert width(alone)[early] != width(planted_run().table(test))[early]


@functools.cache
def grouped():
  """A run with groups of clients, and test examples of some of them."""
  model, data = cases.logreg()
  draw = np.random.default_rng(3)
  x, y = cases.server_data(count=30)
  run = fi.simulate(
    model,
    data,
    fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=0.1),
    estimators=TRUNCATED,
    exact=REPLAYED,
    removals=GROUPS,
    cohorts=cases.COHORTS,
    evaluate=(x, y),
    evaluate_every=2,
  )
  own = [data.ids[k] if k < 6 else None for k in draw.integers(0, 8, 30)]
  return run, data, x, y, own


def test_every_column_equals_its_definition():
  run, data, x, y, own = grouped()
  table = run.table(x, y, owners=own)
  assert table.names == ("exact", "truncated")
  model = run.model

  def each(params):
    outputs = model.apply(params, x)
    hits = np.asarray(outputs.argmax(-1) == y, float)
    return np.asarray(model.loss(outputs, y)), hits

  losses, hits = each(run.params)
  mean = lambda a: a.mean() if len(a) else np.nan
  for r, group in enumerate(GROUPS):
    members = [data.ids[k] for k in np.flatnonzero(group)]
    is_own = np.array([o in members for o in own])
    drawn = [t + 1 for t, c in enumerate(cases.COHORTS) if group[c].any()]
    expected = {
      "client_id": " + ".join(map(str, members)) or "nobody",
      "num_examples": data.num_examples[group].sum(),
      "times_selected": len(drawn),
      "last_drawn": max(drawn, default=0),
    }
    for name, value in expected.items():
      assert table.columns[name][r] == value
    for name in table.names:
      eps = run.eps.get(name, run.exact_eps)
      at = r
      if name == "exact":
        at = REPLAYED.index(r) if r in REPLAYED else None
      found = {
        title: table.columns[f"{title}_{name}"][r]
        for title in ("fil", "fia", "fil_own", "fil_others")
      }
      if at is None:
        assert np.isnan(list(found.values())).all()
        assert table.columns[f"effect_{name}"][r] == ""
        continue
      eps = jax.tree.map(operator.itemgetter(at), eps)
      found_losses, found_hits = each(jax.tree.map(jnp.add, run.params, eps))
      changed = found_losses - losses, found_hits - hits
      np.testing.assert_allclose(
        list(found.values()),
        [
          changed[0].mean(),
          changed[1].mean(),
          mean(changed[0][is_own]),
          mean(changed[0][~is_own]),
        ],
        atol=1e-12,
      )


def test_intervals_resample_owners():
  run, _, x, y, own = grouped()
  table = run.table(x, y, owners=own, of="truncated", seed=7)
  groups = {}
  for i, owner in enumerate(own):
    groups.setdefault(i if owner is None else str(owner), []).append(i)
  counts = [len(rows) for rows in groups.values()]
  losses = lambda outputs, y: run.model.loss(outputs, y)
  each = np.asarray(run.influence(losses, x, y, of="truncated"))
  change = np.stack([each[:, rows].mean(1) for rows in groups.values()], 1)
  found = fi.valuation.bootstrap(change, counts, seed=7)
  np.testing.assert_allclose(
    table.columns["fil_low_truncated"], found.low, atol=1e-12
  )
  np.testing.assert_allclose(
    table.columns["fil_high_truncated"], found.high, atol=1e-12
  )
  expected = fi.valuation.effects(change @ counts / np.sum(counts), found.p)
  words = np.array(["cannot tell", "helps", "hurts"])[expected]
  assert list(table.columns["effect_truncated"]) == list(words)
  assert table.counts("truncated") == {
    word: (words == word).sum() for word in ("helps", "hurts", "cannot tell")
  }


def test_history_is_what_a_run_says_after_every_round():
  run, data, x, y, _ = grouped()
  found = run.history
  assert found.rounds.tolist() == [2, 4, 5]
  init, step = fi.simulator(
    run.model,
    data,
    fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=0.1),
    estimators=TRUNCATED,
    exact=REPLAYED,
    removals=GROUPS,
    cohorts=cases.COHORTS,
  )
  state = step(init(), 4)
  so_far = fi.Run.of(run.model, state, data, removals=GROUPS)
  fil = so_far.influence(fi.metrics.loss, x, y, of="truncated")
  np.testing.assert_allclose(found.fil["truncated"][1], fil, atol=1e-12)
  exact = so_far.influence(fi.metrics.loss, x, y, of="exact")
  np.testing.assert_allclose(found.fil["exact"][1, REPLAYED], exact, atol=1e-12)
  assert np.isnan(found.fil["exact"][:, 1]).all()
  outputs = run.model.apply(so_far.params, x)
  assert found.loss[1] == pytest.approx(
    float(run.model.loss(outputs, y).mean())
  )
  assert found.accuracy[1] == fi.metrics.accuracy(outputs, y)
  table = so_far.table(x, y, of="truncated")
  assert np.isnan(table.columns["times_selected"]).all()
  assert np.isnan(table.columns["fil_mean_truncated"]).all()


def test_over_time_by_hand():
  fil = np.array(
    [
      [0.0, -1.0, np.nan, 0.0],
      [2.0, -3.0, np.nan, 0.0],
      [1.0, 2.0, np.nan, 0.0],
      [3.0, 4.0, 5.0, 0.0],
    ]
  )
  found = history.over_time([10, 20, 31, 40], fil)
  np.testing.assert_allclose(found.mean, [2.0, 3.0, 5.0, 0.0])
  np.testing.assert_allclose(found.sign_held, [1.0, 0.5, 1.0, np.nan])


@functools.cache
def silent():
  return cases.simulate({}, rounds=50)


def test_a_run_without_evaluation_has_no_history():
  run = silent()
  assert run.history is None
  assert run.cohorts.shape == (50, 3) and run.ids == cases.logreg()[1].ids
  table = run.table(X, Y)
  assert table.names == () and table.columns["times_selected"].sum() == 150
  assert repr(table) == "Table of 6 rows, without an estimator"


def test_agreement():
  run, _, x, y, _ = grouped()
  found = run.agreement(x, y)["truncated"]
  fil = np.asarray(run.influence(fi.metrics.loss, x, y, of="truncated"))
  exact = np.asarray(run.influence(fi.metrics.loss, x, y, of="exact"))
  fil = fil[REPLAYED]
  assert found.pearson == pytest.approx(stats.pearsonr(fil, exact)[0])
  assert found.spearman == pytest.approx(stats.spearmanr(fil, exact)[0])
  eps = cases.ravel(run.eps["truncated"])[np.array(REPLAYED)]
  truth = cases.ravel(run.exact_eps)
  norm = lambda a: np.linalg.norm(a, axis=1).mean()
  assert found.fip_relative_error == pytest.approx(
    norm(eps - truth) / norm(truth)
  )
  with pytest.raises(ValueError, match="of is 'exact'; this run has 'trunc"):
    dataclasses.replace(run, spread_exact=None).agreement(x, y)


def test_ways_out(tmp_path, monkeypatch):
  _, test = planted()
  table = planted_run().table(test)
  content = table.to_csv(tmp_path / "t.csv")
  assert (tmp_path / "t.csv").read_text() == content
  rows = list(csv.DictReader(io.StringIO(content)))
  assert len(rows) == len(table) == 26
  for name, values in table.to_dict().items():
    for cells, value in zip(rows, values, strict=True):
      assert cells[name] == ("" if value is None else str(value))
  shown = repr(table).splitlines()
  assert shown[0].startswith("Table of 26 rows; exact: ")
  assert len(shown) == 12 and "hurts" in shown[-1]
  frame = types.SimpleNamespace(DataFrame=lambda columns: columns)
  monkeypatch.setitem(sys.modules, "pandas", frame)
  assert table.to_pandas() == table.to_dict()
  monkeypatch.setitem(sys.modules, "pandas", None)
  with pytest.raises(ImportError, match="pip install pandas"):
    table.to_pandas()
  with pytest.raises(ValueError, match=r"^path: .* cannot be written"):
    table.to_csv(tmp_path / "nowhere" / "t.csv")


def test_progress_does_not_change_a_run():
  told = []
  tell = lambda done, rounds: told.append((done, rounds))
  run = cases.simulate({}, rounds=50, progress=tell)
  assert len(told) == 20 and told[0] == (2, 50) and told[-1] == (50, 50)
  cases.close(silent().params, run.params, rtol=0, atol=0)


def test_a_run_compiles_its_table_once(compilations):
  _, test = planted()
  run = planted_run()
  run.table(test)
  del compilations[:]
  run.table(test)
  assert not compilations


X, Y = cases.server_data()
BAD_TABLES = {
  "owners length": ({"owners": [0] * 19}, "^owners has 19 entries; there are"),
  "owners unknown": (
    {"owners": [None, "me", *[None] * 18]},
    r"^owners: 'me' \(example 1\) is no client of this run; None stands",
  ),
  "owners scalar": ({"owners": 3}, "^owners is 3; it must be a list"),
  "owners twice": ({"x": cases.make_data((4,)), "y": Y}, "^x is a FederatedD"),
  "y": ({"y": None}, "^y is missing"),
  "y length": ({"y": Y[:3]}, r"^x has shape \[20, 4\] and y \[3\]"),
  "of": ({"of": ["truncated", "nope"]}, "^of is 'nope'; this run has 'exact"),
  "of kind": ({"of": 3}, "^of is 3; it must be a list"),
  "seed": ({"seed": -1}, "^seed is -1"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_bad_tables_are_one_line(name):
  changes, message = BAD_TABLES[name]
  run, *_ = grouped()
  asked = {"x": X, "y": Y} | changes
  with pytest.raises(ValueError, match=message) as error:
    run.table(asked.pop("x"), asked.pop("y"), **asked)
  assert "\n" not in str(error.value)


BAD_RUNS = {
  "every 0": ({"evaluate": (X, Y), "evaluate_every": 0}, "^evaluate_every is"),
  "every alone": ({"evaluate_every": 2}, "^evaluate_every has no use without"),
  "no pair": ({"evaluate": X}, "^evaluate must be a pair"),
  "lengths": ({"evaluate": (X, Y[:2])}, r"^evaluate: x has shape \[20, 4\]"),
  "labels": ({"evaluate": (X, Y + 9)}, "^evaluate: y has a label outside"),
  "progress": ({"progress": "yes"}, "^progress is 'yes'; it must be True"),
}


@pytest.mark.parametrize("name", BAD_RUNS)
def test_bad_evaluations_are_one_line(name, compilations):
  changes, message = BAD_RUNS[name]
  cases.logreg()
  del compilations[:]
  with pytest.raises(ValueError, match=message):
    cases.simulate({}, rounds=7, **changes)
  assert not compilations


def test_a_table_needs_to_know_the_removals_and_distinct_names():
  run, data, x, y, _ = grouped()
  init, _ = fi.simulator(
    run.model,
    data,
    fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=0.1),
    estimators=TRUNCATED,
    removals=GROUPS,
  )
  with pytest.raises(ValueError, match=r"give Run\.of the same removals="):
    fi.Run.of(run.model, init(), data).table(x, y)
  with pytest.raises(ValueError, match=r"give Run\.of the clients"):
    fi.Run.of(run.model, init()).table(x, y)
  who = {"client_id": np.arange(3)}
  with pytest.raises(ValueError, match="two of them would have a column fil_o"):
    tables.make(who, {"a": None, "own_a": None}, None)


def test_owners_that_do_not_train_are_groups_of_their_own():
  x, y = cases.server_data()
  held = fi.FederatedData.from_clients({"b": (x[:5], y[:5]), 9: (x[5:], y[5:])})
  found = owners.read(held, 20, ("a", "b"))
  assert found.client.tolist() == [1, -1] and found.counts.tolist() == [5, 15]
  with pytest.raises(ValueError, match="owners has 20 entries; there are 19"):
    owners.read(held, 19, ("a", "b"))
