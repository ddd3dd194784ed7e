"""Who helps and who hurts: one verdict for the screen and for the page."""

import html
import json
import re

import numpy as np
import pytest

from fedinf_jax import report
from fedinf_jax.report import verdict
from fedinf_jax.running import workdir
from tests import workdirs


def edit_summary(folder, **changes):
  """Changes fields of estimators in summary.json: name=fields."""
  path = folder / "summary.json"
  summary = json.loads(path.read_text())
  for name, fields in changes.items():
    summary["estimators"][name] |= fields
  path.write_text(json.dumps(summary))


def edit_influence(folder, change):
  """Applies `change` to every row of influence.csv, given as a dict."""
  path = folder / "influence.csv"
  header, *rows = (s.split(",") for s in path.read_text().splitlines())
  rows = [change(dict(zip(header, row, strict=True))) for row in rows]
  lines = [header, *(row.values() for row in rows)]
  path.write_text("".join(",".join(line) + "\n" for line in lines))


def all_replayed(folder):
  workdirs.write(folder, clients=24, estimators=("both", "relu", "naive"))


def some_replayed(folder):
  workdirs.write(folder, clients=30, exact="20")


def none_replayed(folder):
  workdirs.write(folder, exact="none")


def nobody_drawn(folder):
  workdirs.write(folder, clients=6)
  zeros = lambda row: {k: "0.0" if k[:2] == "fi" else row[k] for k in row}
  edit_influence(folder, lambda row: zeros(row) | {"times_selected": "0"})


def overflowed(folder):
  """The first of two estimators overflowed, and nothing is replayed."""
  workdirs.write(folder, exact="none")
  lost = {"nonfinite_fraction": 0.25, "largest_growth": None}
  edit_summary(folder, both=lost)
  edit_influence(folder, lambda row: row | {"fil_both": "", "fia_both": ""})


def all_overflowed(folder):
  workdirs.write(folder, estimators=("naive",), exact="none")
  edit_summary(folder, naive={"nonfinite_fraction": 0.25})


def only_some_replayed(folder):
  workdirs.write(folder, clients=30, estimators=(), exact="20", tracked=())


def no_influence(folder):
  workdirs.write(folder, estimators=(), exact="none", tracked=())


# Whose FIL ranks the clients, and what the verdict says about it.
CASES = {
  all_replayed: ("exact", "By retraining without each client,"),
  some_replayed: (
    "relu",
    "By estimator relu (which agrees best with retraining without 20 of the 30"
    " clients),",
  ),
  none_replayed: ("both", "By estimator both (the first of the recipe),"),
  nobody_drawn: ("exact", "0 of 6 clients help and 0 hurt; 6 never took part"),
  overflowed: (
    "relu",
    "By estimator relu (the first of the recipe that did not overflow),",
  ),
  all_overflowed: ("naive", "By estimator naive (which overflowed),"),
  only_some_replayed: (
    "exact",
    "By retraining without 20 of the 30 clients,",
  ),
  no_influence: (None, "This run measured no influence."),
}


@pytest.mark.parametrize("plant", CASES, ids=lambda plant: plant.__name__)
def test_the_page_shows_the_sentences_of_the_screen(plant, tmp_path):
  plant(tmp_path)
  contents = workdir.read(tmp_path)
  found = verdict.verdict(contents)
  lines = verdict.sentences(contents, found)
  ranked_by, words = CASES[plant]
  assert found.ranked_by == ranked_by
  assert words in " ".join(lines)
  report.write(tmp_path)
  page = (tmp_path / "report.html").read_text("utf-8")
  for line in lines:
    assert "\n" not in line
    assert f">{html.escape(line)}</p>" in page or (
      f" {html.escape(line)}</li>" in page
    )
  data = json.loads(re.search('<script id="data".*?>(.*?)</script>', page)[1])
  assert data["sort"] == (f"-fil_{ranked_by}" if ranked_by else "client_id")
  assert data["sort"].removeprefix("-") in data["keys"]


def test_the_extremes_are_the_strongest_first(tmp_path):
  some_replayed(tmp_path)
  contents = workdir.read(tmp_path)
  found = verdict.verdict(contents)
  fil = contents.columns["fil_relu"]
  np.testing.assert_array_equal(found.fil, fil)
  order = np.argsort(-fil)
  assert found.helps == tuple(order[:5])
  assert found.hurts == tuple(order[::-1][:5])
  assert found.num_helping == (fil > 0).sum()
  assert found.num_hurting == (fil < 0).sum()
  assert found.num_replayed == 20
  first, second = (contents.ids[k] for k in found.hurts[:2])
  line = verdict.answer(contents, found)[1]
  assert f"Without client {first} the test loss would fall by 0.00" in line
  assert f"it hurts most, then {second} (0.00" in line


def test_an_overflowed_estimator_is_said_to_be(tmp_path):
  overflowed(tmp_path)
  contents = workdir.read(tmp_path)
  found = verdict.verdict(contents)
  assert found.grades["both"] == verdict.OVERFLOWED
  assert found.grades["relu"] == verdict.UNCHECKED
  line = verdict.trust(contents, found)["both"]
  assert line.startswith("both: do not trust, it overflowed (")
  assert "25% of layers overflowed" in line


def measured(*numbers, nonfinite=0.0):
  pearson, spearman, later_pearson, later_spearman = numbers
  later = {"fil_pearson": later_pearson, "fil_spearman": later_spearman}
  return {
    "fil_pearson": pearson,
    "fil_spearman": spearman,
    "last_quarter": later,
    "nonfinite_fraction": nonfinite,
  }


@pytest.mark.parametrize(
  ("numbers", "key"),
  [
    ((0.99, 0.96, 0.97, 0.95), "good"),
    ((0.99, 0.96, 0.97, 0.94), "fair"),
    ((0.79, 0.96, 0.97, 0.99), "weak"),
    ((0.9, 0.9, 0.49, 0.9), "bad"),
    ((-1.0, 0.9, 0.9, 0.9), "bad"),
    ((None, 0.9, None, 0.9), "fair"),
    ((None, None, None, None), "none"),
  ],
)
def test_the_weakest_correlation_decides_the_grade(numbers, key):
  found = verdict.grade(measured(*numbers), has_exact=True)
  assert found.key == key


def test_an_overflow_is_never_trusted():
  for has_exact in (True, False):
    lost = measured(1.0, 1.0, 1.0, 1.0, nonfinite=0.01)
    assert verdict.grade(lost, has_exact=has_exact) == verdict.OVERFLOWED
