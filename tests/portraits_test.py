"""What a client's card shows beside its influence."""

import dataclasses
import json

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.simulation import portraits
from tests import workdirs

MODEL = fi.models.logreg(3, 2)


def make_data(num_clients=7):
  draw = np.random.default_rng(0)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(4 + k, 3)), draw.integers(0, 2, 4 + k))
      for k in range(num_clients)
    ],
    num_classes=2,
  )


@pytest.fixture(scope="module")
def run():
  data = make_data()
  fed = fi.FedAvg(rounds=3, cohort_size=2, local_steps=1, learning_rate=0.3)
  estimators = {"basic": fi.estimator(fi.exact_hessian(), fi.no_guard())}
  cohorts = [[0, 1], [1, 2], [3, 1]]
  return fi.simulate(
    MODEL, data, fed, estimators=estimators, exact=[0, 1, 3, 6],
    cohorts=cohorts,
  )  # fmt: skip


def flat(eps):
  leaves = jax.tree.leaves(eps)
  return np.concatenate([a.reshape(len(a), -1) for a in leaves], axis=1)


@pytest.mark.parametrize("rows", [256, 3])
def test_sizes_and_neighbours_are_those_of_eps(run, rows, monkeypatch):
  monkeypatch.setattr(portraits, "ROWS", rows)
  found = portraits.portraits(run)
  assert list(found.eps) == ["exact", "basic"]
  eps = flat(run.eps["basic"])
  sizes = np.linalg.norm(eps, axis=1)
  norms = np.array(found.eps["basic"].norm)
  np.testing.assert_allclose(np.hypot(*norms.T), sizes, rtol=1e-3, atol=1e-12)
  for k in range(7):
    nearest, cosine = (
      getattr(found.eps["basic"], field)[k] for field in ("nearest", "cosine")
    )
    with np.errstate(invalid="ignore"):
      expected = eps @ eps[k] / sizes / sizes[k]
    expected[k] = -1
    order = [j for j in np.argsort(-expected) if expected[j] > 0][:3]
    assert nearest == order
    np.testing.assert_allclose(cosine, expected[order], atol=6e-4)
  # Who was never drawn moves nothing, and is like nobody.
  assert found.eps["basic"].nearest[6] == []
  assert not any(6 in near for near in found.eps["basic"].nearest)


def test_who_was_not_replayed_has_no_exact_size(run):
  exact = portraits.portraits(run).eps["exact"]
  known = np.isfinite(exact.norm).all(1)
  assert known.tolist() == [True, True, False, True, False, False, True]
  norms = np.linalg.norm(flat(run.exact_eps), axis=1)
  found = np.linalg.norm(np.array(exact.norm)[[0, 1, 3, 6]], axis=1)
  np.testing.assert_allclose(found, norms, rtol=1e-3, atol=1e-12)
  assert {k for near in exact.nearest for k in near} <= {0, 1, 3}


def test_too_many_are_compared_with_the_largest_only(run, monkeypatch):
  monkeypatch.setattr(portraits, "MOST_WORK", 0)
  sizes = np.linalg.norm(flat(run.eps["basic"]), axis=1)
  largest = set(np.argsort(-sizes)[: portraits.NEAREST + 1].tolist())
  near = portraits.portraits(run).eps["basic"].nearest
  assert {k for some in near for k in some} <= largest


def test_rounds_and_labels(run):
  data = make_data()
  found = portraits.portraits(run)
  assert found.drawn[:4] == [[1], [1, 2, 3], [2], [3]]
  assert found.drawn[4:] == [[], [], []]
  for k, counts in enumerate(found.labels):
    assert counts == np.bincount(data.client(k)[1], minlength=2).tolist()
  groups = np.zeros((2, 7), bool)
  groups[0, [0, 2]] = True
  grouped = dataclasses.replace(run, removed=groups, num_removals=2)
  found = portraits.portraits(grouped, of=[])
  assert found.drawn == [[1, 2], []]
  assert sum(found.labels[0]) == 4 + 6
  targets = dataclasses.replace(data, y=data.y.astype(float), num_classes=None)
  assert portraits.labels(targets) is None
  unlabelled = dataclasses.replace(run, labels=None)
  assert portraits.portraits(unlabelled, of=[]).labels is None
  with pytest.raises(ValueError, match="the run has no ids"):
    portraits.portraits(dataclasses.replace(run, ids=None))


def test_clients_json_is_optional_small_and_must_fit(tmp_path):
  folder = workdirs.write(tmp_path / "w", clients=6)
  assert workdir.read(folder).clients["layers"] == list(workdirs.LAYERS)
  path = folder / records.CLIENTS
  content = json.loads(path.read_text())
  for damage, words in (
    (lambda c: c["drawn"].pop(), "has not 6 clients"),
    (lambda c: c["eps"]["both"]["norm"][0].pop(), "has not 2 layers"),
    (lambda c: c["eps"]["both"]["nearest"][0].append(99), "is not there"),
    (lambda c: c["eps"]["both"]["cosine"][0].append(0.5), "lacks a cosine"),
  ):
    spoiled = json.loads(json.dumps(content))
    damage(spoiled)
    path.write_text(json.dumps(spoiled))
    with pytest.raises(ValueError, match=f"clients.json .*{words}"):
      workdir.read(folder)
  path.write_text('{"layers": 3}')
  with pytest.raises(ValueError, match=r"clients\.json cannot be read"):
    workdir.read(folder)
  path.unlink()
  assert workdir.read(folder).clients is None
  big = workdirs.write(tmp_path / "big", clients=1000, tracked=())
  assert (big / records.CLIENTS).stat().st_size < 500_000
