"""What to do next, after a run: the last sentences of its verdict."""

import math

import numpy as np

from fedinf_jax import text
from fedinf_jax import wording
from fedinf_jax.report import numbers
from fedinf_jax.report import remedies
from fedinf_jax.report import verdict as verdicts
from fedinf_jax.running import records
from fedinf_jax.running import workdir

REPLAYED = 10  # clients at each end that a replay is advised for
STEADY = 0.75  # of a client's evaluations that should agree on its sign
STILL_FALLING = 0.98  # of the loss at three quarters of the rounds
# Below it, training is not smooth: retraining disagrees with itself, or effects
# of two groups do not add up.
SMOOTH = 0.9


def advice(contents: workdir.Contents, found: verdicts.Verdict) -> list[str]:
  """Says what to do next, a line per string."""
  lines = [
    _inspect(contents, found),
    _replay(contents, found),
    _more_rounds(contents, found),
    _test_set(contents, found),
    _kinks(contents),
    remedies.cleansed(contents),
    *remedies.debugged(contents),
  ]
  return [line for line in lines if line]


def command(contents: workdir.Contents, found: verdicts.Verdict) -> str | None:
  """Returns the command that replays both ends; None where it is no use."""
  done = found.num_replayed == len(found.fil) or contents.screened_by
  if done or found.ranked_by is None or not contents.is_recipe:
    return None
  count = min(2 * REPLAYED, len(found.fil) // 2 * 2)
  by = "adjoint" if found.ranked_by == "exact" else found.ranked_by
  name = contents.summary["name"]
  if contents.config["config"].get("written_by") == records.COMMAND:
    return (
      f"{records.COMMAND} --exact=top:{count}:{by} --out=runs/{name}_top{count}"
    )
  return (
    f"python -m experiments.run --config={name} --config.exact=top:{count}:{by}"
    f" --workdir=runs/{name}_top{count}"
  )


def _inspect(contents, found):
  if found.selfish is not None:
    return (
      "Next, inspect the data of"
      f" {text.escaped(contents.ids[found.selfish])}: wrong labels, among its"
      " test examples, too, look like this."
    )
  if not found.hurts:
    return None
  names = [text.escaped(contents.ids[k]) for k in found.hurts]
  who = wording.listed(names)
  if found.count("hurts"):
    verb = "they hurt" if len(names) > 1 else "it hurts"
    return f"Next, inspect the data of {who}: {verb}."
  return (
    f"Next, if you inspect anybody's data, begin with {who}; but do not remove"
    " anybody on this evidence alone."
  )


def _replay(contents, found):
  """Says how to make sure, where not everybody was retrained without."""
  if found.num_replayed == len(found.fil) or contents.screened_by:
    return None
  if line := command(contents, found):
    return (
      "To be sure about both ends, retrain without them (with the other flags"
      f" of this run): {line}"
    )
  both = *found.helps, *found.hurts
  if not both or contents.summary["name"] == "flower":
    return None
  names = [repr(str(contents.ids[k])) for k in both]
  if found.noun == "group":
    names = list(map(str, both))  # Rows of removals.
  return (
    "To be sure about both ends, retrain without them:"
    f" fi.simulate(..., exact=[{', '.join(map(text.printable, names))}])"
  )


def _more_rounds(contents, found):
  """Says whether influence is still on the move."""
  reasons = []
  held = [
    verdicts.column(contents, "sign_held", k, found.ranked_by)
    for k in (*found.helps, *found.hurts)
    if f"sign_held_{found.ranked_by}" in contents.columns
  ]
  moving = sum(share < STEADY for share in held)
  if moving:
    reasons.append(
      f"{moving} of the {len(held)} clients named above had the other sign in a"
      " quarter of the evaluations or more"
    )
  rounds = contents.summary["rounds"]
  late = [m["loss"] for m in contents.metrics if m["round"] >= 0.75 * rounds]
  late = [loss for loss in late if loss is not None]
  if len(late) > 1 and late[-1] < STILL_FALLING * late[0]:
    reasons.append(
      f"the test loss is still falling ({numbers.fixed(late[0], 3)} →"
      f" {numbers.fixed(late[-1], 3)} in the last quarter)"
    )
  if not reasons:
    return None
  return f"Train for more rounds: {'; '.join(reasons)}."


def _test_set(contents, found):
  """Says whether the test examples are too few to tell anything."""
  measured = found.count("cannot tell")
  if not measured or found.count("helps") + found.count("hurts"):
    return None
  examples = contents.summary["test_examples"]
  own = contents.columns.get(f"fil_own_{found.ranked_by}", np.array([]))
  owners = int(np.isfinite(own).sum())
  size = wording.counted(examples, "example")
  if owners:
    size += f" of {wording.counted(owners, found.noun)}"
  return (
    f"Your test set is too small to tell anybody apart from nothing: {size}."
    " Hold out more examples, and those of more clients."
  )


def _kinks(contents):
  """Says whether training is smooth enough for influence to be estimated."""
  repeated = contents.summary.get("reliability")
  most = repeated and repeated["last"]["ceiling"]
  if most is not None and most < SMOOTH:
    why = "retraining from a hair away agrees with itself only to a ceiling of"
    why += f" {numbers.fixed(most, 2)}"
  else:
    trusts = [e.get("trust") for e in contents.summary["estimators"].values()]
    smooth = [t["signs"]["smoothness"] for t in trusts if t]
    smooth = [s for s in smooth if s is not None and math.isfinite(s)]
    if not smooth or min(smooth) >= SMOOTH:
      return None
    why = "the effects of two groups of clients do not add up (smoothness"
    why += f" {numbers.fixed(min(smooth), 2)})"
  return (
    f"Your network probably has kinks: {why}. Smooth activations (tanh, GELU)"
    " and average pooling make influence reproducible."
  )
