"""The last files of a run: influence.csv, clients.json and summary.json."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from fedinf_jax import memory
from fedinf_jax import simulation
from fedinf_jax.running import evaluation as evaluations
from fedinf_jax.running import loop
from fedinf_jax.running import parsing
from fedinf_jax.running import passes
from fedinf_jax.running import processes
from fedinf_jax.running import records
from fedinf_jax.running import summaries
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from fedinf_jax.simulation import history as histories
from fedinf_jax.simulation import made
from fedinf_jax.simulation import measuring
from fedinf_jax.simulation import portraits as portraits_
from fedinf_jax.simulation import table as tables


def finish(task: tasks.Task, folder: pathlib.Path, trained: loop.Trained):
  """Writes influence.csv, clients.json and summary.json.

  Called by all processes, of which the first one writes.
  """
  run = simulation.Run.of(
    task.model,
    trained.state,
    task.train,
    cohorts=tasks.cohorts(task),
    copy=False,
  )
  table = _table(task, folder, trained, run)
  portraits = portraits_.portraits(run)
  trust = tasks.trust(task) if tasks.is_checked(task) else {}
  if processes.is_first():
    records.write_influence(folder, table)
    records.write_clients(folder, portraits)
    summary = _summary(task, folder, trained, table, trust)
    records.write_summary(folder, summary)


def _table(task, folder, trained, run):
  """Returns the table of a run: "exact" first, then estimators, then passes."""
  if processes.is_first():
    run = dataclasses.replace(run, history=history(folder))
  names = ["exact", *evaluations.names(trained.evaluation)]
  known = {name: None for name in names if name not in run.names}
  for scores in passes.read(folder) if task.passes else ():
    if scores.estimator in known and scores.round == task.fed.rounds:
      known[scores.estimator] = _passed(scores)
  return measuring.table(
    run,
    task.x,
    task.y,
    of=names,
    owners=tasks.owners(task),
    seed=task.seed,
    known=known,
  )


def _passed(scores):
  """Returns what a pass backwards has found."""
  unknown = np.full(len(scores.fil), np.nan)
  return tables.Measured(*[unknown if a is None else a for a in scores[2:]])


def history(folder: pathlib.Path) -> histories.History:
  """Reads what the logs of a workdir say about influence over time."""
  lines = parsing.parsed(folder / records.HISTORY)
  metrics = parsing.parsed(folder / records.METRICS)
  return histories.History(
    rounds=np.array([line["round"] for line in lines]),
    fil={
      name: np.array([line["fil"][name] for line in lines], float)
      for name in lines[0]["fil"]
    },
    loss=np.array([line["loss"] for line in metrics], float),
    accuracy=np.array([line["accuracy"] for line in metrics], float),
  )


def _summary(task, folder, trained, table, trust):
  found = trained.evaluation
  metrics = parsing.parsed(folder / records.METRICS)
  last_quarter = summaries.last_quarter(metrics, task.fed.rounds)
  return summaries.summary(
    tasks.about(task),
    table,
    trained.state.params,
    rounds=task.fed.rounds,
    train_examples=len(task.train.x),
    test_examples=len(task.x),
    seed=task.seed,
    loss=found.loss,
    accuracy=found.accuracy,
    estimators={
      name: _estimator(task, name, trained, last_quarter[name])._replace(
        trust=trust.get(name)
      )
      for name in task.descriptions
    },
    git_revision=workdir.git_revision(),
    notes=_notes(task),
    reliability=_repeated(task, metrics, found),
  )


def _notes(task):
  """Returns what a reader of the numbers must know; None: nothing."""
  if task.recipe.get("measured_on") != tasks.VALIDATION:
    return None
  return [
    f"Clients of this run were made bad on purpose ({len(task.bad)} of them)."
    " Influence, loss and accuracy are measured on the validation half of the"
    " held-out examples; what comes of leaving clients out, on the other half."
  ]


def _repeated(task, metrics, found):
  """Returns how reproducible the truth is; None where nothing was repeated."""
  last = evaluations.repeated(found)
  if last is None:
    return None
  late = summaries.late(metrics, task.fed.rounds)
  late = [line["reliability"] for line in late]
  fields = ("pearson", "spearman", "ceiling", "ceiling_mean")
  means: dict[str, Any] = {
    f: summaries.mean(line[f] for line in late) for f in fields
  }
  estimators = {
    name: records.WithMean(
      *(
        summaries.mean(line["estimators"][name][field] for line in late)
        for field in records.WithMean._fields
      )
    )
    for name in last.estimators
  }
  last_quarter = last._replace(**means, estimators=estimators)
  return records.Repeated(task.jitter, last, last_quarter)


def _estimator(task, name, trained, last_quarter):
  """Returns what summary.json says about an estimator."""
  if name in task.passes:
    return _pass(task, name, trained, last_quarter)
  estimator = task.estimators[name]
  kind = made.Kind(
    task.descriptions[name],
    simulation.upload_bytes(task.model, task.train, task.fed, estimator),
    estimator.curvature.interactive,
  )
  return summaries.estimator(
    kind,
    trained.evaluation.health[name],
    memory.tree_bytes(trained.state.params),
    evaluations.agreement(trained.evaluation, name),
    last_quarter,
  )


def _pass(task, name, trained, last_quarter):
  """Returns what summary.json says about a pass backwards: it has no ε."""
  return records.Estimator(
    description=task.descriptions[name],
    upload_bytes_per_participant=0,
    upload_models=0.0,
    interactive=False,
    simulated=task.passes[name].curvature is None,
    **evaluations.agreement(trained.evaluation, name)._asdict(),
    last_quarter=last_quarter,
    largest_growth=None,
    nonfinite_fraction=float(
      (~np.isfinite(trained.evaluation.fil[name])).mean()
    ),
    layers={},
  )
