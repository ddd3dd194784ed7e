"""A user's own clients, as a recipe and the problem that it trains on."""

import dataclasses
import pathlib
import runpy
from typing import Any
from typing import NamedTuple

import ml_collections
import numpy as np

from fedinf_jax import checks
from fedinf_jax import data as data_
from fedinf_jax import models
from fedinf_jax import recipes
from fedinf_jax import simulation
from fedinf_jax import types
from fedinf_jax.command import choices
from fedinf_jax.command import plans
from fedinf_jax.data import federated
from fedinf_jax.recipes import building
from fedinf_jax.recipes import estimators as named
from fedinf_jax.recipes import keys
from fedinf_jax.recipes import quickstart
from fedinf_jax.running import planning
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks

EVALUATIONS = 20  # of the model in a run


class Own(NamedTuple):
  """A run on a user's data, ready to start."""

  task: tasks.Task
  line: str  # what was understood, and chosen


def prepare(values: dict[str, Any], name: str) -> Own:
  """Reads the clients and chooses what the flags leave open.

  Args:
    values: the flags of fedinf run, by name.
    name: of the run.

  Raises:
    ValueError: naming the flag, or the file, column and row at fault.
  """
  check(values)
  custom = _custom_model(values["model"])
  reading = data_.read(
    values["clients"],
    client=values["client"],
    label=values["label"],
    task=values["task"],
  )
  kind = values["model"] or choices.model(reading.data, reading.task)
  train, held_out = _parts(reading, values["test"], values["seed"])
  if kind in ("logreg", "mlp"):
    train, held_out = _flat(train), _flat(held_out)
  if custom is None:
    model = _model(kind, reading, train)
  else:
    model = _called(custom, kind, train)
  config = _config(values, kind, model, train, len(held_out.x))
  source = pathlib.Path(values["clients"]).name
  problem = recipes.Problem(train, held_out, source, model)
  build = lambda: recipes.build(name, config, None, lambda config: problem)
  task = build()
  if values["exact"] is None:
    size = plans.sizes(task)
    machine = planning.Machine(removals=1, params=1, flops=1.0)
    replay = planning.plan(size, machine).replay * config.fed.rounds
    config.exact = choices.exact(replay)
    task = build()
  return Own(task, f"{reading.line}; {_chosen(config, kind, held_out)}")


def check(values: dict[str, Any]):
  """Checks what needs no data: whether training and estimators go together.

  Raises:
    ValueError: naming the flags.
  """
  small = {"rounds": 1, "cohort_size": 1, "local_steps": 1, "batch_size": 1}
  given = {k: values.get(k) or v for k, v in small.items()}
  given["cohort_size"] = values["cohort"] or 1
  given["optimizer"] = values["optimizer"]
  given["learning_rate"] = values["learning_rate"] or 0.1
  fed = building.fed(ml_collections.ConfigDict({"fed": given}))
  x, y = np.eye(2, dtype=np.float32), np.arange(2)
  names = values["estimators"] or ""
  try:
    simulation.simulator(
      models.logreg(2, 2),
      federated.FederatedData.from_clients([(x, y)]),
      dataclasses.replace(fed, rounds=1, cohort_size=1, local_steps=1),
      estimators=named.build(names, 2),
      server_data=(x, y) if named.serving(names) else None,
    )
  except ValueError as error:
    raise ValueError(
      f"--estimators={names} with --optimizer={values['optimizer']}: {error}"
    ) from error


def _parts(reading, test, seed):
  """Returns what is trained on, and what is held out."""
  if test is None:
    if reading.data.num_examples.max() < 2:
      raise ValueError(
        "every client has one row, so that none can be held out; give test data"
        " by --test=PATH"
      )
    return reading.data.split(choices.TRAIN, seed)
  x, y, owners = reading.encode(test)
  if owners is None:
    return reading.data, recipes.unowned(x, y)
  nobody = recipes.NOBODY
  while nobody in reading.data.ids:
    nobody += "'"
  rows: dict[Any, list[int]] = {}
  for row, owner in enumerate(owners):
    rows.setdefault(nobody if owner is None else owner, []).append(row)
  clients = {owner: (x[some], y[some]) for owner, some in rows.items()}
  return reading.data, federated.FederatedData.from_clients(
    clients, num_classes=reading.data.num_classes
  )


