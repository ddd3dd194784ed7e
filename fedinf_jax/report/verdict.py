"""Who helps and who hurts, and how far to trust it: for screen and page alike.

FIL is a client's influence on the test loss: loss without the client − loss
with it. A client with FIL > 0 helps.
"""

import math
from typing import NamedTuple

import numpy as np

from fedinf_jax import text
from fedinf_jax.report import numbers
from fedinf_jax.running import workdir

EXTREMES = 5  # Clients named at either end.


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
  helps: tuple[int, ...]  # positions, strongest first, at most EXTREMES
  hurts: tuple[int, ...]
  num_helping: int
  num_hurting: int
  num_absent: int  # clients that never took part
  num_replayed: int  # clients whose exact FIL is known
  grades: dict[str, Grade]  # of every estimator


def verdict(contents: workdir.Contents) -> Verdict:
  """Says who helps and who hurts.

  Clients are ranked by the ground truth where all of them were replayed, else
  by the estimator that agrees best with it, else by the first estimator. Where
  the extremes of a screening were replayed, by the truth about these.
  """
  exact = contents.columns.get("fil_exact", np.full(len(contents.ids), np.nan))
  known = np.isfinite(exact)
  by = _ranked_by(contents, known)
  fil = contents.columns[f"fil_{by}"] if by else exact
  if contents.screened_by:
    fil = np.where(known, exact, fil)
  order = np.argsort(-fil, kind="stable")
  times = contents.columns.get("times_selected", np.ones(len(fil)))
  estimators = contents.summary["estimators"]
  return Verdict(
    ranked_by=by,
    fil=fil,
    helps=tuple(int(k) for k in order if fil[k] > 0)[:EXTREMES],
    hurts=tuple(int(k) for k in order[::-1] if fil[k] < 0)[:EXTREMES],
    num_helping=int((fil > 0).sum()),
    num_hurting=int((fil < 0).sum()),
    num_absent=int((times == 0).sum()),
    num_replayed=int(known.sum()),
    grades={
      name: grade(
        measured,
        has_exact=contents.has_exact,
        repeated=contents.summary.get("reliability"),
      )
      for name, measured in estimators.items()
    },
  )


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
    (part.get(f"fil_{kind}"), ceiling(repeated, when, kind))
    for when, part in parts.items()
    for kind in ("pearson", "spearman")
  ]
  correlations = [pair for pair in correlations if pair[0] is not None]
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


def sentences(contents: workdir.Contents, found: Verdict) -> list[str]:
  """Returns the verdict in plain text, a line per string.

  The screen prints them, and the page shows them word for word.
  """
  lines = [*answer(contents, found), *trust(contents, found).values()]
  return [*lines, *reproducible(contents)]


def reproducible(contents: workdir.Contents) -> list[str]:
  """Says in words how far the truth agrees with itself, where that is known."""
  repeated = contents.summary.get("reliability")
  if repeated is None or repeated["last"]["ceiling"] is None:
    return []
  last, quarter = repeated["last"], repeated["last_quarter"]
  shown = numbers.correlation
  return [
    f"The truth itself: retraining without each of {last['clients']:,} clients,"
    f" from starting points {numbers.scientific(repeated['jitter'])} apart,"
    " agrees with itself to"
    f" Pearson {shown(last['pearson'])}, Spearman {shown(last['spearman'])} at"
    f" the last round ({shown(quarter['pearson'])} and"
    f" {shown(quarter['spearman'])} on average over the last quarter). So"
    " agreement with one retraining has a ceiling of about Pearson"
    f" {shown(last['ceiling'])} ({shown(quarter['ceiling'])}). Agreement with"
    " the mean of"
    f" {last['repeats']} retrainings (ceiling {shown(last['ceiling_mean'])}): "
    + ", ".join(
      f"{name} {shown(found['fil_pearson'])}"
      for name, found in last["estimators"].items()
    )
    + "."
  ]


def answer(contents: workdir.Contents, found: Verdict) -> list[str]:
  """Says in words who helps and who hurts, and by whose account."""
  if not np.isfinite(found.fil).any():
    return ["This run measured no influence."]
  lines = [
    _end(contents, found, clients, verbs)
    for clients, verbs in (
      (found.helps, ("rise", "helps")),
      (found.hurts, ("fall", "hurts")),
    )
    if clients
  ]
  lines.append(
    f"By {_account(contents, found)}, {found.num_helping:,} of"
    f" {len(found.fil):,} clients help and {found.num_hurting:,} hurt;"
    f" {found.num_absent:,} never took part."
  )
  if contents.screened_by:
    lines.append(_verified(contents, found))
  return lines


def trust(contents: workdir.Contents, found: Verdict) -> dict[str, str]:
  """Says in words how far each estimator can be trusted: name → sentence."""
  lines = {}
  for name, measured in contents.summary["estimators"].items():
    facts = _agreement(contents, name) if contents.has_exact else []
    has_eps = name in contents.with_eps
    facts += (
      [
        f"{numbers.share(measured['truncated_fraction'])} of layers truncated",
        "largest growth in a round"
        f" ×{numbers.digits(measured['largest_growth'], 3)}",
      ]
      if has_eps
      else ["backwards" + ", in simulation only" * measured["simulated"]]
    )
    if lost := measured["nonfinite_fraction"]:
      what = "layers" if has_eps else "clients"
      facts.append(f"{numbers.share(lost)} of {what} overflowed")
    words = found.grades[name].words
    if contents.screened_by:
      words = f"over {extremes(contents, found)} only, {words}"
    lines[name] = f"{name}: {words} ({'; '.join(facts)})."
    if expected := measured.get("trust"):
      lines[name] += f" {_expected(expected)}"
  return lines


