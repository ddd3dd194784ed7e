"""Table 1, measured: what the binary writes. No test looks at a time."""

import io
import json

import jax
import pytest
from rich import console as rich_console

from experiments import cost
from experiments import cost_figure
from experiments import cost_methods
from experiments import cost_show
from tests import binaries

METHODS = ("naive 1", "naive 2", "both", "relu", "truncated")
SIDES = ("server", "client")


@pytest.fixture(scope="module")
def run():
  """The smallest run: two local steps, and two or four samples of each."""
  screen = rich_console.Console(record=True, width=80, quiet=True)
  with jax.enable_x64(False):
    base = cost_methods.scaled(0.001)
    content = cost.run(base, ["N_s"], 0.001, screen)
  screen = rich_console.Console(record=True, width=80, file=io.StringIO())
  cost_show.print_all(screen, content)
  return screen.export_text(), content


def uploads(method, sizes):
  """Parameters that a participant uploads, by Table 1."""
  squares = sum(p**2 for p in sizes["layers"])
  return {
    "naive 1": squares,
    "naive 2": sizes["m"] * squares,
    "both": sizes["m"] * sizes["N_s"] * sizes["p"],
    "relu": sizes["m"] * sizes["N_s"] * sizes["p"],
    "truncated": 0,
  }[method]


def test_uploads_are_those_of_the_formulas_exactly(run):
  printed, content = run
  for row in content["rows"]:
    number, p = uploads(row["method"], row["sizes"]), row["sizes"]["p"]
    assert row["upload_bytes"] == 4 * number
    assert row["upload_models"] == number / p
    assert row["paper"]["upload"] == number / p
  sizes = {(r["sizes"]["m"], r["sizes"]["N_s"]) for r in content["rows"]}
  assert sizes == {(2, 2), (2, 4)}
  assert "Uploads equal the formulas exactly." in printed


def test_every_point_has_a_row_of_every_method(run):
  content = run[1]
  points = {}
  for row in content["rows"]:
    points.setdefault((row["axis"], row["at"]), []).append(row["method"])
    assert row["sizes"]["p"] == sum(row["sizes"]["layers"])
    assert all(row[f"{side}_seconds"] > 0 for side in SIDES)
    assert row["server_peak_bytes"] > row["sizes"]["B"] * row["upload_bytes"]
    assert row["client_peak_bytes"] >= row["upload_bytes"]
  assert [axis for axis, _ in points] == ["base", "N_s", "N_s"]
  assert all(tuple(methods) == METHODS for methods in points.values())
  assert content["formulas"]["naive 1"]["client"] == "m(n p² + p³)"
  cases = [(case["side"], case["method"]) for case in content["growth"]]
  assert cases == [(side, name) for side in SIDES for name in METHODS]


def test_the_tables_and_the_figure_say_what_was_measured(run):
  printed, content = run
  for words in (
    *METHODS,
    "Cost of a round, base: 8 clients, 2 participants, 20 parameters",
    "relu: ours;",
    "Growth: time ~ size^exponent",
    "At the base sizes the server takes, in times of the paper's method:",
    "Measured growth agrees with the formulas",
  ):
    assert words in " ".join(printed.split())
  assert cost_figure.png(content).startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_binary_writes_numbers_and_a_figure(tmp_path):
  done = binaries.start(
    "cost", f"--workdir={tmp_path}", "--scale=0.001", "--sweeps=N_s"
  )
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  assert "cost.json" in done.stdout
  assert {p.name for p in tmp_path.iterdir()} == {"cost.json", "cost.png"}
  content = json.loads((tmp_path / "cost.json").read_text())
  assert content["scale"] == 0.001


def planted(axis, method, seconds):
  """Rows along an axis whose server time is `seconds` of the sizes."""
  base = cost_methods.scaled(1.0)
  points = [
    p for p in cost_methods.points_of(base, [axis], 1.0) if p[0] == axis
  ]
  made = cost_methods.METHODS[method]
  return [
    {
      "axis": axis,
      "at": cost_methods.SWEEPS[axis].size(sizes),
      "method": method,
      "server_seconds": seconds(sizes),
      "paper": made.paper(sizes),
      "operations": made.operations(sizes),
    }
    for _, sizes in points
  ]


@pytest.mark.parametrize(
  ("axis", "method", "exponent"),
  [("K", "both", 1), ("B=K", "relu", 2), ("m", "naive 2", 1), ("P", "both", 1)],
)
def test_growth_as_in_the_formula_is_found(axis, method, exponent):
  paper = cost_methods.METHODS[method].paper
  rows = planted(axis, method, lambda s: 1e-6 * paper(s)["server"])
  case = cost.growth(rows, 1e-9, "server", method, axis)
  assert case["measured"] == pytest.approx(exponent, abs=0.02)
  assert case["paper"] == pytest.approx(case["measured"])
  assert "in 1 of 1 cases." in cost_show._growth_words([case])


def test_growth_that_no_formula_has_is_named():
  rows = planted("K", "both", lambda s: 1e-6 * s.K**0.5)
  case = cost.growth(rows, 1e-9, "server", "both", "K")
  words = cost_show._growth_words([case])
  assert "in 0 of 1 cases." in words
  assert "Not: server both with K." in words


def test_what_does_not_grow_or_is_too_short_is_not_counted():
  same = planted("m", "naive 1", lambda s: 1e-3)
  same = cost.growth(same, 1e-9, "server", "naive 1", "m")
  assert same["measured"] == 0
  short = planted("K", "both", lambda s: 1e-6 * s.K)
  short = cost.growth(short, 1.0, "server", "both", "K")
  assert short["measured"] is None
  words = cost_show._growth_words([same, short])
  assert "in 0 of 0 cases; 1 more are too short to tell." in words


def test_a_sweep_that_does_not_exist_is_refused():
  with pytest.raises(ValueError, match="'Q' is unknown; there are K,"):
    cost_methods.chosen(["K", "Q"], 1.0)
