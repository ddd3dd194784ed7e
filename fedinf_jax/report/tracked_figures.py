"""Figs. 1 and 2: influence on the parameters (FIP, ε) of tracked clients."""

import itertools
import math

import numpy as np

from fedinf_jax import text
from fedinf_jax.report import drawing
from fedinf_jax.report import numbers
from fedinf_jax.report import verdict

MAX_LAYERS, MAX_CLIENTS = 8, 6


def layers(contents):
  """Draws Fig. 1: error and norm of one client's FIP, layer by layer."""
  if not _moved(contents):
    return None
  client, traces = of_layers(contents)
  shown = list(traces)
  kinds = {"norm": "norm ‖ε‖"}
  if _replayed({client: traces}):
    kinds = {"error": "error ‖ε − ε*‖", **kinds}
  columns = min(4, len(shown))
  bands = math.ceil(len(shown) / columns)
  figure = drawing.figure_of(0.5 + 1.8 * bands * len(kinds))
  axes = figure.subplots(
    bands * len(kinds), columns, squeeze=False, sharex=True
  )
  truth = [t["exact"]["norm"] for t in traces.values() if "exact" in t]
  for i, (kind, label) in enumerate(kinds.items()):
    rows = axes[i * bands : (i + 1) * bands]
    block = drawing.block(rows, shown, "round", label)
    lines = []
    for ax, layer in block:
      ax.set_title(drawing.short(layer, 96 // columns, keep_end=True))
      for name, trace in traces[layer].items():
        if not (kind == "error" and name == "exact"):
          lines.append(trace[kind])
          style = drawing.style_of(contents, name)
          drawing.trace(ax, trace["round"], trace[kind], **style)
    drawing.log_axes([ax for ax, _ in block], lines, truth)
  of_truth = "exact ε*" if truth else None
  drawing.legend(
    figure, contents, f"Client {text.escaped(client)}", truth=of_truth
  )
  return figure


def of_layers(contents):
  """Returns the client of Fig. 1, and layer → estimator → its trace."""
  tracked = _moved(contents)
  client = next(iter(_replayed(tracked) or tracked))
  traces = tracked[client]
  return client, {layer: traces[layer] for layer in _largest_layers(traces)}


def at_the_end(contents):
  """Yields (client, size, {estimator: distance}) of Fig. 2's last round."""
  tracked = _replayed(_moved(contents))
  for client in list(tracked)[:MAX_CLIENTS]:
    last = lambda name, kind, c=client: _whole(tracked[c], name, kind)[1][-1]
    fars = {name: last(name, "error") for name in contents.with_eps}
    yield client, last("exact", "norm"), fars


def distance(contents):
  """Draws Fig. 2: how far estimated FIP is from exact FIP, over rounds."""
  tracked = _replayed(_moved(contents))
  if not tracked:
    return None
  clients = list(tracked)[:MAX_CLIENTS]
  columns = min(3, len(clients))
  rows = math.ceil(len(clients) / columns)
  figure = drawing.figure_of(0.5 + 2.4 * rows)
  axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
  block = drawing.block(axes, clients, "round", "distance ‖ε − ε*‖")
  lines: dict[str, list[np.ndarray]] = {}
  sizes = []
  for ax, client in block:
    ax.set_title(f"Client {drawing.short(text.escaped(client), 24)}")
    rounds, size = _whole(tracked[client], "exact", "norm")
    drawing.trace(ax, rounds, size, **drawing.TRUTH)
    sizes.append(size)
    for name in contents.with_eps:
      rounds, far = _whole(tracked[client], name, "error")
      lines.setdefault(name, []).append(far)
      drawing.trace(ax, rounds, far, **drawing.style_of(contents, name))
  everything = [*sizes, *itertools.chain(*lines.values())]
  top = drawing.log_axes([ax for ax, _ in block], everything, sizes)
  most = {name: max(map(drawing.largest, far)) for name, far in lines.items()}
  labels = {
    n: f"{n} (up to {numbers.scientific(m)})"
    for n, m in most.items()
    if m > top
  }
  drawing.legend(
    figure, contents, truth="size of exact FIP, ‖ε*‖", labels=labels
  )
  return figure


def _whole(traces, name, kind):
  """Returns (rounds, norm over all layers) of one client's FIP or its error."""
  mine = [layer[name] for layer in traces.values() if name in layer]
  squares = sum(trace[kind] ** 2 for trace in mine)
  return mine[0]["round"], np.sqrt(squares)


def _moved(contents):
  """Returns the tracked clients that were drawn: the others have no FIP.

  Those that matter most come first.
  """
  fil = np.nan_to_num(verdict.verdict(contents).fil)
  weight = dict(zip(contents.ids, np.abs(fil).tolist(), strict=True))
  order = sorted(contents.tracked, key=lambda i: -weight.get(i, 0))
  return {
    client: contents.tracked[client]
    for client in order
    if any(_size(layer) for layer in contents.tracked[client].values())
  }


def _replayed(tracked):
  """Returns those of the clients whose exact FIP is known."""
  return {
    client: traces
    for client, traces in tracked.items()
    if any(
      "exact" in layer and drawing.largest(layer["exact"]["norm"])
      for layer in traces.values()
    )
  }


def _largest_layers(traces):
  """Returns the layers to show, in the model's order."""
  size = lambda layer: _size(traces[layer])
  kept = sorted(traces, key=size, reverse=True)[:MAX_LAYERS]
  return [layer for layer in traces if layer in kept]


def _size(layer):
  """Returns the largest norm in a layer, whoever says so."""
  return max(drawing.largest(trace["norm"]) for trace in layer.values())
