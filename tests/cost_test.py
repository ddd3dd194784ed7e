"""Table 1, measured: what the binary writes. No test looks at a time."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
METHODS = ("naive 1", "naive 2", "both", "relu", "truncated")
TIMES = ("server_seconds", "client_seconds")
PEAKS = ("server_peak_bytes", "client_peak_bytes")
QUANTITIES = (*TIMES, "upload_models", *PEAKS)


def start(*arguments):
  return subprocess.run(
    [sys.executable, "-m", "experiments.cost", *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
    env={**os.environ, "COLUMNS": "120"},
  )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
  """The smallest run: two local steps, and two or four samples of each."""
  folder = tmp_path_factory.mktemp("cost")
  done = start(f"--workdir={folder}", "--scale=0.001", "--sweeps=N_s")
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  return done.stdout, folder, json.loads((folder / "cost.json").read_text())


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
  rows = run[2]["rows"]
  for row in rows:
    number, p = uploads(row["method"], row["sizes"]), row["sizes"]["p"]
    assert row["upload_bytes"] == 4 * number
    assert row["upload_models"] == number / p
    assert row["paper"]["upload"] == number / p
  assert {(r["sizes"]["m"], r["sizes"]["N_s"]) for r in rows} == {
    (2, 2),
    (2, 4),
  }


def test_every_point_has_a_row_of_every_method(run):
  content = run[2]
  points = {}
  for row in content["rows"]:
    points.setdefault((row["axis"], row["at"]), []).append(row["method"])
    assert row["sizes"]["p"] == sum(row["sizes"]["layers"])
    assert all(row[q] > 0 for q in TIMES)
    assert row["server_seconds_median"] >= row["server_seconds"]
    assert row["server_peak_bytes"] > row["sizes"]["B"] * row["upload_bytes"]
    assert row["client_peak_bytes"] >= row["upload_bytes"]
    if row["method"] == content["reference"]:
      assert all(row["ratios"][q] == 1 for q in QUANTITIES)
  assert [axis for axis, _ in points] == ["base", "N_s", "N_s"]
  assert all(tuple(methods) == METHODS for methods in points.values())
  assert content["formulas"]["naive 1"]["paper"]["client"] == "m(n p² + p³)"
  assert {p["side"] for p in content["programs"]} == {
    "training", "client", "server"
  }  # fmt: skip
  assert all(program["seconds"] for program in content["programs"])


def test_slopes_stand_beside_those_of_the_formulas(run):
  slopes = {(s["quantity"], s["method"]): s for s in run[2]["slopes"]}
  assert len(slopes) == len(run[2]["slopes"]) == len(QUANTITIES) * len(METHODS)
  for method, exponent in (("naive 1", 0), ("naive 2", 0), ("both", 1)):
    upload = slopes["upload_models", method]
    assert upload["measured"] == pytest.approx(exponent, abs=1e-9)
    assert upload["paper"] == pytest.approx(exponent, abs=1e-9)
    # Where calls are too short to tell, nothing is fitted.
    server = slopes["server_seconds", method]["paper"]
    assert server is None or server == pytest.approx(exponent, abs=1e-9)
  assert slopes["upload_models", "truncated"]["measured"] is None
  assert all(isinstance(s["note"], str) for s in slopes.values())


def test_the_tables_and_the_figure_are_there(run):
  printed, folder, content = run
  for word in (*METHODS, "K² m N_s p", "× both", "exponents", "cost.json"):
    assert word in printed
  assert (folder / "cost.png").read_bytes().startswith(b"\x89PNG")
  assert {p.name for p in folder.iterdir()} == {"cost.json", "cost.png"}
  assert content["scale"] == 0.001


BAD = {
  "scale": ("--scale=0", "error: --scale=0.0 must be above 0 and at most 1"),
  "sweep": ("--sweeps=K,Q", "error: --sweeps: 'Q' is unknown; there are K,"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(name):
  argument, message = BAD[name]
  done = start(argument)
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.count("\n") == 1
