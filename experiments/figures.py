"""Draws the figures of a report from what the files of a workdir hold.

Every function takes the contents of a workdir (`report.Contents`) and returns
a matplotlib Figure, or None where the run lacks what the figure shows.
"""

import io
import itertools
import math
import re
import warnings

import matplotlib
import matplotlib.backends.backend_agg
import matplotlib.figure
import matplotlib.ticker
import numpy as np

from experiments import report_page

DPI = 110
WIDTH = 9.3
# Okabe and Ito's colours, which the colour-blind tell apart, without black (the
# truth) and yellow (too faint); a second turn is dashed, a third dotted.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
TURNS = ("-", (0, (2.5, 1.5)), (0, (0.8, 1.2)))
HELPS, HURTS, MUTED = "#2166ac", "#b2182b", "#6b7280"
TRUTH = {"color": "#111827", "ls": (0, (4, 2)), "lw": 1.3, "zorder": 3}
STYLE = {
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
  "figure.constrained_layout.h_pad": 0.06,
  "figure.constrained_layout.w_pad": 0.06,
}
MAX_LAYERS, MAX_CLIENTS, MAX_SCATTERS = 8, 6, 6
# A heat map of more clients than ALL_ROWS shows this many of either end.
ALL_ROWS, END_ROWS = 100, 30
# A log axis ends this far above the size of the truth, and holds as many
# decades at most: what lies above is wrong by any measure.
HEADROOM, DECADES = 100.0, 7


def pngs(run):
  """Returns name → bytes of the PNG, for every figure the run allows."""
  with matplotlib.rc_context(STYLE):
    drawn = ((name, draw(run)) for name, draw in FIGURES.items())
    return {name: _png(figure) for name, figure in drawn if figure}


def learning_curve(run):
  """Draws test loss and accuracy over rounds."""
  if not run.metrics:
    return None
  figure = _figure(2.7)
  for ax, field in zip(
    figure.subplots(1, 2), ("loss", "accuracy"), strict=True
  ):
    values = _floats(line[field] for line in run.metrics)
    _trace(ax, run.rounds, values, color="#111827")
    ax.set(title=f"Test {field}", xlabel="round")
  return figure


