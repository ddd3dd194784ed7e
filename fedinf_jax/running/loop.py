"""The loop of a run: train, evaluate, save; stopped at any moment, it resumes.

Nothing here changes a number: where a block of rounds ends, how often a
checkpoint is saved and when a run is killed leave all files as they are, apart
from timing.jsonl.
"""

import pathlib
import shutil
import time
from typing import NamedTuple

import jax

from fedinf_jax import agreement
from fedinf_jax import metrics
from fedinf_jax import simulation
from fedinf_jax.running import checkpoint
from fedinf_jax.running import evaluation as evaluations
from fedinf_jax.running import interrupts
from fedinf_jax.running import logs
from fedinf_jax.running import passes
from fedinf_jax.running import processes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import repeats
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir

BLOCK_SECONDS = 0.5  # of rounds, between two checks of the clock and of Ctrl-C


class Saving(NamedTuple):
  """When checkpoints are saved, besides those that a task keeps."""

  rounds: int = 0  # between two checkpoints; 0: by the clock alone
  minutes: float = 1.0


class Trained(NamedTuple):
  """A run at its end."""

  state: simulation.State
  evaluation: evaluations.Evaluation


def is_finished(task: tasks.Task, folder: pathlib.Path) -> bool:
  """Says whether a workdir holds this very run, and its report.

  Raises:
    ValueError: if it holds another run, saying what differs.
  """
  finished = processes.gather(workdir.is_finished(folder))[0, 0]
  if finished:
    processes.on_first(lambda: workdir.claim(folder, tasks.about(task)))
  return bool(finished)


def train(
  task: tasks.Task,
  folder: pathlib.Path,
  screen,
  saving: Saving,
) -> Trained:
  """Runs a task in its workdir, from wherever it stands, to its end.

  Args:
    task: what to run.
    folder: the workdir.
    screen: a rich console for progress and messages.
    saving: when to save checkpoints.

  Raises:
    KeyboardInterrupt: after Ctrl-C, once a checkpoint is saved.
  """
  # What is wrong with the task shows here, before anything is written.
  simulator, evaluated = tasks.simulator(task), tasks.evaluated(task)
  agreement.evaluation(
    task.model,
    task.model.param_shapes(),
    metrics.loss,
    (task.x, task.y),
    agreement.example_of(task.train),
  )
  passes.check(task)
  _claim(task, folder)
  progress.say(screen, tasks.describe(task))
  scores, repeated = [], []
  screens = task.passes or isinstance(task.exact, records.Top)
  if screens or repeats.asked(task):
    del simulator  # Its examples make room for those of what comes first.
    if screens:
      scores = _screen(task, folder, screen, saving)
      task = tasks.verified(task, scores)
    if repeats.asked(task):
      again = lambda task, place: train(task, place, screen, saving)
      repeated = repeats.run(task, folder, screen, again)
    simulator = tasks.simulator(task)
  saved = checkpoint.Checkpoints(
    folder / records.CHECKPOINTS, keep=task.keep_rounds
  )
  state, round_ = saved.restore(
    simulator.init, warn=progress.warn, up_to=_whole_until(task, folder, saved)
  )
  if round_:
    progress.say(screen, f"resuming after round {round_}")
  processes.on_first(logs.rewind, folder, round_)
  evaluate = evaluations.evaluator(task, scores, repeated)
  run = _Running(task, folder, simulator.step, evaluate, saved, state, round_)
  _advance(run, evaluated, screen, saving)
  saved.close()
  if run.round < task.fed.rounds:
    raise KeyboardInterrupt(
      f"stopped after round {run.round} of {task.fed.rounds}; the same command"
      " resumes from there"
    )
  return Trained(run.state, run.evaluation or run.evaluate(run.state))


def _screen(task, folder, screen, saving):
  """Returns the scores that are found before the run proper.

  Those of passes backwards, and of the estimator by which the clients to replay
  are chosen. That one needs a training of its own, in a folder of its own.
  """
  scores = passes.read(folder)
  scores = passes.run(task, folder, scores, screen, saving)
  by = task.exact.by if isinstance(task.exact, records.Top) else None
  if by is not None and by not in {s.estimator for s in scores}:
    progress.say(screen, f"screening by {by}")
    first = task._replace(
      estimators={by: task.estimators[by]},
      passes={},
      exact=False,
      evaluate_every=task.fed.rounds,
      tracked=0,
      keep_rounds=frozenset(),
    )
    found = train(first, folder / records.SCREENS / by, screen, saving)
    last = found.evaluation
    scores.append(
      records.Scores(by, task.fed.rounds, last.fil[by], last.fia[by])
    )
    processes.on_first(records.write_screening, folder, scores)
  processes.on_first(
    lambda: shutil.rmtree(folder / records.SCREENS, ignore_errors=True)
  )
  return scores


