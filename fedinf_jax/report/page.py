"""The page of a report: words and tables around the figures."""

import base64
import json
import pathlib
import string

import numpy as np

from fedinf_jax import text
from fedinf_jax.report import captions
from fedinf_jax.report import figures
from fedinf_jax.report import numbers
from fedinf_jax.report import tables
from fedinf_jax.report import verdict
from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.running import workdir

PARTS = pathlib.Path(__file__)  # Beside it are page.html, page.css, page.js.
MARKS = {"good": "✓", "fair": "✓", "weak": "!", "bad": "✗", "none": "?"}
COLUMNS = (
  " Pearson and Spearman: correlation of estimated with exact FIL at the last"
  " round. FIP error: distance of the estimated from the exact change of the"
  " model, over the size of the exact one. Best in bold."
)


def write(folder: pathlib.Path):
  """Writes figures/*.png and report.html of a finished run.

  Args:
    folder: the workdir of the run.
  """
  contents = workdir.read(folder)
  try:
    images = figures.pngs(contents)
    content = page(contents, images)
  except KeyError as error:
    raise ValueError(
      f"{folder} does not hold together: it lacks {error}; its"
      " files may be of different runs or of another version"
    ) from error
  (folder / "figures").mkdir(exist_ok=True)
  for name, png in images.items():
    files.write(folder / "figures" / f"{name}.png", png)
  files.write(folder / records.REPORT, content)


def page(contents: workdir.Contents, images: dict[str, bytes]) -> str:
  """Returns the page, HTML that needs no other file.

  Args:
    contents: of the workdir.
    images: name → PNG.
  """
  found = verdict.verdict(contents)
  of_the_paper = [name for name in captions.CAPTIONS if name[:3] == "fig"]
  data = json.dumps(tables.clients(contents, found))
  parts = {
    "style": PARTS.with_suffix(".css").read_text("utf-8"),
    "script": PARTS.with_suffix(".js").read_text("utf-8"),
    "title": tables.escaped(f"Client influence: {contents.summary['name']}"),
    "facts": _facts(contents),
    "banner": _banner(contents),
    "verdict": _verdict(contents, found),
    "trust": _trust(contents, found),
    "estimators": tables.estimators(contents),
    "columns": _columns(contents, found),
    "learning": _figures(images, ["learning_curve"], 2),
    "figures": _figures(images, of_the_paper, 3) + _cleansed(contents),
    "debug": _figures(images, ["debug"], 3) + _gain(contents),
    "missing": _missing(contents),
    "heat_map": _figures(images, ["heat_map"], 2),
    # "<" could end the script element.
    "clients": data.replace("<", "\\u003c"),
    "details": _details(contents, images),
  }
  template = PARTS.with_suffix(".html").read_text("utf-8")
  return string.Template(template).substitute(parts)


def _columns(contents, found):
  """Explains the columns of the table of estimators."""
  if not contents.has_exact:
    return ""
  if not contents.screened_by:
    return COLUMNS
  return (
    f"{COLUMNS} Only {tables.escaped(verdict.extremes(contents, found))} were"
    " retrained without: correlations, errors and Figs. 2 and 3 are over these"
    " alone, and say less about the clients between them."
  )


def _facts(contents):
  s = contents.summary
  fed = contents.config.get("config", {}).get("fed", {})
  facts = [
    ("recipe", s["name"]),
    ("clients", f"{s['clients']:,}"),
    ("rounds", f"{s['rounds']:,}"),
    ("clients per round", fed.get("cohort_size")),
    ("model parameters", f"{s['num_params']:,}"),
    ("seed", s["seed"]),
    ("test loss", numbers.fixed(s["loss"], 4)),
    ("test accuracy", numbers.fixed(s["accuracy"], 4)),
  ]
  tiles = "".join(
    f"<div><dt>{name}</dt><dd>{tables.escaped(value)}</dd></div>"
    for name, value in facts
    if value is not None
  )
  return (
    f'<dl class="facts">{tiles}</dl>\n<p>Data: {tables.escaped(s["source"])};'
    f" {s['train_examples']:,} training and {s['test_examples']:,} test"
    " examples.</p>"
  )


def _banner(contents):
  if not contents.summary["stand_in"]:
    return ""
  return (
    '<p class="banner" role="note"><strong>Synthetic data.</strong> These are'
    " glyph writers, drawn from fonts, that stand in for FEMNIST: the numbers"
    " below are not comparable with those of the paper.</p>"
  )


def _verdict(contents, found):
  """Says who helps and who hurts most."""
  lines = "".join(
    f'<p class="lead">{tables.escaped(line)}</p>\n'
    for line in verdict.answer(contents, found)
  )
  if not np.isfinite(found.fil).any():
    return lines
  helping = _extremes(contents, found, "Help most", "helps", found.helps)
  hurting = _extremes(contents, found, "Hurt most", "hurts", found.hurts)
  return f'{lines}<div class="ends">{helping}{hurting}</div>'


