"""The page of a report: words and tables around what its script draws."""

import base64
import json
import pathlib
import string

from fedinf_jax import wording
from fedinf_jax.report import advice
from fedinf_jax.report import alternatives
from fedinf_jax.report import captions
from fedinf_jax.report import drawing
from fedinf_jax.report import embedding
from fedinf_jax.report import figures
from fedinf_jax.report import numbers
from fedinf_jax.report import sections
from fedinf_jax.report import sentences
from fedinf_jax.report import tables
from fedinf_jax.report import verdict as verdicts
from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.running import workdir

# Beside this file are page.html, page.css and the parts of the page's script.
PARTS = pathlib.Path(__file__)
SCRIPTS = ("base", "charts", "heat", "card", "table")
MARKS = {"good": "✓", "fair": "✓", "weak": "!", "bad": "✗", "none": "?"}
MOST_SVG = 150_000  # bytes of an SVG in the page; a larger one gives way to PNG
COLUMNS = (
  " Pearson and Spearman: correlation of estimated with exact influence at the"
  " last round. FIP error: distance of the estimated from the exact change of"
  " the model, over the size of the exact one. Best in bold."
)


def write(folder: pathlib.Path):
  """Writes figures/, report.html, and the verdict into summary.json.

  Args:
    folder: the workdir of a finished run.
  """
  contents = workdir.read(folder)
  try:
    images = figures.images(contents)
    found, said = sentences.write(contents)
    content = page(contents, images, found, said)
  except KeyError as error:
    raise ValueError(
      f"{folder} does not hold together: it lacks {error}; its"
      " files may be of different runs or of another version"
    ) from error
  (folder / "figures").mkdir(exist_ok=True)
  for name, image in images.items():
    for kind, content_of_it in image._asdict().items():
      files.write(folder / "figures" / f"{name}.{kind}", content_of_it)
  summary = contents.summary | {"verdict": said.lines()}
  files.write_json(folder / records.SUMMARY, summary)
  files.write(folder / records.REPORT, content)


def page(
  contents: workdir.Contents,
  images: dict[str, drawing.Image],
  found: verdicts.Verdict,
  said: sentences.Sentences,
) -> str:
  """Returns the page, HTML that needs no other file.

  Args:
    contents: of the workdir.
    images: figures by name.
    found: the verdict.
    said: the same in words.
  """
  data = json.dumps(embedding.data(contents, found), separators=(",", ":"))
  parts = {
    "style": PARTS.with_suffix(".css").read_text("utf-8"),
    "script": "".join(
      PARTS.with_name(f"page_{name}.js").read_text("utf-8") for name in SCRIPTS
    ),
    "title": tables.escaped(f"Client influence: {contents.summary['name']}"),
    "run": _run(contents, found.noun),
    "banner": _banner(contents),
    "headline": tables.paragraphs(said.headline, "lead")
    + tables.paragraphs(said.account, "account")
    + tables.paragraphs(contents.summary.get("notes") or [], "note"),
    "trust": _trust(contents, found, said),
    "next": _next(contents, found, said),
    "estimators": tables.estimators(contents),
    "columns": _columns(contents, found),
    "figures": _figures(contents, images, "fig"),
    "cleansed": sections.cleansed(contents),
    "debug": sections.debugged(contents, _figures(contents, images, "debug")),
    "missing": _missing(contents),
    # "<" could end the script element.
    "data": data.replace("<", "\\u003c"),
    "details": _details(contents, images),
  }
  template = PARTS.with_suffix(".html").read_text("utf-8")
  return string.Template(template).substitute(parts)


def _run(contents, noun):
  """Says in a line what was run."""
  s = contents.summary
  fed = contents.config.get("config", {}).get("fed", {})
  facts = [
    s["name"],
    wording.counted(s["clients"], noun),
    wording.counted(s["rounds"], "round"),
  ]
  if "cohort_size" in fed:
    facts.append(f"{fed['cohort_size']} per round")
  facts += [
    f"{s['num_params']:,} parameters",
    f"test loss {numbers.fixed(s['loss'], 4)}",
    f"accuracy {numbers.fixed(s['accuracy'], 4)}",
  ]
  return " · ".join(map(tables.escaped, facts))


def _banner(contents):
  if not contents.summary["stand_in"]:
    return ""
  return (
    '<p class="banner" role="note"><strong>Synthetic data.</strong> These are'
    " glyph writers, drawn from fonts, that stand in for FEMNIST: the numbers"
    " below are not comparable with those of the paper.</p>"
  )


