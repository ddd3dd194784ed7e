r"""Draws the figures and the page of a finished run again, from its files.

python -m experiments.report --workdir=DIR

Nothing is trained.
"""

import csv
import json
import pathlib
from typing import Any
from typing import NamedTuple

from absl import flags
import numpy as np

from experiments import launch
from experiments import report_page
from experiments import workdir as workdirs


class Contents(NamedTuple):
  """What the files of a run hold: N evaluated rounds, R clients."""

  summary: dict[str, Any]
  config: dict[str, Any]
  metrics: list[dict[str, Any]]  # N lines
  ids: list[str]  # [R]
  # Influence is NaN where empty, 0 where it is only rounding.
  columns: dict[str, np.ndarray]  # of influence.csv, [R]
  history: dict[str, np.ndarray]  # FIL, name → [N, R]
  # client → layer → estimator → round, error, norm → [N]
  tracked: dict[str, dict[str, dict[str, dict[str, np.ndarray]]]]
  cleanse: dict[str, Any] | None
  debug: dict[str, Any] | None
  files: list[str]  # those that are there

  @property
  def rounds(self):
    """The evaluated rounds, [N]."""
    return [line["round"] for line in self.metrics]

  @property
  def names(self):
    """The estimators, in the order of the recipe."""
    return list(self.summary["estimators"])

  @property
  def has_exact(self):
    """Whether any client was replayed."""
    return bool(np.isfinite(self.columns.get("fil_exact", np.nan)).any())

  @property
  def ranked_by(self):
    """Whose FIL orders the clients: the truth, else the best estimate of it."""
    exact = self.columns.get("fil_exact", np.array([np.nan]))
    if np.isfinite(exact).all() or not self.names:
      return "exact"
    return max(self.names, key=self._agreement)

  @property
  def ranking(self):
    """FIL that orders the clients, [R]; NaN where there is none."""
    unknown = np.full(len(self.ids), np.nan)
    return self.columns.get(f"fil_{self.ranked_by}", unknown)

  def _agreement(self, name):
    # Ties, as in a run without ground truth, go to the first of the recipe.
    measured = self.summary["estimators"][name]
    if measured.get("nonfinite_fraction"):
      return -1.0
    return measured["last_quarter"].get("fil_spearman") or 0.0


def load(workdir):
  """Reads a workdir.

  Args:
    workdir: folder of a finished run.

  Returns:
    Contents.
  """
  if not (workdir / "summary.json").is_file():
    raise ValueError(
      f"{workdir} is not a finished run: it has no summary.json; start"
      f" experiments.run --workdir={workdir} first"
    )
  files = {
    name: parse for name, parse in FILES.items() if (workdir / name).is_file()
  }
  read = {name: _read(workdir / name, parse) for name, parse in files.items()}
  ids, columns = read.get("influence.csv", ([], {}))
  summary = read["summary.json"]
  return Contents(
    summary=summary,
    config=read.get("config.json", {}),
    metrics=read.get("metrics.jsonl", []),
    ids=ids,
    columns={
      name: _without_rounding(values, name[:3], summary)
      for name, values in columns.items()
    },
    history={
      name: _without_rounding(values, "fil", summary)
      for name, values in read.get("history.jsonl", {}).items()
    },
    tracked=read.get("layers.csv", {}),
    cleanse=read.get("cleanse.json"),
    debug=read.get("debug.json"),
    files=list(read),
  )


def write(workdir: pathlib.Path):
  """Writes figures/*.png and report.html of a finished run.

  Args:
    workdir: folder of the run.
  """
  # Takes a second to import, which a run need not wait for at its start.
  from experiments import figures

  run = load(workdir)
  try:
    images = figures.pngs(run)
    page = report_page.page(run, images)
  except KeyError as error:
    raise ValueError(
      f"{workdir} does not hold together: it lacks {error}; its"
      " files may be of different runs or of another version"
    ) from error
  (workdir / "figures").mkdir(exist_ok=True)
  for name, png in images.items():
    workdirs.write(workdir / "figures" / f"{name}.png", png)
  workdirs.write(workdir / "report.html", page)


def main(argv):
  """Writes the report."""
  del argv
  workdir = pathlib.Path(_WORKDIR.value)
  write(workdir)
  print(workdir / "report.html")


def _read(path, parse):
  with path.open(newline="", encoding="utf-8") as file:
    try:
      return parse(file)
    except (ValueError, KeyError, TypeError, csv.Error) as error:
      raise ValueError(
        f"{path} cannot be read: {type(error).__name__} {error}"
      ) from error


def _lines(file):
  return [json.loads(line) for line in file if line.strip()]


def _history(file):
  lines = _lines(file)
  names = lines[0]["fil"] if lines else ()
  return {
    name: np.array([line["fil"][name] for line in lines], float)
    for name in names
  }


def _influence(file):
  """Returns the ids [R] and the other columns [R]."""
  rows = list(csv.DictReader(file, strict=True))
  names = [name for name in (rows[0] if rows else ()) if name != "client_id"]
  columns = {name: _floats(row[name] for row in rows) for name in names}
  return [row["client_id"] for row in rows], columns


def _layers(file):
  """Returns client → layer → estimator → field → [N]."""
  fields = ("round", "error", "norm")
  tracked = {}
  for row in csv.DictReader(file, strict=True):
    layers = tracked.setdefault(row["client"], {})
    traces = layers.setdefault(row["layer"], {})
    cells = traces.setdefault(row["estimator"], {f: [] for f in fields})
    for field in fields:
      cells[field].append(row[field])
  for layers in tracked.values():
    for traces in layers.values():
      for cells in traces.values():
        cells.update({f: _floats(values) for f, values in cells.items()})
  return tracked


def _without_rounding(values, kind, summary):
  """Sets to 0 what is only rounding, or clients never drawn seem to matter."""
  least = {
    "fil": 1e-6 * abs(summary["loss"] or 0),
    "fia": 0.5 / max(1, summary["test_examples"]),  # half an example
  }
  return np.where(np.abs(values) < least.get(kind, 0), 0.0, values)


def _floats(cells):
  values = np.array([float(cell or "nan") for cell in cells])
  return np.where(np.isfinite(values), values, np.nan)


# Not timing.jsonl: a report is the same in every rerun.
FILES = {
  "summary.json": json.load,
  "config.json": json.load,
  "metrics.jsonl": _lines,
  "influence.csv": _influence,
  "history.jsonl": _history,
  "layers.csv": _layers,
  "cleanse.json": json.load,
  "debug.json": json.load,
}

if __name__ == "__main__":
  # Here, as experiments.run has a --workdir of its own.
  _WORKDIR = flags.DEFINE_string(
    "workdir", "runs/quickstart", "Folder of the finished run."
  )
  launch.run(main)
