"""The report of a run: what it says, what it escapes, what it asks for."""

import base64
import html
import html.parser
import json
import re
import shutil

import numpy as np
import pytest

from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.report import embedding
from fedinf_jax.report import remedies
from fedinf_jax.report import verdict
from fedinf_jax.running import workdir
from tests import binaries
from tests import workdirs

TRACKED = {"fig1_layers"}
EXACT = {"fig2_distance", "fig3_pearson", "fig3_scatter"}
OPTIONAL = {"fig4_cleanse", "fig4_cleanse_rounds", "debug"}
NASTY = (
  '<script>alert("x")</script>',
  "</script><b>bold",
  "<!--",
  "a$b$c & co",
  "quote\"'",
  "comma,and\nline",
  "=1+1",
  "文😀",
  "x" * 200,
)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
  """A run with everything, one estimator of which blows up."""
  folder = workdirs.write(
    tmp_path_factory.mktemp("report") / "full",
    clients=24,
    estimators=("both", "relu", "naive"),
    cleanse=True,
    debug=True,
    stand_in=True,
  )
  report.write(folder)
  return folder


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
  """A run whose names are not names."""
  ids = [*NASTY, *(f"f_{k}" for k in range(12))]
  folder = workdirs.write(
    tmp_path_factory.mktemp("report") / "nasty",
    clients=len(ids),
    ids=ids,
    layers=("<i>layer</i>", "$layer$"),
    debug=True,
  )
  report.write(folder)
  return folder


def text_of(folder):
  """The words of the page, without markup."""
  page = (folder / "report.html").read_text("utf-8")
  page = re.sub(r"<(style|script).*?</\1>", "", page, flags=re.DOTALL)
  return html.unescape(" ".join(re.sub("<[^>]*>", " ", page).split()))


def drawn(folder):
  """The figures that are there, each as PNG and as SVG."""
  pngs, svgs = (
    {path.stem for path in (folder / "figures").glob(f"*.{kind}")}
    for kind in ("png", "svg")
  )
  assert pngs == svgs
  return pngs


def data_of(folder):
  page = (folder / "report.html").read_text("utf-8")
  return json.loads(re.search('<script id="data".*?>(.*?)</script>', page)[1])


def test_a_report_has_all_its_figures(full):
  assert drawn(full) == TRACKED | EXACT | OPTIONAL
  page = (full / "report.html").read_text("utf-8")
  assert page.count('src="data:image/svg+xml;base64,') == len(drawn(full))
  assert len(page) < 2e6
  for path in (full / "figures").glob("*.svg"):
    assert path.read_text("utf-8").rstrip().endswith("</svg>")
  assert not list(full.rglob("*.tmp"))


def test_the_page_says_the_sign_in_words(full):
  words = text_of(full)
  assert words.count("FIL > 0 helps") == words.count("FIA < 0 helps") == 1
  assert "✓ Ours, same upload (relu): ranks clients almost as" in words
  assert re.search(r"finds \d of the 4 most helpful and \d of the 4", words)
  assert "✗ naive: do not trust" in words
  assert words.count("250 models each way") == 1  # naive is interactive.


def test_a_stand_in_is_announced(full, nasty):
  assert "glyph writers, drawn from fonts, that stand in for" in text_of(full)
  assert "stand in for" not in text_of(nasty)


def test_cleansing_and_debugging_are_told(full):
  words = text_of(full)
  contents = workdir.read(full)
  for said in (remedies.cleansed(contents), *remedies.debugged(contents)):
    # What to do next, and the section about it.
    assert words.count(said) == 2
  assert (
    "from round 100 without some of the clients, chosen by the pap" in words
  )
  (before,) = {
    c["loss"][-1] for c in contents.cleanse["curves"] if c["end"] == "none"
  }
  assert f" 0% {before:.4f} {before:.4f} {before:.4f} " in words
  assert words.count(" 30% ") == 1
  assert "2 of 24 clients were made bad (flip_labels): f_0000, f_0001." in words
  assert "(the bad ones) – – 0.5000 0.8100" in words
  assert "size of the updates (update_norm) 0.63 43% 0.45" in words
  auroc = {s["name"]: s["auroc"] for s in data_of(full)["debug"]["scores"]}
  assert auroc["fil_relu"][-1] == 0.81 and len(auroc["update_norm"]) == 21


