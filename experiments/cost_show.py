"""Tables of `experiments.cost`, and what they mean in words."""

import numpy as np
from rich import box as rich_box
from rich import console as rich_console
from rich import table as rich_table

from experiments import cost_methods
from fedinf_jax.report import numbers

METHODS = cost_methods.METHODS
PAPER = cost_methods.PAPER
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
  heads = ("server", f"× {PAPER}", "by formula", "server memory", "client",
           "upload")  # fmt: skip
  table = rich_table.Table(
    "method",
    *(rich_table.Column(head, justify="right") for head in heads),
    title=f"Cost of a round, {axis}: {', '.join(sizes)}",
    caption="Client: beside local training, which takes"
    f" {numbers.amount(rows[0]['training_seconds'], 's')}. Upload: in models.",
  )
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
  titles = (cost_methods.SWEEPS[axis].title for axis in content["sweeps"])
  width = len("1.30 (1.3*)")
  table = rich_table.Table(
    "time of",
    *(rich_table.Column(title, max_width=width) for title in titles),
    title="Growth: time ~ size^exponent",
    box=rich_box.SIMPLE_HEAD,
  )
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
  others = (name for name in measured if name != PAPER)
  times = (f"{name} {numbers.digits(measured[name])}" for name in others)
  where = "the base sizes" if axis == "base" else f"{axis}'s sizes"
  return (
    f"At {where} the server takes, in times of the paper's method:"
    f" {', '.join(times)}."
  )


def _growth_words(cases):
  """Counts the cases in which measured growth is that of a formula."""
  cases = [
    c for c in cases if c["method"] in _compared() and c["measured"] != 0
  ]
  told = [case for case in cases if case["measured"] is not None]
  others = [case for case in told if not _near(case, _formula(case))]
  words = (
    f"Measured growth agrees with the formulas (within {CLOSE}) in"
    f" {len(told) - len(others)} of {len(told)} cases"
  )
  if len(told) < len(cases):
    words += f"; {len(cases) - len(told)} more are too short to tell"
  named = (f"{c['side']} {c['method']} with {c['axis']}" for c in others)
  return f"{words}. Not: {', '.join(named)}." if others else f"{words}."


def _cell(case):
  if case["measured"] == 0:  # One program serves all sizes.
    return ""
  formula = _formula(case)
  star = "*" if formula == "operations" else ""
  predicted = numbers.fixed(case[formula], 1)
  return f"{numbers.fixed(case['measured'], 2)} ({predicted}{star})"


def _compared():
  # What has no curvature has no formula either.
  return [name for name in METHODS if name != "truncated"]


def _formula(case):
  """Returns what measured growth is compared with: "paper" or "operations"."""
  if _near(case, "paper"):
    return "paper"
  by_code = _near(case, "operations") or not case["paper"]
  return "operations" if by_code else "paper"


def _near(case, formula):
  measured, predicted = case["measured"], case[formula]
  known = measured is not None and predicted is not None
  return known and abs(measured - predicted) <= CLOSE
