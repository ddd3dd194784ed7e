r"""How near is each estimator to retraining? One table over finished runs.

python -m experiments.leaderboard --workdirs=DIR,DIR,...

A folder of several seeds stands for its runs. Numbers are means over the runs,
of what all of them have. Nothing is trained.
"""

import pathlib

from absl import flags
import numpy as np
from rich import console
from rich import table as rich_table

from experiments import launch
from fedinf_jax import valuation
from fedinf_jax.report import numbers
from fedinf_jax.report import verdict
from fedinf_jax.running import records
from fedinf_jax.running import workdir

_WORKDIRS = flags.DEFINE_list(
  "workdirs", ["runs/quickstart"], "Folders of finished runs, of one recipe."
)
_MARKDOWN = flags.DEFINE_bool("markdown", False, "Print it as Markdown.")
TOP = 20
COLUMNS = (
  "estimator",
  "upload",
  "Pearson / Spearman, last round",
  "last quarter",
  "FIP error",
  f"top-{TOP} overlap",
)


def main(argv):
  """Prints the table."""
  del argv
  runs = [workdir.read(folder) for folder in folders(_WORKDIRS.value)]
  rows = table(runs)
  if _MARKDOWN.value:
    for row in (COLUMNS, ["---"] * len(COLUMNS), *rows):
      print(f"| {' | '.join(row)} |")
    return
  shown = rich_table.Table(*COLUMNS)
  for row in rows:
    shown.add_row(*row)
  console.Console().print(shown)


def folders(names: list[str]) -> list[pathlib.Path]:
  """Returns the runs' folders; a folder of seeds stands for those in it."""
  found = []
  for path in map(pathlib.Path, names):
    seeds = sorted(p.parent for p in path.glob(f"seed_*/{records.SUMMARY}"))
    found += seeds or [path]
  return found


def table(runs: list[workdir.Contents]) -> list[list[str]]:
  """Returns a row per estimator, the nearest to the truth first.

  Args:
    runs: of one recipe, with exact influences.

  Returns:
    The cells; last those of the ceilings, where the truth was repeated.

  Raises:
    ValueError: if they are not of one recipe, or nobody was replayed.
  """
  first = runs[0]
  for run in runs:
    name = run.summary["name"]
    if name != first.summary["name"]:
      raise ValueError(
        f"--workdirs has runs of {first.summary['name']} and of {name}; they"
        " must be of one recipe"
      )
    if not run.has_exact:
      raise ValueError(f"--workdirs: a run of {name} has no exact influence")
  names = [n for n in first.names if all(n in run.names for run in runs)]
  found = {n: [_numbers(run, n) for run in runs] for n in names}
  best = sorted(names, key=lambda n: -_mean(found[n], "pearson", -2))
  return [*(_row(n, found[n]) for n in best), *_ceilings(runs)]


def _ceilings(runs):
  """Returns the row of ceilings, if the truth of every run was repeated."""
  repeated = [run.summary.get("reliability") for run in runs]
  if None in repeated:
    return []
  found = [
    {
      f"{when}_{kind}": None
      if about[when][kind] is None
      else verdict.ceiling(about, when, kind)
      for when in ("last", "last_quarter")
      for kind in ("pearson", "spearman")
    }
    for about in repeated
  ]
  pair = lambda when: " / ".join(
    _shown(found, f"{when}_{kind}") for kind in ("pearson", "spearman")
  )
  return [["(ceiling)", "", pair("last"), pair("last_quarter"), "", ""]]


def _numbers(run, name):
  about = run.summary["estimators"][name]
  late = about["last_quarter"]
  exact = run.columns["fil_exact"]
  known = np.isfinite(exact)
  estimated = run.columns[f"fil_{name}"][known]
  return {
    "upload": "simulated" if about["simulated"] else _upload(about),
    "pearson": about["fil_pearson"],
    "spearman": about["fil_spearman"],
    "late_pearson": late["fil_pearson"] if name in run.with_eps else None,
    "late_spearman": late["fil_spearman"] if name in run.with_eps else None,
    "error": late["fip_relative_error"],
    "overlap": valuation.overlap(estimated, exact[known], TOP)
    if known.sum() > TOP
    else None,
  }


def _upload(about):
  models = numbers.digits(about["upload_models"], 3)
  return f"{models}, interactive" if about["interactive"] else models


def _row(name, found):
  pair = lambda a, b: f"{_shown(found, a)} / {_shown(found, b)}"
  return [
    name,
    found[0]["upload"],
    pair("pearson", "spearman"),
    pair("late_pearson", "late_spearman"),
    _shown(found, "error"),
    _shown(found, "overlap"),
  ]


def _mean(found, field, unknown=None):
  values = [f[field] for f in found]
  return unknown if None in values else float(np.mean(values))


def _shown(found, field):
  value = _mean(found, field)
  return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
  launch.run(main)
