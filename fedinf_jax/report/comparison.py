"""What changed between two runs, client by client: numbers and sentences."""

import itertools
from typing import Any
from typing import NamedTuple

import numpy as np
from scipy import stats

from fedinf_jax import text
from fedinf_jax import wording
from fedinf_jax.report import numbers
from fedinf_jax.report import verdict as verdicts
from fedinf_jax.running import workdir
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import reliability

NAMED = 3  # Clients and settings that a sentence names.


class Score(NamedTuple):
  """Influence on the loss of S clients in A and in B, NaN where unknown."""

  a: np.ndarray  # [S]
  b: np.ndarray  # [S]
  effect_a: np.ndarray  # [S] helps, hurts, cannot tell, or "": not measured
  effect_b: np.ndarray  # [S]
  pearson: float | None
  spearman: float | None

  @property
  def known(self) -> np.ndarray:
    """Whose influence is known in both, bool [S]."""
    return np.isfinite(self.a) & np.isfinite(self.b)

  @property
  def sign_changed(self) -> np.ndarray:
    """Who helps in one and hurts in the other, bool [S]."""
    return self.known & (np.sign(self.a) * np.sign(self.b) < 0)

  @property
  def group_changed(self) -> np.ndarray:
    """Whose effect is another one, bool [S]."""
    measured = (self.effect_a != "") & (self.effect_b != "")
    return measured & (self.effect_a != self.effect_b)


class Comparison(NamedTuple):
  """The S clients that runs A and B share, the most changed first."""

  ids: list[str]  # [S]
  count_a: int  # clients of A
  count_b: int
  by: str  # the score by which they are sorted
  scores: dict[str, Score]  # those that both runs have, `by` first
  noun: str = "client"  # what a row is, or "group"


def compare(a: workdir.Contents, b: workdir.Contents) -> Comparison:
  """Compares two runs over the clients that they share.

  Args:
    a: what the first run has written.
    b: what the other has.

  Raises:
    ValueError: if there is nothing to compare, saying why.
  """
  members = [run.summary.get("members") for run in (a, b)]
  if members[0] != members[1]:
    raise ValueError(
      "the runs cannot be compared: they removed other groups of clients, or"
      " one of them single clients"
    )
  found_a, found_b = verdicts.verdict(a), verdicts.verdict(b)
  where = {name: k for k, name in enumerate(b.ids)}
  shared = [k for k, name in enumerate(a.ids) if name in where]
  if not shared:
    raise ValueError(
      "the runs cannot be compared: they share no client (one has"
      f" {_first(a.ids)}, the other {_first(b.ids)})"
    )
  rows = np.array(shared), np.array([where[a.ids[k]] for k in shared])
  scores = {
    name: score
    for name in ("exact", *a.names)
    if (score := _score(a, b, rows, name)) is not None
  }
  if not scores:
    raise ValueError(
      "the runs cannot be compared: no score is known of the same clients in"
      f" both (one has {_scores(a)}, the other {_scores(b)})"
    )
  ranked = [f.ranked_by for f in (found_a, found_b) if f.ranked_by in scores]
  by = next(iter([*ranked, *scores]))
  score = scores[by]
  change = np.where(score.known, np.abs(score.a - score.b), -1.0)
  order = np.argsort(-change, kind="stable")
  return Comparison(
    ids=[a.ids[shared[i]] for i in order],
    count_a=len(a.ids),
    count_b=len(b.ids),
    by=by,
    scores={
      name: _ordered(scores[name], order)
      for name in dict.fromkeys([by, *scores])
    },
    noun=found_a.noun,
  )


def sentences(
  found: Comparison, a: workdir.Contents, b: workdir.Contents
) -> list[str]:
  """Says what changed from B to A, a line per string."""
  score, noun = found.scores[found.by], found.noun
  lines = [
    f"Both runs have {wording.counted(len(found.ids), noun)} of the"
    f" {found.count_a:,} in A and the {found.count_b:,} in B; by"
    f" {wording.titled(found.by)}, {int(score.known.sum()):,} of them are known"
    " in both.",
    "Rank correlation of their influence: Spearman"
    f" {numbers.correlation(score.spearman)} (Pearson"
    f" {numbers.correlation(score.pearson)}).",
    _changes(score, noun),
    _most(found),
    f"Test loss {numbers.fixed(a.summary['loss'], 4)} in A,"
    f" {numbers.fixed(b.summary['loss'], 4)} in B.{_settings(a, b)}",
  ]
  digests = [run.summary["data_digest"] for run in (a, b)]
  differ = "differ" if all(digests) else "are not known to be the same"
  if digests[0] != digests[1] or not digests[0]:
    lines.append(
      f"The data of the runs {differ}: under one id, they may have different"
      f" {noun}s."
    )
  return lines


