"""Progress of a simulation: nothing else below `running` writes to a screen."""

from collections.abc import Callable
import sys
from typing import Any

LINES = 20  # at most


def reader(progress: Any) -> Callable[[int, int], None] | None:
  """Returns whom to tell about (rounds done, all rounds); None: nobody.

  Args:
    progress: False: nobody; True: a line on the error output; or a function.
  """
  if progress is False or progress is None:
    return None
  if progress is True:
    return lambda done, rounds: _say(f"round {done} of {rounds}\n")
  if not callable(progress):
    raise ValueError(
      f"progress is {progress!r}; it must be True, False or a function of"
      " (rounds done, all rounds)"
    )
  return progress


def stops(rounds: int) -> set[int]:
  """Returns the rounds after which progress is told."""
  lines = min(LINES, rounds)
  return {rounds * i // lines for i in range(1, lines + 1)}


def _say(line):
  sys.stderr.write(line)
  sys.stderr.flush()
