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

  All scores are measured on the validation half of the held-out examples, and
  what is gained on the test half.

  Args:
    task: has the bad clients among its own.
    kind: of bad clients.
    folder: the workdir.
    screen: a rich console.
    sweeps: of GTG-Shapley per round; 0 leaves it out.
  """
  half, scored = tasks.halves(task), tasks.on_validation(task)
  trained = loop.train(scored, folder, screen, loop.Saving())
  finishing.finish(scored, folder, trained)
  history = finishing.history(folder)
  scores = {
    f"fil_{of}": history.fil[of] for of in trained.evaluation.fil
  } | _baselines(scored, history.rounds, sweeps)
  bad = np.isin(
    np.arange(task.train.num_clients), task.train.positions(task.bad)
  )
  records.write_debug(
    folder,
    records.Debug(
      kind=kind,
      bad=[str(i) for i in task.bad],
      clients=task.train.num_clients,
      validation_examples=len(half.validation),
      test_examples=len(half.test),
      rounds=history.rounds.tolist(),
      scores={name: _detection(a, bad) for name, a in scores.items()},
      gain=_gains(task, half, scores, bad),
    ),
  )
  report.write(folder)


def _baselines(task, rounds, sweeps):
  """Returns the scores that need no influence: name → [E, K]."""
  return fi.valuation.baselines(
    task.model,
    task.train,
    task.fed,
    task.x,
    task.y,
    seed=task.seed,
    shapley=fi.valuation.GTGShapley(max_sweeps=sweeps) if sweeps else None,
    at=rounds,
  )


def _detection(scores, bad):
  """Says how well a score finds the bad clients.

  Args:
    scores: [E, K], over the evaluated rounds.
    bad: bool [K].
  """
  last = _known(scores[-1])
  return records.Detection(
    precision_at_k=fi.valuation.precision_at_k(last, bad),
    auroc=fi.valuation.auroc(last, bad),
    values=last,
    # A pass backwards is known after some rounds only.
    over_time=np.array(
      [
        fi.valuation.auroc(_known(row), bad)
        if np.isfinite(row).any()
        else np.nan
        for row in scores
      ]
    ),
  )


def _known(row):
  """Returns scores, 0 of clients of whom nothing is known: nothing against."""
  return np.nan_to_num(row, posinf=0, neginf=0)


def _gains(task, half, scores, bad):
  """Trains again without those whom a score calls the worst."""
  retrain = cleansing.trainer(task, half, task.seed)
  done = {}

  def gain(removed):
    key = tuple(sorted(int(k) for k in removed))
    if key not in done:
      loss, accuracy = retrain(removed).held_out[-1]
      done[key] = records.Gain(loss=loss, accuracy=accuracy)
    return done[key]

  gains = {"nobody": gain([]), "the bad ones": gain(np.flatnonzero(bad))}
  for name, values in scores.items():
    # As many as are bad: what one would remove by this score.
    worst = fi.valuation.ranking(_known(values[-1]))[::-1][: bad.sum()]
    gains[name] = gain(worst)
  return gains
