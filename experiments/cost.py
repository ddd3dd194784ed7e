"""Measures Table 1 of the paper: what an estimator costs server and clients.

python -m experiments.cost [--workdir=DIR] [--json=FILE] [--scale=0.2]
    [--sweeps=K,B=K,P,m,N_s]

Naive 1 and 2 (explicit Hessian blocks), the paper's method ("both") and ours
("relu") serve the same rounds through the calls of a real federation, beside
"truncated", which keeps no curvature: what it costs, every estimator pays.
Writes cost.json and cost.png to the workdir.
"""

import io
import itertools
import os
import pathlib
import time

from absl import flags
import jax
import matplotlib.figure
import numpy as np
from rich import console as rich_console
from rich import table as rich_table

from experiments import cost_measure
from experiments import cost_methods
from experiments import figures
from experiments import launch
from experiments import workdir as workdirs

METHODS = cost_methods.METHODS
REFERENCE = "both"  # What ratios are relative to.
WELL_ABOVE = 10  # Within so many empty calls a time says nothing of growth.
FIT_POINTS = 3  # An exponent is that of the largest sizes.
CLOSE = 0.2  # Exponents that differ by less agree.
STEADY = 1.25  # By how much a machine may slow down during the measurements.
GOOD_FIT = 0.95  # R² of a line to be trusted.
CONVENTIONS = (
  "K² of the paper is K·B, as B of K clients take part; p² is Σ_j p_j², layer"
  " by layer. The paper counts a client's gradients as at hand (0); here it"
  " computes them once more. Times are the least of several."
)
# What is measured: whose formula it is compared with, and its title.
QUANTITIES = {
  "server_seconds": ("server", "server, a round"),
  "client_seconds": ("client", "a client, beside training"),
  "upload_models": ("upload", "upload, in models"),
  "server_peak_bytes": (None, "peak memory of the server's update"),
  "client_peak_bytes": (None, "peak memory of a client's report"),
}

_WORKDIR = flags.DEFINE_string("workdir", "runs/cost", "Where to.")
_JSON = flags.DEFINE_string("json", None, "WORKDIR/cost.json if none.")
_SCALE = flags.DEFINE_float("scale", 1.0, "Shrinks all sizes; at most 1.")
_SWEEPS = flags.DEFINE_list("sweeps", [], "Sizes to vary; all if none.")


def main(argv):
  """Measures, writes and prints."""
  del argv
  scale, picture = _SCALE.value, pathlib.Path(_WORKDIR.value, "cost.png")
  numbers = pathlib.Path(_JSON.value or picture.with_name("cost.json"))
  base = cost_methods.scaled(scale)
  sweeps = cost_methods.chosen(_SWEEPS.value, scale)
  for path in (numbers, picture):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path.parent, os.W_OK | os.X_OK):
      raise ValueError(f"{path} cannot be written")
  screen = rich_console.Console(highlight=False)
  content = run(base, sweeps, scale, screen)
  workdirs.write_json(numbers, content)
  workdirs.write(picture, draw(content["rows"], sweeps))
  for axis in ("base", "setting 1") if scale == 1 else ("base",):
    print_costs(screen, axis, [r for r in content["rows"] if r["axis"] == axis])
  print_slopes(screen, content["slopes"], sweeps)
  drift = max(content["pace_seconds"]) / min(content["pace_seconds"])
  if drift > STEADY:
    screen.print(
      "Other work was in the way: one and the same product took up to"
      f" {drift:.1f} times as long in between. Exponents are uncertain."
    )
  screen.print(f"{numbers} and {picture} ({content['seconds']} s)")


def run(base, sweeps: list[str], scale: float, screen) -> dict:
  """Measures everything; returns the content of cost.json."""
  started = time.perf_counter()
  points = cost_methods.points_of(base, sweeps, scale)
  with screen.status("measuring") as status:
    sizes = [sizes for _, sizes in points]
    programs, empty, paces = cost_measure.measure(sizes, status.update)
  rows = [row for point in points for row in rows_of(programs, *point)]
  curves = itertools.product(QUANTITIES, METHODS, sweeps)
  return {
    "scale": scale,
    "sizes": base.described(),
    "sweeps": sweeps,
    "reference": REFERENCE,
    "formulas": {name: method.texts() for name, method in METHODS.items()},
    "conventions": CONVENTIONS,
    "rows": rows,
    "slopes": [slope(rows, empty, *curve) for curve in curves],
    "programs": [
      {"side": side, "method": name, "sizes": dict(seen), **program.took}
      for (side, name, seen), program in programs.items()
    ],
    "empty_call_seconds": empty,
    "pace_seconds": paces,
    "seconds": round(time.perf_counter() - started, 1),
    "device": jax.devices()[0].device_kind,
    "cores": os.cpu_count(),
    "versions": workdirs.versions(),
    "git_revision": workdirs.git_revision(),
  }