def csv(found: Comparison) -> str:
  """Returns comparison.csv: a row per client, the most changed first."""
  columns: dict[str, Any] = {"client_id": found.ids}
  word = lambda flags: np.where(flags, "yes", "no").astype(object)
  for name, score in found.scores.items():
    columns |= {
      f"fil_a_{name}": score.a,
      f"fil_b_{name}": score.b,
      f"change_{name}": score.a - score.b,
      f"rank_a_{name}": ranks(score, score.a),
      f"rank_b_{name}": ranks(score, score.b),
      f"effect_a_{name}": score.effect_a,
      f"effect_b_{name}": score.effect_b,
      f"sign_changed_{name}": word(score.sign_changed),
      f"group_changed_{name}": word(score.group_changed),
    }
  return tables.csv_text(columns)


def ranks(score: Score, values: np.ndarray) -> list[int | None]:
  """Returns ranks among the clients known in both; 1 helps most.

  Args:
    score: whose clients.
    values: [S], its `a` or its `b`.
  """
  known = score.known
  found = stats.rankdata(-values[known], method="min")
  of_known = iter(found.astype(int).tolist())
  return [next(of_known) if there else None for there in known]


def _score(a, b, rows, name):
  """Returns a score of the shared clients; None if both have it of nobody."""
  columns = [
    (
      run.columns.get(f"fil_{name}", np.full(len(run.ids), np.nan))[row],
      run.columns.get(f"effect_{name}", np.full(len(run.ids), "", object))[row],
    )
    for run, row in zip((a, b), rows, strict=True)
  ]
  (fil_a, effect_a), (fil_b, effect_b) = columns
  known = np.isfinite(fil_a) & np.isfinite(fil_b)
  if not known.any():
    return None
  pair = fil_a[known], fil_b[known]
  return Score(
    fil_a,
    fil_b,
    effect_a,
    effect_b,
    pearson=reliability.correlation(stats.pearsonr, *pair),
    spearman=reliability.correlation(stats.spearmanr, *pair),
  )


def _ordered(score, order):
  return score._replace(
    **{
      field: getattr(score, field)[order]
      for field in ("a", "b", "effect_a", "effect_b")
    }
  )


def _changes(score, noun):
  """Says how many change sign, and how many from which group to which."""
  line = f"{wording.counted(int(score.sign_changed.sum()), noun)} changed sign"
  moved = score.group_changed
  pairs = zip(score.effect_b[moved], score.effect_a[moved], strict=True)
  kinds = [(len(list(all_)), k) for k, all_ in itertools.groupby(sorted(pairs))]
  parts = [
    f"{n:,} from {b} to {a}" for n, (b, a) in sorted(kinds, reverse=True)
  ]
  if not ((score.effect_a != "") & (score.effect_b != "")).any():
    return f"{line}; how sure their effects are was not measured in both runs."
  line += f", and {int(moved.sum()):,} changed group"
  return f"{line} ({wording.listed(parts)})." if parts else f"{line}."


def _most(found):
  """Names those that changed most."""
  score = found.scores[found.by]
  change = lambda i: (
    f"{text.escaped(found.ids[i])} ({_signed(score.b[i])} in B,"
    f" {_signed(score.a[i])} in A)"
  )
  named = np.flatnonzero(score.known)[:NAMED]
  return f"Most changed: {wording.listed([change(i) for i in named])}."


def _settings(a, b):
  """Says in what the recipes differ."""
  mine, others = (workdir.flat(run.config.get("config", {})) for run in (a, b))
  differ = [
    f"{key} ({mine.get(key)} in A, {others.get(key)} in B)"
    for key in sorted(mine.keys() | others.keys())
    if mine.get(key) != others.get(key)
  ]
  if not differ:
    return " Their settings are the same."
  more = len(differ) - NAMED
  differ = [*differ[:NAMED], f"{more} more"] if more > 0 else differ
  return f" Their settings differ in {text.printable(wording.listed(differ))}."


def _signed(value):
  return ("+" if value > 0 else "") + numbers.digits(value)


def _first(ids):
  return text.printable(repr(ids[0])) if ids else "none"


def _scores(run):
  known = [
    name
    for name in ("exact", *run.names)
    if np.isfinite(run.columns.get(f"fil_{name}", np.nan)).any()
  ]
  return wording.listed(known) if known else "none"
