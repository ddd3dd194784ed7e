"""Influence over the rounds of a run."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class History(NamedTuple):
  """FIL of R removals at E evaluated rounds; > 0 helps."""

  rounds: np.ndarray  # int [E]
  fil: dict[str, np.ndarray]  # [E, R]; "exact" is NaN where nothing is replayed
  loss: np.ndarray  # [E], of the model itself
  accuracy: np.ndarray  # [E]; NaN where there are no labels


class OverTime(NamedTuple):
  """What a history says about each removal, [R]; NaN where it says nothing."""

  mean: np.ndarray  # of FIL, over the evaluated rounds of the last quarter
  sign_held: np.ndarray  # share of its evaluations with the last one's sign


def evaluated(rounds: int, every: int) -> list[int]:
  """Returns the rounds to evaluate: every `every`-th and the last."""
  return sorted({*range(every, rounds + 1, every), rounds})


def over_time(rounds: Sequence[int] | np.ndarray, fil: np.ndarray) -> OverTime:
  """Sums up the FIL of one estimator.

  Args:
    rounds: int [E], evaluated ones, the last of the run included.
    fil: [E, R]; NaN: unknown. Rounds before a removal had any influence do not
      count for its sign.
  """
  known = np.isfinite(fil)
  late = known & (np.asarray(rounds) > 0.75 * rounds[-1])[:, None]
  counted = known & (fil != 0)
  held = counted & (np.sign(fil) == np.sign(fil[-1]))
  return OverTime(
    mean=_share(np.where(late, fil, 0).sum(0), late.sum(0)),
    sign_held=_share(held.sum(0), counted.sum(0)),
  )


def _share(total, count):
  return np.where(count > 0, total / np.maximum(count, 1), np.nan)
