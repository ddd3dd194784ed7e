"""A run in words: three lines, and a small table for notebooks."""

import html
from typing import Any

import jax
import numpy as np

from fedinf_jax import text


def lines(run: Any) -> list[str]:
  """Returns three lines about a `run.Run`."""
  return [_training(run), _influence(run), _history(run)]


def html_table(run: Any) -> str:
  """Returns the lines and a row for each kind of influence, as HTML."""
  heads = ("influence", "removals", "truncated", "largest growth", "overflowed")
  rows = "".join(_row(run, name) for name in run.names)
  told = "<br>".join(html.escape(line) for line in lines(run))
  titles = "".join(f"<th>{head}</th>" for head in heads)
  return f"<p>{told}</p><table><tr>{titles}</tr>{rows}</table>"


def _row(run, name):
  """Returns the cells of one kind of influence."""
  shown = html.escape(text.printable(name))
  if name == "exact":
    cells = [shown, f"{len(run.exact_rows):,}", "", "", ""]
  else:
    health = run.health[name]
    share = lambda at: f"{(np.asarray(at) > 0).mean():.0%}"
    cells = [
      shown,
      f"{run.num_removals:,}",
      share(health.truncated_at),
      f"{np.asarray(health.growth).max():.3g}",
      share(health.nonfinite_at),
    ]
  return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def _training(run):
  """Says what was trained, and by whom."""
  count = sum(a.size for a in jax.tree.leaves(run.params))
  rounds = "some rounds" if run.rounds is None else f"{run.rounds:,} rounds"
  words = f"Run: {rounds}, a model of {count:,} parameters"
  if run.num_examples is not None:
    total = int(np.sum(run.num_examples))
    words += f", {len(run.num_examples):,} clients with {total:,} examples"
  return words


def _influence(run):
  """Says whose influence is known, and by what."""
  rows = f"{run.num_removals:,}"
  if run.removed is not None:
    rows += " groups of clients"
  elif run.ids is None:
    rows += " removals"
  else:
    rows += " clients, one at a time"
  names = []
  for name in run.names:
    words = text.printable(name)
    if name == "exact" and len(run.exact_rows) < run.num_removals:
      words += f" (for {len(run.exact_rows):,} of them)"
    names.append(words)
  return f"Influence of {rows}: {', '.join(names) or 'not estimated'}"


def _history(run):
  """Says what is known about earlier rounds."""
  history = run.history
  if history is None:
    return "History: none (simulate(..., evaluate=(x, y)) keeps one)"
  last = f"loss {history.loss[-1]:.4g}"
  if np.isfinite(history.accuracy[-1]):
    last += f", accuracy {history.accuracy[-1]:.4g}"
  return (
    f"History: {len(history.rounds):,} evaluated rounds, {history.rounds[0]:,}"
    f" to {history.rounds[-1]:,}; {last} at the last"
  )
