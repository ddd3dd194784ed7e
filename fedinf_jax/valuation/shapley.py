"""Shapley values of one round's game, by guided and truncated permutations.

GTG-Shapley (Liu et al., ACM TIST 2022). Host side: it knows a game only by its
utility U, a function of subsets of the B players.
"""

from collections.abc import Callable
import dataclasses
import itertools
import math

import numpy as np

from fedinf_jax import checks
from fedinf_jax import memory

Utility = Callable[[np.ndarray], np.ndarray]  # bool [Q, B] -> float64 [Q]


@dataclasses.dataclass(frozen=True, kw_only=True)
class GTGShapley:
  """What GTG-Shapley runs with.

  A sweep is B permutations; in each another player comes first and the others
  follow in random order ("guided" sampling: every player's first place counts
  equally, so a sweep is unbiased).

  Attributes:
    max_sweeps: sweeps at most, max_sweeps · B permutations. (B − 1)! or more
      stand for all B! permutations, each once: exact but for truncation.
    eps_between: if |U(all) − U(∅)| is less, the round is skipped: 0 for all.
    eps_within: a permutation ends at the prefix S where |U(all) − U(S)| is
      less: 0 for the players after it.
    tolerance: no more sweeps once the last one moved the values by no more
      than this share of them (in L1); None: always max_sweeps.

  Examples:
    >>> quick = fi.valuation.GTGShapley(max_sweeps=1)
    >>> # Then fi.valuation.baselines(..., shapley=quick)["gtg_shapley"].
    >>> quick.eps_within
    0.0001
  """

  max_sweeps: int = 3
  eps_between: float = 1e-4
  eps_within: float = 1e-4
  tolerance: float | None = 0.05

  def __post_init__(self):
    checks.positive_integer("max_sweeps", self.max_sweeps)
    for name in ("eps_between", "eps_within", "tolerance"):
      value = getattr(self, name)
      if not (name == "tolerance" and value is None):
        checks.not_negative(name, value)


def require_memory(settings: GTGShapley, num_players: int):
  """Refuses to list more permutations than memory could ever hold."""
  if settings.max_sweeps >= math.factorial(num_players - 1):
    memory.require(
      f"max_sweeps is {settings.max_sweeps}: all orders of {num_players}"
      " players",
      8 * num_players * math.factorial(num_players),
    )


def values(
  utility: Utility,
  num_players: int,
  settings: GTGShapley,
  draw: np.random.Generator,
) -> np.ndarray:
  """Estimates the Shapley values of a game.

      φ_k = E_π[U({j : π_j ≤ π_k}) − U({j : π_j < π_k})]

  over uniform permutations π. Without truncation Σ_k φ_k = U(all) − U(∅),
  however many permutations are drawn.

  Args:
    utility: U of many subsets at once; asked once for each subset.
    num_players: B.
    settings: how many permutations, and what is cut short.
    draw: the permutations' randomness.

  Returns:
    float64 [B].
  """
  utility = _remember(utility)
  everyone = np.ones(num_players, bool)
  nobody, all_ = utility(np.stack([~everyone, everyone]))
  if abs(all_ - nobody) < settings.eps_between:
    return np.zeros(num_players)
  total, count = np.zeros(num_players), 0
  mean = np.full(num_players, np.nan)
  for orders in _sweeps(num_players, settings.max_sweeps, draw):
    total += _marginals(utility, orders, nobody, all_, settings.eps_within)
    count += len(orders)
    before, mean = mean, total / count
    if settings.tolerance is not None:
      moved = np.abs(mean - before).sum()  # NaN at first
      if moved <= settings.tolerance * np.abs(mean).sum():
        break
  return mean


def _sweeps(num_players, max_sweeps, draw):
  """Yields permutations by the sweep, int [Q, B]; or all of them, if few."""
  if max_sweeps >= math.factorial(num_players - 1):
    yield np.array(list(itertools.permutations(range(num_players))))
    return
  first = np.arange(num_players)
  for _ in range(max_sweeps):
    priority = draw.random((num_players, num_players))
    priority[first, first] = -1  # Row k's permutation begins with player k.
    yield priority.argsort(1)


def _marginals(utility, orders, nobody, all_, eps_within):
  """Returns what each player adds, summed over permutations: [Q, B] -> [B].

  The permutations advance side by side, so that each place is one batch of
  subsets; which of them end early is decided place by place.
  """
  rows = np.arange(len(orders))
  prefix = np.zeros(orders.shape, bool)
  value = np.full(len(orders), nobody)
  added = np.zeros(orders.shape)
  for player in orders.T:
    prefix[rows, player] = True
    going = np.abs(all_ - value) >= eps_within
    after = value.copy()
    after[going] = utility(prefix[going])
    added[rows, player] = after - value
    value = after
  return added.sum(0)


def _remember(utility):
  """Returns `utility` with a memory: no subset is evaluated twice."""
  known: dict[bytes, float] = {}

  def remembering(subsets):
    keys = [row.tobytes() for row in np.packbits(subsets, axis=1)]
    new = {key: i for i, key in enumerate(keys) if key not in known}
    if new:
      fresh = utility(subsets[list(new.values())])
      known.update(zip(new, fresh, strict=True))
    return np.array([known[key] for key in keys])

  return remembering
