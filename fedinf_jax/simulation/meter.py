"""Progress of a simulation: nothing else below `running` writes to a screen."""

from collections.abc import Callable
import contextlib
import sys
from typing import Any
from typing import NamedTuple

LINES = 20  # at most, where they stay
UPDATES = 100  # at most, of a line that replaces itself
WIDTH = 20  # characters of the bar
CLEAR = "\x1b[K"  # to the end of the line


class Meter(NamedTuple):
  """Whom to tell about progress, and how often."""

  tell: Callable[[int, int], None]  # (rounds done, all rounds)
  times: int  # at most

  def stops(self, rounds: int) -> set[int]:
    """Returns the rounds after which progress is told."""
    times = min(self.times, rounds)
    return {rounds * i // times for i in range(1, times + 1)}


def reader(progress: Any) -> Meter:
  """Reads what a user wants to be told.

  Args:
    progress: False: nothing; True: a live line where the error output is a
      terminal, plain lines elsewhere; or a function.
  """
  if progress is False or progress is None:
    return Meter(lambda done, rounds: None, 0)
  if progress is True:
    return Meter(_live, UPDATES) if _is_terminal() else Meter(_plain, LINES)
  if not callable(progress):
    raise ValueError(
      f"progress is {progress!r}; it must be True, False or a function of"
      " (rounds done, all rounds)"
    )
  return Meter(progress, LINES)


@contextlib.contextmanager
def line(meter: Meter, rounds: int):
  """Begins the line, and ends it if what is told about fails.

  A user's own function is not told about either.
  """
  first = f"round 0 of {rounds}: compiling …"
  if meter.tell is _live:
    _write(f"\r{first}{CLEAR}")
  elif meter.tell is _plain:
    _write(f"{first}\n")
  try:
    yield
  except BaseException:
    if meter.tell is _live:
      _write("\n")
    raise


def _live(done, rounds):
  """Replaces the line; it goes when all is done."""
  filled = WIDTH * done // rounds
  bar = "━" * filled + "┄" * (WIDTH - filled)
  shown = f"round {done} of {rounds} {bar} {done / rounds:.0%}"
  _write("\r" + (shown if done < rounds else "") + CLEAR)


def _plain(done, rounds):
  _write(f"round {done} of {rounds}\n")


def _is_terminal():
  return sys.stderr is not None and sys.stderr.isatty()


def _write(text):
  if sys.stderr is not None:  # As in a program without a console.
    sys.stderr.write(text)
    sys.stderr.flush()
