"""Who made the model say what it says about one test example."""

import pathlib
from typing import Any

import jax
import numpy as np

from fedinf_jax import metrics
from fedinf_jax import simulation
from fedinf_jax import text
from fedinf_jax.running import files
from fedinf_jax.running import processes
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.simulation import table as tables

_NAMED = 3  # clients, on the screen


def explain(task: tasks.Task, folder: pathlib.Path, state) -> str:
  """Writes explain_INDEX.csv, a row per client.

  Called by all processes, of which the first one writes. Passes backwards have
  no ε, and no columns.

  Args:
    task: what was trained.
    folder: its workdir.
    state: at the end of the run.

  Returns:
    A line that names the clients that matter most.
  """
  run = simulation.Run.of(task.model, state, task.train, copy=False)
  row: Any = task.explain  # Not None, or nobody would have asked.
  x: Any = task.x[row : row + 1]
  y = task.y[row : row + 1]
  outputs = task.model.apply(jax.tree.map(np.asarray, state.params), x)
  present = np.asarray(metrics.predictions(outputs, y), float)[0]
  labels = int(present.argmax()), int(y[0])
  columns: dict[str, Any] = {
    "client_id": list(task.train.ids),
    "predicted_label": [labels[0]] * run.num_removals,
    "true_label": [labels[1]] * run.num_removals,
  }
  for name in run.names:
    found = run.influence(metrics.predictions, x, y, of=name)
    change = run.everyone(found, name)[:, 0]
    for title, label in zip(records.EXPLAINED, labels, strict=True):
      columns[f"{title}_{name}"] = change[:, label]
  processes.on_first(
    files.write,
    folder / records.explained(row),
    tables.csv_text(columns),
  )
  by = next(iter(run.names), None)
  return _sentence(task, present, labels, by, columns)


def _sentence(task, present, labels, by, columns):
  said, true = labels
  line = (
    f"Example {task.explain}: the model says {said} with probability"
    f" {present[said]:.3f}; {true} is true."
  )
  if by is None:
    return line
  change = columns[f"{records.EXPLAINED[0]}_{by}"]
  order = [k for k in np.argsort(change, kind="stable") if change[k] < 0]
  without = [
    f"{present[said] + change[k]:.3f} without {text.escaped(task.train.ids[k])}"
    for k in order[:_NAMED]
  ]
  if not without:
    return f"{line} Without any single client it would be as probable ({by})."
  return f"{line} It would be {', '.join(without)} ({by})."
