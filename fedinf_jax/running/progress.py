"""How a run gets on: a live line on a terminal, plain lines elsewhere."""

import contextlib
import datetime
import sys
import time
from typing import Any

from rich import console as rich_console
from rich import progress as rich_progress

from fedinf_jax import text
from fedinf_jax.running import processes
from fedinf_jax.running import records

LINE_SECONDS = 10  # between two plain lines, at least


def console(**options) -> rich_console.Console:
  """Returns a screen that takes names for text, not for markup."""
  return rich_console.Console(markup=False, emoji=False, **options)


def say(screen, line: str):
  """Prints a line: wrapped at words on a terminal, whole elsewhere.

  What is no text, such as commands to a terminal, is escaped.
  """
  screen.print(
    text.printable(line),
    highlight=False,
    markup=False,
    emoji=False,
    soft_wrap=not screen.is_terminal,
  )


def warn(line: str):
  """Prints a warning, on the first process."""
  if processes.is_first():
    print(text.printable(f"warning: {line}"), file=sys.stderr)


def line(screen, rounds: int, done: int, among: str = ""):
  """Shows how a run gets on.

  Args:
    screen: a rich console.
    rounds: of the whole run.
    done: rounds done before.
    among: the clients that correlations are about, in words; "": all replayed.

  Returns:
    A context of show(round_, pace, metrics): seconds per round (0: unknown) and
    records.Metrics, or None if the last ones still hold.
  """
  if screen.is_terminal:
    return _live_line(screen, rounds, done, among)
  return contextlib.nullcontext(plain_lines(screen, rounds, among=among))


@contextlib.contextmanager
def _live_line(screen, rounds, done, among):
  columns = (
    rich_progress.TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
    rich_progress.BarColumn(bar_width=20),
    rich_progress.TextColumn("{task.fields[words]}", markup=False),
    rich_progress.TextColumn("{task.fields[pace]}"),
    rich_progress.TimeRemainingColumn(compact=True),
    rich_progress.TextColumn("left"),
  )
  with rich_progress.Progress(
    *columns, console=screen, transient=True, speed_estimate_period=600
  ) as bar:
    task = bar.add_task(
      "round", total=rounds, completed=done, words="compiling …", pace=""
    )

    def show(round_, pace, metrics):
      fields: dict[str, Any] = {"pace": f"{pace:.2g} s/round"}
      if metrics is not None:
        fields["words"] = words(metrics, among)
      elif bar.tasks[task].fields["words"].startswith("compiling"):
        fields["words"] = ""
      bar.update(task, completed=round_, **fields)

    yield show


def plain_lines(screen, rounds: int, clock=time.monotonic, among: str = ""):
  """Returns a `show` that prints the first round, then a line now and then.

  Args:
    screen: a rich console.
    rounds: of the whole run.
    clock: returns seconds.
    among: see `line`.
  """
  first = None  # (round, seconds) of the first call; the time left is reckoned
  # from there, as what came before was compilation.
  printed = latest = None  # seconds at the last line, and the last metrics

  def show(round_, pace, metrics):
    nonlocal first, printed, latest
    now = clock()
    latest = metrics or latest
    first = first or (round_, now)
    if printed is not None and now - printed < LINE_SECONDS:
      return
    printed = now
    parts = [f"round {round_}/{rounds}"]
    if latest is not None:
      parts.append(words(latest, among))
    if pace:
      parts.append(f"{pace:.2g} s/round")
    if round_ > first[0]:
      left = (now - first[1]) / (round_ - first[0]) * (rounds - round_)
      parts.append(f"{datetime.timedelta(seconds=round(left))} left")
    say(screen, ", ".join(parts))

  return show


def words(metrics: records.Metrics, among: str = "") -> str:
  """Says in short what an evaluation found."""
  parts = [f"loss {metrics.loss:.3f}", f"acc {metrics.accuracy:.3f}"]
  known = {
    name: e.fil_pearson
    for name, e in metrics.estimators.items()
    if e.fil_pearson is not None
  }
  if known:
    best = max(known, key=known.__getitem__)
    label = f"{best}, {among}" if among else best
    parts.append(f"Pearson {known[best]:.3f} ({label})")
    reliability = metrics.reliability
    if reliability is not None and reliability.ceiling is not None:
      parts.append(f"ceiling {reliability.ceiling:.3f}")
  shares = [e.truncated_fraction for e in metrics.estimators.values()]
  truncated = [share for share in shares if share is not None]
  if truncated:
    parts.append(f"truncated {max(truncated):.0%}")
  return ", ".join(parts)
