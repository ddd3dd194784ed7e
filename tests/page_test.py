"""The page in a real browser: cards, table, colours, print, phone, size."""

import csv
import io
import itertools
import json

import numpy as np
import pytest

from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.report import comparison_page
from fedinf_jax.report import verdict
from fedinf_jax.running import workdir
from tests import browser
from tests import workdirs

# A dialog is closed first, and says so to the page an instant later.
CLOSED = "!card.open && !location.hash.includes('client=')"
pytestmark = pytest.mark.skipif(
  browser.CHROMIUM is None,
  reason="chromium is not installed (apt install chromium)",
)
NASTY = (
  "<script>document.title='taken over'</script>",
  "<img src=x onerror=document.title='taken_over'>",
  "=1+1",
  "@SUM(A1)",
  "\U0001f600",
  "x" * 200,
  "two\nlines",
  "a&b=c#d%20e",
  "quote\"'",
)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
  """A tab, shared by all tests."""
  with browser.Page(tmp_path_factory.mktemp("profile")) as tab:
    yield tab


@pytest.fixture(autouse=True)
def as_usual(page):
  """Every test begins on a desk in daylight, and ends without complaints."""
  page.resize(1280)
  page.emulate()
  yield
  assert page.complaints() == []


@pytest.fixture(scope="module")
def full(tmp_path_factory):
  folder = workdirs.write(
    tmp_path_factory.mktemp("page") / "full",
    clients=60,
    estimators=("both", "relu", "naive"),
    cleanse=True,
    debug=True,
  )
  report.write(folder)
  return folder


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
  ids = [*NASTY, *(f"f_{k}" for k in range(6))]
  folder = workdirs.write(
    tmp_path_factory.mktemp("page") / "nasty",
    clients=len(ids),
    ids=ids,
    tracked=(0, 2),
  )
  report.write(folder)
  return folder


def open_page(page, folder, view=""):
  page.open(folder / "report.html", view)


def shown(page):
  """The ids in the table, in the order in which a reader sees them."""
  return page.run(
    "Array.from(document.querySelectorAll('#table tbody th'),"
    " (cell) => cell.textContent)"
  )


def title_of_card(page):
  return page.run("card.open ? $('card-title').textContent : null")


def by_influence(folder, name="exact"):
  contents = workdir.read(folder)
  order = np.argsort(-contents.columns[f"fil_{name}"], kind="stable")
  return [text.escaped(contents.ids[k]) for k in order]


def test_it_opens_offline_and_asks_for_nothing(page, full):
  open_page(page, full)
  wanted = [url for url in page.requests() if not url.startswith("data:")]
  assert wanted == [(full / "report.html").as_uri()]
  levels = page.run(
    "Array.from(document.querySelectorAll('main h2, main h3, h1'),"
    " (h) => Number(h.tagName[1]))"
  )
  assert levels[0] == 1 and levels.count(1) == 1
  assert all(b - a <= 1 for a, b in itertools.pairwise(levels))
  unnamed = page.run(
    "Array.from(document.querySelectorAll('button, select, input, a, img,"
    " svg[role], canvas')).filter((e) => !(e.getAttribute('aria-label')"
    " || e.alt || e.querySelector('img[alt]:not([alt=\"\"])') ||"
    " e.textContent.trim() || e.labels && e.labels.length)).length"
  )
  assert unnamed == 0
  label = page.run(
    "document.querySelector('canvas').getAttribute('aria-label')"
  )
  best = by_influence(full)
  assert f"helps most at the last round: {best[0]}" in label
  assert f"hurts most: {best[-1]}" in label


