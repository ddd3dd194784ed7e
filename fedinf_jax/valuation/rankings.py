"""What influence is for: rank clients, pay them, leave some out, find bad ones.

Everything here takes one score per client, [K], and works on the host. FIL, the
influence on a loss, is such a score: FIL > 0 means that the client helps. For
the influence on an accuracy (FIA < 0 helps) say `higher_is_helpful=False`, or
hand in −FIA where there is no such argument.
"""

from typing import Any

import numpy as np
import scipy

from fedinf_jax import checks
from fedinf_jax import rng

ENDS = "harmful", "helpful", "random"


def ranking(fil: Any, *, higher_is_helpful: bool = True) -> np.ndarray:
  """Orders the clients from the most helpful to the most harmful.

  Equal scores stay in the order of positions. A client that was never drawn
  has a FIL of exactly 0: it stands between those who help and those who harm.

  Args:
    fil: [K] scores.
    higher_is_helpful: False for scores such as FIA, where < 0 helps.

  Returns:
    int [K], positions of clients.

  Examples:
    >>> fi.valuation.ranking([0.1, -0.2, 0.3]).tolist()
    [2, 0, 1]
    >>> data.ids[fi.valuation.ranking(fil)[-1]]
    'hospital 0'
  """
  fil = _scores("fil", fil)
  checks.boolean("higher_is_helpful", higher_is_helpful)
  return np.argsort(-fil if higher_is_helpful else fil, kind="stable")


def choose(
  fil: Any,
  fraction: float,
  *,
  end: str = "harmful",
  seed: int = 0,
  higher_is_helpful: bool = True,
) -> np.ndarray:
  """Chooses clients to leave out, as cleansing does.

  ⌊fraction · K + 1/2⌋ of them: the nearest whole number, halves rounded up. A
  larger fraction chooses the same clients and more. What is chosen can be left
  out by `data.without([data.ids[k] for k in chosen])`.

  Args:
    fil: [K] scores.
    fraction: of the clients, in [0, 1].
    end: "harmful": from the end of the `ranking`; "helpful": from its start;
      "random": whatever the scores, to compare with.
    seed: of the random choice; without effect on the others.
    higher_is_helpful: as in `ranking`.

  Returns:
    int [⌊fraction · K + 1/2⌋], positions, the most harmful (helpful) first.

  Examples:
    >>> fi.valuation.choose([0.1, -0.2, 0.3, 0.0], 0.25).tolist()
    [1]
  """
  order = ranking(fil, higher_is_helpful=higher_is_helpful)
  fraction = checks.number(
    "fraction", fraction, "lie in [0, 1]", lambda f: 0 <= f <= 1
  )
  checks.seed(seed)
  checks.one_of("end", end, ENDS)
  if end == "harmful":
    order = order[::-1]
  elif end == "random":
    order = rng.host_generator(seed, rng.Stream.CHOOSE).permutation(len(order))
  return order[: int(np.floor(fraction * len(order) + 0.5))]


def extremes(scores: Any, count: int) -> np.ndarray:
  """Finds the clients at both ends: those worth an exact replay.

  ⌈count/2⌉ from the start of the `ranking`, ⌊count/2⌋ from its end. A score of
  exactly 0, which a client that was never drawn has, is no extreme: such
  clients are taken only where the others are too few, in the order of
  positions.

  Args:
    scores: [K], higher is more helpful (hand in −FIA).
    count: how many clients, at most K.

  Returns:
    int [count], distinct positions, from the most helpful to the most harmful:
    rows for `exact=`.

  Examples:
    >>> rows = fi.valuation.extremes(fil, 2)  # For simulate(..., exact=rows).
    >>> data.ids[rows[-1]]
    'hospital 0'
  """
  scores = _scores("scores", scores)
  count = checks.positive_integer("count", count)
  if count > len(scores):
    raise ValueError(f"count is {count}; there are {len(scores)} clients")
  order = ranking(scores)
  nonzero = order[scores[order] != 0]
  if len(nonzero) < count:
    others = np.flatnonzero(scores == 0)[: count - len(nonzero)]
    return order[np.isin(order, [*nonzero, *others])]
  harmful = count // 2
  return np.append(
    nonzero[: count - harmful], nonzero[len(nonzero) - harmful :]
  )


