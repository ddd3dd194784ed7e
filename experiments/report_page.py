"""The page of a report: words and tables around the figures."""

import base64
import html
import json
import math
import pathlib
import string

import numpy as np

TEMPLATE = pathlib.Path(__file__).with_suffix(".html")
EXTREMES = 5  # Clients named at either end.
# The weakest of four numbers (Pearson's and Spearman's correlation of estimated
# with exact FIL, at the last round and averaged over the last quarter) decides.
GRADES = (
  (0.95, "good", "ranks clients almost as retraining does"),
  (0.80, "fair", "ranks clients well, though neighbours may swap"),
  (0.50, "weak", "a rough guide: finds extremes, but misses some"),
  (-1.0, "bad", "do not trust"),
)
UNCHECKED = ("none", "not checked: this run has no ground truth")
MARKS = {"good": "✓", "fair": "✓", "weak": "!", "bad": "✗", "none": "?"}
COLUMNS = (
  " Pearson and Spearman: correlation of estimated with exact FIL at the last"
  " round. FIP error: distance of the estimated from the exact change of the"
  " model, over the size of the exact one. Best in bold."
)
# Name of a figure → heading, how to read it.
CAPTIONS = {
  "learning_curve": (
    "Learning curve",
    "The global model on the test examples, at every evaluated round.",
  ),
  "fig1_layers": (
    "Fig. 1: one client, layer by layer",
    "In each layer, the size of the estimated change of the model (norm) and,"
    " where the truth is known, the distance from it (error). Log scale: a line"
    " that climbs steadily grows exponentially and may leave the chart. Of"
    " many layers, the eight with the largest change.",
  ),
  "fig2_distance": (
    "Fig. 2: distance from the truth",
    "Lower is better. An estimate above the dashed line is worse than saying"
    " that the client changes nothing; log scale, cut off at a hundred times"
    " the truth.",
  ),
  "fig3_pearson": (
    "Fig. 3: agreement with retraining, over rounds",
    "1 means that estimated influence on the loss is proportional to the exact"
    " one over all clients, 0 that it says nothing about it.",
  ),
  "fig3_scatter": (
    "Fig. 3: estimated against exact influence on the loss",
    "A dot is a client at the last round; on the dashed diagonal the estimate"
    " is right. Triangles on the edge lie beyond the frame.",
  ),
  "fig4_cleanse": (
    "Fig. 4: clients removed, training continued",
    "If influence finds the right clients, the red line (most harmful removed)"
    " has the lowest loss and highest accuracy and the blue line the worst."
    " Bars: one standard deviation over the random draws.",
  ),
  "fig4_cleanse_rounds": (
    "Fig. 4 over rounds",
    "The same for one share of clients, in the rounds after they were removed.",
  ),
  "debug": (
    "Finding bad clients",
    "How well each score finds the clients that were made bad on purpose;"
    " longer is better, the dashed line is guessing.",
  ),
  "heat_map": (
    "Influence of each client over rounds",
    "A row is a client, the most helpful at the top. Blue: the loss would rise"
    " without it (helps); red: it would fall (hurts). The colours are nearly on"
    " a log scale; the strongest cells share one.",
  ),
}


def page(run, images):
  """Returns the page.

  Args:
    run: report.Contents.
    images: name → bytes of a PNG.

  Returns:
    HTML that needs no other file.
  """
  parts = {
    "title": _text(f"Client influence: {run.summary['name']}"),
    "facts": _facts(run),
    "banner": _banner(run),
    "verdict": _verdict(run),
    "trust": _trust(run),
    "estimators": _estimators(run),
    "columns": COLUMNS if run.has_exact else "",
    "learning": _figures(images, ["learning_curve"], 2),
    "figures": _figures(images, [n for n in CAPTIONS if n[:3] == "fig"], 3)
    + _cleansed(run),
    "debug": _figures(images, ["debug"], 3) + _gain(run),
    "missing": _missing(run),
    "heat_map": _figures(images, ["heat_map"], 2),
    # "<" could end the script element.
    "clients": json.dumps(_clients(run)).replace("<", "\\u003c"),
    "details": _details(run, images),
  }
  return string.Template(TEMPLATE.read_text("utf-8")).substitute(parts)


