"""What one run is: clients, a model, their training, and what is estimated."""

from collections.abc import Mapping
import hashlib
import types
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import rng
from fedinf_jax import simulation
from fedinf_jax import text
from fedinf_jax import types as types_
from fedinf_jax import valuation
from fedinf_jax.curvature import wall
from fedinf_jax.data import federated
from fedinf_jax.running import logs
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.simulation import history as histories
from fedinf_jax.valuation import owners as owners_
from fedinf_jax.valuation import reliability
from fedinf_jax.valuation import trust as trusts

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})
VALIDATION = "validation"  # what a recipe says under measured_on


class Backwards(NamedTuple):
  """A pass backwards: what it carries, by what, and how far."""

  directions: int  # eigenvectors beside the gradient
  curvature: wall.Curvature | None = None  # None: the trainings themselves
  window: int | None = None  # rounds; None: all

  def rounds(self, at: int) -> int:
    """Returns how many rounds it goes back from round `at`."""
    return min(at, self.window or at)


class Task(NamedTuple):
  """Everything that a run depends on."""

  name: str  # of the recipe
  model: types_.Model
  train: federated.FederatedData
  x: np.ndarray  # [N, ...] held-out inputs, on which influence is measured
  y: np.ndarray  # [N] their labels
  fed: fedavg.FedAvg
  owners: owners_.Owners | None = None  # of these; None: nobody
  explain: int | None = None  # row of x whose prediction is explained
  server_data: federated.FederatedData | None = None  # the server's own
  recipe: Mapping[str, Any] = _NOTHING  # what config.json says under "config"
  estimators: Mapping[str, influence.Estimator] = _NOTHING
  passes: Mapping[str, Backwards] = _NOTHING
  pass_rounds: int = 1  # at how many evaluated rounds these are turned
  descriptions: Mapping[str, str] = _NOTHING  # of all these, in words
  # Clients to replay: all, none, some, or those that a screening names.
  exact: bool | list[int] | records.Top = False
  exact_repeats: int = 1  # exact replays in all, that of the run among them
  repeat_clients: int | None = None  # of those replayed; None: all of them
  jitter: float = 1e-5  # how far the starting points of repeats are moved
  start: int = 0  # 0: the starting point as it is drawn; i: that of repeat i
  seed: int = 0
  mesh: jax.sharding.Mesh | None = None  # None: one device
  evaluate_every: int = 1  # rounds, at least 1
  tracked: int = 0  # clients whose layers are written
  keep_rounds: frozenset[int] = frozenset()  # whose checkpoints stay for good
  source: str = ""  # where the data are from, in words
  stand_in: bool = False  # the data stand in for those of the paper
  bad: tuple = ()  # ids of clients that were corrupted on purpose


class Halves(NamedTuple):
  """What influence is measured on, in two parts."""

  validation: np.ndarray  # int, rows of x: clients are chosen by these
  test: np.ndarray  # int, rows of x: and what comes of it is scored on these


def halves(task: Task) -> Halves:
  """Cuts what influence is measured on into validation and test, at random."""
  order = np.random.default_rng([task.seed, 4]).permutation(len(task.x))
  middle = len(order) // 2
  return Halves(np.sort(order[:middle]), np.sort(order[middle:]))


def on_validation(task: Task) -> Task:
  """Measures influence on the validation half; the test half is not seen."""
  rows = halves(task).validation
  owners = None if task.owners is None else owners_.take(task.owners, rows)
  return task._replace(
    x=task.x[rows],
    y=task.y[rows],
    owners=owners,
    recipe={**task.recipe, "measured_on": VALIDATION},
  )


def simulator(task: Task) -> simulation.Simulator:
  """Prepares the simulation of a task: its `init` and its `step`."""
  return simulation.simulator(
    task.model, task.train, task.fed, **_options(task)
  )


def lower(task: Task) -> jax.stages.Lowered:
  """Lowers the program of the simulation's `step`; nothing is run."""
  return simulation.lower(task.model, task.train, task.fed, **_options(task))


def _options(task):
  estimators = task.estimators.values()
  serving = any(e.curvature.serve is not None for e in estimators)
  exact = _replayed(task)
  return {
    "estimators": dict(task.estimators),
    # An array holds rows; integers of a list might be ids.
    "exact": exact if isinstance(exact, bool) else np.array(exact),
    "seed": task.seed,
    "mesh": task.mesh,
    "server_data": task.server_data if serving else None,
    "params": _start(task),
  }


def is_checked(task: Task) -> bool:
  """Says whether the estimators are checked on groups: nobody is replayed."""
  takes_part = int(np.count_nonzero(selected(task)))
  return bool(task.estimators) and task.exact is False and takes_part > 1


def trust(task: Task) -> dict[str, trusts.Trust]:
  """Says what agreement with retraining to expect of each estimator."""
  options = _options(task)
  del options["exact"]
  return simulation.trust(
    task.model, task.train, task.fed, task.x, task.y, **options
  )


def _start(task):
  """Returns w_0; None: as it is drawn from the seed."""
  if not task.start:
    return None
  drawn = checks.params(None, task.model, task.seed, task.train)
  return reliability.jitter(drawn, task.jitter, task.start)


