"""Measures Table 1 of the paper: what an estimator costs server and clients.

python -m experiments.cost [--workdir=DIR] [--json=FILE] [--scale=0.2]
    [--sweeps=K,B=K,P,m,N_s]

Naive 1 and 2 (explicit Hessian blocks), the paper's method ("both") and ours
("relu") serve the same rounds through the calls of a real federation, beside
"truncated", which keeps no curvature: what it costs, every estimator pays.
Writes cost.json and cost.png to the workdir.
"""

import itertools
import os
import pathlib
import time

from absl import flags
import jax
import numpy as np
from rich import console as rich_console

from experiments import cost_figure
from experiments import cost_measure
from experiments import cost_methods
from experiments import cost_show
from experiments import launch
from fedinf_jax.running import files
from fedinf_jax.running import progress
from fedinf_jax.running import workdir

WELL_ABOVE = 10  # A time within 10 empty calls says nothing about growth.
FIT_POINTS = 3  # An exponent is that of the largest sizes.

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
  screen = progress.console(highlight=False)
  content = run(base, sweeps, scale, screen)
  files.write_json(numbers, content)
  files.write(picture, cost_figure.png(content))
  cost_show.print_all(screen, content)
  progress.say(screen, f"{numbers} and {picture} ({content['seconds']} s)")


def run(
  base: cost_methods.Sizes,
  sweeps: list[str],
  scale: float,
  screen: rich_console.Console,
) -> dict:
  """Measures everything; returns the content of cost.json."""
  started = time.perf_counter()
  points = cost_methods.points_of(base, sweeps, scale)
  with screen.status("measuring") as status:
    sizes = [sizes for _, sizes in points]
    measured = cost_measure.measure(sizes, status.update)
  rows = [row for point in points for row in rows_of(measured, *point)]
  cases = itertools.product(("server", "client"), cost_methods.METHODS, sweeps)
  return {
    "scale": scale,
    "sizes": base.described(),
    "sweeps": sweeps,
    "formulas": {
      name: method.formulas for name, method in cost_methods.METHODS.items()
    },
    "conventions": cost_show.CONVENTIONS,
    "rows": rows,
    "growth": [growth(rows, measured.empty, *case) for case in cases],
    "empty_call_seconds": measured.empty,
    "pace_seconds": measured.paces,
    "seconds": round(time.perf_counter() - started, 1),
    "device": jax.devices()[0].device_kind,
    "cores": os.cpu_count(),
    "versions": workdir.versions(),
    "git_revision": workdir.git_revision(),
  }


def rows_of(
  measured: cost_measure.Measured, axis: str, sizes: cost_methods.Sizes
) -> list[dict]:
  """Returns a row per method at one point."""
  rows = []
  for name in cost_methods.methods_at(sizes):
    training, client, server = (
      measured.programs[cost_measure.key(side, name, sizes)]
      for side in ("training", "client", "server")
    )
    method, sweep = cost_methods.METHODS[name], cost_methods.SWEEPS.get(axis)
    rows.append({
      "axis": axis,
      "at": sweep.size(sizes) if sweep else None,
      "method": name,
      "sizes": sizes.described(),
      # Other work on the machine only ever adds: the least is the cost.
      "server_seconds": min(server.seconds),
      "client_seconds": min(client.seconds),
      "training_seconds": min(training.seconds),
      "upload_bytes": client.output_bytes,
      "upload_models": client.output_bytes / (4 * sizes.p),
      "server_peak_bytes": server.peak_bytes,
      "client_peak_bytes": client.peak_bytes,
      "paper": method.paper(sizes),
      "operations": method.operations(sizes),
    })  # fmt: skip
  return rows


def growth(
  rows: list[dict], empty: float, side: str, method: str, axis: str
) -> dict:
  """Fits the exponent with which a time grows along an axis.

  Args:
    rows: of all points.
    empty: seconds of a call that does nothing.
    side: server or client.
    method: whose time.
    axis: the size that grows.

  Returns:
    The exponents: measured (None where calls are too short to tell, 0 where
    one program serves all sizes), of the paper's formula and of the operations
    of this code, both at the sizes of the fit.
  """
  at = [r for r in rows if (r["axis"], r["method"]) == (axis, method)]
  seconds = lambda row: row[f"{side}_seconds"]
  # One and the same program at all sizes does not grow, however short.
  if len({seconds(r) for r in at}) > 1:
    at = [r for r in at if seconds(r) > WELL_ABOVE * empty]
  at = at[-FIT_POINTS:]
  x = [r["at"] for r in at]
  return {
    "side": side,
    "method": method,
    "axis": axis,
    "fitted_at": x,
    "measured": _exponent(x, [seconds(r) for r in at]),
    "paper": _exponent(x, [r["paper"][side] for r in at]),
    "operations": _exponent(x, [r["operations"][side] for r in at]),
  }


def _exponent(x, y):
  """Returns the slope of log y over log x, None where it is undefined."""
  if len(x) < 2 or min(y) <= 0:
    return None
  if np.ptp(np.log(y)) < 1e-6:
    return 0.0
  return float(np.polyfit(np.log(x), np.log(y), 1)[0])


if __name__ == "__main__":
  launch.run(main)
