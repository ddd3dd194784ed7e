r"""Learns what agreement to expect where nobody is replayed: see `fi.trust`.

python -m experiments.calibrate --rows=ROWS.jsonl [--data_dir=FEMNIST]

Trains small federations in which everybody is replayed, and compares signs with
the agreement that was found. Prints the constants of valuation/trust.py, what
they would say about each setting if learnt without it, and what they say about
data that they were not learnt from. What stands in ROWS.jsonl is not trained
again. Two busy cores: about half an hour.
"""

import json
import pathlib

from absl import flags
import numpy as np
from rich import console
from rich import table as rich_table

from experiments import calibrating
from experiments import launch
from fedinf_jax.running import files

_ROWS = flags.DEFINE_string("rows", "runs/calibrate.jsonl", "What was found.")
_DATA_DIR = launch.define_data_dir()
COLUMNS = (
  "setting",
  "rows",
  "found, median (5 to 95 %)",
  "expected, median (5 to 95 %)",
  "error, median",
  "in its interval",
)


def main(argv):
  """Measures what is missing, learns, and prints."""
  del argv
  screen, path = console.Console(), pathlib.Path(_ROWS.value)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = _read(path)
  known = {(row["setting"], row["learning_rate"]) for row in rows}
  for setting in calibrating.settings(_DATA_DIR.value):
    if (setting.name, setting.learning_rate) in known:
      continue
    screen.print(f"{setting.name}, step size {setting.learning_rate:g}")
    # All of a setting or nothing: stopped in between, it is measured again.
    for row in list(calibrating.measure(setting)):
      files.append_json(path, row)
  rows = [row for row in _read(path) if row["pearson"] is not None]
  learnt = [row for row in rows if row["setting"] not in calibrating.HELD_OUT]
  found = calibrating.calibrate(learnt)
  screen.print(found)
  _show(screen, "each learnt without it", calibrating.left_out(learnt))
  others = [row for row in rows if row["setting"] in calibrating.HELD_OUT]
  said = [calibrating.expected(row, found) for row in others]
  _show(screen, "never learnt from", list(zip(others, said, strict=True)))


def _read(path):
  if not path.exists():
    return []
  return [json.loads(line) for line in path.read_text().splitlines()]


def _show(screen, title, pairs):
  """Prints a table of (row, Trust) by setting, and by estimator."""
  table = rich_table.Table(*COLUMNS, title=title)
  for field in ("setting", "estimator"):
    for name in dict.fromkeys(row[field] for row, _ in pairs):
      table.add_row(name, *_words([p for p in pairs if p[0][field] == name]))
    table.add_section()
  if pairs:
    table.add_row("all", *_words(pairs))
  screen.print(table)


def _words(pairs):
  found = np.array([row["pearson"] for row, _ in pairs])
  said = np.array([t.pearson for _, t in pairs])
  held = [t.low <= row["pearson"] <= t.high for row, t in pairs]
  spread = lambda values: "{1:.2f} ({0:.2f} to {2:.2f})".format(
    *np.quantile(values, [0.05, 0.5, 0.95])
  )
  return (
    str(len(pairs)),
    spread(found),
    spread(said),
    f"{np.median(np.abs(found - said)):.3f}",
    f"{100 * np.mean(held):.0f} %",
  )


if __name__ == "__main__":
  launch.run(main)