class _Running:
  """A run under way: where it stands, and its logs."""

  def __init__(self, task, folder, step, evaluate, saved, state, round_):
    self.task, self.folder = task, folder
    self.state, self.round = state, round_
    self.evaluate = evaluate
    self.evaluation = None  # the last one
    self.compiled = False
    self.pace = 0.0  # seconds per round; 0: unknown
    self._step, self._saved = step, saved
    self._tracked = tasks.tracked(task)

  def advance(self, rounds: int):
    """Trains for some rounds."""
    started = time.perf_counter()
    self.state = jax.block_until_ready(self._step(self.state, rounds))
    seconds = time.perf_counter() - started
    self.round += rounds
    self._log_time("rounds" if self.compiled else "compile", seconds, rounds)
    # The first block compiles: it says nothing about the pace.
    self.pace = seconds / rounds if self.compiled else 0.0
    self.compiled = True

  def evaluate_now(self) -> records.Metrics:
    """Evaluates the state and writes the lines of its round."""
    started = time.perf_counter()
    found = self.evaluation = self.evaluate(self.state)
    metrics = evaluations.metrics(self.round, found)
    if processes.is_first():
      records.append_round(
        self.folder,
        metrics,
        records.History(self.round, found.fil),
        evaluations.layers(self.round, found, self.task, self._tracked),
      )
    self._log_time("evaluate", time.perf_counter() - started)
    return metrics

  def save(self):
    """Saves a checkpoint, unless this round has one."""
    if self.round not in self._saved.rounds():
      started = time.perf_counter()
      self._saved.save(self.state, self.round)
      self._log_time("checkpoint", time.perf_counter() - started)

  def _log_time(self, stage, seconds, rounds=0):
    if processes.is_first():
      records.append_timing(self.folder, stage, self.round, seconds, rounds)


def _advance(run, evaluated, screen, saving):
  """Trains to the end or to Ctrl-C, evaluating and saving on the way.

  Args:
    run: _Running.
    evaluated: the rounds to evaluate.
    screen: see `train`.
    saving: see `train`.
  """
  task, last = run.task, run.task.fed.rounds
  stops = sorted(evaluated | task.keep_rounds | {last})
  block, last_save, stop = 1, time.monotonic(), False
  is_top = records.read_top(str(task.recipe.get("exact")))
  among = "extremes only" if is_top else ""
  with (
    progress.line(screen, last, run.round, among) as show,
    interrupts.stop_requests() as stop_requested,
  ):
    while run.round < last and not stop:
      limit = next(s for s in stops if s > run.round) - run.round
      if saving.rounds:
        limit = min(limit, saving.rounds - run.round % saving.rounds)
      run.advance(min(limit, block))
      metrics = run.evaluate_now() if run.round in evaluated else None
      show(run.round, run.pace, metrics)
      # All processes follow the first one's clock; if one is to stop, all do.
      agreed = processes.gather(
        max(1, int(BLOCK_SECONDS / run.pace)) if run.pace else 1,
        time.monotonic() - last_save > 60 * saving.minutes,
        stop_requested(),
      )
      block, due = int(agreed[0, 0]), agreed[0, 1]
      stop = bool(agreed[:, 2].any())
      by_round = saving.rounds and run.round % saving.rounds == 0
      if due or by_round or stop or run.round in task.keep_rounds | {last}:
        run.save()
        last_save = time.monotonic()


def _claim(task, folder):
  """Makes the workdir this run's, once all processes have the same data."""
  data = int(tasks.digest(task)[:12], 16)  # A float64 holds it.
  if (processes.gather(data) != data).any():
    raise ValueError("the processes do not have the same data")
  processes.on_first(lambda: workdir.claim(folder, tasks.about(task)))


def _whole_until(task, folder, saved):
  """Returns the last round up to which the logs have all that they should.

  A later checkpoint is of no use: the run must write those lines again.
  """
  gap = processes.on_first(logs.first_gap, folder, tasks.logged(task))
  until = task.fed.rounds if gap is None else gap.round - 1
  if gap and any(round_ > until for round_ in saved.rounds()):
    progress.warn(f"{folder / gap.name} is damaged at round {gap.round}")
  return int(processes.gather(until)[0, 0])