def _expected(trust):
  """Says in words what agreement to expect where nothing was checked."""
  pearson, low, high = (
    numbers.fixed(trust[field], 2) for field in ("pearson", "low", "high")
  )
  because = "; ".join(trust["reasons"]) or "no sign speaks against it"
  return (
    f"Expected agreement with retraining: Pearson {pearson} ({low} to {high}),"
    f" because {because}."
  )


def extremes(contents: workdir.Contents, found: Verdict) -> str:
  """Says in words whom a screening had replayed."""
  return f"the {found.num_replayed:,} extremes by {contents.screened_by}"


def source(contents: workdir.Contents, k: int) -> str:
  """Says whether FIL of a client is exact, where some are and some are not."""
  if not contents.screened_by:
    return ""
  exact = np.isfinite(contents.columns["fil_exact"][k])
  return "exact" if exact else "estimated"


def _verified(contents, found):
  """Says what the replay makes of the extremes of a screening."""
  exact = contents.columns["fil_exact"]
  known = np.flatnonzero(np.isfinite(exact))
  screened = contents.columns[f"fil_{contents.screened_by}"][known]
  ordered = exact[known[np.argsort(-screened, kind="stable")]]
  middle = -(-len(known) // 2)
  helpful, harmful = ordered[:middle], ordered[middle:]
  return (
    f"Exact are the numbers of {extremes(contents, found)}, which were"
    f" retrained without: of the {len(helpful):,} most helpful"
    f" {(helpful > 0).sum():,} help, of the {len(harmful):,} most harmful"
    f" {(harmful < 0).sum():,} hurt. All other numbers are estimates."
  )


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


def _account(contents, found):
  """Says whose account it is, and why."""
  some = f"{found.num_replayed:,} of the {len(found.fil):,} clients"
  if contents.screened_by:
    some = extremes(contents, found)
  if found.ranked_by == "exact":
    everyone = found.num_replayed == len(found.fil)
    return f"retraining without {'each client' if everyone else some}"
  who = f"estimator {found.ranked_by}"
  if found.grades[found.ranked_by] == OVERFLOWED:
    return f"{who} (which overflowed)"
  if len(contents.names) == 1:
    return who
  if contents.has_exact:
    return f"{who} (which agrees best with retraining without {some})"
  if found.ranked_by == contents.names[0]:
    return f"{who} (the first of the recipe)"
  return f"{who} (the first of the recipe that did not overflow)"


def _end(contents, found, clients, verbs):
  """Names the clients at one end."""
  moves, does = verbs
  first, *others = (
    (
      text.escaped(contents.ids[k]),
      numbers.digits(abs(found.fil[k])),
      source(contents, k),
    )
    for k in clients
  )
  line = f"Without client {first[0]} the test loss would {moves} by {first[1]}"
  line += f" ({first[2]})" if first[2] else ""
  line += f": it {does} most"
  if others:
    line += ", then " + ", ".join(
      f"{name} ({', '.join(filter(None, facts))})" for name, *facts in others
    )
  return f"{line}."


def _agreement(contents, name):
  """Says in words how near an estimator is to the ground truth."""
  measured = contents.summary["estimators"][name]
  quarter = measured["last_quarter"]
  pair = lambda source: tuple(
    numbers.correlation(source[field])
    for field in ("fil_pearson", "fil_spearman")
  )
  helpful, harmful, count = _in_common(contents, name)
  return [
    f"finds {helpful} of the {count} most helpful and {harmful} of the {count}"
    " most harmful clients",
    "Pearson {}, Spearman {} at the last round".format(*pair(measured))
    + _beside(contents, "last"),
    "{} and {} on average over the last quarter".format(*pair(quarter))
    + _beside(contents, "last_quarter"),
  ]


def _beside(contents, when):
  """Says in words what an agreement is at most expected to be."""
  repeated = contents.summary.get("reliability")
  kinds = "pearson", "spearman"
  if repeated is None or None in map(repeated[when].get, kinds):
    return ""
  ceilings = (
    numbers.correlation(ceiling(repeated, when, kind)) for kind in kinds
  )
  return " (ceilings {} and {})".format(*ceilings)


def _in_common(contents, name):
  """Counts clients that estimate and truth have in common at either end."""
  exact = contents.columns["fil_exact"]
  known = np.isfinite(exact)
  exact, estimate = exact[known], contents.columns[f"fil_{name}"][known]
  count = max(1, min(10, len(exact) // 5))
  # What overflowed sorts last at either end.
  ends = (
    set(np.argsort(sign * exact)[:count])
    & set(np.argsort(sign * estimate)[:count])
    for sign in (-1, 1)
  )
  return *map(len, ends), count
