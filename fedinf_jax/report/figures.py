"""Draws the figures of a report from the contents of a workdir.

Every figure is a function of `workdir.Contents` that returns a matplotlib
Figure, or None where the run lacks what the figure shows. Those that need no
more than a run in memory has take that, too: `scatter(run, test=(x, y))`.
"""

import math
import re

import matplotlib
import matplotlib.colors
import numpy as np

from fedinf_jax import text
from fedinf_jax.report import cleanse_figures
from fedinf_jax.report import drawing
from fedinf_jax.report import numbers
from fedinf_jax.report import of_run
from fedinf_jax.report import tracked_figures
from fedinf_jax.report import verdict
from fedinf_jax.running import workdir

MAX_SCATTERS = 6
RING = {"s": 55, "facecolors": "none", "edgecolors": "#111827", "lw": 0.8}
# A heat map of more clients than ALL_ROWS shows END_ROWS of either end.
ALL_ROWS, END_ROWS = 100, 30


def images(contents: workdir.Contents) -> dict[str, drawing.Image]:
  """Returns name → files, for every figure of FIGURES the run allows.

  Examples:
    >>> several = fi.report.measured(run, test=test)
    >>> "fig3_scatter" in fi.report.figures.images(several)
    True
  """
  with matplotlib.rc_context(drawing.STYLE):
    drawn = ((name, draw(contents)) for name, draw in FIGURES.items())
    return {name: drawing.image(figure) for name, figure in drawn if figure}


def pngs(contents: workdir.Contents) -> dict[str, bytes]:
  """Returns name → bytes of the PNG alone.

  Examples:
    >>> several = fi.report.measured(run, test=test)
    >>> fi.report.figures.pngs(several)["fig3_scatter"][1:4]
    b'PNG'
  """
  return {name: image.png for name, image in images(contents).items()}


@of_run.either("an evaluated round")
def learning_curve(contents):
  """Draws test loss and accuracy over rounds.

  Examples:
    >>> seen = fi.simulate(
    ...   model, data, fed, estimators=ours, exact=True, evaluate=test
    ... )
    >>> type(fi.report.figures.learning_curve(seen, test=test)).__name__
    'Figure'
  """
  figure = drawing.figure_of(2.7)
  for ax, field in zip(
    figure.subplots(1, 2), ("loss", "accuracy"), strict=True
  ):
    values = drawing.floats(line[field] for line in contents.metrics)
    drawing.trace(ax, contents.rounds, values, color="#111827")
    ax.set(title=f"Test {field}", xlabel="round")
  return figure


@of_run.either("estimators, and removals that were replayed: exact=")
def pearson(contents):
  """Draws Fig. 3 a–c: agreement of estimated with exact FIL over rounds.

  Examples:
    >>> seen = fi.simulate(
    ...   model, data, fed, estimators=ours, exact=True, evaluate=test
    ... )
    >>> type(fi.report.figures.pearson(seen, test=test)).__name__
    'Figure'
  """
  if not contents.has_exact or not contents.names:
    return None
  figure = drawing.figure_of(3.1)
  ax = figure.subplots()
  ax.axhline(1, color=drawing.MUTED, lw=0.9)
  lowest, labels = 0, {}
  for name in contents.names:
    values = drawing.floats(
      line["estimators"][name]["fil_pearson"] for line in contents.metrics
    )
    # A pass backwards is evaluated at some of the rounds.
    shown = np.isfinite(values) | (name in contents.with_eps)
    rounds = np.array(contents.rounds)[shown]
    style = drawing.style_of(contents, name)
    drawing.trace(ax, rounds, values[shown], **style)
    if np.isfinite(values).any():
      lowest = min(lowest, np.nanmin(values))
    if np.isfinite(values[-1]):
      labels[name] = f"{name}: {numbers.correlation(values[-1])}"
  ax.set(xlabel="round", ylabel="Pearson's r of FIL")
  ax.set_ylim(lowest - 0.04, 1.04)
  title = "At the last round"
  if contents.screened_by:
    title += f", over the extremes by {contents.screened_by} only"
  drawing.legend(figure, contents, title, labels=labels)
  return figure


