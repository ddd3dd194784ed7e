"""The page about two runs: comparison.html, which needs no other file."""

import json
import pathlib
import string

import numpy as np

from fedinf_jax import text
from fedinf_jax import wording
from fedinf_jax.report import comparison
from fedinf_jax.report import numbers
from fedinf_jax.report import tables
from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.running import workdir

PARTS = pathlib.Path(__file__).parent
SCRIPTS = ("base", "charts", "comparison")


def write(folder: pathlib.Path, against: pathlib.Path) -> list[str]:
  """Writes comparison.csv and comparison.html into the folder of run A.

  Args:
    folder: the workdir of run A.
    against: that of run B, which is only read.

  Returns:
    What changed, in words, a line per string.

  Raises:
    ValueError: if they cannot be compared, saying why.
  """
  if folder.resolve() == against.resolve():
    raise ValueError(f"{against} is the very run that is to be compared")
  a, b = workdir.read(folder), workdir.read(against)
  found = comparison.compare(a, b)
  said = comparison.sentences(found, a, b)
  names = [f"A: {folder}", f"B: {against}"]
  files.write(folder / records.COMPARISON_CSV, comparison.csv(found))
  files.write(folder / records.COMPARISON, page(found, said, names))
  return said


def page(
  found: comparison.Comparison, said: list[str], names: list[str]
) -> str:
  """Returns the page.

  Args:
    found: the comparison.
    said: the same in words.
    names: what A and B are.
  """
  part = lambda name: (PARTS / f"page_{name}").read_text("utf-8")
  content = json.dumps(data(found), separators=(",", ":"))
  template = string.Template(part("comparison.html"))
  return template.substitute(
    style=(PARTS / "page.css").read_text("utf-8"),
    script="".join(part(f"{name}.js") for name in SCRIPTS),
    title="Two runs compared",
    run=" · ".join(tables.escaped(text.escaped(name)) for name in names),
    headline=tables.paragraphs(said, "lead"),
    scores=_scores(found),
    data=content.replace("<", "\\u003c"),  # It could end the script element.
  )


def data(found: comparison.Comparison) -> dict:
  """Returns what the script draws from, S clients; ids are escaped text."""
  scores = list(found.scores.items())
  return {
    "ids": [text.escaped(name) for name in found.ids],
    "rounds": [],
    "kept": [],
    "history": [],
    "labels": None,
    "eps": [],
    "by": 1,
    "named": {"helps": [], "hurts": list(range(min(5, len(found.ids))))},
    "screened": False,
    "curves": {"pearson": {}},
    # Of the scatter: every score of either run.
    "scores": [
      dict.fromkeys(("name", "words"), f"{wording.titled(name)} in {run}")
      for name, _ in scores
      for run in "BA"
    ],
    "values": [
      {"fil": _listed(values)}
      for _, score in scores
      for values in (score.b, score.a)
    ],
    "compared": [
      {
        "name": name,
        "words": wording.titled(name),
        "ranks": [comparison.ranks(score, v) for v in (score.b, score.a)],
        "effects": [score.effect_b.tolist(), score.effect_a.tolist()],
        "sign": score.sign_changed.tolist(),
        "group": score.group_changed.tolist(),
      }
      for name, score in scores
    ],
  }


def _scores(found):
  """Tabulates how near the runs are to one another, score by score."""
  rows = [
    f'<th scope="row">{tables.escaped(wording.titled(name))}</th>'
    f"<td>{int(score.known.sum()):,}</td>"
    f"<td>{numbers.correlation(score.spearman)}</td>"
    f"<td>{numbers.correlation(score.pearson)}</td>"
    f"<td>{int(score.sign_changed.sum()):,}</td>"
    f"<td>{int(score.group_changed.sum()):,}</td>"
    for name, score in found.scores.items()
  ]
  heads = ("by", "known in both", "Spearman", "Pearson")
  return tables.table([*heads, "changed sign", "changed group"], rows)


def _listed(values):
  """Returns numbers of six digits, None where there is none."""
  return [float(f"{v:.5e}") if np.isfinite(v) else None for v in values]