AUROCS = {
  "fil_exact": 0.83, "fil_both": 0.47, "fil_relu": 0.8, "dig_fl": 0.71,
  "update_norm": 0.65, "cosine": None,
}  # fmt: skip


@pytest.mark.parametrize(
  ("changes", "words"),
  [
    ({}, "No simpler score wins: of those without influence DIG-FL (dig_fl) is"
         " best, with an AUROC of 0.71; ours, same upload (relu) has 0.80 and"
         " retraining without the client (exact) has 0.83."),
    ({"dig_fl": 0.9}, "A simpler score wins: of those without influence DIG"),
    ({"dig_fl": 0.82}, "A simpler score wins over every estimate of infl"),
    ({"fil_exact": 0.6}, "No simpler score wins: "),
    ({"dig_fl": 0.829}, "A simpler score wins over every"),
    ({"dig_fl": 0.83, "fil_relu": 0.83}, "A simpler score does as well: "),
    ({"fil_exact": None, "fil_relu": 0.7}, "A simpler score wins: "),
    (dict.fromkeys(AUROCS, 0.6), "No score tells bad clients from the others:"),
  ],
)  # fmt: skip
def test_a_simpler_score_that_wins_is_said_to_win(changes, words):
  said = remedies.winner(AUROCS | changes, bad=20, clients=200)
  assert said.startswith(words)


def test_there_is_nobody_to_beat():
  assert remedies.winner({"fil_relu": 0.9}, 20, 200) is None
  assert remedies.winner({"dig_fl": 0.9}, 20, 200) is None
  # Over enough runs even a small advantage is no chance.
  small = {"fil_relu": 0.6, "dig_fl": 0.55}
  assert remedies.winner(small, 20, 200).startswith("No score tells")
  assert remedies.winner(small, 20, 200, 9).startswith("No simpler score wins")


def test_without_ground_truth(tmp_path):
  workdirs.write(tmp_path, exact="none")
  report.write(tmp_path)
  assert drawn(tmp_path) == TRACKED
  words = text_of(tmp_path)
  assert "Measured by the paper's method (both), the first of the" in words
  assert "not checked, as this run has no ground truth" in words
  assert "Figs. 2 and 3 need the ground truth" in words
  assert "Pearson and Spearman" not in words


def test_with_some_clients_replayed_the_best_estimator_ranks(tmp_path):
  workdirs.write(tmp_path, clients=30, exact="20", tracked=())
  report.write(tmp_path)
  assert drawn(tmp_path) == EXACT - {"fig2_distance"}
  words = text_of(tmp_path)
  assert "which agrees best with retraining without 20 of the 30" in words
  assert "retraining without each of 20 clients" in words
  assert "No client was tracked layer by layer" in words


def test_with_nothing_but_training(tmp_path):
  workdirs.write(tmp_path, estimators=(), exact="none", tracked=())
  report.write(tmp_path)
  assert not drawn(tmp_path)
  assert "This run measured no influence." in text_of(tmp_path)


def test_rounding_is_no_influence(tmp_path):
  folder = workdirs.write(tmp_path, clients=4, tracked=())
  rows = (folder / "influence.csv").read_text().splitlines()
  cells = rows[1].split(",")
  cells[2:5] = ["0", "-2.8e-08", "2e-08"]
  rows[1] = ",".join(cells)
  (folder / "influence.csv").write_text("\n".join([*rows, ""]))
  columns = workdir.read(folder).columns
  assert columns["fil_exact"][0] == columns["fia_exact"][0] == 0


def unpacked(packed):
  """Returns what the page's script unpacks, [R, N]."""
  numbers = np.frombuffer(base64.b64decode(packed["data"]), "<i2")
  rows = numbers.reshape(len(packed["scale"]), -1).astype(float)
  rows[rows == embedding.UNKNOWN] = np.nan
  return rows * np.array(packed["scale"])[:, None]


