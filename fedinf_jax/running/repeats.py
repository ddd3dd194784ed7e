"""Exact replays from other starting points, done before the run proper.

A repeat is a whole training with its removals, by the same draws: a run of its
own, in a folder of its own, which resumes like any other. What it finds is kept
in repeats.json.
"""

from collections.abc import Callable
import pathlib
import shutil
import time
from typing import Any

from fedinf_jax.running import parsing
from fedinf_jax.running import processes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks


def asked(task: tasks.Task) -> range:
  """Returns the repeats of a task; none where nobody is replayed."""
  return range(1, task.exact_repeats if task.exact else 1)


def run(
  task: tasks.Task,
  folder: pathlib.Path,
  screen,
  train: Callable[[tasks.Task, pathlib.Path], Any],
) -> list[records.Repeat]:
  """Does those repeats of a task that are not known yet.

  Args:
    task: whose clients to replay are known.
    folder: its workdir.
    screen: a rich console for messages.
    train: runs a task in a folder, from wherever it stands, to its end.

  Returns:
    Exact FIL of every repeat at every evaluated round.
  """
  known = _read(folder)
  rounds = sorted(tasks.evaluated(task))
  for repeat in asked(task):
    if [r.round for r in known if r.repeat == repeat] == rounds:
      continue
    progress.say(
      screen,
      f"repeat {repeat} of {task.exact_repeats - 1}: retraining from a starting"
      f" point {task.jitter:g} away",
    )
    place, started = folder / records.REPEATING / str(repeat), time.monotonic()
    train(tasks.repeated(task, repeat), place)
    found = _found(place, repeat)
    known = [r for r in known if r.repeat != repeat] + found
    processes.on_first(records.write_repeats, folder, known)
    if processes.is_first():
      took, last = time.monotonic() - started, rounds[-1]
      records.append_timing(folder, "repeat", last, took, last)
  processes.on_first(
    lambda: shutil.rmtree(folder / records.REPEATING, ignore_errors=True)
  )
  return known


def _read(folder):
  """Reads what a workdir has of repeats.json; nothing if it is damaged."""
  path = folder / records.REPEATS
  try:
    found = parsing.parsed(path) if path.exists() else []
  except ValueError as error:
    progress.warn(f"{error}; repeating again")
    found = []
  return _seen_by_all(path, found)


def _found(place, repeat):
  """Returns what the history of a repeat's own run says."""
  path = place / records.HISTORY
  lines = parsing.parsed(path) if path.exists() else []
  found = [
    records.Repeat(repeat, line["round"], parsing.floats(line["fil"]["exact"]))
    for line in lines
  ]
  return _seen_by_all(path, found)


def _seen_by_all(path, found):
  if (processes.gather(len(found)) != len(found)).any():
    raise ValueError(f"the processes do not all see {path}")
  return found
