"""Runs a task in its folder, from wherever it stands, to its verdict."""

import pathlib
import time

from fedinf_jax import report
from fedinf_jax.command import showing
from fedinf_jax.running import explaining
from fedinf_jax.running import finishing
from fedinf_jax.running import loop
from fedinf_jax.running import processes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks


def run(
  task: tasks.Task,
  folder: pathlib.Path,
  screen,
  saving: loop.Saving = loop.Saving(),  # noqa: B008
):
  """Runs a task, unless it is finished, and prints its verdict.

  Args:
    task: what to run.
    folder: the workdir, owned by this process.
    screen: a rich console.
    saving: when to save checkpoints.
  """
  finished = loop.is_finished(task, folder)
  if finished:
    progress.say(screen, f"{folder}: this run is finished")
  explanation = None
  if not finished or task.explain is not None:
    trained = loop.train(task, folder, screen, saving)
    if task.explain is not None:
      explanation = explaining.explain(task, folder, trained.state)
    if not finished:
      if tasks.is_checked(task):
        progress.say(
          screen,
          "no ground truth: retraining without a few groups of clients, to say"
          " what agreement to expect",
        )
      _finish(task, folder, trained)
  if processes.is_first():
    showing.print_verdict(folder, screen)
    if explanation:
      progress.say(screen, explanation)


def _finish(task, folder, trained):
  """Writes the last files and the report."""
  started = time.perf_counter()
  finishing.finish(task, folder, trained)
  if processes.is_first():
    report.write(folder)
    took = time.perf_counter() - started
    records.append_timing(folder, "report", task.fed.rounds, took)
