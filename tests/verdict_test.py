"""Who helps and who hurts: one verdict for screen, summary.json and page."""

import html
import io
import json

import numpy as np
import pytest

from fedinf_jax import report
from fedinf_jax import wording
from fedinf_jax.command import showing
from fedinf_jax.report import advice
from fedinf_jax.report import figures
from fedinf_jax.report import sentences
from fedinf_jax.report import verdict
from fedinf_jax.running import progress
from fedinf_jax.running import workdir
from tests import workdirs


def edit_json(folder, name, change):
  """Applies `change` to the content of a JSON file."""
  path = folder / name
  content = json.loads(path.read_text())
  change(content)
  path.write_text(json.dumps(content))


def edit_summary(folder, **changes):
  """Changes fields of estimators in summary.json: name=fields."""

  def change(summary):
    for name, fields in changes.items():
      summary["estimators"][name] |= fields

  edit_json(folder, "summary.json", change)


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


def extremes_replayed(folder):
  workdirs.write(folder, clients=30, exact="20")
  recipe = lambda about: about["config"].update(exact="top:20:both")
  edit_json(folder, "config.json", recipe)


def none_replayed(folder):
  workdirs.write(folder, exact="none")


def nobody_drawn(folder):
  workdirs.write(folder, clients=6)
  zeros = lambda row: {k: "0.0" if k[:2] == "fi" else row[k] for k in row}
  edit_influence(
    folder,
    lambda row: (
      zeros(row) | {"times_selected": "0", "effect_exact": "cannot tell"}
    ),
  )


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


def one_hurts(folder):
  """One client hurts for sure, the others do nothing."""
  workdirs.write(folder, clients=6)

  def change(row):
    bad = row["client_id"] == "f_0003"
    effect = "hurts" if bad else "cannot tell"
    return row | {"fil_exact": str(-0.5 * bad), "effect_exact": effect}

  edit_influence(folder, change)


def one_is_selfish(folder, others=-0.2):
  """One client helps itself, and nobody else matters to the others."""
  workdirs.write(folder, clients=6)

  def change(row):
    own = row["client_id"] == "f_0003"
    fil = {"fil": 0.5, "fil_own": 3.0, "fil_others": others}
    fil = {f"{k}_exact": str(v if own else 0.01) for k, v in fil.items()}
    return row | fil | {"effect_exact": "cannot tell"}

  edit_influence(folder, change)


def nobody_for_sure(folder):
  workdirs.write(folder, clients=12)
  edit_influence(folder, lambda row: row | {"effect_exact": "cannot tell"})


def nobody_knows_how_sure(folder):
  workdirs.write(folder, clients=12)
  edit_influence(folder, lambda row: row | {"effect_exact": ""})


def kinked(folder):
  workdirs.write(folder, repeats=2)
  lower = lambda s: s["reliability"]["last"].update(ceiling=0.55)
  edit_json(folder, "summary.json", lower)


def not_smooth(folder):
  workdirs.write(folder, exact="none")
  signs = dict.fromkeys(
    ("check", "redrawn", "growth", "truncated", "residual"), 1.0
  )
  trust = {
    "pearson": 0.4, "low": 0.1, "high": 0.7, "reasons": ["effects do not"],
    "signs": {**signs, "smoothness": 0.3},
  }  # fmt: skip
  edit_summary(folder, both={"trust": trust})


def unsteady(folder):
  workdirs.write(folder, clients=12)
  edit_influence(folder, lambda row: row | {"sign_held_exact": "0.5"})


def cleansed(folder):
  workdirs.write(folder, cleanse=True)


def cleansed_in_vain(folder):
  workdirs.write(folder, cleanse=True)

  def worse(cleanse):
    for curve in cleanse["curves"]:
      if curve["end"] == "harmful":
        curve["loss"] = [9.0 for _ in curve["loss"]]

  edit_json(folder, "cleanse.json", worse)


def debugged(folder):
  workdirs.write(folder, debug=True)


