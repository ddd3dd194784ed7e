"""Training on without some clients: what the model gains or loses."""

from collections.abc import Callable
import functools
import pathlib
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax import rng
from fedinf_jax.recipes import keys
from fedinf_jax.running import checkpoint
from fedinf_jax.running import files
from fedinf_jax.running import passes
from fedinf_jax.running import records
from fedinf_jax.running import schema
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir

POINTS = 10  # Points of a curve.


class Curve(NamedTuple):
  """How a training continued, on the whole test set and on its test half."""

  rounds: list[int]
  one_set: np.ndarray  # [N, 2], loss and accuracy
  held_out: np.ndarray  # [N, 2]


def load(folder: pathlib.Path, data_dir: str | None) -> tasks.Task:
  """Makes the task of a workdir again.

  Raises:
    ValueError: if the folder holds no run, or one of other data or versions.
  """
  there = read_about(folder)
  config = ml_collections.ConfigDict(there["config"])
  task = recipes.build(there["name"], config, data_dir)
  if config.get("measured_on") == tasks.VALIDATION:  # By experiments.debug.
    task = tasks.on_validation(task)
  workdir.claim(folder, tasks.about(task))
  return tasks.verified(task, passes.read(folder))


def read_about(folder: pathlib.Path) -> dict[str, Any]:
  """Reads config.json of a workdir, whose recipe is checked."""
  if not (folder / records.CONFIG).exists():
    raise ValueError(
      f"--workdir={folder} holds no run; start experiments.run with it first"
    )
  content = files.read_json(folder / records.CONFIG)
  try:
    schema.check(content, records.About)
    keys.check(ml_collections.ConfigDict(content["config"]))
  except ValueError as error:
    raise ValueError(
      f"{folder / records.CONFIG} is damaged ({error})"
    ) from error
  return content


def state_at(folder: pathlib.Path, task: tasks.Task, round_: int):
  """Restores the state that a run kept at a round."""
  saved = checkpoint.Checkpoints(folder / records.CHECKPOINTS, keep={round_})
  there = saved.rounds()
  if round_ not in there:
    raise ValueError(
      f"{folder} has no checkpoint of round {round_}; it has"
      f" {', '.join(map(str, there)) or 'none'}"
    )
  state, found = saved.restore(tasks.simulator(task).init, rounds=[round_])
  saved.close()
  if found != round_:
    raise ValueError(f"{folder}: the checkpoint of round {round_} is damaged")
  return state


def scores(state, task, rows, of: str) -> dict[str, np.ndarray]:
  """Returns FIL and −FIA of every client on some rows: higher is helpful.

  Clients that were not replayed have 0: nothing is known against them. A pass
  backwards leaves no ε in a state: it is done once more, for these rows.
  """
  x, y = task.x[rows], task.y[rows]
  run = fi.Run.of(task.model, state, copy=False)
  influence: Callable = functools.partial(run.influence, of=of)
  if of in task.passes:
    again = passes.prepare(task._replace(x=x, y=y), of)
    rounds = int(state.round)
    turned = again.turn(again.train(again.init(), rounds))
    back = task.passes[of].rounds(rounds)
    influence = again.read(again.back(turned, back)).on
  found = {}
  for name, metric, sign in (
    ("fil", fi.metrics.loss, 1),
    ("fia", fi.metrics.accuracy, -1),
  ):
    values = sign * np.asarray(influence(metric, x, y), float)
    if of == "exact":
      everyone = np.zeros(task.train.num_clients)
      everyone[run.exact_rows] = values
      values = everyone
    found[name] = np.nan_to_num(values, posinf=0, neginf=0)
  return found


def trainer(
  task: tasks.Task, half: tasks.Halves, seed: int
) -> Callable[..., Curve]:
  """Builds the training that continues without some clients.

  Returns:
    proceed(removed, params=None, round_=0) -> Curve. `removed` are positions;
    from w_{round_} = `params` (None: the start) cohorts are drawn from those
    who remain. A client's place in a cohort depends on its own draw alone, so
    a round that would not have drawn a removed client is the same as before.
  """
  model, train, fed = task.model, task.train, task.fed
  x, y = jnp.asarray(task.x), jnp.asarray(task.y)

  @jax.jit
  def measure(params):
    outputs = model.apply(params, x)
    right = outputs.argmax(-1) == y
    each = jnp.stack([model.loss(outputs, y), right.astype(x.dtype)], axis=1)
    return each.mean(0), each[half.test].mean(0)

  def proceed(removed, params=None, round_=0):
    left = np.setdiff1d(np.arange(train.num_clients), removed)
    if len(left) < fed.cohort_size:
      raise ValueError(
        f"{len(left)} clients remain; a cohort needs {fed.cohort_size}"
      )
    words = rng.id_words([train.ids[k] for k in left])
    cohorts = left[rng.cohorts(seed, words, fed.rounds, fed.cohort_size)]
    init, step = fi.simulator(
      model, train, fed, cohorts=cohorts, params=params, seed=seed
    )
    state = init()._replace(round=jnp.asarray(round_, jnp.int32))
    stops = np.unique(np.linspace(round_, fed.rounds, POINTS + 1).round())
    points = []
    for stop in stops.astype(int):
      if stop > int(state.round):
        state = step(state, int(stop) - int(state.round))
      points.append(jax.device_get(measure(state.params)))
    whole, test = (np.array(a, float) for a in zip(*points, strict=True))
    return Curve([int(s) for s in stops], whole, test)

  return proceed
