"""Progress of a simulation: a live line on a terminal, else plain lines."""

import io
import sys

import pytest

from fedinf_jax.simulation import meter
from tests import cases


class Terminal(io.StringIO):
  def isatty(self):
    return True


def screen(written):
  """What a terminal shows in the end, line by line."""
  lines = [""]
  for part in written.replace("\n", "\r\n").split("\r"):
    if part.startswith("\n"):
      lines.append("")
      part = part[1:]
    lines[-1] = part.removesuffix(meter.CLEAR)
  return lines


def test_piped_it_is_a_few_plain_lines(capsys):
  cases.simulate({}, rounds=50, progress=True)
  out, err = capsys.readouterr()
  lines = err.splitlines()
  assert out == "" and "\r" not in err
  assert lines[0] == "round 0 of 50: compiling …"
  assert lines[1:] == [f"round {50 * i // 20} of 50" for i in range(1, 21)]


def test_on_a_terminal_it_is_one_line_that_goes(monkeypatch):
  terminal = Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  cases.simulate({}, rounds=50, progress=True)
  written = terminal.getvalue()
  assert "\n" not in written and screen(written) == [""]
  shown = [part for part in written.split("\r") if "compiling" not in part]
  assert len(shown) == 1 + 50
  assert f"round 25 of 50 {'━' * 10}{'┄' * 10} 50%{meter.CLEAR}" in shown


def test_an_error_begins_a_line_of_its_own(monkeypatch):
  terminal = Terminal()
  monkeypatch.setattr(sys, "stderr", terminal)
  shown = meter.reader(True)
  with pytest.raises(KeyError), meter.line(shown, 3):
    shown.tell(1, 3)
    raise KeyError
  assert screen(terminal.getvalue())[0].startswith("round 1 of 3")
  assert screen(terminal.getvalue())[1] == ""


def test_a_program_without_an_error_output_is_not_told(monkeypatch):
  monkeypatch.setattr(sys, "stderr", None)
  shown = meter.reader(True)
  with meter.line(shown, 2):
    shown.tell(2, 2)


def test_how_often():
  assert meter.reader(print).stops(3) == {1, 2, 3}
  assert meter.reader(False).stops(3) == set()
  assert len(meter.reader(print).stops(10**6)) == meter.LINES
