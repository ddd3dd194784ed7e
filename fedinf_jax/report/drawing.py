"""What the figures have in common: style, axes, legends, labels."""

import io
import math
from typing import Any
from typing import NamedTuple
import warnings

import matplotlib
import matplotlib.backends.backend_agg
import matplotlib.backends.backend_svg
import matplotlib.figure
import matplotlib.lines
import matplotlib.ticker
import numpy as np

from fedinf_jax import text as texts
from fedinf_jax.report import numbers

DPI = 110
WIDTH = 9.3
# Okabe and Ito's colours, which the colour-blind tell apart, without black (the
# truth) and yellow (too faint); a second cycle is dashed, a third dotted.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
DASHES = ("-", (0, (2.5, 1.5)), (0, (0.8, 1.2)))
HELPS, HURTS, MUTED = "#2166ac", "#b2182b", "#6b7280"
TRUTH = {"color": "#111827", "ls": (0, (4, 2)), "lw": 1.3, "zorder": 3}
STYLE: dict[Any, Any] = {
  "font.size": 9,
  "axes.titlesize": 9.5,
  "axes.titlelocation": "left",
  "axes.labelcolor": "#374151",
  "axes.edgecolor": "#9ca3af",
  "axes.spines.top": False,
  "axes.spines.right": False,
  "axes.grid": True,
  "axes.axisbelow": True,
  "grid.color": "#e5e7eb",
  "grid.linewidth": 0.7,
  "xtick.color": "#4b5563",
  "ytick.color": "#4b5563",
  "lines.linewidth": 1.7,
  "lines.solid_capstyle": "round",
  "legend.frameon": False,
  # Text stays text, and the same figure has the same bytes.
  "svg.fonttype": "none",
  "svg.hashsalt": "fedinf_jax",
  "figure.constrained_layout.h_pad": 0.06,
  "figure.constrained_layout.w_pad": 0.06,
}
# A log axis ends this far above the size of the truth, and holds as many
# decades at most: what lies above is wrong by any measure.
HEADROOM, DECADES = 100.0, 7


def figure_of(height: float, width: float = WIDTH) -> matplotlib.figure.Figure:
  """Returns an empty figure; sizes in inches."""
  figure = matplotlib.figure.Figure((width, height), DPI, layout="constrained")
  # Not pyplot, which keeps every figure alive in a global.
  matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
  return figure


class Image(NamedTuple):
  """A figure as files."""

  png: bytes
  svg: bytes


def image(figure: matplotlib.figure.Figure) -> Image:
  """Returns a figure as a PNG and as an SVG, laid out once."""
  png = io.BytesIO()
  with warnings.catch_warnings():
    # Ids may hold characters that the font lacks; they become boxes.
    warnings.filterwarnings("ignore", message="Glyph .* missing")
    # Not savefig, which draws everything twice.
    agg: Any = figure.canvas  # See `figure_of`.
    agg.print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")
    made = io.StringIO()
    canvas = matplotlib.backends.backend_svg.FigureCanvasSVG(figure)
    canvas.print_svg(made, metadata={"Date": None, "Creator": None})
  return Image(png.getvalue(), made.getvalue().encode())


def style_of(contents, name):
  """Returns the look of an estimator's lines, the same in every figure."""
  if name == "exact":
    return TRUTH
  cycle, i = divmod(contents.names.index(name), len(COLOURS))
  return {"color": COLOURS[i], "ls": DASHES[min(cycle, len(DASHES) - 1)]}


def block(axes, items, xlabel, ylabel):
  """Pairs axes with items; labels the outer ones, hides those left over."""
  columns = axes.shape[1]
  for i, ax in enumerate(axes.flat):
    if i >= len(items):
      ax.set_axis_off()
    elif i + columns >= len(items):
      ax.set_xlabel(xlabel)
      ax.tick_params(labelbottom=True)
    if i % columns == 0:
      ax.set_ylabel(ylabel)
  return list(zip(axes.flat, items, strict=False))