# Whose FIL ranks the clients, and what the verdict says about it.
CASES = {
  all_replayed: (
    "exact",
    "Measured by retraining without each client: exact, for this one training.",
  ),
  some_replayed: (
    "relu",
    "Measured by ours, same upload (relu), which agrees best with retraining"
    " without 20 of the 30 clients.",
  ),
  extremes_replayed: ("relu", "Exact are the numbers of the 20 extremes by"),
  none_replayed: (
    "both",
    "To be sure about both ends, retrain without them (with the other flags of"
    " this run): python -m experiments.run --config=quickstart"
    " --config.exact=top:20:both --workdir=runs/quickstart_top20",
  ),
  nobody_drawn: (
    "exact",
    "No client helps. No client hurts. None of 6 clients can be told apart"
    " from no effect on other test examples of the same kind (5 % false"
    " discoveries); 6 never took part.",
  ),
  overflowed: (
    "relu",
    "Measured by ours, same upload (relu), the first of the recipe that did"
    " not overflow.",
  ),
  all_overflowed: (
    "naive",
    "Measured by naive, which overflowed.",
  ),
  only_some_replayed: (
    "exact",
    "Measured by retraining without 20 of the 30 clients.",
  ),
  no_influence: (None, "This run measured no influence."),
  one_hurts: ("exact", "1 client hurts, client f_0003: without it"),
  nobody_for_sure: ("exact", "Your test set is too small to tell anybody"),
  nobody_knows_how_sure: ("exact", "How sure that is was not measured"),
  kinked: ("exact", "Your network probably has kinks: retraining from a hair"),
  not_smooth: ("both", "do not add up (smoothness 0.30)"),
  unsteady: ("exact", "Train for more rounds: "),
  cleansed: (
    "exact",
    "Cleansing helped: trained on without the 50% most harmful clients by the"
    " paper's method (both), the best of 5 shares tried, the test loss is",
  ),
  cleansed_in_vain: ("exact", "Cleansing did not help: trained on without"),
  debugged: (
    "exact",
    "Debugging helped: of 2 bad clients (flip_labels) retraining without the"
    " client (exact) finds",
  ),
}


@pytest.mark.parametrize("plant", CASES, ids=lambda plant: plant.__name__)
def test_screen_summary_and_page_say_the_same(plant, tmp_path, monkeypatch):
  # Drawing takes most of the time, and says nothing.
  monkeypatch.setattr(figures, "images", lambda contents: {})
  plant(tmp_path)
  found, said = sentences.write(workdir.read(tmp_path))
  ranked_by, words = CASES[plant]
  assert found.ranked_by == ranked_by
  assert words in " ".join(said.lines())
  report.write(tmp_path)
  summary = json.loads((tmp_path / "summary.json").read_text())
  assert summary["verdict"] == said.lines()
  screen = progress.console(file=io.StringIO(), width=10_000)
  showing.print_verdict(tmp_path, screen)
  printed = screen.file.getvalue().splitlines()
  start = printed.index(said.lines()[0])
  assert printed[start : start + len(said.lines())] == said.lines()
  page = (tmp_path / "report.html").read_text("utf-8")
  for line in said.lines():
    shown = html.escape(line)
    assert (
      f">{shown}</p>" in page
      or f">{shown}</li>" in page
      or (f"</span> {shown}</li>" in page)
    )


def test_one_client_that_hurts_for_sure_is_the_headline(tmp_path):
  one_hurts(tmp_path)
  found, said = sentences.write(workdir.read(tmp_path))
  assert found.hurts == (3,) and found.helps == ()
  assert said.headline == [
    "No client helps.",
    "1 client hurts, client f_0003: without it the test loss would fall by"
    " 0.50.",
    "5 of 6 clients cannot be told apart from no effect on other test examples"
    " of the same kind (5 % false discoveries).",
  ]
  assert said.advice[0] == "Next, inspect the data of f_0003: it hurts."


def test_one_that_helps_its_own_rows_only_is_named(tmp_path):
  one_is_selfish(tmp_path)
  found, said = sentences.write(workdir.read(tmp_path))
  assert found.selfish == 3 and found.hurts == ()
  assert said.headline[-1] == (
    "But client f_0003 helps its own test examples only, and hurts all others'"
    " the most: without it their loss would fall by 0.20, and its own rise by"
    " 3.0."
  )
  assert said.advice[0].startswith("Next, inspect the data of f_0003: wrong")