def grade(measured, has_exact):
  """Returns (key, words): how far an estimator can be trusted."""
  if measured.get("nonfinite_fraction"):
    return "bad", "do not trust: it overflowed"
  quarter = measured.get("last_quarter") or {}
  numbers = [
    of.get(field)
    for of in (measured, quarter)
    for field in ("fil_pearson", "fil_spearman")
  ]
  numbers = [number for number in numbers if number is not None]
  if not has_exact or not numbers:
    return UNCHECKED
  return next(
    (key, words) for least, key, words in GRADES if min(numbers) >= least
  )


def _facts(run):
  s = run.summary
  fed = run.config.get("config", {}).get("fed", {})
  facts = [
    ("recipe", s["name"]),
    ("clients", f"{s['clients']:,}"),
    ("rounds", f"{s['rounds']:,}"),
    ("clients a round", fed.get("cohort_size")),
    ("model parameters", f"{s['num_params']:,}"),
    ("seed", s["seed"]),
    ("test loss", fixed(s["loss"], 4)),
    ("test accuracy", fixed(s["accuracy"], 4)),
  ]
  tiles = "".join(
    f"<div><dt>{name}</dt><dd>{_text(value)}</dd></div>"
    for name, value in facts
    if value is not None
  )
  return (
    f'<dl class="facts">{tiles}</dl>\n<p>Data: {_text(s["source"])};'
    f" {s['train_examples']:,} training and {s['test_examples']:,} test"
    " examples.</p>"
  )


def _banner(run):
  if not run.summary["stand_in"]:
    return ""
  return (
    '<p class="banner" role="note"><strong>Synthetic data.</strong> These are'
    " glyph writers, drawn from fonts, that stand in for FEMNIST: the numbers"
    " below are not comparable with those of the paper.</p>"
  )


def _verdict(run):
  """Says who helps and who hurts most."""
  fil = run.ranking
  if not np.isfinite(fil).any():
    return "<p>This run measured no influence.</p>"
  helps, hurts = int((fil > 0).sum()), int((fil < 0).sum())
  never = int((run.columns["times_selected"] == 0).sum())
  how = f"estimator {_name(run.ranked_by)}"
  if run.ranked_by == "exact":
    how = "retraining without each client"
  elif run.has_exact:
    how += " (of the estimators the nearest to retraining)"
  order = np.argsort(-fil, kind="stable")
  best = [k for k in order if fil[k] > 0][:EXTREMES]
  worst = [k for k in order[::-1] if fil[k] < 0][:EXTREMES]
  lead = " ".join(
    f"<strong>{_sentence(run, ends[0])}</strong>: it {word} most."
    for ends, word in ((best, "helps"), (worst, "hurts"))
    if ends
  )
  top = max((abs(fil[k]) for k in best + worst), default=1.0)
  return (
    f'<p class="lead">{lead}</p>\n<p>By {how}, {helps:,} of {len(fil):,}'
    f" clients help and {hurts:,} hurt; {never:,} never took part.</p>\n"
    '<div class="ends">'
    + _extremes(run, "Help most", "helps", best, top)
    + _extremes(run, "Hurt most", "hurts", worst, top)
    + "</div>"
  )


def _sentence(run, k):
  fil = run.ranking[k]
  moves = "rise" if fil > 0 else "fall"
  return (
    f"Without client {_text(run.ids[k])} the test loss would {moves} by"
    f" {_digits(abs(fil))}"
  )


