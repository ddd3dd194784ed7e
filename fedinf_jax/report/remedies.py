"""Whether cleansing and debugging have helped, and which score is to thank."""

import math

import numpy as np

from fedinf_jax import wording
from fedinf_jax.report import numbers
from fedinf_jax.running import workdir

EXACT = "fil_exact"


def cleansed(contents: workdir.Contents) -> str | None:
  """Says whether leaving harmful clients out has helped; None: not tried."""
  if not contents.cleanse:
    return None
  curves = [c for c in contents.cleanse["curves"] if c["way"] == "held_out"]
  last = lambda c: c["loss"][-1]
  before = [last(c) for c in curves if c["end"] == "none"]
  tried = [c for c in curves if c["end"] == "harmful" and c["score"] == "fil"]
  if not before or not tried or None in map(last, tried):
    return None
  best = min(tried, key=last)
  chance = [
    last(c)
    for c in curves
    if c["end"] == "random" and c["fraction"] == best["fraction"]
  ]
  by_chance = f"; as many at random: {numbers.fixed(np.mean(chance), 4)}"
  helped = last(best) < before[0]
  return (
    f"Cleansing {'helped' if helped else 'did not help'}: trained on without"
    f" the {numbers.share(best['fraction'])} most harmful clients by"
    f" {wording.titled(contents.cleanse['estimator'])}, the best of"
    f" {wording.counted(len(tried), 'share')} tried, the test loss is"
    f" {numbers.fixed(last(best), 4)}, with everybody"
    f" {numbers.fixed(before[0], 4)}{by_chance if chance else ''}."
  )


def debugged(contents: workdir.Contents) -> list[str]:
  """Says whether leaving bad clients out has helped, and which score wins."""
  if not contents.debug or not contents.debug["scores"]:
    return []
  aurocs = {n: s["auroc"] for n, s in contents.debug["scores"].items()}
  bad, clients = len(contents.debug["bad"]), contents.debug["clients"]
  lines = _helped(contents), winner(aurocs, bad, clients)
  return [line for line in lines if line]


def titled(score: str) -> str:
  """Returns a score of debug.json in plain words."""
  return wording.titled(score.removeprefix("fil_"))


def winner(
  aurocs: dict[str, float | None], bad: int, clients: int, repeats: int = 1
) -> str | None:
  """Says whether influence finds bad clients better than simpler scores do.

  Args:
    aurocs: of every score, those of influence as fil_NAME.
    bad: clients that are bad.
    clients: in all.
    repeats: runs of which `aurocs` are the means.

  Returns:
    One sentence; None where there is nothing to compare.
  """
  # To two digits, as they are shown: nobody wins by less.
  known = {
    n: round(value, 2) for n, value in aurocs.items() if value is not None
  }
  exact = known.pop(EXACT, None)
  estimates = [name for name in known if name.startswith("fil_")]
  others = [name for name in known if name not in estimates]
  if not others or not (estimates or exact is not None):
    return None
  ours = [*estimates, *([EXACT] if exact is not None else [])]
  if exact is not None:
    known[EXACT] = exact
  shown = lambda name: numbers.fixed(known[name], 2)
  best = max((*ours, *others), key=known.__getitem__)
  # The standard deviation of the AUROC of random scores.
  chance = math.sqrt((clients + 1) / (12 * bad * (clients - bad) * repeats))
  if known[best] < 0.5 + 2 * chance:
    return (
      f"No score tells bad clients from the others: the best AUROC, of"
      f" {titled(best)}, is {shown(best)}, and guessing has"
      f" 0.50 ± {numbers.fixed(chance, 2)}."
    )
  simple = max(others, key=known.__getitem__)
  rivals = [max(estimates, key=known.__getitem__)] if estimates else []
  rivals += [EXACT] if exact is not None else []
  beaten = [name for name in rivals if known[simple] > known[name]]
  verdict = "No simpler score wins"
  if len(beaten) == len(rivals):
    verdict = "A simpler score wins"
  elif beaten and beaten != [EXACT]:
    verdict = "A simpler score wins over every estimate of influence"
  elif known[simple] == known[best]:
    verdict = "A simpler score does as well"
  beside = [f"{titled(name)} has {shown(name)}" for name in rivals]
  return (
    f"{verdict}: of those without influence {titled(simple)} is best, with an"
    f" AUROC of {shown(simple)}; {wording.listed(beside)}."
  )


def _helped(contents):
  """Says which score finds bad clients best, and whether that has helped."""
  scores, gain = contents.debug["scores"], contents.debug["gain"]
  best = max(scores, key=lambda name: scores[name]["auroc"] or 0.0)
  loss = [gain[who]["loss"] for who in ("nobody", best)]
  if None in loss:
    return None
  helped = "helped" if loss[1] < loss[0] else "did not help"
  count = len(contents.debug["bad"])
  return (
    f"Debugging {helped}: of {wording.counted(count, 'bad client')}"
    f" ({contents.debug['kind']}) {titled(best)} finds"
    f" {numbers.share(scores[best]['precision_at_k'])}, the best of"
    f" {len(scores)} scores; trained again without those it names, the test"
    f" loss is {numbers.fixed(loss[1], 4)}, with everybody"
    f" {numbers.fixed(loss[0], 4)}."
  )