def repeated(task: Task, repeat: int) -> Task:
  """Returns the training of a repeat of the exact replay, and nothing else.

  Args:
    task: whose clients to replay are known.
    repeat: which one, from 1.
  """
  rows = task.exact
  if task.repeat_clients is not None:
    everyone = examined(task)
    draw = np.random.default_rng([task.seed, 7])
    some = draw.permutation(len(everyone))[: task.repeat_clients]
    rows = everyone[np.sort(some)].tolist()
  return task._replace(
    estimators=_NOTHING,
    passes=_NOTHING,
    exact=rows,
    exact_repeats=1,
    start=repeat,
    tracked=0,
    keep_rounds=frozenset(),
  )


def about(task: Task) -> records.About:
  """Returns what config.json says: all that the numbers of a run depend on.

  Not the devices, on which they depend in the last digits only: a run may be
  resumed on others.
  """
  return records.About(
    name=task.name,
    config=dict(task.recipe),
    data={
      "source": task.source,
      "stand_in": task.stand_in,
      "digest": digest(task),
      "bad": [text.escaped(name) for name in task.bad],
    },
    versions=workdir.versions(),
  )


def describe(task: Task) -> str:
  """Says what is about to run, in words."""
  train, fed = task.train, task.fed
  parts = [f"{len(a):,} {name}" for name, a in halves(task)._asdict().items()]
  if task.recipe.get("measured_on") == VALIDATION:
    parts = [f"{len(task.x):,} validation, as many for the test"]
  if task.server_data is not None:
    parts.insert(0, f"{len(task.server_data.x):,} curvature (the server's)")
  return (
    f"{task.name}: {task.source}: {train.num_clients} clients,"
    f" {len(train.x):,} training examples; held out: {', '.join(parts)};"
    f" {fed.rounds} rounds of {fed.cohort_size} participants;"
    f" {jax.device_count()} {jax.devices()[0].platform} device(s)"
  )


def digest(task: Task) -> str:
  """Returns a fingerprint of the data."""
  made = hashlib.blake2b(digest_size=16)
  train = task.train
  arrays = [train.x, train.y, train.num_examples, task.x, task.y]
  if task.server_data is not None:
    arrays += task.server_data.pooled()
  for a in arrays:
    made.update(f"{a.dtype} {a.shape}".encode())
    made.update(np.ascontiguousarray(a).data)
  if task.owners is not None:
    made.update(task.owners.client[task.owners.group].astype(np.int64))
  made.update("\n".join(map(str, train.ids)).encode())
  return made.hexdigest()


def owners(task: Task) -> owners_.Owners:
  """Returns whose the examples are that influence is measured on."""
  return owners_.nobody(len(task.x)) if task.owners is None else task.owners


def cohorts(task: Task) -> np.ndarray:
  """Returns who takes part in each round, int [T, B]."""
  words = rng.id_words(task.train.ids)
  return rng.cohorts(task.seed, words, task.fed.rounds, task.fed.cohort_size)


def selected(task: Task) -> np.ndarray:
  """Returns how often each client takes part, [K]."""
  return np.bincount(cohorts(task).ravel(), minlength=task.train.num_clients)


def evaluated(task: Task) -> set[int]:
  """Returns the rounds to evaluate: every `evaluate_every`-th and the last."""
  return set(histories.evaluated(task.fed.rounds, task.evaluate_every))


def logged(task: Task) -> logs.Expected:
  """Returns what the logs hold at the end of a run."""
  clients = min(task.tracked, len(examined(task)))
  layers = len(jax.tree.leaves(task.model.param_shapes()))
  names = len(task.estimators) + bool(_replayed(task))
  return logs.Expected(sorted(evaluated(task)), clients * layers * names)


def turned(task: Task) -> list[int]:
  """Returns the rounds after which passes are turned, evenly spread."""
  rounds = sorted(evaluated(task))
  count = min(task.pass_rounds, len(rounds))
  return [rounds[-(-len(rounds) * i // count) - 1] for i in range(1, count + 1)]


def verified(task: Task, scores: list[records.Scores]) -> Task:
  """Chooses the clients to replay by scores, where the task says so.

  Raises:
    ValueError: if the scores are missing, or not finite.
  """
  if not isinstance(task.exact, records.Top):
    return task
  count, by = task.exact
  wanted = by, task.fed.rounds
  found = [s.fil for s in scores if (s.estimator, s.round) == wanted]
  if not found:
    raise ValueError(f"exact: nobody was screened by {by!r} yet")
  try:
    rows = valuation.extremes(found[0], count)
  except ValueError as error:
    raise ValueError(f"exact: {by!r} finds no extremes: {error}") from error
  return task._replace(exact=sorted(rows.tolist()))


def _replayed(task):
  """Returns all, none or some; as many stand for those yet to be chosen."""
  if isinstance(task.exact, records.Top):
    return list(range(task.exact.count))
  return task.exact


def examined(task: Task) -> np.ndarray:
  """Returns the removals whose ε is examined, [E]: those that are replayed.

  Where none or all are, these are all clients.
  """
  rows = _replayed(task)
  if isinstance(rows, bool):
    return np.arange(task.train.num_clients)
  return np.array(rows)


def tracked(task: Task) -> np.ndarray:
  """Returns the examined clients that take part most often."""
  rows = examined(task)
  order = np.argsort(-selected(task)[rows], kind="stable")[: task.tracked]
  return rows[np.sort(order)]
