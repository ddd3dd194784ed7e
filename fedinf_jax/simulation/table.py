"""All that is known about each removal: one row each, the columns by name."""

from collections.abc import Iterable
from collections.abc import Mapping
import csv
import dataclasses
import io
from typing import Any
from typing import NamedTuple

import numpy as np

from fedinf_jax import text
from fedinf_jax.data import files
from fedinf_jax.simulation import history as histories
from fedinf_jax.valuation import intervals

# The first columns, and those of each estimator, where _NAME follows.
CLIENT = ("client_id", "num_examples", "times_selected", "last_drawn")
ESTIMATE = (
  *("fil", "fia", "fil_own", "fil_others", "fil_low", "fil_high"),
  *("fil_mean", "sign_held", "effect"),
)
EFFECTS = {1: "helps", -1: "hurts", 0: "cannot tell"}
_SHOWN = 5  # rows at either end


class Measured(NamedTuple):
  """What the test examples say about R removals, each [R]; NaN: unknown."""

  fil: np.ndarray
  fia: np.ndarray
  own: np.ndarray  # FIL on own rows
  others: np.ndarray  # and on everybody else's
  low: np.ndarray  # of FIL's interval
  high: np.ndarray
  p: np.ndarray  # see `intervals.Intervals`


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Table:
  """R rows.

  Columns: client_id; num_examples; times_selected, rounds in which it was
  drawn; last_drawn, the last of these, 0 if there is none. Then of each
  estimator and of "exact":

  fil_NAME, fia_NAME: loss and accuracy without the client, less those with it.
  fil_own_NAME, fil_others_NAME: FIL on its own test rows, and on all others.
  fil_low_NAME, fil_high_NAME: FIL's 95 % interval, see `intervals.bootstrap`.
  fil_mean_NAME, sign_held_NAME: over time, see `history.OverTime`.
  effect_NAME: helps, hurts or cannot tell, see `intervals.effects`.

  What is unknown is NaN: an empty cell, or None. An effect is then "".

  Attributes:
    columns: name → [R].
    names: the estimators, and "exact".
  """

  columns: dict[str, np.ndarray]
  names: tuple[str, ...]

  def to_dict(self) -> dict[str, list]:
    """Returns name → R plain values."""
    return {
      name: [_plain(v) for v in values] for name, values in self.columns.items()
    }

  def to_csv(self, path: Any = None) -> str:
    """Returns the table as CSV, and writes it to `path` if there is one."""
    made = csv_text(self.columns)
    if path is not None:
      files.write("path", path, made)
    return made

  def to_pandas(self):
    """Returns a pandas DataFrame; pandas must be installed."""
    try:
      import pandas  # pylint: disable=import-outside-toplevel
    except ImportError as error:
      raise ImportError("to_pandas needs pandas: pip install pandas") from error
    return pandas.DataFrame(self.to_dict())

  def counts(self, name: str) -> dict[str, int]:
    """Returns how many help, how many hurt, and of how many one cannot tell."""
    found = list(self.columns[f"effect_{name}"])
    return {word: found.count(word) for word in EFFECTS.values()}

  def __len__(self):
    return len(self.columns["client_id"])

  def __repr__(self):
    """Shows both ends by the first estimator, and its three groups."""
    if not self.names:
      return f"Table of {len(self)} rows, without an estimator"
    name = self.names[0]
    counts = ", ".join(f"{n} {word}" for word, n in self.counts(name).items())
    titles = ("fil", "fil_low", "fil_high", "fil_own", "fil_others", "fil_mean")
    fil = self.columns[f"fil_{name}"]
    order = np.argsort(-fil, kind="stable")[: np.isfinite(fil).sum()]
    ends = [*order[:_SHOWN], *order[_SHOWN:][-_SHOWN:]]
    lines = [("client_id", *titles, "effect")]
    for k in ends:
      numbers = [self.columns[f"{t}_{name}"][k] for t in titles]
      cells = ["" if np.isnan(v) else f"{v:.3g}" for v in numbers]
      who = text.escaped(self.columns["client_id"][k])
      lines.append((who, *cells, self.columns[f"effect_{name}"][k]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    rows = ["  ".join(map(str.rjust, line, widths)) for line in lines]
    return "\n".join([f"Table of {len(self)} rows; {name}: {counts}", *rows])


def make(
  clients: dict[str, np.ndarray],
  measured: dict[str, Measured | None],
  history: histories.History | None,
) -> Table:
  """Puts a table together.

  Args:
    clients: the columns CLIENT, as `clients` returns them.
    measured: by estimator, "exact" among them; None: nothing is known.
    history: None: there is none.

  Raises:
    ValueError: if the columns of two estimators would have one title.
  """
  columns = dict(clients)
  unknown = np.full(len(columns["client_id"]), np.nan)
  for name, found in measured.items():
    found = found or Measured(*[unknown] * len(Measured._fields))
    over_time = histories.OverTime(unknown, unknown)
    if history is not None and name in history.fil:
      over_time = histories.over_time(history.rounds, history.fil[name])
    effect = intervals.effects(found.fil, found.p)
    words = np.array([EFFECTS[e] for e in effect.tolist()], object)
    known = np.isfinite(found.fil) & np.isfinite(found.p)
    values = (*found[:-1], *over_time, np.where(known, words, ""))
    for title, column in zip(ESTIMATE, values, strict=True):
      title = f"{title}_{name}"
      if title in columns:
        raise ValueError(
          f"estimators: two of them would have a column {title}; rename one"
        )
      columns[title] = column
  return Table(columns, tuple(measured))


def csv_text(columns: Mapping[str, Iterable[Any]]) -> str:
  """Returns columns of equal length as CSV; what is not finite is empty.

  Args:
    columns: title → values. The column client_id holds ids, written as text.
  """
  made = io.StringIO()
  writer = csv.writer(made, lineterminator="\n")
  cell = lambda v: text.cell(v) if isinstance(v, str) else v
  shown = {name: map(_plain, values) for name, values in columns.items()}
  shown["client_id"] = map(str, columns["client_id"])
  writer.writerow(map(cell, shown))
  for row in zip(*shown.values(), strict=True):
    writer.writerow(map(cell, row))
  return made.getvalue()


def _plain(value):
  """Returns a value of Python's; None where it is not finite."""
  value = value.item() if isinstance(value, np.generic) else value
  is_nan = isinstance(value, float) and not np.isfinite(value)
  return None if is_nan else value
