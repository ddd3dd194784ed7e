"""How far an influence would move on another test set of the same kind.

The groups of test examples (owners, or single examples) are drawn again with
replacement, many times; each draw gives another influence of every client, by
matrix products. What this does not tell is how far an estimate is from the
exact influence: that is what agreement with retraining is for.
"""

from typing import Any
from typing import NamedTuple

import numpy as np
import scipy

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import rng

LEVEL = 0.95
RESAMPLES = 1000
# Quantiles of the resampled t statistic count within these multiples of
# Student's: below, chance makes intervals too short; far above, a few draws of
# one group alone make them endless.
_LEAST, _MOST = 1, 4
_FEWEST = 1.5  # groups that count, to judge by
_CELLS = 2**22  # of a block of draws [B, G], to bound memory


class Intervals(NamedTuple):
  """Each [R]; NaN, and p = 1, where one group is all there is, or nearly."""

  low: np.ndarray
  high: np.ndarray
  p: np.ndarray  # of the hypothesis that the influence is 0


def bootstrap(
  change: Any,
  counts: Any,
  *,
  level: float = LEVEL,
  resamples: int = RESAMPLES,
  seed: int = 0,
) -> Intervals:
  """Returns intervals of the mean change over all examples.

  v = Σ_g n_g d_g / Σ_g n_g has the standard error s,
  s² = Σ_g n_g² (d_g − v)² / (Σ_g n_g)² · G'/(G' − 1), where
  G' = (Σ_g n_g)² / Σ_g n_g² is the number of groups that count. Each draw has
  its own v* and s*; the interval is v − q s with quantiles q of
  t* = (v* − v)/s* (bootstrap-t: Efron, 1979; Hall, 1988), at least Student's
  with G' − 1 degrees of freedom. p is Student's, too, on a scale by which it is
  1 − level where the interval ends at 0: a share of draws could not be small
  enough for hundreds of clients at once.

  Args:
    change: [R, G], d, mean change of each group of examples.
    counts: [G], n, examples of each group.
    level: of the intervals, between 0 and 1.
    resamples: how often the groups are drawn again.
    seed: of the draws; all R share them.

  Examples:
    >>> change = np.array([[0.1, 0.2, 0.3], [-0.1, 0.1, 0.0]])
    >>> found = fi.valuation.bootstrap(change, [5, 5, 5])
    >>> (found.low < change.mean(1)).tolist()
    [True, True]
  """
  change, counts = _checked(change, counts)
  level = checks.number("level", level, "lie between 0 and 1", _is_share)
  checks.positive_integer("resamples", resamples)
  needed = 8 * resamples * (len(change) + 1)
  memory.require(f"resamples is {resamples}: what they give", needed)
  weights = counts / counts.sum()
  groups = 1 / np.square(weights).sum()  # G'
  if groups < _FEWEST:
    unknown = np.full(len(change), np.nan)
    return Intervals(unknown, unknown, np.ones(len(change)))
  value = change @ weights
  away = change - value[:, None]
  student = scipy.stats.t(max(groups - 1, 1))
  few = np.sqrt(groups / (groups - 1))
  error = few * np.sqrt((np.square(weights) * np.square(away)).sum(1))
  drawn = _resampled(away, weights, resamples, seed) / few
  tail = (1 - level) / 2
  normal = student.ppf(1 - tail)
  lower, upper = np.quantile(drawn, [tail, 1 - tail], axis=0, method="nearest")
  down = np.clip(upper, _LEAST * normal, _MOST * normal) * error
  up = np.clip(-lower, _LEAST * normal, _MOST * normal) * error
  with np.errstate(divide="ignore", invalid="ignore"):
    size = normal * np.abs(value) / np.where(value > 0, down, up)
  p = np.where(value == 0, 1.0, 2 * student.sf(size))
  return Intervals(value - down, value + up, p)


def effects(value: Any, p: Any, *, level: float = LEVEL) -> np.ndarray:
  """Says who helps (1), who hurts (-1), and of whom one cannot tell (0).

  By Benjamini and Hochberg (1995): of those who are said to help or to hurt, at
  most the share 1 − level does neither, on average. Who was never drawn has an
  influence of exactly 0 and is not among the questions asked.

  Args:
    value: [R] influence, > 0 helps; NaN: unknown.
    p: [R], as of `bootstrap`.
    level: between 0 and 1.

  Returns:
    int [R].

  Examples:
    >>> fi.valuation.effects([0.5, -0.5, 0.1], [0.001, 0.001, 0.8]).tolist()
    [1, -1, 0]
  """
  value, p = checks.array("value", value), checks.array("p", p)
  if value.ndim != 1 or value.shape != p.shape:
    raise ValueError(
      f"value has shape {list(value.shape)} and p {list(p.shape)}; both must"
      " be [R]"
    )
  level = checks.number("level", level, "lie between 0 and 1", _is_share)
  asked = np.isfinite(value) & (value != 0) & np.isfinite(p)
  found = np.zeros(len(value), int)
  if asked.any():
    adjusted = scipy.stats.false_discovery_control(p[asked])
    found[asked] = np.where(adjusted <= 1 - level, np.sign(value[asked]), 0)
  return found


def _checked(change, counts):
  change = checks.array("change", change)
  counts = checks.array("counts", counts)
  if change.ndim != 2 or counts.shape != change.shape[1:] or not counts.size:
    raise ValueError(
      f"change has shape {list(change.shape)} and counts {list(counts.shape)};"
      " they must be [R, G] and [G]"
    )
  if not np.issubdtype(counts.dtype, np.integer):
    raise ValueError(f"counts is {counts.dtype}; it must hold integers")
  checks.at_least("counts", counts, 1)
  checks.finite("change", change, "row")
  return change.astype(float), counts.astype(float)


def _is_share(value):
  return 0 < value < 1


def _resampled(away, weights, resamples, seed):
  """Returns (v* − v)/s* of each draw of G groups, without G', [B, R].

  Args:
    away: [R, G], d − v.
    weights: [G], shares of the examples.
    resamples: B.
    seed: of the draws.
  """
  draw = rng.host_generator(checks.seed(seed), rng.Stream.RESAMPLE)
  num_groups = len(weights)
  sums, squares = (away * weights).T, np.square(away * weights).T
  mixed = (away * np.square(weights)).T
  found = np.empty((resamples, len(away)))
  block = max(1, _CELLS // num_groups)
  for first in range(0, resamples, block):
    rows = min(block, resamples - first)
    drawn = draw.integers(num_groups, size=(rows, num_groups))
    drawn += num_groups * np.arange(rows)[:, None]
    times = np.bincount(drawn.ravel(), minlength=rows * num_groups)
    times = times.reshape(rows, num_groups).astype(float)
    total = (times @ weights)[:, None]
    mean = times @ sums / total
    # Σ_g times w² (away − mean)², multiplied out.
    spread = times @ squares - 2 * mean * (times @ mixed)
    spread += np.square(mean) * (times @ np.square(weights))[:, None]
    error = np.sqrt(np.maximum(spread, 0)) / total
    with np.errstate(divide="ignore", invalid="ignore"):
      found[first : first + rows] = np.where(mean == 0, 0, mean / error)
  return found
