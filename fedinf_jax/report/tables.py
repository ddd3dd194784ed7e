"""Tables of the page."""

from collections.abc import Callable
import html
from typing import Any

import numpy as np

from fedinf_jax import wording
from fedinf_jax.report import numbers
from fedinf_jax.report import remedies
from fedinf_jax.running import workdir


def escaped(value) -> str:
  """Returns text that HTML shows literally."""
  return html.escape(str(value))


def code(name) -> str:
  """Returns the name of an estimator, as code."""
  return f"<code>{escaped(name)}</code>"


def paragraphs(lines, kind: str) -> str:
  """Returns a paragraph per line of text.

  Args:
    lines: text, not HTML.
    kind: the class of each.
  """
  return "".join(f'<p class="{kind}">{escaped(line)}</p>\n' for line in lines)


def table(heads, rows) -> str:
  """Returns a table.

  Args:
    heads: titles of the columns.
    rows: each the HTML of its cells, <th> and <td>.
  """
  heads = "".join(f'<th scope="col">{head}</th>' for head in heads)
  rows = "".join(f"<tr>{row}</tr>" for row in rows)
  return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def estimators(contents: workdir.Contents) -> str:
  """Tabulates cost and quality of the estimators."""
  columns: tuple[tuple[str, str, Callable, Callable | None], ...] = (
    ("Pearson", "fil_pearson", numbers.correlation, max),
    ("Spearman", "fil_spearman", numbers.correlation, max),
    ("FIP error", "fip_relative_error", numbers.digits, min),
    ("truncated", "truncated_fraction", numbers.share, None),
  )
  if not contents.has_exact:
    columns = columns[3:]
  everyone = contents.summary["estimators"]
  repeated = contents.summary.get("reliability")
  rows = []
  for name, measured in everyone.items():
    upload = _upload(measured)
    if measured["simulated"]:
      upload += "<small>simulation only</small>"
    row = (
      f'<th scope="row">{escaped(wording.titled(name))}<small>'
      f"{escaped(measured['description'])}</small></th><td>{upload}</td>"
    )
    for _, field, show, best in columns:
      known = [e[field] for e in everyone.values() if e[field] is not None]
      value = show(measured[field])
      if best and len(known) > 1 and measured[field] == best(known):
        value = f"<b>{value}</b>"
      row += f"<td>{value}</td>"
    if repeated:
      row += f"<td>{numbers.correlation(repeated['last']['ceiling'])}</td>"
    rows.append(row)
  titles = [title for title, *_ in columns]
  titles += ["ceiling of Pearson"] if repeated else []
  return table(["estimator", "upload per participant", *titles], rows)


def layers(contents: workdir.Contents) -> str:
  """Tabulates which layers were truncated, when, and what grew."""
  rows = [
    f'<th scope="row">{code(name)}</th><th scope="row">{escaped(layer)}</th>'
    f"<td>{numbers.share(found['truncated_fraction'])}</td>"
    f"<td>{found['first_truncated_round'] or numbers.MISSING}</td>"
    f"<td>{numbers.digits(found['largest_growth'], 3)}</td>"
    for name, measured in contents.summary["estimators"].items()
    for layer, found in measured["layers"].items()
  ]
  heads = ("estimator", "layer", "truncated", "first in round")
  return table([*heads, "largest growth"], rows)


def debug(found: dict[str, Any]) -> str:
  """Tabulates which score finds bad clients, and what is gained by it.

  Args:
    found: what debug.json holds.
  """
  scores = found["scores"]
  best = max((s["auroc"] or 0.0 for s in scores.values()), default=0.0)
  rows = []
  for who, then in found["gain"].items():
    score = scores.get(who, {"precision_at_k": None, "auroc": None})
    auroc = numbers.fixed(score["auroc"], 2)
    if score["auroc"] == best:
      auroc = f"<b>{auroc}</b>"
    title = remedies.titled(who) if who in scores else f"({who})"
    rows.append(
      f'<th scope="row">{escaped(title)}</th><td>{auroc}</td>'
      f"<td>{numbers.share(score['precision_at_k'])}</td>"
      f"<td>{numbers.fixed(then['loss'], 4)}</td>"
      f"<td>{numbers.fixed(then['accuracy'], 4)}</td>"
    )
  heads = ("removed, by", "AUROC", "found", "test loss without", "accuracy")
  return table(heads, rows)


ENDS = {
  "harmful": "most harmful",
  "random": "random",
  "helpful": "most helpful",
}


def cleansed(found: dict[str, Any]) -> str:
  """Tabulates what becomes of the model without a share of the clients.

  Args:
    found: what cleanse.json holds.
  """
  curves = [c for c in found["curves"] if c["way"] == "held_out"]
  curves = [c for c in curves if c["score"] in ("fil", "random", "none")]
  rows = []
  for share in sorted({c["fraction"] for c in curves}):
    row = f'<th scope="row">{numbers.share(share)}</th>'
    for field in ("loss", "accuracy"):
      for end in ENDS:
        ends = (end, "none")  # Nobody is removed at either end.
        last = [
          c[field][-1]
          for c in curves
          if c["fraction"] == share and c["end"] in ends
        ]
        mean = np.mean(last) if last and None not in last else None
        row += f"<td>{numbers.fixed(mean, 4)}</td>"
    rows.append(row)
  heads = [
    f"{what}, {words}"
    for what in ("test loss", "accuracy")
    for words in ENDS.values()
  ]
  return table(["clients removed", *heads], rows)


def pairs(tree: dict) -> str:
  """Lists a nested dict, one dotted name per line."""
  lines = "".join(
    f"<dt>{escaped(name)}</dt>"
    f"<dd>{escaped('none' if value is None else value)}</dd>"
    for name, value in workdir.flat(tree).items()
  )
  return f'<dl class="pairs">{lines}</dl>'


def _upload(measured):
  if measured["upload_models"] is None:
    return numbers.MISSING
  if not measured["upload_models"]:
    return "nothing"
  models = numbers.digits(measured["upload_models"], 3)
  each_way = " each way" if measured["interactive"] else ""
  size = numbers.amount(measured["upload_bytes_per_participant"], "B")
  return f"{models} models{each_way}<small>{size}</small>"
