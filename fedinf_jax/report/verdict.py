"""Who helps and who hurts: what a run says about its clients, as numbers.

FIL is a client's influence on the test loss: loss without the client − loss
with it. A client with FIL > 0 helps. `sentences` says it in words.
"""

import math
from typing import NamedTuple

import numpy as np

from fedinf_jax.running import workdir

EXTREMES = 5  # Clients named at either end.
STANDS_OUT = 2.0  # so many times the next one


class Grade(NamedTuple):
  """How far an estimator can be trusted."""

  key: str  # good, fair, weak, bad or none
  words: str


# The weakest of four numbers (Pearson's and Spearman's correlation of estimated
# with exact FIL, at the last round and averaged over the last quarter) decides:
# the first grade whose least value it reaches. Where the truth was repeated,
# each is first divided by its ceiling: nobody is blamed for noise of the truth.
GRADES = (
  (0.95, Grade("good", "ranks clients almost as retraining does")),
  (0.80, Grade("fair", "ranks clients well, though neighbours may swap")),
  (0.50, Grade("weak", "a rough guide, finds extremes but misses some")),
  (-1.0, Grade("bad", "do not trust")),
)
OVERFLOWED = Grade("bad", "do not trust, it overflowed")
UNCHECKED = Grade("none", "not checked, as this run has no ground truth")
LEAST_CEILING = 0.5  # below it, there is little to agree with
NOISE = Grade("none", "not checked, as retraining disagrees with itself")


class Verdict(NamedTuple):
  """What a run says about its R clients."""

  ranked_by: str | None  # "exact", an estimator, or None: nothing is known
  fil: np.ndarray  # [R] by which clients are ranked, NaN where unknown
  effect: np.ndarray  # [R] helps, hurts, cannot tell, or "": not measured
  # Positions, strongest first, at most EXTREMES: of those that do so for sure,
  # or where nobody does, of those that seem to.
  helps: tuple[int, ...]
  hurts: tuple[int, ...]
  num_absent: int  # clients that never took part
  num_replayed: int  # clients whose exact FIL is known
  grades: dict[str, Grade]  # of every estimator
  noun: str = "client"  # what a row is, or "group"
  # Who helps its own test rows only, and hurts all others' most; None: nobody.
  selfish: int | None = None

  def count(self, effect: str) -> int:
    """Returns how many clients have an effect."""
    return int((self.effect == effect).sum())


def verdict(contents: workdir.Contents) -> Verdict:
  """Says who helps and who hurts.

  Clients are ranked by the ground truth where all of them were replayed, else
  by the estimator that agrees best with it, else by the first estimator. Where
  the extremes of a screening were replayed, by the truth about these.
  """
  unknown = np.full(len(contents.ids), np.nan)
  exact = contents.columns.get("fil_exact", unknown)
  known = np.isfinite(exact)
  by = _ranked_by(contents, known)
  fil = contents.columns[f"fil_{by}"] if by else exact
  effect = _effect(contents, by)
  if contents.screened_by:
    fil = np.where(known, exact, fil)
    effect = np.where(known, _effect(contents, "exact"), effect)
  times = contents.columns.get("times_selected", np.ones(len(fil)))
  return Verdict(
    ranked_by=by,
    fil=fil,
    effect=effect,
    helps=_named(fil, effect, "helps"),
    hurts=_named(-fil, effect, "hurts"),
    num_absent=int((times == 0).sum()),
    num_replayed=int(known.sum()),
    grades={
      name: grade(
        measured,
        has_exact=contents.has_exact,
        repeated=contents.summary.get("reliability"),
      )
      for name, measured in contents.summary["estimators"].items()
    },
    noun="group" if contents.summary.get("members") else "client",
    selfish=None if contents.screened_by else _selfish(contents, by, fil),
  )


def _selfish(contents, by, fil):
  """Returns who raises others' loss more than anybody moves it, yet helps.

  A client with wrong labels, and as wrong ones among the test rows, is one.
  """
  others = contents.columns.get(f"fil_others_{by}")
  if others is None or len(others) < 2:
    return None
  size = np.where(np.isfinite(others), np.abs(others), 0.0)
  *_, second, k = map(int, np.argsort(size, kind="stable"))
  stands_out = size[k] >= STANDS_OUT * size[second]
  return k if stands_out and others[k] < 0 < fil[k] else None


def column(contents: workdir.Contents, field: str, k: int, by: str) -> float:
  """Returns a number of client k, the exact one where a screening has it."""
  exact = contents.columns["fil_exact"][k]
  if contents.screened_by and np.isfinite(exact):
    by = "exact"
  return float(contents.columns[f"{field}_{by}"][k])


def grade(
  measured: dict, *, has_exact: bool, repeated: dict | None = None
) -> Grade:
  """Says how far an estimator can be trusted.

  Args:
    measured: the estimator in summary.json.
    has_exact: whether any client was replayed.
    repeated: how reproducible the truth is, in summary.json; None: unknown.
  """
  if measured.get("nonfinite_fraction"):
    return OVERFLOWED
  quarter = measured.get("last_quarter") or {}
  parts = {"last": measured, "last_quarter": quarter}
  correlations = [
    (value, ceiling(repeated, when, kind))
    for when, part in parts.items()
    for kind in ("pearson", "spearman")
    if (value := part.get(f"fil_{kind}")) is not None
  ]
  if not has_exact or not correlations:
    return UNCHECKED
  if min(most for _, most in correlations) < LEAST_CEILING:
    return NOISE
  weakest = max(-1.0, min(value / most for value, most in correlations))
  return next(found for least, found in GRADES if weakest >= least)


def ceiling(repeated: dict | None, when: str, kind: str) -> float:
  """Returns what a correlation is at most expected to be; 1 if unknown.

  Args:
    repeated: how reproducible the truth is, in summary.json; None: unknown.
    when: "last" or "last_quarter".
    kind: "pearson" or "spearman".
  """
  reliability = repeated[when][kind] if repeated else None
  return 1.0 if reliability is None else math.sqrt(max(0.0, reliability))


def source(contents: workdir.Contents, k: int) -> str:
  """Says whether FIL of a client is exact, where some are and some are not."""
  if not contents.screened_by:
    return ""
  exact = np.isfinite(contents.columns["fil_exact"][k])
  return "exact" if exact else "estimated"


def _effect(contents, by):
  nothing = np.full(len(contents.ids), "", object)
  return contents.columns.get(f"effect_{by}", nothing)


def _named(fil, effect, word):
  """Returns the clients of one end, `fil` being largest there."""
  among = effect == word
  if not among.any():
    among = fil > 0
  order = np.argsort(-fil, kind="stable")
  return tuple(int(k) for k in order if among[k])[:EXTREMES]


def _ranked_by(contents, known):
  """Returns whose FIL ranks the clients; `known`: bool [R], the replayed."""
  if known.all() and known.size:
    return "exact"
  if contents.names:
    # Ties, as in a run without ground truth, go to the first of the recipe.
    return max(contents.names, key=lambda name: _quality(contents, name))
  return "exact" if known.any() else None


def _quality(contents, name):
  """Returns by what estimators are compared: overflow, then Spearman."""
  measured = contents.summary["estimators"][name]
  is_finite = not measured.get("nonfinite_fraction")
  return is_finite, measured["last_quarter"].get("fil_spearman") or 0.0