def layers(run):
  """Draws Fig. 1: error and norm of one client's FIP, layer by layer."""
  tracked = _moved(run)
  if not tracked:
    return None
  client = next(iter(_replayed(tracked) or tracked))
  traces = tracked[client]
  shown = _largest_layers(traces)
  kinds = {"norm": "norm ‖ε‖"}
  if _replayed({client: traces}):
    kinds = {"error": "error ‖ε − ε*‖", **kinds}
  columns = min(4, len(shown))
  bands = math.ceil(len(shown) / columns)
  figure = _figure(0.5 + 1.8 * bands * len(kinds))
  axes = figure.subplots(
    bands * len(kinds), columns, squeeze=False, sharex=True
  )
  truth = [t["exact"]["norm"] for t in traces.values() if "exact" in t]
  for i, (kind, label) in enumerate(kinds.items()):
    block = _block(axes[i * bands : (i + 1) * bands], shown, "round", label)
    lines = []
    for ax, layer in block:
      ax.set_title(_short(layer, 96 // columns, keep_end=True))
      for name, trace in traces[layer].items():
        if not (kind == "error" and name == "exact"):
          lines.append(trace[kind])
          _trace(ax, trace["round"], trace[kind], **_style(run, name))
    _log_axes([ax for ax, _ in block], lines, truth)
  _legend(figure, run, f"Client {client}", truth="exact ε*" if truth else None)
  return figure


def distance(run):
  """Draws Fig. 2: how far estimated FIP is from exact FIP, over rounds."""
  tracked = _replayed(_moved(run))
  if not tracked:
    return None
  clients = list(tracked)[:MAX_CLIENTS]
  columns = min(3, len(clients))
  rows = math.ceil(len(clients) / columns)
  figure = _figure(0.5 + 2.4 * rows)
  axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
  block = _block(axes, clients, "round", "distance ‖ε − ε*‖")
  lines, sizes = {}, []
  for ax, client in block:
    ax.set_title(f"Client {_short(client, 24)}")
    rounds, size = _whole(tracked[client], "exact", "norm")
    _trace(ax, rounds, size, **TRUTH)
    sizes.append(size)
    for name in run.names:
      rounds, far = _whole(tracked[client], name, "error")
      lines.setdefault(name, []).append(far)
      _trace(ax, rounds, far, **_style(run, name))
  everything = [*sizes, *itertools.chain(*lines.values())]
  top = _log_axes([ax for ax, _ in block], everything, sizes)
  most = {name: max(map(_largest, far)) for name, far in lines.items()}
  labels = {n: f"{n} (up to {m:.0e})" for n, m in most.items() if m > top}
  _legend(figure, run, truth="size of exact FIP, ‖ε*‖", labels=labels)
  return figure


def pearson(run):
  """Draws Fig. 3 a–c: agreement of estimated with exact FIL over rounds."""
  if not run.has_exact or not run.metrics or not run.names:
    return None
  figure = _figure(3.1)
  ax = figure.subplots()
  ax.axhline(1, color=MUTED, lw=0.9)
  lowest, labels = 0, {}
  for name in run.names:
    values = _floats(
      line["estimators"][name]["fil_pearson"] for line in run.metrics
    )
    _trace(ax, run.rounds, values, **_style(run, name))
    if np.isfinite(values).any():
      lowest = min(lowest, np.nanmin(values))
    if np.isfinite(values[-1]):
      labels[name] = f"{name}: {report_page.fixed(values[-1])}"
  ax.set(xlabel="round", ylabel="Pearson's r of FIL")
  ax.set_ylim(lowest - 0.04, 1.04)
  _legend(figure, run, "At the last round", labels=labels)
  return figure


def scatter(run):
  """Draws Fig. 3 d–f: estimated against exact FIL at the last round."""
  names = run.names[:MAX_SCATTERS]
  if not run.has_exact or not names:
    return None
  exact = run.columns["fil_exact"]
  low, high = min(0.0, np.nanmin(exact)), max(0.0, np.nanmax(exact))
  unit, factor = _unit(max(high, -low))
  low, high = low / factor, high / factor
  margin = 0.12 * (high - low) or 1.0
  limits = (low - margin, high + margin)
  columns = len(names) if len(names) <= 4 else 3
  rows = math.ceil(len(names) / columns)
  # One or two panels need not be huge.
  size = WIDTH / max(3, columns)
  figure = _figure((size + 0.1) * rows, width=size * columns)
  axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
  labels = (f"exact FIL{unit}", f"estimated FIL{unit}")
  for ax, name in _block(axes, names, *labels):
    estimate = run.columns[f"fil_{name}"]
    both = np.isfinite(exact) & np.isfinite(estimate)
    ax.plot(limits, limits, color=MUTED, lw=0.9, ls=(0, (4, 2)))
    outside = _dots(
      ax,
      exact[both] / factor,
      estimate[both] / factor,
      limits,
      _style(run, name)["color"],
    )
    r = run.summary["estimators"][name]["fil_pearson"]
    title = _short(name, 60 // columns) + f", r = {report_page.fixed(r)}"
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


ENDS = {
  "harmful": ("most harmful removed", {"color": HURTS, "marker": "o"}),
  "helpful": ("most helpful removed", {"color": HELPS, "marker": "s"}),
  "random": ("removed at random", {"color": MUTED, "marker": "D"}),
}
WAYS = {
  "held_out": "Held out: chosen on one part, measured on another",
  "one_set": "One set for both, as in the paper",
}


def cleanse_end(run):
  """Draws Fig. 4: the model at the end against the share of clients removed."""

  def panel(ax, curves, field):
    start = next((c[field][-1] for c in curves if c["end"] == "none"), None)
    if start is not None:
      ax.axhline(start, **TRUTH)
    for end, (_, style) in ENDS.items():
      mine = [c for c in curves if c["end"] == end]
      x = sorted({c["fraction"] for c in mine})
      runs = [
        _floats(c[field][-1] for c in mine if c["fraction"] == f) for f in x
      ]
      spread = [np.std(v, ddof=1) if len(v) > 1 else 0 for v in runs]
      y = [np.mean(v) for v in runs]
      if start is not None:
        x, y, spread = [0, *x], [start, *y], [0, *spread]
      bars = spread if any(spread) else None
      ax.errorbar(x, y, bars, ms=4, lw=1.6, elinewidth=1, capsize=2.5, **style)
    ax.xaxis.set_major_formatter(lambda v, _: f"{v:.0%}")

  return _cleanse(run, panel, "clients removed", "at the end")


def cleanse_rounds(run):
  """Draws Fig. 4 over the rounds after the removal, for one share removed."""
  if not run.cleanse:
    return None
  shares = sorted({c["fraction"] for c in run.cleanse["curves"]} - {0})
  if not shares:
    return None
  share = shares[len(shares) // 2]

  def panel(ax, curves, field):
    for c in curves:
      if c["end"] == "none":
        ax.plot(c["rounds"], _floats(c[field]), **TRUTH)
    for end, (_, style) in ENDS.items():
      mine = [c for c in curves if (c["end"], c["fraction"]) == (end, share)]
      if mine:
        mean = np.mean([_floats(c[field]) for c in mine], 0)
        ax.plot(mine[0]["rounds"], mean, color=style["color"])

  return _cleanse(run, panel, "round", f"{share:.0%} removed")


def _cleanse(run, panel, xlabel, what):
  """Lays out loss and accuracy (rows) for both ways (columns)."""
  if not run.cleanse or not run.cleanse["curves"]:
    return None
  curves = run.cleanse["curves"]
  ways = [way for way in WAYS if any(c["way"] == way for c in curves)]
  figure = _figure(5.0, width=WIDTH if len(ways) > 1 else WIDTH / 2)
  axes = figure.subplots(2, len(ways), squeeze=False, sharex=True, sharey="row")
  for row, field, score in zip(
    axes, ("loss", "accuracy"), ("fil", "fia"), strict=True
  ):
    # The paper scores by what it then measures.
    scores = {c["score"] for c in curves}
    score = score if score in scores else "fil"
    for ax, way in zip(row, ways, strict=True):
      mine = [c for c in curves if c["way"] == way]
      mine = [c for c in mine if c["score"] in (score, "random", "none")]
      panel(ax, mine, field)
    row[0].set_ylabel(f"test {field}, {what}\n(chosen by {score.upper()})")
  for ax, way in zip(axes[0], ways, strict=True):
    ax.set_title(WAYS[way])
  for ax in axes[-1]:
    ax.set_xlabel(xlabel)
  styles = [(label, style) for label, style in ENDS.values()]
  _key(figure, [*styles, ("nobody removed", TRUTH)])
  return figure


def debug(run):
  """Draws how well each score finds the clients that were made bad."""
  if not run.debug:
    return None
  scores = run.debug["scores"]
  names = list(scores)
  chance = len(run.debug["bad"]) / max(1, len(run.ids))
  figure = _figure(0.9 + 0.3 * len(names))
  axes = figure.subplots(1, 2, sharey=True)
  for ax, field, title, guess in zip(
    axes,
    ("precision_at_k", "auroc"),
    (f"Precision among the {len(run.debug['bad'])} worst", "AUROC"),
    (chance, 0.5),
    strict=True,
  ):
    values = _floats(scores[name][field] for name in names)
    bars = ax.barh(
      range(len(names)),
      np.nan_to_num(values),
      height=0.62,
      color=[_score_colour(run, name) for name in names],
    )
    ax.bar_label(
      bars,
      ["–" if np.isnan(v) else f"{v:.2f}" for v in values],
      padding=3,
      color="#374151",
      bbox={"fc": "white", "ec": "none", "pad": 1},
    )
    ax.tick_params(axis="y", length=0)
    ax.axvline(guess, **{**TRUTH, "zorder": 2})
    ax.set(xlim=(0, 1.12), title=title, xticks=(0, 0.25, 0.5, 0.75, 1))
    ax.grid(axis="y", visible=False)
  axes[0].set_yticks(range(len(names)), [_short(name, 28) for name in names])
  axes[0].invert_yaxis()
  _key(figure, [("by chance", TRUTH)])
  return figure


def heat_map(run):
  """Draws FIL of every client (rows) over rounds (columns)."""
  if run.ranked_by not in run.history:
    return None
  values = run.history[run.ranked_by].T
  order = np.argsort(-run.ranking, kind="stable")
  order = order[np.isfinite(run.ranking[order])]
  if not len(order):
    return None
  labels = [_short(run.ids[k], 18) for k in order]
  image = values[order]
  if len(order) > ALL_ROWS:
    gap = np.full((1, image.shape[1]), np.nan)
    image = np.concatenate([image[:END_ROWS], gap, image[-END_ROWS:]])
    left_out = len(order) - 2 * END_ROWS
    gap_label = [f"{left_out} more"]
    labels = labels[:END_ROWS] + gap_label + labels[-END_ROWS:]
  figure = _figure(1.1 + 0.135 * len(image))
  ax = figure.subplots()
  scale, ticks = _diverging(image)
  colours = matplotlib.colormaps["RdBu"].with_extremes(bad="white")
  drawn = ax.imshow(image, colours, scale, aspect="auto")
  ax.set_yticks(range(len(image)), labels, fontsize=6.5)
  at = range(len(run.rounds) - 1, -1, -math.ceil(len(run.rounds) / 12))
  ax.set_xticks(at, [str(run.rounds[i]) for i in at])
  of = "exact FIL" if run.ranked_by == "exact" else f"FIL by {run.ranked_by}"
  bar = figure.colorbar(
    drawn,
    location="top",
    aspect=60,
    pad=0.01,
    shrink=0.6,
    extend="both",
    extendfrac=0.02,
    ticks=ticks,
    format=lambda v, _: f"{v:+g}".replace("-", "−") if v else "0",
    label=f"← hurts        {_short(of, 30)}        helps →",
  )
  bar.minorticks_off()
  for part in (ax, bar.ax):
    part.grid(visible=False)
    part.tick_params(length=0)
    part.spines[:].set_visible(False)
  ax.set_xlabel("round")
  return figure


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


FIGURES = {
  "learning_curve": learning_curve,
  "fig1_layers": layers,
  "fig2_distance": distance,
  "fig3_pearson": pearson,
  "fig3_scatter": scatter,
  "fig4_cleanse": cleanse_end,
  "fig4_cleanse_rounds": cleanse_rounds,
  "debug": debug,
  "heat_map": heat_map,
}


def _figure(height, width=WIDTH):
  figure = matplotlib.figure.Figure((width, height), DPI, layout="constrained")
  # Not pyplot, which keeps every figure alive in a global.
  matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
  return figure


def _png(figure):
  file = io.BytesIO()
  with warnings.catch_warnings():
    # Ids may hold characters that the font lacks; they become boxes.
    warnings.filterwarnings("ignore", message="Glyph .* missing")
    # Not savefig, which draws everything twice.
    figure.canvas.print_png(file, metadata={"Software": None})
  return file.getvalue()


def _style(run, name):
  """Returns the look of an estimator's lines, the same in every figure."""
  if name == "exact":
    return TRUTH
  turn, i = divmod(run.names.index(name), len(COLOURS))
  return {"color": COLOURS[i], "ls": TURNS[min(turn, len(TURNS) - 1)]}


def _score_colour(run, score):
  name = re.sub("^fi[la]_", "", score)
  known = name == "exact" or name in run.names
  return _style(run, name)["color"] if known else "#9ca3af"


def _block(axes, items, xlabel, ylabel):
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


def _trace(ax, x, y, **style):
  # A run of few evaluated rounds shows where they are.
  marker = {"marker": "o", "ms": 2.5} if len(x) < 15 else {}
  ax.plot(x, y, **marker, **style)
  ax.locator_params(axis="x", integer=True)


def _legend(figure, run, title=None, *, truth=None, labels=None):
  """Names every estimator above the panels."""
  entries = [
    ((labels or {}).get(name, name), _style(run, name)) for name in run.names
  ]
  _key(figure, entries + ([(truth, TRUTH)] if truth else []), title)


def _key(figure, entries, title=None):
  handles = [
    matplotlib.lines.Line2D([], [], label=_short(label, 60), ms=4, **style)
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
    title=title and _short(title, 60),
    alignment="left",
    title_fontsize=9.5,
    handlelength=1.9,
  )


def _log_axes(axes, lines, sizes):
  """Gives all the axes one log scale; returns where it ends at the top."""
  most = max((_largest(v) for v in lines), default=0) or 1.0
  size = max((_largest(v) for v in sizes), default=0)
  if not size:
    size = min((m for v in lines if (m := _largest(v))), default=1.0)
  ceiling = min(most * 1.6, size * HEADROOM)
  positive = [v[(v > 0) & np.isfinite(v)] for v in lines]
  positive = np.concatenate([*positive, [ceiling / 10]])
  # Not the least: errors start from nothing.
  floor = max(np.quantile(positive, 0.03) / 2, ceiling / 10**DECADES)
  for ax in axes:
    # Limits first: a client never drawn has nothing a log scale could show.
    ax.set_ylim(floor, ceiling)
    ax.set_yscale("log", nonpositive="mask")
    # Minor ticks and mathtext would take most of the time of a figure.
    ax.yaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    if ceiling > 30 * floor:
      ax.yaxis.set_major_formatter(lambda v, _: _power(round(math.log10(v))))
    else:
      ax.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
      ax.yaxis.set_major_formatter("{x:g}")
  return ceiling


def _power(exponent):
  return "10" + str(exponent).translate(
    str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
  )


def _unit(largest):
  """Returns (words, factor) of a unit in which numbers are short."""
  exponent = math.floor(math.log10(largest)) if largest > 0 else 0
  if -2 < exponent < 4:
    return "", 1.0
  return f" / {_power(exponent)}", 10.0**exponent


def _largest(values):
  finite = values[np.isfinite(values)]
  return float(finite.max()) if len(finite) else 0.0


def _whole(traces, name, kind):
  """Returns (rounds, norm over all layers) of one client's FIP or its error."""
  mine = [layer[name] for layer in traces.values() if name in layer]
  squares = sum(trace[kind] ** 2 for trace in mine)
  return mine[0]["round"], np.sqrt(squares)


def _moved(run):
  """Returns the tracked clients that were drawn: the others have no FIP."""
  return {
    client: traces
    for client, traces in run.tracked.items()
    if any(
      _largest(t["norm"]) for layer in traces.values() for t in layer.values()
    )
  }


def _replayed(tracked):
  """Returns those of the clients whose exact FIP is known."""
  known = lambda layer: "exact" in layer and _largest(layer["exact"]["norm"])
  return {
    client: traces
    for client, traces in tracked.items()
    if any(known(layer) for layer in traces.values())
  }


def _largest_layers(traces):
  """Returns the layers to show, in the model's order."""
  size = lambda layer: max(_largest(t["norm"]) for t in traces[layer].values())
  kept = sorted(traces, key=size, reverse=True)[:MAX_LAYERS]
  return [layer for layer in traces if layer in kept]


def _floats(values):
  return np.array(list(values), float)  # None becomes NaN.


def _short(text, length, keep_end=False):
  """Returns `text` as matplotlib shows it literally, on one line.

  Args:
    text: from the data, or anything else.
    length: characters that there is room for.
    keep_end: what is too long loses its beginning (paths), not its end.
  """
  text = " ".join(str(text).split())
  if len(text) > length:
    kept = length - 1
    text = "…" + text[-kept:] if keep_end else text[:kept] + "…"
  return text.replace("$", r"\$")