def overlap(estimated: Any, exact: Any, count: int) -> float:
  """Returns the share of the true `extremes` that are among the estimated.

  Args:
    estimated: [K] scores, higher is more helpful.
    exact: [K], likewise.
    count: how many clients, both ends together.

  Examples:
    >>> fi.valuation.overlap([1.0, 2.0, 3.0], [1.0, 3.0, 2.0], 2)
    0.5
  """
  chosen = [set(extremes(a, count).tolist()) for a in (estimated, exact)]
  return len(chosen[0] & chosen[1]) / count


def rewards(fil: Any, budget: float = 1.0) -> np.ndarray:
  """Divides a budget among the clients that help.

      reward_k = budget · max(FIL_k, 0) / Σ_j max(FIL_j, 0)

  Where nobody helps, the scores give no reason to prefer anyone: equal shares,
  so that the rewards sum to the budget whatever happened.

  Args:
    fil: [K] scores; <= 0 earns nothing.
    budget: what there is to give, >= 0.

  Returns:
    float64 [K], >= 0.

  Examples:
    >>> fi.valuation.rewards([1.0, -2.0, 3.0], budget=100).tolist()
    [25.0, 0.0, 75.0]
  """
  help_ = np.maximum(_scores("fil", fil), 0)
  budget = checks.not_negative("budget", budget)
  largest = help_.max()
  # Divided by the largest first, for sums beyond or below what floats hold.
  shares = help_ / largest if largest > 0 else np.ones(len(help_))
  return budget * (shares / shares.sum())


def precision_at_k(score: Any, bad: Any) -> float:
  """Returns the share of bad clients among the k lowest scores, k of them bad.

  Of clients that tie for the last places, each counts by the chance that it
  gets one: the order of clients has no say. Random scores find K's share of bad
  clients, k / K.

  Args:
    score: [K], higher is more helpful.
    bad: bool [K], at least one of them.

  Examples:
    >>> fi.valuation.precision_at_k([-1.0, 0.5, 2.0], [True, False, False])
    1.0
  """
  score, bad = _labelled(score, bad)
  k = bad.sum()
  last = np.sort(score)[k - 1]
  surely, maybe = score < last, score == last
  found = bad[surely].sum() + (k - surely.sum()) * bad[maybe].mean()
  return float(found / k)


def auroc(score: Any, bad: Any) -> float:
  """Returns how often a bad client scores lower than a good one; ties half.

      P(score_bad < score_good) + P(score_bad = score_good) / 2

  The area under the ROC curve of "a low score means bad": 1 is perfect, 1/2 is
  chance.

  Args:
    score: [K], higher is more helpful.
    bad: bool [K], at least one bad and one good.

  Examples:
    >>> fi.valuation.auroc([-1.0, 0.5, 2.0], [True, False, False])
    1.0
  """
  score, bad = _labelled(score, bad)
  num_bad, num_good = bad.sum(), (~bad).sum()
  if not num_good:
    raise ValueError("bad is True everywhere; at least one client must be good")
  # The midrank sum of the bad ones counts their pairs with one another too.
  ranks = scipy.stats.rankdata(-score)[bad].sum()
  return float((ranks - num_bad * (num_bad + 1) / 2) / (num_bad * num_good))


def _scores(name, values):
  """Returns scores as float64 [K], or says what is wrong with them."""
  scores = checks.array(name, values)
  if scores.ndim != 1 or not len(scores):
    raise ValueError(
      f"{name} is {scores.dtype} of shape {list(scores.shape)}; it must be"
      " [K], one number per client"
    )
  finite = np.isfinite(scores)
  if not finite.all():
    k = int(finite.argmin())
    raise ValueError(f"{name} of client {k} is {scores[k]}; it must be finite")
  return scores.astype(np.float64)


def _labelled(score, bad):
  """Returns scores and which clients are bad, checked."""
  score, bad = _scores("score", score), checks.array("bad", bad)
  if bad.dtype != bool or bad.shape != score.shape:
    raise ValueError(
      f"bad is {bad.dtype} of shape {list(bad.shape)}; it must be bool"
      f" [{len(score)}], like score"
    )
  if not bad.any():
    raise ValueError("bad is False everywhere; at least one client must be bad")
  return score, bad
