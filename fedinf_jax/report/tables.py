"""Tables of the page."""

from collections.abc import Callable
import html

from fedinf_jax import wording
from fedinf_jax.report import numbers
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


def gain(gains: dict[str, dict[str, float]]) -> str:
  """Tabulates what the model gains without bad clients, of debug.json."""
  rows = [
    f'<th scope="row">{escaped(who)}</th>'
    f"<td>{numbers.fixed(then['loss'], 4)}</td>"
    f"<td>{numbers.fixed(then['accuracy'], 4)}</td>"
    for who, then in gains.items()
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


def _upload(measured):
  if measured["upload_models"] is None:
    return numbers.MISSING
  if not measured["upload_models"]:
    return "nothing"
  models = numbers.digits(measured["upload_models"], 3)
  each_way = " each way" if measured["interactive"] else ""
  size = numbers.amount(measured["upload_bytes_per_participant"], "B")
  return f"{models} models{each_way}<small>{size}</small>"