def rows_of(programs, axis: str, sizes: cost_methods.Sizes) -> list[dict]:
  """Returns a row for each method at one point."""
  rows = {}
  for name in cost_methods.methods_at(sizes):
    training, client, server = (
      programs[cost_measure.key(side, name, sizes)].took
      for side in ("training", "client", "server")
    )
    rows[name] = {
      "axis": axis,
      "at": getattr(sizes, {"B=K": "K", "P": "p"}.get(axis, axis), None),
      "method": name,
      "sizes": sizes.described(),
      # Other work on the machine only ever adds: the least is the cost.
      "server_seconds": min(server["seconds"]),
      "client_seconds": min(client["seconds"]),
      "training_seconds": min(training["seconds"]),
      "server_seconds_median": np.median(server["seconds"]),
      "client_seconds_median": np.median(client["seconds"]),
      "upload_bytes": client["output_bytes"],
      "upload_models": client["output_bytes"] / (4 * sizes.p),
      "server_peak_bytes": server["peak_bytes"],
      "client_peak_bytes": client["peak_bytes"],
      **METHODS[name].values(sizes),
    }
  theirs = rows[REFERENCE]
  over = lambda a, b, keys: {q: a[q] / b[q] if b[q] else None for q in keys}
  for row in rows.values():
    row["ratios"] = over(row, theirs, QUANTITIES)
    for source in ("paper", "built"):
      row[f"{source}_ratios"] = over(row[source], theirs[source], row[source])
  return list(rows.values())


def slope(rows, empty, quantity, method, axis) -> dict:
  """Fits the exponent with which a quantity grows along an axis."""
  formula, _ = QUANTITIES[quantity]
  is_time = quantity.endswith("seconds")
  at = [r for r in rows if r["axis"] == axis and r["method"] == method]
  # One and the same program at all sizes does not grow, however short.
  if is_time and len({r[quantity] for r in at}) > 1:
    at = [r for r in at if r[quantity] > WELL_ABOVE * empty]
  at = at[-FIT_POINTS:]
  x = [r["at"] for r in at]
  measured, r2 = _exponent(x, [r[quantity] for r in at])
  paper, built = (
    _exponent(x, [r[source].get(formula, 0) for r in at])[0]
    for source in ("paper", "built")
  )
  near = lambda a: a is not None and abs(a - measured) <= CLOSE
  note = ""
  if is_time and measured is None:
    limit = f"{WELL_ABOVE} empty calls of {1e6 * empty:.0f} µs"
    note = f"within {limit}: fixed costs"
  elif is_time and measured != 0 and not near(paper):
    text = METHODS[method].texts()["built"][formula]
    note = f"as built: {text}" if near(built) else "cause not found"
  return {
    "quantity": quantity, "method": method, "axis": axis, "fitted_at": x,
    "measured": measured, "r2": r2, "paper": paper, "built": built,
    "note": note,
  }  # fmt: skip


def _exponent(x, y):
  """Returns the slope of log y over log x and its R², None where undefined."""
  if len(x) < 2 or min(y) <= 0:
    return None, None
  x, y = np.log(x), np.log(y)
  if np.ptp(y) < 1e-6:
    return 0.0, None  # No growth at all, and nothing to explain.
  r2 = float(np.corrcoef(x, y)[0, 1] ** 2) if len(x) > 2 else None
  return float(np.polyfit(x, y, 1)[0]), r2


def print_costs(screen, axis, rows):
  """Prints Table 1, measured."""
  sizes, training = rows[0]["sizes"], 1e3 * rows[0]["training_seconds"]
  symbols = (f"{s} = {sizes[s]}" for s in ("K", "B", "p", "m", "N_s", "n"))
  table = rich_table.Table(
    title=f"{axis}: {', '.join(symbols)}",
    caption=f"{CONVENTIONS} Local training itself takes {training:.2g} ms."
    f" {REFERENCE} is the paper's method.",
  )
  times = f"× {REFERENCE}"
  for title in ("", "method", "formula"):
    table.add_column(title)
  for title in ("value", times, f"as built {times}", "measured", times):
    table.add_column(title, justify="right")
  for quantity, (formula, title) in QUANTITIES.items():
    for row in rows:
      cells = [""] * 4
      if formula:
        text = METHODS[row["method"]].texts()["paper"][formula]
        sources = row["paper"], row["paper_ratios"], row["built_ratios"]
        cells = [text, *(_text(source.get(formula)) for source in sources)]
      first = title if row is rows[0] else ""
      cells += [_unit(quantity, row[quantity]), _text(row["ratios"][quantity])]
      table.add_row(first, row["method"], *cells, end_section=row is rows[-1])
  screen.print(table)