def test_what_is_packed_comes_back(full):
  draw = np.random.default_rng(0)
  values = draw.normal(size=(5, 7)) * 10.0 ** np.array(
    [[-9], [-3], [0], [4], [9]]
  )
  values[1, 2], values[2] = np.nan, 0.0
  values[3, 3] = np.inf
  found = unpacked(embedding.pack(values))
  expected = np.where(np.isfinite(values), values, np.nan)
  most = np.nanmax(np.abs(expected), 1, keepdims=True)
  np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
  assert (np.abs(found - expected) <= most / 30_000)[~np.isnan(found)].all()
  counts = draw.integers(0, 32_000, (4, 9)).astype(float)
  np.testing.assert_array_equal(
    np.rint(unpacked(embedding.pack(counts))), counts
  )
  contents, data = workdir.read(full), data_of(full)
  names = [score["name"] for score in data["scores"]]
  assert names == ["exact", *contents.names]
  fil = unpacked(data["history"][0])
  np.testing.assert_allclose(fil, contents.history["exact"].T, atol=1e-7)


def test_of_long_runs_some_rounds_are_kept(full, monkeypatch):
  monkeypatch.setattr(embedding, "MOST_BYTES", 2_000)
  contents = workdir.read(full)
  found = embedding.data(contents, verdict.verdict(contents))
  assert 2 < len(found["kept"]) < len(contents.rounds)
  assert found["kept"][-1] == contents.rounds[-1]
  size = sum(len(h["data"]) for h in found["history"])
  assert size < 4 / 3 * 2_000 + 100


class Tags(html.parser.HTMLParser):
  def __init__(self, page):
    super().__init__()
    self.tags = []
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing_from_outside(full):
  page = (full / "report.html").read_text("utf-8")
  assert "://" not in page
  # A browser would not fetch anything if there were an address.
  assert "content=\"default-src 'none';" in page
  assert "url(" not in page
  for tag, attributes in Tags(page).tags:
    source = attributes.get("src", "data:")
    assert source.startswith("data:"), tag
    link = attributes.get("href", "#")
    assert link.startswith(("#", "data:")) or (full / link).is_file(), link


def test_names_are_escaped(nasty):
  page = (nasty / "report.html").read_text("utf-8")
  tags = [tag for tag, _ in Tags(page).tags]
  assert tags.count("script") == 2
  assert "i" not in tags
  assert "<!--" not in page
  data = re.search('<script id="data".*?>(.*?)</script>', page)[1]
  assert "<" not in data
  ids = json.loads(data)["ids"]
  assert ids[: len(NASTY)] == [text.escaped(name) for name in NASTY]


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(full, tmp_path):
  before = binaries.files(full)
  copy = shutil.copytree(full, tmp_path / "elsewhere")
  (copy / "report.html").unlink()
  shutil.rmtree(copy / "figures")
  (copy / "timing.jsonl").write_text("not even JSON")
  done = binaries.start("report", f"--workdir={copy}")
  assert done.returncode == 0, done.stderr
  assert done.stdout.strip() == str(copy / "report.html")
  assert binaries.files(copy) == before


def _damage(name, content):
  return lambda folder: (folder / name).write_text(content)


BAD = {
  "unfinished": (
    lambda folder: (folder / "summary.json").unlink(),
    "is not a finished run: it has no summary.json; start experiments.run",
  ),
  "no JSON": (_damage("summary.json", "{"), "summary.json cannot be read"),
  "torn log": (_damage("metrics.jsonl", '{"rou'), "metrics.jsonl cannot be"),
  "mixed up": (
    _damage("influence.csv", "client_id,fil_exact\n" + 4 * "1,0.5\n"),
    "does not hold together: influence.csv lacks num_examples;",
  ),
  "words": (
    _damage("influence.csv", "client_id,fil_exact\n1,many\n"),
    "influence.csv cannot be read: ValueError could not convert string",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_run_leaves_the_old_report(name, tmp_path):
  break_it, message = BAD[name]
  workdirs.write(tmp_path, clients=4, tracked=())
  (tmp_path / "report.html").write_text("old")
  break_it(tmp_path)
  with pytest.raises(ValueError, match=message) as caught:
    report.write(tmp_path)
  assert str(tmp_path) in str(caught.value)
  assert (tmp_path / "report.html").read_text() == "old"
