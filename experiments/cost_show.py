"""Tables of `experiments.cost`, and what they mean in words."""

import numpy as np
from rich import box as rich_box
from rich import console as rich_console
from rich import table as rich_table

from experiments import cost_methods
from fedinf_jax.report import numbers

METHODS = cost_methods.METHODS
PAPER, OURS = cost_methods.PAPER, cost_methods.OURS
CLOSE = 0.2  # Exponents that differ by less agree.
STEADY = 1.25  # By how much a machine may slow down during the measurements.
CONVENTIONS = (
  "K² of the paper is K·B, as B of K clients take part; p² is Σ_j p_j², layer"
  " by layer. The paper counts a client's gradients as at hand (0); here the"
  " client computes them once more. Times are the least of several."
)
SYMBOLS = {
  "K": "clients",
  "B": "participants",
  "p": "parameters",
  "m": "local steps",
  "N_s": "gradients per step",
  "n": "examples per client",
}


def print_all(screen: rich_console.Console, content: dict):
  """Prints the tables, and what they show."""
  for axis in ("base", "setting 1"):
    rows = [r for r in content["rows"] if r["axis"] == axis]
    if rows:
      screen.print(cost_table(axis, rows))
  titles = (f"{name}: {method.title}" for name, method in METHODS.items())
  screen.print(f"{'; '.join(titles)}. {CONVENTIONS}\n")
  screen.print(growth_table(content))
  screen.print(
    "Measured, and by the paper's formula in brackets; with a * by the"
    " operations of this code, where the paper's formula is 0 or does not fit."
    " Empty: the time does not depend on that size.\n"
  )
  for line in sentences(content):
    screen.print(line)


def cost_table(axis: str, rows: list[dict]) -> rich_table.Table:
  """Tabulates the methods at one point."""
  sizes = (f"{rows[0]['sizes'][s]} {words}" for s, words in SYMBOLS.items())
  table = rich_table.Table(
    title=f"Cost of a round, {axis}: {', '.join(sizes)}",
    caption="Client: beside local training, which takes"
    f" {numbers.amount(rows[0]['training_seconds'], 's')}. Upload: in models.",
  )
  table.add_column("method")
  for head in (
    "server",
    f"× {PAPER}",
    "by formula",
    "server memory",
    "client",
    "upload",
  ):
    table.add_column(head, justify="right")
  measured, by_formula = _ratios(rows)
  for row in rows:
    table.add_row(
      row["method"],
      numbers.amount(row["server_seconds"], "s"),
      numbers.digits(measured[row["method"]]),
      numbers.digits(by_formula[row["method"]]),
      numbers.amount(row["server_peak_bytes"], "B"),
      numbers.amount(row["client_seconds"], "s"),
      numbers.digits(row["upload_models"], 3),
    )
  return table


def growth_table(content: dict) -> rich_table.Table:
  """Tabulates exponents: a row per side and method, a column per size."""
  table = rich_table.Table(
    title="Growth: time ~ size^exponent", box=rich_box.SIMPLE_HEAD
  )
  table.add_column("time of")
  for axis in content["sweeps"]:
    title = cost_methods.SWEEPS[axis].title
    table.add_column(title, max_width=len("1.30 (1.3*)"))
  for side in ("server", "client"):
    table.add_row(f"{side}:")
    for name in _compared():
      cases = [
        case
        for case in content["growth"]
        if (case["side"], case["method"]) == (side, name)
      ]
      table.add_row(name, *map(_cell, cases))
  return table


def sentences(content: dict) -> list[str]:
  """Says in words what the tables show."""
  lines = [
    _server_words(axis, rows)
    for axis in ("base", "setting 1")
    if (rows := [r for r in content["rows"] if r["axis"] == axis])
  ]
  differ = {
    row["method"]
    for row in content["rows"]
    if not np.isclose(row["upload_models"], row["paper"]["upload"])
  }
  uploads = "Uploads equal the formulas exactly."
  if differ:
    uploads = f"Uploads differ from the formulas: {', '.join(sorted(differ))}."
  lines.append(f"{uploads} {_growth_words(content['growth'])}")
  drift = max(content["pace_seconds"]) / min(content["pace_seconds"])
  if drift > STEADY:
    lines.append(
      "Other work was in the way: one and the same product took up to"
      f" {numbers.digits(drift)} times as long in between, so exponents are"
      " uncertain."
    )
  return lines


def _ratios(rows):
  """Returns server times over the paper's method, measured and by formula."""
  (theirs,) = (r for r in rows if r["method"] == PAPER)
  return (
    {r["method"]: r["server_seconds"] / theirs["server_seconds"] for r in rows},
    {r["method"]: r["paper"]["server"] / theirs["paper"]["server"]
     for r in rows},
  )  # fmt: skip


def _server_words(axis, rows):
  measured, _ = _ratios(rows)
  times = {name: numbers.digits(ratio) for name, ratio in measured.items()}
  where = "At the base sizes" if axis == "base" else f"At {axis}'s sizes"
  naive = " and ".join(
    f"{times[name]} ({name})" for name in times if name.startswith("naive")
  )
  explicit = f" the explicit Hessians {naive} times," if naive else ""
  return (
    f"{where} ours costs the server {times[OURS]} times the paper's method,"
    f"{explicit} and no curvature at all {times['truncated']} times."
  )


def _growth_words(cases):
  """Counts the cases in which measured growth is that of a formula."""
  cases = [c for c in cases if c["method"] in _compared() and not _constant(c)]
  told = [case for case in cases if case["measured"] is not None]
  others = [case for case in told if not (_by_paper(case) or _by_code(case))]
  words = (
    f"Measured growth agrees with the formulas (within {CLOSE}) in"
    f" {len(told) - len(others)} of {len(told)} cases"
  )
  if len(told) < len(cases):
    words += f"; {len(cases) - len(told)} more are too short to tell"
  if not others:
    return f"{words}."
  slower = sum(c["measured"] < _predicted(c) for c in others)
  listed = {}
  for case in others:
    who = f"{case['side']} {case['method']}"
    listed.setdefault(who, []).append(case["axis"])
  listed = "; ".join(f"{who} with {', '.join(a)}" for who, a in listed.items())
  return (
    f"{words}. Of the others {slower} grow more slowly and"
    f" {len(others) - slower} faster: {listed}."
  )


def _cell(case):
  if _constant(case):
    return ""
  by_code = not _by_paper(case) and (_by_code(case) or not case["paper"])
  star = "*" if by_code else ""
  predicted = case["operations"] if by_code else case["paper"]
  formula = f"({numbers.fixed(predicted, 1)}{star})"
  return f"{numbers.fixed(case['measured'], 2)} {formula}"


def _compared():
  # What has no curvature has no formula either.
  return [name for name in METHODS if name != "truncated"]


def _constant(case):
  """Says whether one program serves all sizes."""
  return case["measured"] == 0


def _predicted(case):
  return case["paper"] or case["operations"]


def _by_paper(case):
  return _near(case["measured"], case["paper"])


def _by_code(case):
  return _near(case["measured"], case["operations"])


def _near(a, b):
  return a is not None and b is not None and abs(a - b) <= CLOSE