def print_slopes(screen, slopes, sweeps):
  """Prints fitted exponents, and why they differ from the formulas."""
  table = rich_table.Table(
    *("", "method", *sweeps),
    title="exponents: measured (the formula's at the same sizes)",
    caption=f"Fitted to the {FIT_POINTS} largest sizes; ? is R² < {GOOD_FIT}.",
  )
  curve = lambda s: (s["quantity"], s["method"])
  for (quantity, method), group in itertools.groupby(slopes, curve):
    formula, title = QUANTITIES[quantity]
    cells = []
    for s in group:
      unsure = "?" if s["r2"] is not None and s["r2"] < GOOD_FIT else ""
      predicted = f" ({_text(s['paper'], '.2f')})" if formula else ""
      cells.append(_text(s["measured"], ".2f") + unsure + predicted)
    first = title if method == next(iter(METHODS)) else ""
    table.add_row(first, method, *cells)
  screen.print(table)
  notes = {}
  for s in slopes:
    if s["note"] and s["method"] != "truncated":
      about = QUANTITIES[s["quantity"]][1], s["method"], s["note"]
      notes.setdefault(about, []).append(s["axis"])
  for (title, method, note), at in notes.items():
    screen.print(f"{title}, {method}, {', '.join(at)}: {note}")


def _text(value, form=".3g"):
  return "–" if value is None else format(value, form)


def _unit(quantity, value):
  if quantity.endswith("seconds"):
    return f"{1e3 * value:.3g} ms"
  return f"{value / 1e6:.3g} MB" if "bytes" in quantity else f"{value:.5g}"


@matplotlib.rc_context(figures.STYLE)
def draw(rows, sweeps) -> bytes:
  """Draws what grows how: a row of panels a quantity, a column a size."""
  shown = ("server_seconds", "client_seconds", "upload_models")
  size = 2.6 * max(2, len(sweeps)), 7.6
  figure = matplotlib.figure.Figure(size, layout="constrained")
  grid = {"squeeze": False, "sharex": "col", "sharey": "row"}
  axes = figure.subplots(len(shown), len(sweeps), **grid)
  titles = {"B=K": "K, all take part", "K": "K, B take part"}
  for i, quantity in enumerate(shown):
    for ax, axis in zip(axes[i], sweeps, strict=True):
      _panel(ax, [r for r in rows if r["axis"] == axis], quantity)
      if quantity == shown[-1]:
        ax.set_xlabel(titles.get(axis, axis))
    unit = ", s" if "seconds" in quantity else ""
    axes[i, 0].set_ylabel(QUANTITIES[quantity][1] + unit)
  formula = "the paper's formula, through the last point"
  axes[0, 0].plot([], [], ":", lw=1.1, color=figures.MUTED, label=formula)
  lines = axes[0, 0].get_legend_handles_labels()
  figure.legend(*lines, loc="outside lower center", ncols=len(METHODS) + 1)
  made = io.BytesIO()
  figure.savefig(made, dpi=figures.DPI)
  return made.getvalue()


def _panel(ax, rows, quantity):
  """The methods' measurements, and formulas through the last of them."""
  for name, colour in zip(METHODS, figures.COLOURS, strict=False):
    at = [r for r in rows if r["method"] == name]
    x, y = [r["at"] for r in at], np.array([r[quantity] for r in at])
    if y.all():
      # relu lies on both where they upload the same.
      style = "o--" if name == "relu" else "o-"
      ax.plot(x, y, style, ms=3.5, color=colour, label=name)
    predicted = np.array([r["paper"][QUANTITIES[quantity][0]] for r in at])
    if predicted.all() and "seconds" in quantity:
      through = predicted * (y[-1] / predicted[-1])
      ax.plot(x, through, ":", lw=1.1, color=colour)
  ticks = sorted({r["at"] for r in rows})
  ax.set(xscale="log", yscale="log")
  ax.set_xticks(ticks, map(str, ticks))
  ax.xaxis.minorticks_off()


if __name__ == "__main__":
  launch.run(main)
