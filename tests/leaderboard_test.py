"""One table over finished runs."""

import json

import numpy as np
import pytest

from experiments import leaderboard
from fedinf_jax.running import workdir
from tests import workdirs


def test_a_row_per_estimator_the_nearest_first(tmp_path):
  for seed in (0, 1):
    workdirs.write(tmp_path / f"seed_{seed}", clients=30)
  found = leaderboard.folders([str(tmp_path)])
  assert found == [tmp_path / "seed_0", tmp_path / "seed_1"]
  runs = [workdir.read(folder) for folder in found]
  rows = {row[0]: row for row in leaderboard.table(runs)}
  assert list(rows) == ["relu", "both"]
  summary = json.loads((tmp_path / "seed_0" / "summary.json").read_text())
  about = summary["estimators"]["relu"]
  pearson, spearman = rows["relu"][2].split(" / ")
  assert float(pearson) == pytest.approx(about["fil_pearson"], abs=6e-4)
  assert float(spearman) == pytest.approx(about["fil_spearman"], abs=6e-4)
  columns = runs[0].columns
  exact, ours = columns["fil_exact"], columns["fil_relu"]
  ends = lambda a: {*np.argsort(a)[:10]} | {*np.argsort(a)[-10:]}
  share = len(ends(exact) & ends(ours)) / 20
  assert float(rows["relu"][5]) == pytest.approx(share, abs=1e-3)


def test_agreement_stands_beside_its_ceiling(tmp_path):
  workdirs.write(tmp_path / "w", repeats=2)
  run = workdir.read(tmp_path / "w")
  row = leaderboard.table([run])[-1]
  assert row[0] == "(ceiling)"
  for cell, when in ((row[2], "last"), (row[3], "last_quarter")):
    found = run.summary["reliability"][when]
    expected = [np.sqrt(found[kind]) for kind in ("pearson", "spearman")]
    shown = list(map(float, cell.split(" / ")))
    np.testing.assert_allclose(shown, expected, atol=6e-4)


def test_what_cannot_be_compared_is_said(tmp_path):
  workdirs.write(tmp_path / "a", exact="none")
  with pytest.raises(ValueError, match="has no exact influence"):
    leaderboard.table([workdir.read(tmp_path / "a")])
  workdirs.write(tmp_path / "b")
  run = workdir.read(tmp_path / "b")
  other = run._replace(summary={**run.summary, "name": "setting9"})
  with pytest.raises(ValueError, match=r"runs of .* and of setting9"):
    leaderboard.table([run, other])