def _extremes(run, title, word, clients, top):
  """Lists the clients at one end, with bars."""
  if not clients:
    return f"<div><h3>{title}</h3><p>No client {word}.</p></div>"
  items = []
  for k in clients:
    fil, fia = run.ranking[k], run.columns[f"fia_{run.ranked_by}"][k]
    moves = "rise" if fil > 0 else "fall"
    note = f"loss would {moves} by {_digits(abs(fil))}"
    if np.isfinite(fia):
      moves = "rise" if fia > 0 else "fall"
      points = f"{moves} by {_digits(100 * abs(fia))} points"
      note += f", accuracy {points if fia else 'stay the same'}"
    examples, times = (
      int(run.columns[field][k]) for field in ("num_examples", "times_selected")
    )
    items.append(
      f"<li><b>{_text(run.ids[k])}</b> <small>{examples:,} examples, drawn in"
      f" {times:,} of {run.summary['rounds']:,} rounds</small>"
      f'<span class="bar {word}" style="width:{100 * abs(fil) / top:.1f}%">'
      f'</span><span class="what">{note}</span></li>'
    )
  return f"<div><h3>{title}</h3><ol>{''.join(items)}</ol></div>"


def _trust(run):
  """Says in words how far each estimator can be trusted."""
  if not run.names:
    return "<p>This run has no estimators.</p>"
  items = []
  for name, measured in run.summary["estimators"].items():
    key, words = grade(measured, run.has_exact)
    facts = _agreement(run, name) if run.has_exact else []
    facts.append(
      f"{_share(measured['truncated_fraction'])} of layers truncated"
    )
    facts.append(
      f"largest growth in a round ×{_digits(measured['largest_growth'], 3)}"
    )
    if lost := measured["nonfinite_fraction"]:
      facts.append(f"{_share(lost)} of layers overflowed")
    items.append(
      f'<li>{_name(name)} <span class="grade {key}"><span aria-hidden="true">'
      f"{MARKS[key]}</span> {words}</span><small>{'; '.join(facts)}.</small>"
      "</li>"
    )
  return f'<ul class="trust">{"".join(items)}</ul>\n{_scale(run)}'


def _agreement(run, name):
  measured = run.summary["estimators"][name]
  quarter = measured["last_quarter"]
  found, of = _found(run, name)
  return [
    f"Finds {found[0]} of the {of} most helpful and {found[1]} of the {of} most"
    " harmful clients",
    f"Pearson {fixed(measured['fil_pearson'])}, Spearman"
    f" {fixed(measured['fil_spearman'])} at the last round;"
    f" {fixed(quarter['fil_pearson'])} and {fixed(quarter['fil_spearman'])} on"
    " average over the last quarter",
  ]


