"""The loop of a run: train, evaluate, save; stopped at any moment, it resumes.

Nothing here changes a number: where a block of rounds ends, how often a
checkpoint is saved and when a run is killed leave all files as they are, apart
from timing.jsonl.
"""

import contextlib
import pathlib
import signal
import sys
import time
from typing import NamedTuple

import jax
import numpy as np

from experiments import checkpoint
from experiments import devices
from experiments import estimators as named
from experiments import evaluation as evaluations
from experiments import problem as problems
from experiments import processes
from experiments import progress
from experiments import workdir as workdirs
import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax import tree

BLOCK_SECONDS = 0.5  # Rounds between two looks at the clock and at Ctrl-C.


class Trained(NamedTuple):
  """A run at its end."""

  state: fi.runs.State
  evaluation: evaluations.Evaluation
  problem: problems.Problem


def train(
  name: str,
  config,
  folder: pathlib.Path,
  data_dir: str | None,
  screen,
  *,
  save_rounds: int = 0,
  save_minutes: float = 1.0,
) -> Trained:
  """Runs a recipe in its workdir, from wherever it stands, to its end.

  Args:
    name: of the recipe.
    config: the recipe, scaled.
    folder: the workdir.
    data_dir: see `problem.build`.
    screen: a rich console for progress and words.
    save_rounds: rounds between checkpoints; 0: by the clock alone.
    save_minutes: minutes between checkpoints.
  """
  problem = problems.build(config, data_dir)
  estimators = named.build(config.estimators)
  train, fed = problem.train, problem.fed
  rows = problems.exact_rows(config.exact, train.num_clients, config.seed)
  init, step = fi.simulator(
    problem.model,
    train,
    fed,
    estimators=estimators,
    exact=rows,
    seed=config.seed,
    mesh=devices.mesh(config.mesh),
  )
  first = processes.is_first()
  data = int(problems.digest(problem)[:12], 16)  # A float64 holds it.
  if (processes.gather(data) != data).any():
    raise ValueError("the processes do not have the same data")
  processes.on_first(
    lambda: workdirs.claim(folder, about(name, config, problem))
  )
  screen.print(describe(name, problem), highlight=False)

  keep = {config.cleanse_round} if config.cleanse_round else set()
  saved = checkpoint.checkpoints(folder / "checkpoints", keep)
  warn = lambda line: first and print(f"warning: {line}", file=sys.stderr)
  state, round_ = saved.restore(init, warn=warn)
  if round_:
    screen.print(f"resuming after round {round_}", highlight=False)
  processes.on_first(workdirs.rewind, folder, round_)
  examined = np.arange(train.num_clients)
  if not isinstance(rows, bool):
    examined = np.array(rows)
  tracked = _tracked(problem, config, examined)
  evaluate = evaluations.evaluator(problem, examined)
  layers = tree.names(state.params)
  if first and not (folder / "layers.csv").exists():
    header = "round,client,layer,estimator,error,norm"
    workdirs.append(folder / "layers.csv", header)

  def record(stage, seconds, rounds=0):
    if not first:
      return
    line = {"stage": stage, "round": round_, "rounds": rounds}
    line["seconds"] = round(seconds, 4)
    workdirs.append_json(folder / "timing.jsonl", line)

  def look():
    """Evaluates the state and writes the lines of its round."""
    found = evaluate(state)
    line = evaluations.metrics_line(round_, found)
    if not first:
      return found, line
    lines = evaluations.layer_lines(
      round_, found, layers, examined, tracked, train.ids
    )
    workdirs.append_json(folder / "metrics.jsonl", line)
    history = evaluations.history_line(round_, found)
    workdirs.append_json(folder / "history.jsonl", history)
    workdirs.append(
      folder / "layers.csv", *(workdirs.csv_line(cells) for cells in lines)
    )
    return found, line

  def save():
    if round_ not in saved.rounds():
      started = time.perf_counter()
      saved.save(state, round_)
      record("checkpoint", time.perf_counter() - started)

  looks = _looks(fed.rounds, config.evaluate_every)
  stops = sorted(looks | keep | {fed.rounds})
  found = None
  last_save, pace = time.monotonic(), None  # pace: seconds a round
  # The first round alone: it compiles. The second alone: to learn the pace.
  block = 1
  with (
    progress.line(screen, fed.rounds, round_) as show,
    _stop_asked() as asked,
  ):
    while round_ < fed.rounds:
      limit = next(s for s in stops if s > round_) - round_
      if save_rounds:
        limit = min(limit, save_rounds - round_ % save_rounds)
      rounds, started = min(limit, block), time.perf_counter()
      state = jax.block_until_ready(step(state, rounds))
      took, compiled = time.perf_counter() - started, pace is None
      round_ += rounds
      record("compile" if compiled else "rounds", took, rounds)
      pace = 0.0 if compiled else took / rounds
      if round_ in looks:
        started = time.perf_counter()
        found, line = look()
        record("evaluate", time.perf_counter() - started)
        show(round_, pace, line)
      else:
        show(round_, pace, None)
      # All processes go by the first one's clock, and stop if one is asked to.
      said = processes.gather(
        max(1, int(BLOCK_SECONDS / pace)) if pace else 1,
        time.monotonic() - last_save > 60 * save_minutes,
        asked(),
      )
      block, due, stop = int(said[0, 0]), said[0, 1], said[:, 2].any()
      by_round = save_rounds and round_ % save_rounds == 0
      if due or by_round or stop or round_ in keep | {fed.rounds}:
        save()
        last_save = time.monotonic()
      if stop and round_ < fed.rounds:
        saved.close()
        raise KeyboardInterrupt(
          f"stopped after round {round_} of {fed.rounds}; the same command goes"
          " on from there"
        )
  saved.close()
  return Trained(state, found or evaluate(state), problem)


