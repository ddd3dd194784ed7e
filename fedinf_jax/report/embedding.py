"""The numbers that the page carries for its script, in little room."""

import base64
import math

import numpy as np

from fedinf_jax import text
from fedinf_jax import wording
from fedinf_jax.report import remedies
from fedinf_jax.report import verdict as verdicts
from fedinf_jax.running import workdir

# FIL over rounds takes most of the room; of long runs not every round is kept.
MOST_BYTES = 1_200_000
UNKNOWN = -(2**15)
FIELDS = ("fil", "fia", "fil_low", "fil_high", "fil_own", "fil_others")


def data(contents: workdir.Contents, found: verdicts.Verdict) -> dict:
  """Returns what the script draws from: R clients, E rounds of their history.

  Ids are escaped text. Influence has the signs of the files.
  """
  columns = contents.columns
  names = [n for n in ("exact", *contents.names) if _is_known(columns, n)]
  kept = _kept(len(contents.rounds), len(names) * len(contents.ids))
  portraits = contents.clients or {}
  return {
    "rounds": contents.rounds,
    "last": contents.summary["rounds"],
    "ids": [text.escaped(name) for name in contents.ids],
    "examples": _numbers(columns["num_examples"]),
    "times": _numbers(columns["times_selected"]),
    "lastDrawn": _numbers(columns.get("last_drawn", [])),
    "scores": [_score(contents, name) for name in names],
    "by": names.index(found.ranked_by) if found.ranked_by in names else 0,
    "named": {"helps": found.helps, "hurts": found.hurts},
    "screened": bool(contents.screened_by),
    "values": [_values(columns, name) for name in names],
    "kept": [contents.rounds[i] for i in kept],
    "history": [
      pack(contents.history[name][kept].T) if name in contents.history else None
      for name in names
    ],
    "curves": _curves(contents),
    "debug": _debug(contents),
    "drawn": portraits.get("drawn"),
    "layers": portraits.get("layers"),
    "labels": _labels(portraits.get("labels")),
    "eps": [_eps(portraits.get("eps", {}).get(name)) for name in names],
  }


def pack(values: np.ndarray) -> dict:
  """Packs rows [R, N] as 16-bit numbers, each row with a scale of its own.

  Returns:
    `data`, base64 of little-endian integers, UNKNOWN where not finite; and
    `scale`, by which a row's integers are to be multiplied.
  """
  values = np.array(values, float)
  known = np.isfinite(values)
  values = np.where(known, values, 0)
  scale = np.abs(values).max(1, initial=0) / (2**15 - 1)
  # Rounded upwards, or the largest would not fit.
  scale = np.array([float(f"{s * (1 + 1e-5):.6g}") for s in scale])
  short = np.rint(values / np.where(scale > 0, scale, 1)[:, None])
  integers = np.where(known, short, UNKNOWN).astype("<i2")
  return {
    "data": base64.b64encode(integers.tobytes()).decode(),
    "scale": scale.tolist(),
  }


def _is_known(columns, name):
  values = columns.get(f"fil_{name}")
  return values is not None and bool(np.isfinite(values).any())


def _kept(count, numbers_each):
  """Returns which evaluations are kept: evenly spread, the last among them."""
  room = max(2, MOST_BYTES // max(1, 2 * numbers_each))
  step = math.ceil(count / room)
  return list(range(count - 1, -1, -step))[::-1]


def _score(contents, name):
  """Returns how an estimator is called and drawn; the truth has no colour."""
  is_exact = name == "exact"
  return {
    "name": name,
    "words": wording.plain(name),
    "colour": -1 if is_exact else contents.names.index(name),
  }


def _values(columns, name):
  """Returns a score's columns of influence.csv: field → R numbers."""
  found = {
    field: _numbers(columns[f"{field}_{name}"])
    for field in FIELDS
    if f"{field}_{name}" in columns
  }
  held = columns.get(f"sign_held_{name}", [])
  found["held"] = [None if v is None else round(v, 2) for v in _numbers(held)]
  found["effect"] = list(columns.get(f"effect_{name}", []))
  return found


def _curves(contents):
  lines = contents.metrics
  repeated = [line.get("reliability") for line in lines]
  return {
    "loss": [_number(line["loss"]) for line in lines],
    "accuracy": [_number(line["accuracy"]) for line in lines],
    "pearson": {
      name: [_number(line["estimators"][name]["fil_pearson"]) for line in lines]
      for name in contents.names
      if contents.has_exact
    },
    "ceiling": [_number(r["ceiling"]) for r in repeated if r],
  }


def _debug(contents):
  """Returns how well each score finds bad clients over the rounds, or None."""
  if not contents.debug:
    return None
  scores = contents.debug["scores"]
  return {
    "rounds": contents.debug["rounds"],
    "scores": [
      {
        "name": name,
        "words": remedies.titled(name),
        "colour": i - 1 if remedies.EXACT in scores else i,
        "auroc": _numbers(score["over_time"]),
      }
      for i, (name, score) in enumerate(scores.items())
    ],
  }


def _labels(labels):
  """Returns histograms, exact where a client has less than 2¹⁵ of a label."""
  return labels and pack(np.array(labels, float))


def _eps(eps):
  if eps is None:
    return None
  return {
    "norm": pack(np.array(eps["norm"], float)),
    "nearest": eps["nearest"],
    "cosine": eps["cosine"],
  }


def _numbers(values):
  return [_number(value) for value in values]


def _number(value):
  """Returns a number of five digits for JSON, None where there is none."""
  if value is None or not math.isfinite(value):
    return None
  value = float(f"{value:.5g}")
  return int(value) if value.is_integer() else value
