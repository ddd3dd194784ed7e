"""The logs of a run: up to which round they are whole, and cutting them back.

A log is a line per record, in the order of the rounds. A full disk, a kill or
an editor may leave it torn, cut short or empty: what counts are the lines up to
the first one that is not as it was written.
"""

import collections
import csv
import pathlib
from typing import NamedTuple

from fedinf_jax import text
from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.running import schema

_HEADERS = {records.LAYERS: records.LAYERS_HEADER.encode()}
_RECORDS = {records.METRICS: records.Metrics, records.HISTORY: records.History}


class Expected(NamedTuple):
  """What the logs hold at the end of a run."""

  rounds: list[int]  # evaluated, in order
  layer_rows: int  # rows of layers.csv about each of them


class Gap(NamedTuple):
  """The first evaluated round that a log lacks, or has only in part."""

  name: str  # of the log
  round: int


def first_gap(folder: pathlib.Path, expected: Expected) -> Gap | None:
  """Returns the earliest gap of the logs; None if they are whole."""
  gaps = []
  for name in records.LOGS:
    each = expected.layer_rows if name == records.LAYERS else 1
    counts = collections.Counter(t for t, _ in _lines(folder / name))
    wanted = collections.Counter(dict.fromkeys(expected.rounds, each))
    # A round too many, or too many lines of one, is as bad as a gap.
    wrong = [t for t in {*wanted, *counts} if wanted[t] != counts[t]]
    if wrong:
      gaps.append(Gap(name, min(wrong)))
  return min(gaps, key=lambda gap: gap.round, default=None)


def rewind(folder: pathlib.Path, round_: int):
  """Drops what the logs say about later rounds, and torn lines."""
  for name in records.LOGS:
    path = folder / name
    if path.exists() or name in _HEADERS:
      kept = [line for t, line in _lines(path) if t <= round_]
      files.write(path, _HEADERS.get(name, b"") + b"".join(kept))


def _lines(path):
  """Yields (round, line) of the lines that are as they were written."""
  if not path.exists():
    return
  content, last = path.read_bytes(), 0
  # Without its header a log is whole all the same: `rewind` writes it again.
  content = content.removeprefix(_HEADERS.get(path.name, b""))
  # Not splitlines: lines end with "\n", and nothing else ends a line. What
  # follows the last of them is torn.
  for line in content.split(b"\n")[:-1]:
    round_ = _round(path.name, line)
    if round_ is None or round_ < last:
      return
    yield round_, line + b"\n"
    last = round_


def _round(name, line):
  """Returns the round that a line is about, None if it is damaged."""
  try:
    content = line.decode()
    if not text.is_clean(content):
      return None
    if name in _RECORDS:
      return schema.load(content, _RECORDS[name])["round"]
    (cells,) = csv.reader([content], strict=True)
    round_, *names, error, norm = cells
    float(error or "nan"), float(norm)
    return int(round_) if len(names) == len(records.Layer._fields) - 3 else None
  except (ValueError, RecursionError, csv.Error):
    return None