def trace(ax, x, y, **style):
  """Draws a line over rounds; if these are few, it shows where they are."""
  marker = {"marker": "o", "ms": 2.5} if len(x) < 15 else {}
  ax.plot(x, y, **marker, **style)
  ax.locator_params(axis="x", integer=True)


def legend(figure, contents, title=None, *, truth=None, labels=None):
  """Names every estimator above the panels."""
  entries = [
    ((labels or {}).get(name, name), style_of(contents, name))
    for name in contents.names
  ]
  key(figure, entries + ([(truth, TRUTH)] if truth else []), title)


def key(figure, entries, title=None):
  """Names lines above the panels; entries: (label, style)."""
  handles = [
    matplotlib.lines.Line2D([], [], label=short(label, 60), ms=4, **style)
    for label, style in entries
  ]
  lengths = [len(label) + 9 for label, _ in entries]
  room = int(14 * figure.get_figwidth())  # characters
  columns = max(1, room // max(lengths))
  if sum(lengths) <= room:
    columns = len(entries)
  rows = math.ceil(len(entries) / columns)
  figure.set_figheight(figure.get_figheight() + 0.19 * (rows - 1))
  figure.legend(
    handles=handles,
    loc="outside upper left",
    ncols=columns,
    title=title and short(title, 60),
    alignment="left",
    title_fontsize=9.5,
    handlelength=1.9,
  )


def log_axes(axes, lines, sizes):
  """Gives all the axes one log scale; returns where it ends at the top.

  Args:
    axes: to scale.
    lines: arrays of what is drawn on them.
    sizes: those of the truth, as far as it is known.
  """
  most = max((largest(v) for v in lines), default=0) or 1.0
  size = max((largest(v) for v in sizes), default=0)
  if not size:
    size = min((m for v in lines if (m := largest(v))), default=1.0)
  ceiling = min(most * 1.6, size * HEADROOM)
  above = [v[(v > 0) & np.isfinite(v)] for v in lines]
  positive = np.concatenate([*above, [ceiling / 10]])
  # Not the least: errors start from nothing.
  floor = max(np.quantile(positive, 0.03) / 2, ceiling / 10**DECADES)
  for ax in axes:
    # Limits first: a client never drawn has nothing a log scale could show.
    ax.set_ylim(floor, ceiling)
    ax.set_yscale("log", nonpositive="mask")
    # Minor ticks and mathtext would take most of the time of a figure.
    ax.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    if ceiling > 30 * floor:
      power = lambda value, _: numbers.power(round(math.log10(value)))
      ax.yaxis.set_major_formatter(power)
    else:
      ax.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
      ax.yaxis.set_major_formatter("{x:g}")
  return ceiling


def unit_of(size: float) -> tuple[str, float]:
  """Returns (words, factor) of a unit in which numbers are short."""
  exponent = math.floor(math.log10(size)) if size > 0 else 0
  if -2 < exponent < 4:
    return "", 1.0
  return f" / {numbers.power(exponent)}", 10.0**exponent


def largest(values: np.ndarray) -> float:
  """Returns the largest finite size, 0 if there is none."""
  return float(values.max(where=np.isfinite(values), initial=0.0))


def floats(values) -> np.ndarray:
  """Returns an array; None becomes NaN."""
  return np.array(list(values), float)


def short(text, length: int, *, keep_end: bool = False) -> str:
  """Returns `text` as matplotlib shows it literally, on one line.

  Args:
    text: from the data, or anything else.
    length: characters that there is room for.
    keep_end: what is too long loses its beginning (paths), not its end.
  """
  line = " ".join(texts.printable(text).split())
  if len(line) > length:
    kept = length - 1
    line = "…" + line[-kept:] if keep_end else line[:kept] + "…"
  return line.replace("$", r"\$")