@pytest.mark.parametrize("others", [-0.015, 0.2])
def test_one_that_does_not_stand_out_is_not(others, tmp_path):
  one_is_selfish(tmp_path, others)
  found, said = sentences.write(workdir.read(tmp_path))
  assert found.selfish is None
  assert not any("its own test examples" in line for line in said.lines())


def test_a_run_of_the_command_is_replayed_by_it(tmp_path):
  none_replayed(tmp_path)
  about = lambda a: a["config"].update(written_by="fedinf run")
  edit_json(tmp_path, "config.json", about)
  _, said = sentences.write(workdir.read(tmp_path))
  (line,) = (s for s in said.advice if s.startswith("To be sure"))
  assert ": fedinf run --exact=top:" in line and " --out=runs/" in line


def test_what_is_only_likely_is_not_said_for_sure(tmp_path):
  nobody_for_sure(tmp_path)
  contents = workdir.read(tmp_path)
  found, said = sentences.write(contents)
  fil = contents.columns["fil_exact"]
  first, second = np.argsort(-fil)[:2]
  assert said.headline[0].startswith(
    f"No client helps for sure; client {contents.ids[first]} comes nearest:"
    " without it the test loss would rise by 0.00"
  )
  assert f", then {contents.ids[second]} (0.00" in said.headline[0]
  assert "do not remove anybody on this evidence alone" in said.advice[0]
  assert found.helps == tuple(k for k in np.argsort(-fil) if fil[k] > 0)[:5]


def test_the_extremes_are_the_strongest_first(tmp_path):
  some_replayed(tmp_path)
  contents = workdir.read(tmp_path)
  found = verdict.verdict(contents)
  fil = contents.columns["fil_relu"]
  effect = contents.columns["effect_relu"]
  np.testing.assert_array_equal(found.fil, fil)
  for named, word, sign in (
    (found.helps, "helps", -1),
    (found.hurts, "hurts", 1),
  ):
    order = [k for k in np.argsort(sign * fil) if effect[k] == word]
    order = order or [k for k in np.argsort(sign * fil) if sign * fil[k] < 0]
    assert named == tuple(order[:5])
  assert found.num_replayed == 20


def test_a_screening_ranks_by_the_truth_about_its_extremes(tmp_path):
  extremes_replayed(tmp_path)
  contents = workdir.read(tmp_path)
  found, said = sentences.write(contents)
  exact = contents.columns["fil_exact"]
  known = np.isfinite(exact)
  np.testing.assert_array_equal(found.fil[known], exact[known])
  np.testing.assert_array_equal(
    found.effect[known], contents.columns["effect_exact"][known]
  )
  assert "exact)" in said.headline[0] or "estimated)" in said.headline[0]
  assert advice.command(contents, found) is None


def test_a_run_without_a_recipe_is_replayed_from_python(tmp_path):
  none_replayed(tmp_path)
  edit_json(tmp_path, "config.json", lambda a: a["config"].pop("exact"))
  found, said = sentences.write(workdir.read(tmp_path))
  (line,) = (s for s in said.advice if s.startswith("To be sure"))
  assert f"fi.simulate(..., exact=['f_{found.helps[0]:04d}'" in line


def test_plain_words_keep_the_name_of_the_recipe():
  assert wording.titled("both") == "the paper's method (both)"
  assert wording.titled("matched@40") == "ours, nothing uploaded (matched@40)"
  assert wording.titled("mine") == "mine"
  assert wording.listed(["a"]) == "a"
  assert wording.listed(["a", "b", "c"]) == "a, b and c"
  assert wording.counted(1, "client") == "1 client"


def test_an_overflowed_estimator_is_said_to_be(tmp_path):
  overflowed(tmp_path)
  contents = workdir.read(tmp_path)
  found = verdict.verdict(contents)
  assert found.grades["both"] == verdict.OVERFLOWED
  assert found.grades["relu"] == verdict.UNCHECKED
  line = sentences.trust(contents, found)["both"]
  assert line.startswith(
    "The paper's method (both): do not trust, it overflowed ("
  )
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
