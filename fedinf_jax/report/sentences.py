"""The verdict in words: screen, summary.json and page show these very lines."""

from typing import NamedTuple

import numpy as np

from fedinf_jax import text
from fedinf_jax import wording
from fedinf_jax.report import advice
from fedinf_jax.report import numbers
from fedinf_jax.report import verdict as verdicts
from fedinf_jax.running import workdir


class Sentences(NamedTuple):
  """All that the verdict says, in the order in which it is said."""

  headline: list[str]  # who helps, who hurts, who cannot be told apart
  account: list[str]  # by whose account
  trust: dict[str, str]  # of every estimator, how far to trust it and why
  truth: list[str]  # how far the truth agrees with itself, where known
  advice: list[str]  # what to do next

  def lines(self) -> list[str]:
    """Returns all of it."""
    return [
      *self.headline,
      *self.account,
      *self.trust.values(),
      *self.truth,
      *self.advice,
    ]


def sentences(contents: workdir.Contents, found: verdicts.Verdict) -> Sentences:
  """Says a verdict in words, a line per string."""
  if not np.isfinite(found.fil).any():
    nothing = ["This run measured no influence."]
    return Sentences(nothing, [], trust(contents, found), [], [])
  return Sentences(
    headline=[
      _end(contents, found, found.helps, ("helps", "help", "rise")),
      _end(contents, found, found.hurts, ("hurts", "hurt", "fall")),
      _unclear(found),
      *_selfish(contents, found),
    ],
    account=_account(contents, found),
    trust=trust(contents, found),
    truth=_reproducible(contents),
    advice=advice.advice(contents, found),
  )


def write(contents: workdir.Contents) -> tuple[verdicts.Verdict, Sentences]:
  """Returns the verdict on a run, as numbers and in words."""
  found = verdicts.verdict(contents)
  return found, sentences(contents, found)


def _end(contents, found, clients, words):
  """Names the clients at one end; words: helps, help, and how loss moves."""
  effect, verb, moves = words
  if not clients:
    return f"No {found.noun} {effect}."
  first, *others = (
    (
      text.escaped(contents.ids[k]),
      numbers.digits(abs(found.fil[k])),
      verdicts.source(contents, k),
    )
    for k in clients
  )
  line = _opening(found, effect, verb, first[0])
  line += f": without it the test loss would {moves} by {first[1]}"
  line += f" ({first[2]})" if first[2] else ""
  if others:
    line += ", then " + wording.listed(
      [f"{name} ({', '.join(filter(None, facts))})" for name, *facts in others]
    )
  return f"{line}."


def _opening(found, effect, verb, who):
  """Says how many do so, how sure that is, and who does so most."""
  noun = found.noun
  if sure := found.count(effect):
    is_one = sure == 1
    line = f"{wording.counted(sure, noun)} {effect if is_one else verb}"
    return f"{line}, {noun} {who}" + ("" if is_one else " most")
  if (found.effect != "").any():
    return f"No {noun} {effect} for sure; {noun} {who} comes nearest"
  seeming = int((found.fil > 0 if effect == "helps" else found.fil < 0).sum())
  seem = "seems" if seeming == 1 else "seem"
  line = f"{wording.counted(seeming, noun)} {seem} to {verb}"
  return f"{line}, {noun} {who} most"


def _unclear(found):
  """Says how many cannot be told apart from nothing."""
  measured = int((found.effect != "").sum())
  everyone = wording.counted(measured, found.noun)
  if not measured:
    line = "How sure that is was not measured"
  elif unclear := found.count("cannot tell"):
    line = f"{unclear:,} of {everyone} cannot be"
    if unclear == measured:
      line = f"None of {everyone} can be"
    line += " told apart from no effect on other test examples of the same kind"
    line += " (5 % false discoveries)"
  else:
    line = f"Each of {everyone} can be told apart"
    line += " from no effect (5 % false discoveries)"
  if found.num_absent:
    line += f"; {found.num_absent:,} never took part"
  unknown = int((~np.isfinite(found.fil)).sum())
  if unknown:
    line += f"; of {unknown:,} nothing is known"
  return f"{line}."


def _selfish(contents, found):
  """Names a client that helps its own rows only, and hurts all others'."""
  if found.selfish is None:
    return []
  change = lambda field: numbers.digits(
    abs(verdicts.column(contents, field, found.selfish, found.ranked_by))
  )
  who = text.escaped(contents.ids[found.selfish])
  return [
    f"But {found.noun} {who} helps its own test examples only, and hurts all"
    f" others' the most: without it their loss would fall by"
    f" {change('fil_others')}, and its own rise by {change('fil_own')}."
  ]


def _account(contents, found):
  """Says by whose account, and what a replay makes of a screening."""
  lines = [f"Measured by {_whose(contents, found)}."]
  if contents.screened_by:
    lines.append(_verified(contents, found))
  return lines


def _whose(contents, found):
  some = f"{found.num_replayed:,} of the"
  some += f" {wording.counted(len(found.fil), found.noun)}"
  if contents.screened_by:
    some = extremes(contents, found)
  if found.ranked_by == "exact":
    if found.num_replayed < len(found.fil):
      return f"retraining without {some}"
    return f"retraining without each {found.noun}: exact, for this one training"
  who = wording.titled(found.ranked_by)
  if found.grades[found.ranked_by] == verdicts.OVERFLOWED:
    return f"{who}, which overflowed"
  if len(contents.names) == 1:
    return who
  if contents.has_exact:
    return f"{who}, which agrees best with retraining without {some}"
  first = "the first of the recipe" if contents.is_recipe else "the first named"
  if found.ranked_by == contents.names[0]:
    return f"{who}, {first}"
  return f"{who}, {first} that did not overflow"


def extremes(contents: workdir.Contents, found: verdicts.Verdict) -> str:
  """Says in words whom a screening had replayed."""
  return f"the {found.num_replayed:,} extremes by {contents.screened_by}"


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


def trust(
  contents: workdir.Contents, found: verdicts.Verdict
) -> dict[str, str]:
  """Says in words how far each estimator can be trusted: name → sentence."""
  lines = {}
  for name, measured in contents.summary["estimators"].items():
    facts = _agreement(contents, found, name) if contents.has_exact else []
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
    title = wording.titled(name)
    title = title[0].upper() + title[1:] if title != name else title
    lines[name] = f"{title}: {words} ({'; '.join(facts)})."
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


def _reproducible(contents):
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


def _agreement(contents, found, name):
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
    f" most harmful {found.noun}s",
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
    numbers.correlation(verdicts.ceiling(repeated, when, kind))
    for kind in kinds
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