def test_a_click_on_a_name_opens_its_card(page, full):
  open_page(page, full)
  best = by_influence(full)
  page.click(".names li:first-child a")
  page.wait("card.open")
  assert title_of_card(page) == f"Client {best[0]}"
  assert page.run("location.hash") == f"#client={best[0]}"
  headings = page.run(
    "Array.from(card.querySelectorAll('h3'), (h) => h.textContent)"
  )
  assert [h.split(":")[0] for h in headings] == [
    "Influence on the test loss over the rounds",
    "By every account",
    "What it moves",
    "Its labels",
    "Clients that change the model most alike",
  ]
  contents = workdir.read(full)
  k = contents.ids.index(best[0])
  words = page.run("card.textContent")
  drawn = int(contents.columns["times_selected"][k])
  assert f"in {drawn} of 100 rounds" in words
  assert page.run("card.querySelectorAll('.tick').length") == drawn
  assert "(exact)" in words
  page.click("dialog .near a")
  page.wait(f"$('card-title').textContent !== 'Client {best[0]}'")
  other = contents.ids[contents.clients["eps"]["exact"]["nearest"][k][0]]
  assert title_of_card(page) == f"Client {other}"
  page.click("#card-close")
  page.wait(CLOSED)
  assert "client=" not in page.run("location.hash")


def test_the_keyboard_reaches_cards(page, full):
  open_page(page, full)
  page.run("document.querySelector('.names a').focus()")
  page.press("Enter", 13)
  page.wait("card.open")
  assert title_of_card(page) == f"Client {by_influence(full)[0]}"
  assert page.run("document.activeElement.id") == "card-title"
  page.press("Escape", 27)
  page.wait(CLOSED)
  page.run("document.querySelector('#table tbody a').focus()")
  page.press("Enter", 13)
  page.wait("card.open")


def test_a_click_in_the_heat_map_and_on_a_dot_opens_a_card(page, full):
  open_page(page, full)
  page.run(
    "(() => { const c = document.querySelector('canvas');"
    " c.scrollIntoView({behavior: 'instant'}); const r ="
    " c.getBoundingClientRect(); const at = {clientX: r.left + r.width - 5,"
    " clientY: r.top + 1.5 * ROW, bubbles: true};"
    " c.dispatchEvent(new PointerEvent('pointermove', at));"
    " c.dispatchEvent(new MouseEvent('click', at)); })()"
  )
  page.wait("card.open")
  second = by_influence(full)[1]
  assert title_of_card(page) == f"Client {second}"
  assert f"client {second}round 100: +" in page.run("$('tip').textContent")
  # It is marked in the scatter plot and in the table, too.
  marked = page.run("document.querySelectorAll('.marked').length")
  assert marked == 2
  page.run("card.close()")
  page.wait(CLOSED)
  page.run(
    "document.querySelectorAll('#scatter .dot')[7].dispatchEvent("
    "new MouseEvent('click', {bubbles: true}))"
  )
  page.wait("card.open")


def test_what_was_not_drawn_yet_looks_unlike_no_effect(page, full):
  open_page(page, full)
  found = page.run(
    "(() => { const c = document.querySelector('canvas');"
    " const all = c.getContext('2d').getImageData(0, 0, c.width, c.height);"
    " const kinds = {};"
    " document.querySelectorAll('.names li').forEach((li, i) => {"
    "  if (li.dataset.k === undefined) return;"
    "  const first = firstRound(Number(li.dataset.k));"
    "  const j = data.kept.findIndex((r) => r < first); if (j < 0) return;"
    "  const w = c.width / data.kept.length;"
    "  const colours = new Set(); for (let x = 2; x < w - 2; x++) {"
    "   const at = 4 * ((i * ROW + 6) * c.width + Math.round(j * w + x));"
    "   colours.add(all.data.slice(at, at + 4).join()); }"
    "  kinds[colours.size > 1] = 1; });"
    " return Object.keys(kinds); })()"
  )
  assert found == ["true"]  # Lines, where a cell with a value is of one colour.


def test_sorting_filtering_and_links_to_views(page, full):
  open_page(page, full)
  best = by_influence(full)
  assert shown(page) == best
  page.click("[data-key=value] button")
  assert shown(page) == best[::-1]
  assert page.run("location.hash") == "#sort=value"
  way = "document.querySelector('[data-key=value]').getAttribute('aria-sort')"
  assert page.run(way) == "ascending"
  page.run("$('find').value = 'F_000'; $('find').oninput()")
  assert sorted(shown(page)) == [f"f_{k:04d}" for k in range(10)]
  assert page.run("$('count').textContent") == "10 of 60 clients"
  open_page(page, full, "#sort=value&by=relu&find=f_000&drawn=1")
  contents = workdir.read(full)
  times = dict(
    zip(contents.ids, contents.columns["times_selected"], strict=True)
  )
  assert shown(page) == [
    name
    for name in by_influence(full, "relu")[::-1]
    if name.startswith("f_000") and times[name]
  ]