def _extremes(contents, found, title, verb, clients):
  """Lists the clients at one end, with bars."""
  if not clients:
    return f"<div><h3>{title}</h3><p>No client {verb}.</p></div>"
  largest = max(abs(found.fil[k]) for k in (*found.helps, *found.hurts))
  items = []
  for k in clients:
    examples, times = (
      int(contents.columns[field][k])
      for field in ("num_examples", "times_selected")
    )
    width = 100 * abs(found.fil[k]) / largest
    items.append(
      f"<li><b>{tables.escaped(text.escaped(contents.ids[k]))}</b>"
      f" <small>{examples:,} examples, drawn in {times:,} of"
      f" {contents.summary['rounds']:,} rounds"
      f'</small><span class="bar {verb}" style="width:{width:.1f}%"></span>'
      f'<span class="what">{_effect(contents, found, k)}</span></li>'
    )
  return f"<div><h3>{title}</h3><ol>{''.join(items)}</ol></div>"


def _effect(contents, found, k):
  """Says how loss and accuracy would move without a client."""
  moves = lambda value: "rise" if value > 0 else "fall"
  source = verdict.source(contents, k)
  by = "exact" if source == "exact" else found.ranked_by
  fil, fia = found.fil[k], contents.columns[f"fia_{by}"][k]
  words = f"{source}: " if source else ""
  words += f"loss would {moves(fil)} by {numbers.digits(abs(fil))}"
  if not np.isfinite(fia):
    return words
  if not fia:
    return f"{words}, accuracy stay the same"
  points = numbers.digits(100 * abs(fia))
  return f"{words}, accuracy {moves(fia)} by {points} points"


def _trust(contents, found):
  """Says in words how far each estimator can be trusted."""
  if not contents.names:
    return "<p>This run has no estimators.</p>"
  items = ""
  for name, line in verdict.trust(contents, found).items():
    key = found.grades[name].key
    items += (
      f'<li><span class="grade {key}" aria-hidden="true">{MARKS[key]}</span>'
      f" {tables.escaped(line)}</li>"
    )
  truth = "".join(
    f"<p>{tables.escaped(line)}</p>\n"
    for line in verdict.reproducible(contents)
  )
  return f'<ul class="trust">{items}</ul>\n{truth}{_scale(found, bool(truth))}'


def _scale(found, repeated):
  """Explains the grades; `repeated`: the truth was compared with itself."""
  if not found.num_replayed:
    return (
      "<p>No client was retrained without, so nothing says how near these"
      " estimates are to the truth; <code>--config.exact=all</code> replays"
      " them. A growth well above 1 with nothing truncated is a warning.</p>"
    )
  steps = "; ".join(
    f"{numbers.fixed(least, 2)}, {grade.words}"
    for least, grade in verdict.GRADES[:-1]
  )
  return (
    '<p class="note">Measured against retraining without each of'
    f" {found.num_replayed:,} clients. The weakest of an estimator's four"
    f" correlations{', each divided by its ceiling,' if repeated else ''}"
    f" decides: from {steps}; below that, or once anything"
    " overflowed, do not trust. Growth above 1 means that old influence can"
    " grow from round to round.</p>"
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
    for title, caption in [captions.CAPTIONS[name]]
  )


def _cleansed(contents):
  if not contents.cleanse:
    return ""
  c = contents.cleanse
  return (
    f'<p class="note">Fig. 4: clients removed at round {c["round"]:,}, by the'
    f" influence of {tables.code(c['estimator'])}. Held out: chosen on"
    f" {c['validation_examples']:,} examples, measured on"
    f" {c['test_examples']:,} others.</p>"
  )


def _gain(contents):
  """Says who was made bad, and what the model gains without them."""
  if not contents.debug:
    return ""
  ids = [text.escaped(name) for name in contents.debug["bad"]]
  return (
    f"<p>{len(ids):,} clients were made bad"
    f" ({tables.escaped(contents.debug['kind'])}):"
    f" {', '.join(map(tables.escaped, ids))}. Trained again without as many"
    " clients, those that a score calls the worst:</p>"
    f'<div class="scroll">{tables.gain(contents)}</div>'
  )


def _missing(contents):
  """Says which figures are missing, and what would make them."""
  notes = []
  if not contents.has_exact:
    notes.append(
      "Figs. 2 and 3 need the ground truth, which this run lacks"
      " (<code>--config.exact=all</code>)."
    )
  if not contents.tracked:
    notes.append("No client was tracked layer by layer: no Figs. 1 and 2.")
  if not contents.cleanse:
    notes.append(
      "Fig. 4 needs trainings with clients removed: start"
      " <code>python -m experiments.cleanse</code> on this folder."
    )
  return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _details(contents, images):
  s = contents.summary
  about = {
    "git revision": s["git_revision"],
    "data digest": s["data_digest"],
    **{f"version of {name}": v for name, v in s["versions"].items()},
  }
  names = [*contents.files, *(f"figures/{name}.png" for name in images)]
  links = "".join(f'<li><a href="{name}">{name}</a></li>' for name in names)
  return (
    f"{tables.pairs(about)}\n<details><summary>Layer by layer</summary>"
    f'<div class="scroll">{tables.layers(contents)}</div></details>\n'
    "<details><summary>The whole recipe</summary>"
    f"{tables.pairs(contents.config.get('config', {}))}</details>\n"
    f'<details><summary>Files of this run</summary><ul class="files">{links}'
    "</ul></details>"
  )
