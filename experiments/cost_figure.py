"""The figure of `experiments.cost`: how costs grow with each size."""

import matplotlib
import numpy as np

from experiments import cost_methods
from fedinf_jax.report import drawing

METHODS = cost_methods.METHODS
# Quantity of a row, its label, and the formula that it is compared with.
PANELS = (
  ("server_seconds", "server, per round, s", "server"),
  ("client_seconds", "client, beside training, s", "client"),
  ("upload_models", "upload, in models", None),
)


@matplotlib.rc_context(drawing.STYLE)
def png(content: dict) -> bytes:
  """Draws growth: a row of panels per quantity, a column per size."""
  rows, sweeps = content["rows"], content["sweeps"]
  figure = drawing.figure_of(7.6, width=2.6 * max(2, len(sweeps)))
  axes = figure.subplots(
    len(PANELS), len(sweeps), squeeze=False, sharex="col", sharey="row"
  )
  for line, (quantity, label, formula) in zip(axes, PANELS, strict=True):
    for ax, axis in zip(line, sweeps, strict=True):
      _panel(ax, [r for r in rows if r["axis"] == axis], quantity, formula)
    line[0].set_ylabel(label)
  for ax, axis in zip(axes[-1], sweeps, strict=True):
    ax.set_xlabel(cost_methods.SWEEPS[axis].title)
  entries = [
    (f"{name}: {method.title}", _style(name))
    for name, method in METHODS.items()
  ]
  dotted = {"color": drawing.MUTED, "ls": ":", "lw": 1.1}
  entries.append(("the paper's formula, through the last point", dotted))
  drawing.key(figure, entries)
  return drawing.image(figure).png


def _style(name):
  colour = drawing.COLOURS[list(METHODS).index(name)]
  # Ours lies on the paper's where they upload the same.
  return {"color": colour, "ls": "--" if name == cost_methods.OURS else "-"}


def _panel(ax, rows, quantity, formula):
  """Draws the methods' measurements, and formulas through the last of them."""
  for name in METHODS:
    mine = [r for r in rows if r["method"] == name]
    x, y = [r["at"] for r in mine], np.array([r[quantity] for r in mine])
    if y.all():
      ax.plot(x, y, marker="o", ms=3.5, **_style(name))
    if formula:
      predicted = np.array([r["paper"][formula] for r in mine])
      if predicted.all():
        through = predicted * (y[-1] / predicted[-1])
        ax.plot(x, through, **{**_style(name), "ls": ":", "lw": 1.1})
  ticks = sorted({r["at"] for r in rows})
  ax.set(xscale="log", yscale="log")
  ax.set_xticks(ticks, map(str, ticks))
  ax.xaxis.minorticks_off()