def _trust(contents, found, said):
  """Says in words how far each estimator can be trusted."""
  if not contents.names:
    return "<p>This run has no estimators.</p>"
  items = ""
  for name, line in said.trust.items():
    key = found.grades[name].key
    items += (
      f'<li><span class="grade {key}" aria-hidden="true">{MARKS[key]}</span>'
      f" {tables.escaped(line)}</li>"
    )
  truth = tables.paragraphs(said.truth, "truth")
  return f'<ul class="trust">{items}</ul>\n{truth}{_scale(found, bool(truth))}'


def _scale(found, repeated):
  """Explains the grades; `repeated`: the truth was compared with itself."""
  if not found.num_replayed:
    return (
      '<p class="note">No client was retrained without, so nothing says how'
      " near these estimates are to the truth. A growth well above 1 with"
      " nothing truncated is a warning.</p>"
    )
  steps = "; ".join(
    f"{numbers.fixed(least, 2)}, {grade.words}"
    for least, grade in verdicts.GRADES[:-1]
  )
  return (
    '<p class="note">Measured against retraining without each of'
    f" {found.num_replayed:,} clients. The weakest of an estimator's four"
    f" correlations{', each divided by its ceiling,' if repeated else ''}"
    f" decides: from {steps}; below that, or once anything"
    " overflowed, do not trust. Growth above 1 means that old influence can"
    " grow from round to round.</p>"
  )


def _next(contents, found, said):
  """Says what to do next; a command stands there to be copied."""
  if not said.advice:
    return ""
  items = "".join(f"<li>{tables.escaped(line)}</li>" for line in said.advice)
  command = advice.command(contents, found)
  copied = ""
  if command:
    copied = (
      f'<div class="command"><pre><code>{tables.escaped(command)}</code></pre>'
      '<button type="button" class="copy">Copy</button></div>'
    )
  return (
    f'<section id="next"><h2>What to do next</h2><ul class="next">{items}</ul>'
    f"{copied}</section>"
  )


def _columns(contents, found):
  """Explains the columns of the table of estimators."""
  if not contents.has_exact:
    return ""
  if not contents.screened_by:
    return COLUMNS
  return (
    f"{COLUMNS} Only {tables.escaped(sentences.extremes(contents, found))} were"
    " retrained without: correlations, errors and Figs. 2 and 3 are over these"
    " alone, and say less about the clients between them."
  )


def _figures(contents, images, prefix):
  return "\n".join(
    _figure(name, image, alternatives.alternative(name, contents))
    for name, image in images.items()
    if name.startswith(prefix)
  )


def _figure(name, image, words):
  """Shows a figure: as SVG, unless that is too large for the page."""
  title, caption = captions.CAPTIONS[name]
  kind, content = "svg+xml", image.svg
  if len(content) > MOST_SVG:
    kind, content = "png", image.png
  return (
    f'<section><h3>{title}</h3><figure class="plate">'
    f'<a href="figures/{name}.svg"><img alt="{tables.escaped(words)}"'
    f' src="data:image/{kind};base64,{base64.b64encode(content).decode()}">'
    f"</a><figcaption>{caption} Files:"
    f' <a href="figures/{name}.png">PNG</a>,'
    f' <a href="figures/{name}.svg">SVG</a>.</figcaption></figure></section>'
  )


def _missing(contents):
  """Says which figures are missing, and what would make them."""
  notes = []
  if not contents.has_exact:
    notes.append("Figs. 2 and 3 need the ground truth, which this run lacks.")
  if not contents.tracked:
    notes.append("No client was tracked layer by layer: no Figs. 1 and 2.")
  if not contents.cleanse and contents.config["config"].get("cleanse_round"):
    notes.append(
      "Fig. 4 needs trainings with clients removed: start"
      " <code>python -m experiments.cleanse</code> on this folder."
    )
  return f'<p class="note">{" ".join(notes)}</p>' if notes else ""


def _details(contents, images):
  s = contents.summary
  about = {
    "data": s["source"],
    "training examples": f"{s['train_examples']:,}",
    "test examples": f"{s['test_examples']:,}",
    "seed": s["seed"],
    "git revision": s["git_revision"],
    "data digest": s["data_digest"],
    **{f"version of {name}": v for name, v in s["versions"].items()},
  }
  settings = "The whole recipe" if contents.is_recipe else "Settings"
  names = [*contents.files, *(f"figures/{name}.png" for name in images)]
  links = "".join(f'<li><a href="{name}">{name}</a></li>' for name in names)
  return (
    f"{tables.pairs(about)}\n<details><summary>Layer by layer</summary>"
    f'<div class="scroll">{tables.layers(contents)}</div></details>\n'
    f"<details><summary>{settings}</summary>"
    f"{tables.pairs(contents.config.get('config', {}))}</details>\n"
    f'<details><summary>Files of this run</summary><ul class="files">{links}'
    "</ul></details>"
  )
