"""Ids are text: they come back as they were, and command nothing."""

import io

import hypothesis
from hypothesis import strategies
import pytest
from rich import console as rich_console

from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.report import sentences
from fedinf_jax.running import files
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from tests import workdirs

NASTY = (
  "a\nb",
  "a\r\nb",
  "a\u2028b\u2029c\x85d\x0b\x0c\x1c\x1d\x1e",
  "[/red][bold]x",
  "\x1b[31m\x1b]0;title\x07",
  "=1+2",
  "+1",
  "-1",
  "@SUM(A1)",
  "'quoted",
  "\ud800",
  "\ud800\udc00",
  "back\\slash \\u000a",
  '"quote",comma',
  ":smile:",
  "",
  " ",
  "\u202egnp.exe",
)
anything = strategies.text(
  strategies.characters(categories=("L", "N", "P", "S", "Z", "C")), max_size=20
)


@hypothesis.given(anything)
@hypothesis.settings(max_examples=200, derandomize=True, deadline=None)
def test_an_id_comes_back_as_it_was(name):
  check_round_trip(name)


@pytest.mark.parametrize("name", NASTY)
def test_a_nasty_id_comes_back_as_it_was(name):
  check_round_trip(name)


def check_round_trip(name):
  shown, cell = text.escaped(name), text.cell(name)
  assert text.unescaped(shown) == name
  assert text.of_cell(cell) == name
  for line in (shown, cell):
    assert len(line.splitlines()) <= 1
    line.encode()
    assert "\x1b" not in line
  assert not cell.startswith(("=", "+", "-", "@", "\t"))
  assert files.csv_line([name, 1]).count("\n") == 0


@pytest.fixture(scope="module")
def nasty(tmp_path_factory):
  folder = workdirs.write(
    tmp_path_factory.mktemp("text") / "[red]x[" / "]" / "w\x1b[31m",
    clients=len(NASTY),
    ids=NASTY,
    tracked=range(len(NASTY)),
    debug=True,
  )
  report.write(folder)
  return folder


def test_files_give_back_the_ids_that_were_written(nasty):
  contents = workdir.read(nasty)
  assert contents.ids == list(NASTY)
  assert list(contents.tracked) == list(NASTY)
  assert contents.debug["bad"] == list(NASTY[: len(contents.debug["bad"])])
  for name in (*records.LOGS, records.INFLUENCE, records.DEBUG):
    content = (nasty / name).read_text("utf-8")
    assert len(content.splitlines()) == content.count("\n")


def test_screens_get_no_commands_and_no_markup(nasty):
  screen = progress.console(
    file=io.StringIO(), force_terminal=True, color_system=None, width=200
  )
  contents = workdir.read(nasty)
  for line in sentences.write(contents)[1].lines():
    progress.say(screen, line)
  progress.say(screen, f"report: {nasty / records.REPORT}")
  printed = screen.file.getvalue()
  assert "[red]x[/]/w\\u001b[31m/report.html" in printed.replace("\n", "")
  assert not set(printed) & {"\x1b", "\x07", "\x85", "\u2028", "\r"}


def test_a_live_line_takes_names_for_text():
  screen = progress.console(file=io.StringIO(), force_terminal=True)
  none = records.Agreement(0.5, None, None, None, None, 0.0)
  found = records.Metrics(
    round=1, loss=0.5, accuracy=0.5, estimators={"[/red]": none}
  )
  with progress.line(screen, 2, 0) as show:
    show(1, 0.1, found)
  assert "[/red]" in screen.file.getvalue()


def test_any_console_says_lines_literally():
  screen = rich_console.Console(file=io.StringIO(), width=80)
  progress.say(screen, "[/red] :smile: \x1b[2J")
  assert screen.file.getvalue() == "[/red] :smile: \\u001b[2J\n"
