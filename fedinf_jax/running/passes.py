"""Passes backwards, done before the run proper; stopped, they resume.

A pass trains by the same draws as the run itself, so its numbers are about the
same models. What it finds is kept in screening.json.
"""

import pathlib
import time
from typing import Any

import numpy as np

from fedinf_jax import metrics
from fedinf_jax import simulation
from fedinf_jax.running import checkpoint
from fedinf_jax.running import interrupts
from fedinf_jax.running import parsing
from fedinf_jax.running import processes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.simulation import measuring
from fedinf_jax.simulation import turning
from fedinf_jax.valuation import owners as owners_


def check(task: tasks.Task):
  """Refuses passes with more directions than the model has parameters."""
  for asked in task.passes.values():
    turning.num_eigenvectors(asked.directions, task.model.param_shapes())


def prepare(task: tasks.Task, name: str) -> simulation.Pass:
  """Prepares a pass of a task."""
  asked = task.passes[name]
  return simulation.adjoint_pass(
    task.model,
    task.train,
    task.fed,
    task.x,
    task.y,
    directions=asked.directions,
    curvature=asked.curvature,
    server_data=None if asked.curvature is None else task.server_data,
    window=asked.window,
    seed=task.seed,
    mesh=task.mesh,
  )


def read(folder: pathlib.Path) -> list[records.Scores]:
  """Reads what a workdir has of screening.json; nothing if it is damaged."""
  path = folder / records.SCREENING
  try:
    found = parsing.parsed(path) if path.exists() else []
  except ValueError as error:
    progress.warn(f"{error}; screening again")
    found = []
  if (processes.gather(len(found)) != len(found)).any():
    raise ValueError(f"the processes do not all see {path}")
  return found


def run(
  task: tasks.Task,
  folder: pathlib.Path,
  known: list[records.Scores],
  screen,
  saving,
) -> list[records.Scores]:
  """Does those passes of a task that are not known yet.

  Args:
    task: whose passes.
    folder: its workdir.
    known: what was found before.
    screen: a rich console for progress and messages.
    saving: when to save checkpoints, `loop.Saving`.

  Returns:
    What was found, what was known included.

  Raises:
    KeyboardInterrupt: after Ctrl-C, once a checkpoint is saved.
  """
  for name in task.passes:
    done = {s.round for s in known if s.estimator == name}
    if set(tasks.turned(task)) - done:
      known = _Passing(task, name, folder, known, saving).go(screen)
  return known


class _Passing:
  """A pass under way: forwards, and back from each of its rounds."""

  def __init__(self, task, name, folder, known, saving):
    self.task, self.name, self.folder = task, name, folder
    self.known, self.saving = known, saving
    self._pass = prepare(task, name)
    self._rounds = tasks.turned(task)
    self._back = [task.passes[name].rounds(t) for t in self._rounds]
    self._every = turning.snapshot_distance(None, task.fed.rounds)

  def go(self, screen):
    """Goes on from the last checkpoint; returns what is known at the end."""
    path = self.folder / records.SCREENS / self.name / records.CHECKPOINTS
    saved = checkpoint.Checkpoints(path, keep=())
    state, step = saved.restore(
      self._pass.init, warn=progress.warn, up_to=self._whole_until()
    )
    resuming = f"; resuming after {step} of them" if step else ""
    progress.say(
      screen,
      f"{self.name}: {self.total} rounds of training and backwards{resuming}",
    )
    last_save, stop, compiled = time.monotonic(), False, set()
    with (
      progress.line(screen, self.total, step) as show,
      interrupts.stop_requests() as stop_requested,
    ):
      while step < self.total and not stop:
        started = time.perf_counter()
        state, more = self._advance(state)
        took = time.perf_counter() - started
        step += more
        self._log_time(step, took, more)
        # The first rounds of either direction compile.
        back = int(state.end) > 0
        show(step, took / more if back in compiled else 0.0, None)
        compiled.add(back)
        agreed = processes.gather(
          time.monotonic() - last_save > 60 * self.saving.minutes,
          stop_requested(),
        )
        stop = bool(agreed[:, 1].any())
        if agreed[0, 0] or stop or self._is_due(step, more):
          saved.save(state, step)
          last_save = time.monotonic()
    saved.close()
    if step < self.total:
      raise KeyboardInterrupt(
        f"stopped after round {step} of {self.total} of the pass"
        f" {self.name}; the same command resumes from there"
      )
    return self.known

  @property
  def total(self):
    """Rounds, forwards and back."""
    return self.task.fed.rounds + sum(self._back)

  def _advance(self, state):
    """Does the rounds up to the next snapshot; returns how many, too."""
    last, trained = self.task.fed.rounds, int(state.trained.round)
    if trained < last:
      more = min(self._every, last - trained)
      return self._pass.train(state, more), more
    if not self._left(state):
      at = next(t for t in self._rounds if t > int(state.end))
      state = self._pass.turn(state, at)
    more = (int(state.left) - 1) % self._every + 1
    more = min(more, self._left(state))
    state = self._pass.back(state, more)
    if not self._left(state):
      self._keep(int(state.end), self._pass.read(state))
    return state, more

  def _left(self, state):
    """Returns how many rounds there are to go back through."""
    end = int(state.end)
    back = self.task.passes[self.name].rounds(end)
    return int(state.left) - (end - back)

  def _keep(self, round_, found):
    """Writes what was found at a round."""
    task = self.task
    accuracy = found.on(metrics.accuracy, task.x, task.y)
    scores = records.Scores(
      estimator=self.name,
      round=round_,
      fil=np.asarray(found.influence, float),
      fia=np.asarray(accuracy, float),
    )
    # Without eigenvectors FIL is its first order, which no model has.
    if round_ == task.fed.rounds and task.passes[self.name].directions:
      owners = tasks.owners(task)
      metric = owners_.per_group(task.model, owners)
      change = found.on(metric, task.x, task.y)
      measured = measuring.measure(change, owners, None, task.seed)
      fields = ("own", "others", "low", "high", "p")
      rest: dict[str, Any] = {f: getattr(measured, f) for f in fields}
      scores = scores._replace(**rest)
    self.known = [s for s in self.known if s[:2] != scores[:2]] + [scores]
    processes.on_first(records.write_screening, self.folder, self.known)

  def _whole_until(self):
    """Returns the last step before scores that are missing."""
    done = {s.round for s in self.known if s.estimator == self.name}
    missing = next(i for i, t in enumerate(self._rounds) if t not in done)
    return self.task.fed.rounds + sum(self._back[: missing + 1]) - 1

  def _is_due(self, step, more):
    """Says whether a checkpoint is due by the number of rounds."""
    every = self.saving.rounds
    return every and step // every > (step - more) // every

  def _log_time(self, step, seconds, rounds):
    if processes.is_first():
      records.append_timing(self.folder, "backwards", step, seconds, rounds)
