"""Tables of the page, and what its script makes the table of clients from."""

import html
import math

import numpy as np

from fedinf_jax import text
from fedinf_jax.report import numbers
from fedinf_jax.report import verdict
from fedinf_jax.running import workdir


def escaped(value) -> str:
  """Returns text that HTML shows literally."""
  return html.escape(str(value))


def code(name) -> str:
  """Returns the name of an estimator, as code."""
  return f"<code>{escaped(name)}</code>"


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
  columns = (
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
      f'<th scope="row">{code(name)}<small>{escaped(measured["description"])}'
      f"</small></th><td>{upload}</td>"
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


def gain(contents: workdir.Contents) -> str:
  """Tabulates what the model gains without bad clients."""
  rows = [
    f'<th scope="row">{escaped(who)}</th>'
    f"<td>{numbers.fixed(then['loss'], 4)}</td>"
    f"<td>{numbers.fixed(then['accuracy'], 4)}</td>"
    for who, then in contents.debug["gain"].items()
  ]
  return table(["removed", "test loss", "accuracy"], rows)


def pairs(tree: dict) -> str:
  """Lists a nested dict, one dotted name per line."""
  lines = "".join(
    f"<dt>{escaped(name)}</dt>"
    f"<dd>{escaped('none' if value is None else value)}</dd>"
    for name, value in workdir.flat(tree).items()
  )
  return f'<dl class="pairs">{lines}</dl>'


def clients(contents: workdir.Contents, found: verdict.Verdict) -> dict:
  """Returns what the script makes the table of clients from."""
  columns = contents.columns
  scores = [n for n in ("exact", *contents.names) if f"fil_{n}" in columns]
  if not contents.has_exact:
    scores = [name for name in scores if name != "exact"]
  keys = [f"{kind}_{name}" for kind in ("fil", "fia") for name in scores]
  keys += ["num_examples", "times_selected"]
  cells = [[_compact(value) for value in columns[key]] for key in keys]
  labels = map(text.escaped, contents.ids)
  sizes = np.abs(found.fil)
  sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
  typical = float(np.median(sizes)) if len(sizes) else 1.0
  return {
    "scores": scores,
    "keys": ["client_id", *keys],
    "rows": [list(row) for row in zip(labels, *cells, strict=True)],
    "sort": f"-fil_{found.ranked_by}" if found.ranked_by else "client_id",
    # Two digits of a typical client.
    "decimals": min(12, max(2, 1 - math.floor(math.log10(typical)))),
  }


def _upload(measured):
  if not measured["upload_models"]:
    return "nothing"
  models = numbers.digits(measured["upload_models"], 3)
  each_way = " each way" if measured["interactive"] else ""
  size = numbers.amount(measured["upload_bytes_per_participant"], "B")
  return f"{models} models{each_way}<small>{size}</small>"


def _compact(value):
  """Returns a number of six digits for JSON, None where there is none."""
  if not np.isfinite(value):
    return None
  value = float(f"{value:.6g}")
  return int(value) if value.is_integer() else value