def _found(run, name):
  """Counts, at either end, clients that estimate and truth have in common."""
  exact = run.columns["fil_exact"]
  known = np.isfinite(exact)
  exact, estimate = exact[known], run.columns[f"fil_{name}"][known]
  count = max(1, min(10, len(exact) // 5))
  # What overflowed sorts last at either end.
  ends = [
    set(np.argsort(sign * exact)[:count])
    & set(np.argsort(sign * estimate)[:count])
    for sign in (-1, 1)
  ]
  return [len(end) for end in ends], count


def _scale(run):
  if not run.has_exact:
    return (
      "<p>No client was retrained without, so nothing says how near these"
      " estimates are to the truth; <code>--config.exact=all</code> replays"
      " them. A growth well above 1 with nothing truncated is a warning.</p>"
    )
  count = int(np.isfinite(run.columns["fil_exact"]).sum())
  steps = "; ".join(f"{least:.2f}, {words}" for least, _, words in GRADES[:-1])
  return (
    f'<p class="note">Measured against retraining without each of {count:,}'
    " clients. The weakest of an estimator's four correlations decides: from"
    f" {steps}; below that, or once anything overflowed, do not trust. Growth"
    " above 1 means that old influence can grow from round to round.</p>"
  )


def _estimators(run):
  """Tabulates cost and quality of the estimators."""
  fields = (
    ("Pearson", "fil_pearson", fixed, max),
    ("Spearman", "fil_spearman", fixed, max),
    ("FIP error", "fip_relative_error", _digits, min),
    ("truncated", "truncated_fraction", _share, None),
  )
  if not run.has_exact:
    fields = fields[3:]
  everyone = run.summary["estimators"]
  rows = []
  for name, m in everyone.items():
    cells = [
      f'<th scope="row">{_name(name)}<small>{_text(m["description"])}</small>'
      f"</th><td>{_upload(m)}</td>"
    ]
    for _, field, show, best in fields:
      known = [e[field] for e in everyone.values() if e[field] is not None]
      value = "–" if m[field] is None else show(m[field])
      if best and len(known) > 1 and m[field] == best(known):
        value = f"<b>{value}</b>"
      cells.append(f"<td>{value}</td>")
    rows.append(f"<tr>{''.join(cells)}</tr>")
  heads = "".join(f'<th scope="col">{head}</th>' for head, *_ in fields)
  return (
    '<table><thead><tr><th scope="col">estimator</th><th scope="col">upload'
    f" of a participant</th>{heads}</tr></thead>"
    f"<tbody>{''.join(rows)}</tbody></table>"
  )


def _upload(measured):
  models = measured["upload_models"]
  if not models:
    return "nothing"
  size, unit = measured["upload_bytes_per_participant"], "bytes"
  for larger in ("kB", "MB", "GB", "TB"):
    if size >= 1000:
      size, unit = size / 1000, larger
  way = " each way" if measured.get("asked") else ""
  return (
    f"{_digits(models, 3)} models{way}<small>{_digits(size, 3)} {unit}</small>"
  )


def _figures(images, names, level):
  return "\n".join(
    f"<section><h{level}>{title}</h{level}><figure>"
    f'<a class="scroll" href="figures/{name}.png">'
    f'<img alt="{title}" src="data:image/png;base64,'
    f'{base64.b64encode(images[name]).decode()}"></a>'
    f"<figcaption>{caption}</figcaption></figure></section>"
    for name in names
    if name in images
    for title, caption in [CAPTIONS[name]]
  )


def _gain(run):
  """Says who was made bad, and what the model gains without them."""
  if not run.debug:
    return ""
  bad = ", ".join(_text(i) for i in run.debug["bad"])
  rows = [
    f'<tr><th scope="row">{_text(who)}</th><td>{fixed(then["loss"], 4)}</td>'
    f"<td>{fixed(then['accuracy'], 4)}</td></tr>"
    for who, then in run.debug["gain"].items()
  ]
  return (
    f"<p>{len(run.debug['bad']):,} clients were made bad"
    f" ({_text(run.debug['kind'])}): {bad}. Trained again without as many"
    " clients, those that a score calls the worst:</p>"
    '<div class="scroll"><table><thead><tr><th scope="col">removed</th>'
    '<th scope="col">test loss</th><th scope="col">accuracy</th></tr></thead>'
    f"<tbody>{''.join(rows)}</tbody></table></div>"
  )


def _cleansed(run):
  if not run.cleanse:
    return ""
  c = run.cleanse
  return (
    f'<p class="note">Fig. 4: clients removed at round {c["round"]:,}, by the'
    f" influence of {_name(c['estimator'])}. Held out: chosen on"
    f" {c['validation_examples']:,} examples, measured on"
    f" {c['test_examples']:,} others.</p>"
  )


def _missing(run):
  """Says which figures are not there, and what would make them."""
  notes = []
  if not run.has_exact:
    notes.append(
      "Figs. 2 and 3 need the ground truth, which this run lacks"
      " (<code>--config.exact=all</code>)."
    )
  if not run.tracked:
    notes.append("No client was tracked layer by layer: no Figs. 1 and 2.")
  if not run.cleanse:
    notes.append(
      "Fig. 4 needs trainings with clients removed: start"
      " <code>python -m experiments.cleanse</code> on this folder."
    )
  return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _clients(run):
  """Returns what the script makes the table of clients from."""
  scores = [n for n in ("exact", *run.names) if f"fil_{n}" in run.columns]
  if not run.has_exact:
    scores = [name for name in scores if name != "exact"]
  keys = [f"{kind}_{n}" for kind in ("fil", "fia") for n in scores]
  keys += ["num_examples", "times_selected"]
  columns = [[_compact(v) for v in run.columns[key]] for key in keys]
  sizes = np.abs(run.ranking)
  sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
  typical = float(np.median(sizes)) if len(sizes) else 1.0
  return {
    "scores": scores,
    "keys": ["client_id", *keys],
    "rows": [list(row) for row in zip(run.ids, *columns, strict=True)],
    "sort": f"-fil_{run.ranked_by}",
    # Two digits of a typical client.
    "decimals": min(12, max(2, 1 - math.floor(math.log10(typical)))),
  }


def _compact(value):
  if not np.isfinite(value):
    return None
  value = float(f"{value:.6g}")
  return int(value) if value.is_integer() else value


def _details(run, images):
  s = run.summary
  about = {
    "git revision": s["git_revision"],
    "data digest": s["data_digest"],
    **{f"version of {name}": v for name, v in s["versions"].items()},
  }
  files = [*run.files, *(f"figures/{name}.png" for name in images)]
  links = "".join(f'<li><a href="{f}">{f}</a></li>' for f in files)
  return (
    f"{_pairs(about)}\n<details><summary>Layer by layer</summary>"
    f'<div class="scroll">{_layers(run)}</div></details>\n'
    "<details><summary>The whole recipe</summary>"
    f"{_pairs(run.config.get('config', {}))}</details>\n"
    f'<details><summary>Files of this run</summary><ul class="files">{links}'
    "</ul></details>"
  )


def _layers(run):
  rows = [
    f'<tr><th scope="row">{_name(name)}</th><th scope="row">{_text(layer)}</th>'
    f"<td>{_share(m['truncated_fraction'])}</td>"
    f"<td>{_text(m['first_truncated_round'] or '–')}</td>"
    f"<td>{_digits(m['largest_growth'], 3)}</td></tr>"
    for name, measured in run.summary["estimators"].items()
    for layer, m in measured["layers"].items()
  ]
  heads = (
    "estimator",
    "layer",
    "truncated",
    "first in round",
    "largest growth",
  )
  heads = "".join(f'<th scope="col">{head}</th>' for head in heads)
  return (
    f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody>"
    "</table>"
  )


def _pairs(tree):
  """Lists a nested dict, a dotted name a line."""
  lines = "".join(
    f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>"
    for name, value in _flat(tree)
  )
  return f'<dl class="pairs">{lines}</dl>'


def _flat(tree, prefix=""):
  for name, value in tree.items():
    if isinstance(value, dict):
      yield from _flat(value, f"{prefix}{name}.")
    else:
      yield f"{prefix}{name}", "none" if value is None else value


def _text(value):
  return html.escape(str(value))


def _name(estimator):
  return f"<code>{_text(estimator)}</code>"


def _share(value):
  return "–" if value is None else f"{value:.0%}"


def fixed(value, decimals=3):
  """Returns a number with so many decimals; more if .9997 would become 1."""
  if value is None:
    return "–"
  while abs(value) < 1 and abs(round(value, decimals)) == 1 and decimals < 9:
    decimals += 1
  return f"{value:.{decimals}f}".replace("-", "−")


def _digits(value, count=2):
  """Returns a number with so many digits, without exponent unless huge."""
  if value is None:
    return "–"
  rounded = f"{value:.{count - 1}e}"
  exponent = int(rounded.split("e")[1])
  if exponent < 6:
    rounded = f"{value:,.{max(0, count - 1 - exponent)}f}"
  return rounded.replace("-", "−")