def _flat(data):
  """Returns clients whose examples are vectors."""
  return dataclasses.replace(data, x=data.x.reshape(len(data.x), -1))


def _model(kind, reading, train):
  """Makes a model of ours for the data."""
  shape = train.x.shape[1:]
  if kind == "cnn":
    if reading.task == "regression" or not choices.is_images(train):
      raise ValueError(
        f"--model=cnn is for images [H, W, C] with classes; these are"
        f" {list(shape)} for {reading.task}"
      )
    return models.cnn(
      len(reading.classes), image_shape=shape, activation="gelu", pool="avg"
    )
  outputs = None if reading.task == "regression" else len(reading.classes)
  if kind == "mlp":
    # Smooth: influence through kinks is hard to estimate.
    return models.mlp(shape, outputs, activation="tanh")
  if outputs is None:
    return models.mlp(shape, None, hidden=())
  return models.logreg(shape[0], outputs)


def _custom_model(name):
  """Loads FILE.py:NAME; None: the model is one of ours."""
  file, colon, name = (name or "").rpartition(":")
  if not colon:
    return None
  if not pathlib.Path(file).is_file():
    raise ValueError(f"--model={file}:{name}: there is no file {file}")
  found = checks.call(f"--model: {file} fails", runpy.run_path, file)
  if name not in found:
    raise ValueError(f"--model={file}:{name}: the file defines no {name}")
  if not isinstance(found[name], types.Model) and not callable(found[name]):
    raise ValueError(
      f"--model={file}:{name} is a {type(found[name]).__name__}; it must be a"
      " fi.Model, or a function of the clients that returns one"
    )
  return found[name]


def _called(custom, name, train):
  """Returns the model; a function is asked for it."""
  if isinstance(custom, types.Model):
    return custom
  model = checks.call(f"--model={name} fails", custom, train)
  if not isinstance(model, types.Model):
    raise ValueError(
      f"--model={name} returned a {type(model).__name__}; it must return a"
      " fi.Model"
    )
  return model


def _config(values, kind, model, train, num_held_out):
  """Returns the recipe of the run."""
  config = quickstart.get_config()
  with config.unlocked():
    config.written_by = records.COMMAND
  config.seed, optimizer = values["seed"], values["optimizer"]
  config.data = {"kind": keys.OWN}
  config.model = {"kind": kind}
  config.fed = ml_collections.ConfigDict(choices.training(values, train))
  rate = values["learning_rate"]
  if rate is None:
    rate = choices.learning_rate(kind, model, train, optimizer, config.seed)
  config.fed.learning_rate = rate
  if optimizer != "sgd":
    config.fed.optimizer = optimizer
  config.estimators = values["estimators"] or choices.estimator(config, model)
  config.server_examples = 0
  if named.serving(config.estimators):
    config.server_examples = num_held_out // 2
  config.exact = values["exact"] or "all"
  config.evaluate_every = max(1, config.fed.rounds // EVALUATIONS)
  config.cleanse_round = 0
  return config


def _chosen(config, kind, held_out):
  """Says in one line how the clients are trained."""
  fed = config.fed
  batch = f", batches of {fed.batch_size}" if fed.batch_size else ""
  optimizer = "" if "optimizer" not in fed else f" ({fed.optimizer})"
  return (
    f"{len(held_out.x):,} rows held out for test; {kind}, {fed.rounds} rounds"
    f" of {fed.cohort_size} clients, {fed.local_steps} local steps{batch},"
    f" learning rate {fed.learning_rate:g}{optimizer}; estimators"
    f" {config.estimators}; retrained without: {config.exact}"
  )
