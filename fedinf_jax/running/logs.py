"""The logs of a run: up to which round they are whole, and cutting them back.

A log is a line per record, in the order of the rounds. A full disk, a kill or
an editor may leave it torn, cut short or empty: what counts are the lines up to
the first one that is not as it was written.
"""

import csv
import json
import pathlib
from typing import NamedTuple

from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.running import schema
from fedinf_jax.running import text

_HEADERS = {records.LAYERS: records.LAYERS_HEADER.encode()}


class Expected(NamedTuple):
  """What the logs hold at the end of a run."""

  rounds: list[int]  # evaluated, in order
  layer_rows: int  # rows of layers.csv about each of them


class Gap(NamedTuple):
  """The first evaluated round that a log lacks, or has only in part."""

  name: str  # of the log
  round: int


def evaluated(rounds: int, every: int) -> list[int]:
  """Returns the rounds to evaluate: every `every`-th and the last."""
  found = list(range(every, rounds + 1, every))
  return found if found and found[-1] == rounds else [*found, rounds]


def first_gap(folder: pathlib.Path, expected: Expected) -> Gap | None:
  """Returns the earliest gap of the logs; None if they are whole."""
  gaps = []
  for name in records.LOGS:
    each = expected.layer_rows if name == records.LAYERS else 1
    counts = {}
    for round_, _ in _lines(folder / name):
      counts[round_] = counts.get(round_, 0) + 1
    # A round too many, or too many lines of one, is as bad as a gap.
    wanted = dict.fromkeys(expected.rounds, each)
    wrong = [
      t
      for t in wanted.keys() | counts.keys()
      if wanted.get(t, 0) != counts.get(t, 0)
    ]
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
  read = _READERS[path.name]
  content, last = path.read_bytes(), 0
  # Without its header a log is whole all the same: `rewind` writes it again.
  content = content.removeprefix(_HEADERS.get(path.name, b""))
  # Not splitlines: lines end with "\n", and nothing else ends a line. What
  # follows the last of them is torn.
  for line in content.split(b"\n")[:-1]:
    round_ = _round(line, read)
    if round_ is None or round_ < last:
      return
    yield round_, line + b"\n"
    last = round_


def _round(line, read):
  """Returns the round that a line is about, None if it is damaged."""
  try:
    content = line.decode()
    return read(content) if text.is_clean(content) else None
  except (ValueError, RecursionError, csv.Error):
    return None


def _object(line, record):
  """Returns the round of a line of JSON."""
  content = json.loads(line)
  schema.check(content, record)
  return content["round"]


def _row(line):
  """Returns the round of a row of CSV."""
  (cells,) = csv.reader([line], strict=True)
  round_, *names, error, norm = cells
  float(error or "nan"), float(norm)
  return int(round_) if len(names) == len(records.Layer._fields) - 3 else None


_READERS = {
  records.METRICS: lambda line: _object(line, records.Metrics),
  records.HISTORY: lambda line: _object(line, records.History),
  records.LAYERS: _row,
}
