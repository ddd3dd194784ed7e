"""Planted bad clients: which score finds them, and what removing them gains."""

import pathlib

import numpy as np

from experiments import cleansing
import fedinf_jax as fi
from fedinf_jax import report
from fedinf_jax.running import finishing
from fedinf_jax.running import loop
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks


def debug(
  task: tasks.Task, kind: str, folder: pathlib.Path, screen, sweeps: int
):
  """Trains with bad clients, scores every client and writes debug.json.

  Args:
    task: has the bad clients among its own.
    kind: of bad clients.
    folder: the workdir.
    screen: a rich console.
    sweeps: of GTG-Shapley per round; 0 leaves it out.
  """
  trained = loop.train(task, folder, screen, loop.Saving())
  finishing.finish(task, folder, trained)
  half = tasks.halves(task)
  scores = _scores(task, trained, half, sweeps)
  positions = task.train.positions(task.bad)
  bad = np.isin(np.arange(task.train.num_clients), positions)
  retrain = cleansing.trainer(task, half, task.seed)

  def gain(removed):
    loss, accuracy = retrain(removed).held_out[-1]
    return records.Gain(loss=loss, accuracy=accuracy)

  gains = {"nobody": gain([]), "the bad ones": gain(np.flatnonzero(bad))}
  for score, values in scores.items():
    # As many as are bad: what one would remove by this score.
    gains[score] = gain(fi.valuation.ranking(values)[::-1][: bad.sum()])
  content = records.Debug(
    kind=kind,
    bad=[str(i) for i in task.bad],
    clients=task.train.num_clients,
    scores={
      score: records.Detection(
        precision_at_k=fi.valuation.precision_at_k(values, bad),
        auroc=fi.valuation.auroc(values, bad),
        values=values,
      )
      for score, values in scores.items()
    },
    gain=gains,
  )
  records.write_debug(folder, content)
  report.write(folder)


def _scores(task, trained, half, sweeps):
  """Returns every score of all clients on the validation half: name → [K]."""
  scores = {
    f"fil_{of}": cleansing.scores(trained.state, task, half.validation, of)[
      "fil"
    ]
    for of in trained.evaluation.fil
  }
  shapley = fi.valuation.GTGShapley(max_sweeps=sweeps) if sweeps else None
  return scores | fi.valuation.baselines(
    task.model,
    task.train,
    task.fed,
    task.x[half.validation],
    task.y[half.validation],
    seed=task.seed,
    shapley=shapley,
  )