@of_run.either("estimators, and removals that were replayed: exact=")
def scatter(contents):
  """Draws Fig. 3 d–f: estimated against exact FIL at the last round.

  Examples:
    >>> fi.report.figures.scatter(run, test=test).axes[0].get_xlabel()
    'exact FIL'
  """
  names = contents.names[:MAX_SCATTERS]
  if not contents.has_exact or not names:
    return None
  exact = contents.columns["fil_exact"]
  low, high = min(0.0, np.nanmin(exact)), max(0.0, np.nanmax(exact))
  unit, factor = drawing.unit_of(max(high, -low))
  low, high = low / factor, high / factor
  margin = 0.12 * (high - low) or 1.0
  limits = (low - margin, high + margin)
  columns = len(names) if len(names) <= 4 else 3
  rows = math.ceil(len(names) / columns)
  # One or two panels need not be huge.
  size = drawing.WIDTH / max(3, columns)
  figure = drawing.figure_of((size + 0.1) * rows, width=size * columns)
  axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
  labels = (f"exact FIL{unit}", f"estimated FIL{unit}")
  found = verdict.verdict(contents)
  named = np.isin(np.arange(len(exact)), (*found.helps, *found.hurts))
  for ax, name in drawing.block(axes, names, *labels):
    estimate = contents.columns[f"fil_{name}"]
    both = np.isfinite(exact) & np.isfinite(estimate)
    ax.plot(limits, limits, color=drawing.MUTED, lw=0.9, ls=(0, (4, 2)))
    ringed = both & named
    ax.scatter(
      exact[ringed] / factor,
      np.clip(estimate[ringed] / factor, *limits),
      **RING,
    )
    outside = _dots(
      ax,
      exact[both] / factor,
      estimate[both] / factor,
      limits,
      drawing.style_of(contents, name)["color"],
    )
    r = contents.summary["estimators"][name]["fil_pearson"]
    title = (
      drawing.short(name, 60 // columns) + f", r = {numbers.correlation(r)}"
    )
    ax.set_title(f"{title}\n{outside}")
    ax.set(xlim=limits, ylim=limits, box_aspect=1)
    ax.locator_params(nbins=5)
  return figure


def _dots(ax, x, y, limits, colour):
  """Draws a dot for each client, blow-ups on the edge they left through.

  Returns:
    How many left, in words.
  """
  low, high = limits
  edge = 0.03 * (high - low)
  for where, at, marker in (
    ((y >= low) & (y <= high), y, "o"),
    (y > high, np.full_like(y, high - edge), "^"),
    (y < low, np.full_like(y, low + edge), "v"),
  ):
    ax.scatter(x[where], at[where], 15, colour, marker=marker, alpha=0.6, lw=0)
  outside = int(((y < low) | (y > high)).sum())
  return f"{outside} of {len(y)} outside" if outside else f"all {len(y)} inside"


def debug(contents):
  """Draws how well each score finds the clients that were made bad.

  Examples:
    >>> several = fi.report.measured(run, test=test)
    >>> fi.report.figures.debug(several) is None  # Nobody was made bad.
    True
  """
  if not contents.debug:
    return None
  scores, count = contents.debug["scores"], len(contents.debug["bad"])
  figure = drawing.figure_of(0.9 + 0.3 * len(scores))
  axes = figure.subplots(1, 2, sharey=True)
  colours = [_score_colour(contents, name) for name in scores]
  for ax, field, title, chance in (
    (
      axes[0],
      "precision_at_k",
      f"Precision among the {count} worst",
      count / max(1, len(contents.ids)),
    ),
    (axes[1], "auroc", "AUROC", 0.5),
  ):
    values = drawing.floats(score[field] for score in scores.values())
    _bars(ax, values, colours)
    ax.axvline(chance, **{**drawing.TRUTH, "zorder": 2})
    ax.set(xlim=(0, 1.12), title=title, xticks=(0, 0.25, 0.5, 0.75, 1))
  labels = [drawing.short(name, 28) for name in scores]
  axes[0].set_yticks(range(len(scores)), labels)
  axes[0].invert_yaxis()
  drawing.key(figure, [("by chance", drawing.TRUTH)])
  return figure


def _bars(ax, values, colours):
  """Draws a bar per value, with its number beside it."""
  at = range(len(values))
  bars = ax.barh(at, np.nan_to_num(values), height=0.62, color=colours)
  ax.bar_label(
    bars,
    [numbers.fixed(value, 2) for value in values],
    padding=3,
    color="#374151",
    bbox={"fc": "white", "ec": "none", "pad": 1},
  )
  ax.tick_params(axis="y", length=0)
  ax.grid(axis="y", visible=False)


def _score_colour(contents, score):
  name = re.sub("^fi[la]_", "", score)
  known = name == "exact" or name in contents.names
  return drawing.style_of(contents, name)["color"] if known else "#9ca3af"


@of_run.either("an estimator, or removals that were replayed: exact=")
def heat_map(contents):
  """Draws FIL of every client (rows) over rounds (columns).

  Examples:
    >>> seen = fi.simulate(
    ...   model, data, fed, estimators=ours, exact=True, evaluate=test
    ... )
    >>> type(fi.report.figures.heat_map(seen, test=test)).__name__
    'Figure'
  """
  found = verdict.verdict(contents)
  order = np.argsort(-found.fil, kind="stable")
  order = order[np.isfinite(found.fil[order])]
  if found.ranked_by not in contents.history or not len(order):
    return None
  image = contents.history[found.ranked_by].T[order]
  rounds = np.array(contents.rounds)
  if found.ranked_by not in ("exact", *contents.with_eps):
    known = np.isfinite(image).any(0)
    image, rounds = image[:, known], rounds[known]
  labels = [drawing.short(text.escaped(contents.ids[k]), 18) for k in order]
  if len(order) > ALL_ROWS:
    gap = np.full((1, image.shape[1]), np.nan)
    image = np.concatenate([image[:END_ROWS], gap, image[-END_ROWS:]])
    gap_label = [f"{len(order) - 2 * END_ROWS} more"]
    labels = labels[:END_ROWS] + gap_label + labels[-END_ROWS:]
  figure = drawing.figure_of(1.1 + 0.135 * len(image))
  ax = figure.subplots()
  scale, ticks = _diverging(image)
  colours = matplotlib.colormaps["RdBu"].with_extremes(bad="white")
  drawn = ax.imshow(image, colours, scale, aspect="auto")
  ax.set_yticks(range(len(image)), labels, fontsize=6.5)
  at = range(len(rounds) - 1, -1, -math.ceil(len(rounds) / 12))
  ax.set_xticks(at, [str(rounds[i]) for i in at])
  ax.set_xlabel("round")
  is_exact = found.ranked_by == "exact"
  bar = _colour_bar(
    figure,
    drawn,
    ticks,
    "exact FIL" if is_exact else f"FIL by {found.ranked_by}",
  )
  for part in (ax, bar.ax):
    part.grid(visible=False)
    part.tick_params(length=0)
    part.spines[:].set_visible(False)
  return figure


def _colour_bar(figure, drawn, ticks, title):
  bar = figure.colorbar(
    drawn,
    location="top",
    aspect=60,
    pad=0.01,
    shrink=0.6,
    extend="both",
    extendfrac=0.02,
    ticks=ticks,
    format=lambda value, _: numbers.signed(value),
    label=f"← hurts        {drawing.short(title, 30)}        helps →",
  )
  bar.minorticks_off()
  return bar


def _diverging(values):
  """Returns a colour scale with 0 in the middle, and its ticks.

  A few clients matter far more than the others. So the scale is nearly
  logarithmic, and ends where 2 % of the cells lie beyond it.
  """
  sizes = np.abs(values[np.isfinite(values)])
  top = float(np.quantile(sizes, 0.98)) or float(sizes.max()) or 1.0
  middle = min(top, float(np.median(sizes[sizes > 0])) if sizes.any() else top)
  scale = matplotlib.colors.AsinhNorm(middle, vmin=-top, vmax=top)
  unit = 10.0 ** math.floor(math.log10(top))
  ticks = [math.floor(top / unit) * unit]
  if top > 5 * middle:
    ticks.append(ticks[0] / 10)
  return scale, [*(-t for t in ticks), 0.0, *ticks]


# Those that a report keeps as files; the page draws the others by itself.
FIGURES = {
  "fig1_layers": tracked_figures.layers,
  "fig2_distance": tracked_figures.distance,
  "fig3_pearson": pearson,
  "fig3_scatter": scatter,
  "fig4_cleanse": cleanse_figures.at_the_end,
  "fig4_cleanse_rounds": cleanse_figures.over_rounds,
  "debug": debug,
}
