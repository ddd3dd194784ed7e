"""The last files of a run: influence.csv and summary.json."""

import pathlib

import jax
import numpy as np

from fedinf_jax import memory
from fedinf_jax import simulation
from fedinf_jax.running import evaluation as evaluations
from fedinf_jax.running import loop
from fedinf_jax.running import parsing
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir


def finish(task: tasks.Task, folder: pathlib.Path, trained: loop.Trained):
  """Writes influence.csv and summary.json."""
  found, train = trained.evaluation, task.train
  clients = [
    records.Client(client_id=i, num_examples=int(n), times_selected=int(times))
    for i, n, times in zip(
      train.ids, train.num_examples, tasks.selected(task), strict=True
    )
  ]
  unknown = np.full(train.num_clients, np.nan)
  columns = lambda values: {
    name: values.get(name, unknown)
    for name in ("exact", *evaluations.names(found))
  }
  records.write_influence(
    folder, clients, fil=columns(found.fil), fia=columns(found.fia)
  )
  records.write_summary(folder, _summary(task, folder, trained))


def _summary(task, folder, trained):
  found, train = trained.evaluation, task.train
  leaves = jax.tree.leaves(trained.state.params)
  last_quarter = _last_quarter(folder, task.fed.rounds)
  return records.Summary(
    name=task.name,
    source=task.source,
    stand_in=task.stand_in,
    clients=train.num_clients,
    rounds=task.fed.rounds,
    num_params=sum(a.size for a in leaves),
    train_examples=len(train.x),
    test_examples=len(task.x),
    seed=task.seed,
    loss=found.loss,
    accuracy=found.accuracy,
    layer_names=list(found.layers),
    estimators={
      name: _estimator(task, name, trained, last_quarter[name])
      for name in task.descriptions
    },
    data_digest=tasks.digest(task),
    versions=workdir.versions(),
    git_revision=workdir.git_revision(),
  )


def _estimator(task, name, trained, last_quarter):
  """Returns what summary.json says about an estimator."""
  if name in task.passes:
    return _pass(task, name, trained, last_quarter)
  estimator = task.estimators[name]
  upload = simulation.upload_bytes(task.model, task.train, task.fed, estimator)
  health = trained.evaluation.health[name]
  return records.Estimator(
    description=task.descriptions[name],
    upload_bytes_per_participant=upload,
    upload_models=upload / memory.tree_bytes(trained.state.params),
    interactive=estimator.curvature.interactive,
    simulated=False,
    **evaluations.agreement(trained.evaluation, name)._asdict(),
    last_quarter=last_quarter,
    largest_growth=float(np.asarray(health.growth, float).max()),
    nonfinite_fraction=float((np.asarray(health.nonfinite_at) > 0).mean()),
    layers=evaluations.trust(health),
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


def _last_quarter(folder, rounds):
  """Means over the evaluated rounds of the last quarter, per estimator."""
  lines = parsing.parsed(folder / records.METRICS)
  late = [line["estimators"] for line in lines if line["round"] > 0.75 * rounds]
  means = {}
  for name in late[0]:
    means[name] = {}
    for field in records.LAST_QUARTER:
      values = [line[name][field] for line in late]
      known = [v for v in values if v is not None]
      means[name][field] = float(np.mean(known)) if known else None
  return means
