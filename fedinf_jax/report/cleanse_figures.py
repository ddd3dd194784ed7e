"""Fig. 4: training continued without some of the clients."""

import numpy as np

from fedinf_jax.report import drawing
from fedinf_jax.report import numbers

ENDS = {
  "harmful": ("most harmful removed", {"color": drawing.HURTS, "marker": "o"}),
  "helpful": ("most helpful removed", {"color": drawing.HELPS, "marker": "s"}),
  "random": ("removed at random", {"color": drawing.MUTED, "marker": "D"}),
}
WAYS = {
  "held_out": "Held out: chosen on one part, measured on another",
  "one_set": "One set for both, as in the paper",
}


def at_the_end(contents):
  """Draws Fig. 4: the model at the end against the share of clients removed."""

  def panel(ax, curves, field):
    start = next((c[field][-1] for c in curves if c["end"] == "none"), None)
    if start is not None:
      ax.axhline(start, **drawing.TRUTH)
    for end, (_, style) in ENDS.items():
      mine = [c for c in curves if c["end"] == end]
      x = sorted({c["fraction"] for c in mine})
      runs = [
        drawing.floats(c[field][-1] for c in mine if c["fraction"] == share)
        for share in x
      ]
      spread = [np.std(v, ddof=1) if len(v) > 1 else 0 for v in runs]
      y = [np.mean(v) for v in runs]
      if start is not None:
        x, y, spread = [0, *x], [start, *y], [0, *spread]
      bars = spread if any(spread) else None
      ax.errorbar(x, y, bars, ms=4, lw=1.6, elinewidth=1, capsize=2.5, **style)
    ax.xaxis.set_major_formatter(lambda value, _: numbers.share(value))

  return _panels(contents, panel, "clients removed", "at the end")


def over_rounds(contents):
  """Draws Fig. 4 over the rounds after the removal, for one share removed."""
  if not contents.cleanse:
    return None
  shares = sorted({c["fraction"] for c in contents.cleanse["curves"]} - {0})
  if not shares:
    return None
  share = shares[len(shares) // 2]

  def panel(ax, curves, field):
    for c in curves:
      if c["end"] == "none":
        ax.plot(c["rounds"], drawing.floats(c[field]), **drawing.TRUTH)
    for end, (_, style) in ENDS.items():
      mine = [c for c in curves if (c["end"], c["fraction"]) == (end, share)]
      if mine:
        mean = np.mean([drawing.floats(c[field]) for c in mine], 0)
        ax.plot(mine[0]["rounds"], mean, color=style["color"])

  return _panels(contents, panel, "round", f"{numbers.share(share)} removed")


def _panels(contents, panel, xlabel, what):
  """Lays out loss and accuracy (rows) for both ways (columns)."""
  if not contents.cleanse or not contents.cleanse["curves"]:
    return None
  curves = contents.cleanse["curves"]
  ways = [way for way in WAYS if any(c["way"] == way for c in curves)]
  figure = drawing.figure_of(5.0, drawing.WIDTH * len(ways) / 2)
  axes = figure.subplots(2, len(ways), squeeze=False, sharex=True, sharey="row")
  # The paper scores by what it then measures.
  by_accuracy = "fia" if any(c["score"] == "fia" for c in curves) else "fil"
  for row, field, score in (
    (axes[0], "loss", "fil"),
    (axes[1], "accuracy", by_accuracy),
  ):
    for ax, way in zip(row, ways, strict=True):
      mine = [c for c in curves if c["way"] == way]
      mine = [c for c in mine if c["score"] in (score, "random", "none")]
      panel(ax, mine, field)
    row[0].set_ylabel(f"test {field}, {what}\n(chosen by {score.upper()})")
  for ax, way in zip(axes[0], ways, strict=True):
    ax.set_title(WAYS[way])
  for ax in axes[-1]:
    ax.set_xlabel(xlabel)
  drawing.key(figure, [*ENDS.values(), ("nobody removed", drawing.TRUTH)])
  return figure