def test_positive_helps_for_accuracy_too(page, full):
  open_page(page, full, "#on=accuracy")
  contents = workdir.read(full)
  fia = contents.columns["fia_exact"]
  order = np.argsort(fia, kind="stable")
  assert shown(page) == [contents.ids[k] for k in order]
  first = page.run("document.querySelector('#table td.value').textContent")
  assert first.startswith("+") and first.endswith(" points")


def test_a_screening_says_what_is_exact(page, tmp_path):
  folder = workdirs.write(tmp_path, clients=30, exact="20", tracked=())
  path = folder / "config.json"
  about = json.loads(path.read_text())
  about["config"]["exact"] = "top:20:both"
  path.write_text(json.dumps(about))
  report.write(folder)
  contents = workdir.read(folder)
  fil = verdict.verdict(contents).fil
  order = np.argsort(-fil, kind="stable")
  open_page(page, folder)
  assert shown(page) == [contents.ids[k] for k in order]
  said = page.run(
    "Array.from(document.querySelectorAll('#table small'),"
    " (cell) => cell.textContent)"
  )
  assert said == [verdict.source(contents, k) for k in order]
  assert set(said) == {"exact", "estimated"}
  page.run(f"location.hash = linkTo({order[0]})")
  page.wait("card.open")
  assert f"({said[0]})" in page.run("card.textContent")


@pytest.mark.parametrize("place", range(len(NASTY)))
def test_hostile_ids_stay_text(page, nasty, place):
  open_page(page, nasty)
  name = text.escaped(NASTY[place])
  assert set(shown(page)) == set(by_influence(nasty))
  page.run(f"location.hash = linkTo({place})")
  page.wait("card.open")
  assert title_of_card(page) == f"Client {name}"
  assert page.run("document.title") == "Client influence: quickstart"
  assert page.run("document.documentElement.scrollWidth") <= 1280
  link = page.run("location.hash")
  open_page(page, nasty, link)
  page.wait("card.open")
  assert title_of_card(page) == f"Client {name}"


def test_the_csv_is_that_of_the_run(page, nasty):
  open_page(page, nasty)
  content = page.run("csvText()")
  rows = list(csv.DictReader(io.StringIO(content)))
  contents = workdir.read(nasty)
  assert [text.of_cell(row["client_id"]) for row in rows] == contents.ids
  assert not any(row["client_id"].startswith(tuple("=+-@")) for row in rows)
  for name in ("fil_exact", "fia_relu", "fil_low_both"):
    found = [float(row[name] or "nan") for row in rows]
    np.testing.assert_allclose(found, contents.columns[name], rtol=1e-4)
  page.run(
    "URL.createObjectURL = (blob) => { window.saved = blob.size; return '#'; }"
  )
  page.click("#csv")
  assert page.run("window.saved") == len(content.encode())


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
  """Two runs of 15 clients, 14 of whom they share, and their comparison."""
  folder = tmp_path_factory.mktemp("page")
  ids = [*NASTY, *(f"f_{k}" for k in range(6))]
  one, other = (
    workdirs.write(folder / name, clients=15, ids=names, estimators=("relu",))
    for name, names in (("a", ids), ("b", [*ids[:0:-1], "another"]))
  )
  comparison_page.write(one, other)
  return one


def test_two_runs_compared(page, compared):
  page.open(compared / "comparison.html")
  assert page.run("document.title") == "Two runs compared"
  first = shown(page)
  assert {text.escaped(name) for name in NASTY[1:]} < set(first)
  assert len(first) == 14 and first == page.run("data.ids")
  assert page.run("document.querySelectorAll('#scatter .dot').length") == 14
  page.click('th[data-key="client"] button')
  assert shown(page) != first and set(shown(page)) == set(first)
  page.click("#changed")
  moved = page.run(
    "data.ids.filter((id, k) => data.compared[0].sign[k] ||"
    " data.compared[0].group[k])"
  )
  assert set(shown(page)) == set(moved) and moved
  page.run("location.hash = linkTo(0)")
  page.wait("$('find').value === data.ids[0]")
  rows = list(csv.DictReader(io.StringIO(page.run("csvText()"))))
  assert [text.escaped(text.of_cell(r["client_id"])) for r in rows] == first
  page.resize(390)
  page.open(compared / "comparison.html")
  assert page.run("document.documentElement.scrollWidth") <= 390