def about(name: str, config, problem: problems.Problem) -> dict:
  """Returns what config.json says: all that the numbers of a run depend on.

  Not the devices, on which they depend in the last digits only: a run may go on
  on others.
  """
  recipe = {k: v for k, v in config.to_dict().items() if k != "mesh"}
  return {
    "name": name,
    "config": recipe,
    "data": {
      "source": problem.source,
      "stand_in": problem.stand_in,
      "digest": problems.digest(problem),
      "bad": list(problem.bad),
    },
    "versions": workdirs.versions(),
  }


def describe(name: str, problem: problems.Problem) -> str:
  """Says what is about to run, in words."""
  train, fed = problem.train, problem.fed
  return (
    f"{name}: {problem.source}: {train.num_clients} clients,"
    f" {len(train.x):,} training and {len(problem.x):,} test examples;"
    f" {fed.rounds} rounds of {fed.cohort_size} participants;"
    f" {jax.device_count()} {jax.devices()[0].platform} device(s)"
  )


def selected(problem: problems.Problem, seed: int) -> np.ndarray:
  """Returns how often each client takes part, [K]."""
  train, fed = problem.train, problem.fed
  cohorts = rng.cohorts(
    seed, rng.id_words(train.ids), fed.rounds, fed.cohort_size
  )
  return np.bincount(cohorts.ravel(), minlength=train.num_clients)


def _tracked(problem, config, examined):
  """The examined clients that take part most often."""
  times = selected(problem, config.seed)[examined]
  order = np.argsort(-times, kind="stable")[: config.tracked]
  return examined[np.sort(order)]


def _looks(rounds, every):
  """Rounds to evaluate: every so many, and the last."""
  if every < 1:
    raise ValueError(f"evaluate_every is {every}; it must be at least 1")
  return set(range(every, rounds + 1, every)) | {rounds}


@contextlib.contextmanager
def _stop_asked():
  """Turns the first Ctrl-C (or SIGTERM) into a question that can be asked."""
  signals = (signal.SIGINT, signal.SIGTERM)
  before = [signal.getsignal(s) for s in signals]
  asked = []

  def handle(number, frame):
    if asked:  # Twice is once too often: as if there were no handler.
      raise KeyboardInterrupt
    asked.append(number)

  try:
    for s in signals:
      signal.signal(s, handle)
    yield lambda: bool(asked)
  finally:
    for s, handler in zip(signals, before, strict=True):
      signal.signal(s, handler)
