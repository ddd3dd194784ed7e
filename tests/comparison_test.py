"""Two runs compared, client by client: numbers, words, CSV and page."""

import csv
import json
import re

import numpy as np
import pytest

from fedinf_jax import text
from fedinf_jax.report import comparison
from fedinf_jax.report import comparison_page
from fedinf_jax.running import workdir
from tests import binaries
from tests import workdirs

NASTY = ("<script>alert(1)</script>", "=1+1", "two\nlines", "@x", "</script>")


def write_two(folder, **changes):
  """Writes run A of 12 clients, and B of ten of these and one other."""
  ids = [*NASTY, *(f"f_{k}" for k in range(7))]
  a = workdirs.write(folder / "a", ids=ids, clients=12)
  options = {"estimators": ("relu", "naive"), "ids": [*ids[9::-1], "g"]}
  options |= changes
  return a, workdirs.write(folder / "b", clients=len(options["ids"]), **options)


def compared(folders):
  return comparison.compare(*map(workdir.read, folders))


def test_shared_clients_are_compared_the_most_changed_first(tmp_path):
  folders = write_two(tmp_path)
  a, b = map(workdir.read, folders)
  found = compared(folders)
  assert (found.count_a, found.count_b, found.by) == (12, 11, "exact")
  assert set(found.ids) == set(a.ids) & set(b.ids) and len(found.ids) == 10
  assert list(found.scores) == ["exact", "relu"]
  for name, score in found.scores.items():
    for run, values in ((a, score.a), (b, score.b)):
      fil = dict(zip(run.ids, run.columns[f"fil_{name}"], strict=True))
      assert values.tolist() == [fil[i] for i in found.ids]
  score = found.scores["exact"]
  change = np.abs(score.a - score.b)
  assert change.tolist() == sorted(change, reverse=True)
  np.testing.assert_allclose(score.pearson, np.corrcoef(score.a, score.b)[0, 1])
  signs = (score.a > 0) & (score.b < 0) | (score.a < 0) & (score.b > 0)
  assert score.sign_changed.tolist() == signs.tolist() and signs.any()
  assert sorted(comparison.ranks(score, score.a)) == list(range(1, 11))
  assert comparison.ranks(score, score.a)[score.a.argmax()] == 1


def test_who_is_known_in_one_run_only_is_not_ranked(tmp_path):
  folders = write_two(tmp_path, exact="4")
  found = compared(folders)
  # In B only four are retrained without, so clients are ranked by A's truth.
  score = found.scores["exact"]
  assert score.known.sum() == 4
  assert score.known[:4].all() and not score.sign_changed[4:].any()
  assert comparison.ranks(score, score.b)[4:] == [None] * 6
  assert comparison.sentences(found, *map(workdir.read, folders))[0] == (
    "Both runs have 10 clients of the 12 in A and the 11 in B; by retraining"
    " without the client (exact), 4 of them are known in both."
  )


def test_a_run_is_the_same_as_its_copy(tmp_path):
  a = workdirs.write(tmp_path / "a", clients=12)
  b = workdirs.write(tmp_path / "b", clients=12)
  found = compared((a, b))
  said = comparison.sentences(found, *map(workdir.read, (a, b)))
  assert said[1] == (
    "Rank correlation of their influence: Spearman 1.000 (Pearson 1.000)."
  )
  assert said[2] == "0 clients changed sign, and 0 changed group."
  assert said[4].endswith("Their settings are the same.")
  assert len(said) == 5


def test_what_differs_is_said(tmp_path):
  folders = write_two(tmp_path)
  path = folders[1] / "summary.json"
  path.write_text(path.read_text().replace("c0ffee", "c0de"))
  found = compared(folders)
  found.scores["exact"].effect_a[:3] = "helps"
  found.scores["exact"].effect_b[:3] = ["hurts", "hurts", "cannot tell"]
  found.scores["exact"].effect_a[3:] = found.scores["exact"].effect_b[3:]
  said = comparison.sentences(found, *map(workdir.read, folders))
  assert (
    "changed group (2 from hurts to helps and 1 from cannot tell to"
    in (said[2])
  )
  assert text.escaped(found.ids[0]) in said[3]
  assert "differ in estimators (both,relu in A, relu,naive in B)." in said[4]
  assert said[5].startswith("The data of the runs differ: under one id, they")


def test_hostile_ids_harm_neither_csv_nor_page(tmp_path):
  a, b = write_two(tmp_path)
  said = comparison_page.write(a, b)
  found = compared((a, b))
  content = (a / "comparison.csv").read_text("utf-8")
  rows = list(csv.DictReader(content.splitlines()))
  assert len(rows) == content.count("\n") - 1 == 10
  assert [text.of_cell(row["client_id"]) for row in rows] == found.ids
  assert not any(row["client_id"].startswith(tuple("=@")) for row in rows)
  changes = [float(row["change_exact"]) for row in rows]
  score = found.scores["exact"]
  np.testing.assert_allclose(changes, score.a - score.b)
  page = (a / "comparison.html").read_text("utf-8")
  assert page.count("<script") == page.count("</script>") == 2
  assert "://" not in page and "$" + "title" not in page
  data = json.loads(re.search('<script id="data".*?>(.*?)</script>', page)[1])
  assert data["ids"] == [text.escaped(i) for i in found.ids]
  assert set(map(text.escaped, NASTY)) <= set(data["ids"])
  assert all("\n" not in line for line in said)
  # Run B is only read.
  assert not list(b.glob("comparison*"))


def test_runs_that_share_nothing_are_refused(tmp_path):
  a, b = write_two(tmp_path, ids=["x", "y"])
  with pytest.raises(ValueError, match=r"share no client .*'x'"):
    comparison_page.write(a, b)
  bare = workdirs.write(
    tmp_path / "c", estimators=(), exact="none", ids=["f_1"], clients=1,
    tracked=(),
  )  # fmt: skip
  with pytest.raises(
    ValueError, match=r"no score .* exact, both and relu, the"
  ):
    comparison_page.write(a, bare)
  with pytest.raises(ValueError, match="d is not a finished run: it has no"):
    comparison_page.write(a, tmp_path / "d")
  with pytest.raises(ValueError, match="is the very run"):
    comparison_page.write(a, tmp_path / "b" / ".." / "a")
  path = b / "summary.json"
  summary = json.loads(path.read_text()) | {"members": [["x"], ["y"]]}
  path.write_text(json.dumps(summary))
  with pytest.raises(ValueError, match="other groups of clients"):
    comparison_page.write(a, b)
  assert not (a / "comparison.html").exists()


def test_from_the_command_line(tmp_path):
  a, b = write_two(tmp_path)
  done = binaries.start("report", f"--workdir={a}", f"--against={b}")
  assert done.returncode == 0, done.stderr
  lines = done.stdout.splitlines()
  assert lines[:-2] == comparison_page.write(a, b)
  assert lines[-2:] == [f"{a}/comparison.csv", f"{a}/comparison.html"]
  assert not (a / "report.html").exists()