def test_how_well_scores_find_bad_clients_is_drawn(page, full):
  open_page(page, full)
  label = page.run(
    "document.querySelector('#detection svg').getAttribute('aria-label')"
  )
  scores = workdir.read(full).debug["scores"]
  assert label.count(",") >= len(scores) - 1 == 4
  assert "size of the updates (update_norm) 0.630" in label
  lines = "document.querySelectorAll('#detection > svg path.line').length"
  assert page.run(lines) == len(scores)


def test_dark_by_preference_and_by_choice(page, full):
  back = "getComputedStyle(document.body).backgroundColor"
  open_page(page, full)
  light = page.run(back)
  page.emulate(dark=True)
  open_page(page, full)
  dark = page.run(back)
  assert dark != light == "rgb(255, 255, 255)"
  assert page.run("$('theme').textContent") == "Light"
  page.click("#theme")
  assert page.run(back) == light
  page.click("#theme")
  assert page.run(back) == dark
  page.run("localStorage.clear()")


def test_print_leaves_out_the_table_and_takes_few_pages(page, full):
  page.emulate(dark=True)
  open_page(page, full)
  page.emulate(dark=True, media="print")
  visible = (
    "(s) => document.querySelector(s).getBoundingClientRect().height > 0"
  )
  assert page.run(f"['.all', '#theme'].some({visible})") is False
  assert page.run(f"['.heat', '.lead', '.printed'].every({visible})") is True
  ink = page.run("getComputedStyle(document.body).color")
  assert ink == "rgb(17, 24, 39)"
  page.emulate()
  pages = page.pdf().count(b"/Type /Page\n")
  assert 2 <= pages <= 9


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_needs_no_sideways_scrolling(page, full, nasty, width):
  page.resize(width)
  for folder in (full, nasty):
    open_page(page, folder)
    assert page.run("document.documentElement.scrollWidth") <= width
    cut = page.run(
      "Array.from(document.querySelectorAll('img, svg[role], canvas, h1, h2,"
      f" .lead')).filter((e) => e.getBoundingClientRect().right > {width}"
      ").length"
    )
    assert cut == 0
    page.run("location.hash = linkTo(5)")
    page.wait("card.open")
    assert page.run("card.scrollWidth <= card.clientWidth + 1")
    table = "document.querySelector('dialog .scroll')"
    assert page.run(f"{table}.scrollWidth <= {table}.clientWidth + 1")
    page.run("card.close()")


def test_a_thousand_clients_open_in_two_seconds(page, tmp_path):
  folder = workdirs.write(
    tmp_path, clients=1000, rounds=495, estimators=("both", "relu", "matched"),
  )  # fmt: skip
  report.write(folder)
  assert len(workdir.read(folder).rounds) == 100
  assert (folder / "report.html").stat().st_size < 3_000_000
  open_page(page, folder)
  done = page.run("performance.getEntriesByType('navigation')[0].loadEventEnd")
  assert 0 < done < 2000
  assert "200 of" not in page.run("$('count').textContent")
  assert page.run("$('more').textContent") == "Show all 1,000"
  page.click("#more")
  assert len(shown(page)) == 1000


def test_a_run_without_clients_json_or_ground_truth_opens(page, tmp_path):
  folder = workdirs.write(tmp_path, exact="none", estimators=("relu",))
  (folder / "clients.json").unlink()
  report.write(folder)
  open_page(page, folder)
  page.click(".names li:first-child a")
  page.wait("card.open")
  page.run("card.close()")
  command = page.run("document.querySelector('.command code').textContent")
  assert "--config.exact=top:20:relu" in command
  page.click(".copy")
  page.wait("document.querySelector('.copy').textContent === 'Copied'")
  bare = workdirs.write(tmp_path / "b", estimators=(), exact="none", tracked=())
  report.write(bare)
  open_page(page, bare)
  assert len(shown(page)) == 20
