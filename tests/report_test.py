"""The report of a run: what it says, what it escapes, how it behaves."""

import html
import html.parser
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.running import workdir
from tests import binaries
from tests import workdirs

ALWAYS = {"learning_curve", "heat_map"}
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
  "文😀",
  "x" * 70,
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
  return {path.stem for path in (folder / "figures").iterdir()}


def test_a_report_has_all_its_figures(full):
  assert drawn(full) == ALWAYS | TRACKED | EXACT | OPTIONAL
  page = (full / "report.html").read_text("utf-8")
  assert page.count('src="data:image/png;base64,') == len(drawn(full))
  assert len(page) < 2e6
  assert not list(full.rglob("*.tmp"))


def test_the_verdict_names_clients_and_says_the_sign_in_words(full):
  contents = workdir.read(full)
  fil = contents.columns["fil_exact"]
  words = text_of(full)
  for k, moves in ((np.argmax(fil), "rise"), (np.argmin(fil), "fall")):
    who = f"Without client {contents.ids[k]} the test loss"
    assert f"{who} would {moves} by" in words
  assert words.count("FIL > 0: the client helps") == 1
  assert "By retraining without each client" in words
  assert "✓ relu: ranks clients almost as retraining does" in words
  assert re.search(r"finds \d of the 4 most helpful and \d of the 4", words)
  assert "✗ naive: do not trust" in words
  assert words.count("250 models each way") == 1  # naive is interactive.


def test_a_stand_in_is_announced(full, nasty):
  assert "glyph writers, drawn from fonts, that stand in for" in text_of(full)
  assert "stand in for" not in text_of(nasty)


def test_cleansing_and_debugging_are_told(full):
  words = text_of(full)
  assert "clients removed at round 100, by the influence of both" in words
  assert "2 clients were made bad (flip_labels): f_0000, f_0001." in words
  assert "the bad ones 0.5000 0.8100" in words


def test_without_ground_truth(tmp_path):
  workdirs.write(tmp_path, exact="none")
  report.write(tmp_path)
  assert drawn(tmp_path) == ALWAYS | TRACKED
  words = text_of(tmp_path)
  assert "By estimator both" in words
  assert "not checked, as this run has no ground truth" in words
  assert "Figs. 2 and 3 need the ground truth" in words
  assert "Pearson" not in words


def test_with_some_clients_replayed_the_best_estimator_ranks(tmp_path):
  workdirs.write(tmp_path, clients=30, exact="20", tracked=())
  report.write(tmp_path)
  assert drawn(tmp_path) == ALWAYS | EXACT - {"fig2_distance"}
  words = text_of(tmp_path)
  assert (
    "By estimator relu (which agrees best with retraining without 20" in words
  )
  assert "retraining without each of 20 clients" in words
  assert "No client was tracked layer by layer" in words


def test_with_nothing_but_training(tmp_path):
  workdirs.write(tmp_path, estimators=(), exact="none", tracked=())
  report.write(tmp_path)
  assert drawn(tmp_path) == {"learning_curve"}
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


class Tags(html.parser.HTMLParser):
  def __init__(self, page):
    super().__init__()
    self.tags = []
    self.feed(page)

  def handle_starttag(self, tag, attrs):
    self.tags.append((tag, dict(attrs)))


def test_the_page_asks_for_nothing_from_outside(full):
  page = (full / "report.html").read_text("utf-8")
  assert "http" not in page
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
  ids = [row[0] for row in json.loads(data)["rows"]]
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


CHROMIUM = shutil.which("chromium")
in_a_browser = pytest.mark.skipif(
  CHROMIUM is None, reason="chromium is not installed (apt install chromium)"
)


def browse(page, profile, view=""):
  """Opens a page in chromium; returns the DOM and what the console said."""
  done = subprocess.run(
    [
      CHROMIUM,
      "--headless=new",
      "--no-sandbox",
      "--disable-gpu",
      "--disable-dev-shm-usage",
      f"--user-data-dir={profile}",
      "--enable-logging=stderr",
      "--v=0",
      "--virtual-time-budget=2000",
      "--dump-dom",
      page.as_uri() + view,
    ],
    capture_output=True,
    text=True,
    timeout=60,
    check=False,
    env={**os.environ, "HOME": str(profile)},
  )
  assert done.returncode == 0, done.stderr
  console = [s for s in done.stderr.splitlines() if "CONSOLE" in s]
  return done.stdout, console


def shown(dom):
  """The ids in the table, in the order in which a reader sees them."""
  body = dom[dom.index('<table id="table"') :].split("</table>")[0]
  return [
    html.unescape(name)
    for name in re.findall(r'<tr><th scope="row">(.*?)</th>', body, re.DOTALL)
  ]


def sorted_by(dom):
  head = re.findall(r'data-key="(\w+)"[^>]*aria-sort="(\w+)"', dom)
  return {key: way for key, way in head if way != "none"}


def ordered(folder, key, *, down):
  contents = workdir.read(folder)
  order = np.argsort(contents.columns[key], kind="stable")
  return [contents.ids[k] for k in (order[::-1] if down else order)]


@in_a_browser
def test_the_page_opens_and_links_to_sorted_views_work(full, tmp_path):
  page = full / "report.html"
  dom, console = browse(page, tmp_path)
  assert console == []
  assert "24 of 24 clients" in dom
  best_first = ordered(full, "fil_exact", down=True)
  assert shown(dom)[:5] == best_first[:5]
  assert sorted_by(dom) == {"fil_exact": "descending"}
  assert "<small>helps</small>" in dom
  assert "<small>hurts</small>" in dom

  view = "#sort=fil_both&find=F_000&drawn=1"
  dom, console = browse(page, tmp_path, view)
  assert console == []
  assert sorted_by(dom) == {"fil_both": "ascending"}
  contents = workdir.read(full)
  times = dict(
    zip(contents.ids, contents.columns["times_selected"], strict=True)
  )
  assert shown(dom) == [
    name
    for name in ordered(full, "fil_both", down=False)
    if name.startswith("f_000") and times[name]
  ]


@in_a_browser
def test_a_click_sorts_and_names_stay_text(nasty, tmp_path):
  page = tmp_path / "clicked.html"
  clicks = (
    "<script>var b = document.querySelector('[data-key=client_id] button');"
    "b.click(); b.click(); console.log('clicked', location.hash);</script>"
  )
  original = (nasty / "report.html").read_text("utf-8")
  page.write_text(original.replace("</body>", clicks + "</body>"), "utf-8")
  dom, console = browse(page, tmp_path / "profile")
  # That the line is there shows that errors would be, too.
  assert len(console) == 1
  assert "clicked #sort=-client_id" in console[0]
  names = shown(dom)
  assert set(names) == set(map(text.escaped, workdir.read(nasty).ids))
  numbered = [name for name in names if name.startswith("f_")]
  assert numbered == [f"f_{k}" for k in reversed(range(12))]
  assert sorted_by(dom) == {"client_id": "descending"}
