"""Reads the files of a workdir, each as it was written or not at all."""

import csv
import io
import pathlib

import numpy as np

from fedinf_jax import text
from fedinf_jax.running import records
from fedinf_jax.running import schema
from fedinf_jax.simulation import portraits
from fedinf_jax.simulation import table as tables


def parsed(path: pathlib.Path):
  """Reads a file of a workdir by its name.

  Raises:
    ValueError: naming the file, and what is wrong with it.
  """
  with path.open(newline="", encoding="utf-8") as file:
    try:
      content = file.read()
      # JSON says by itself where it ends.
      ends = path.suffix == ".json" or content.endswith("\n")
      if not (ends and text.is_clean(content)):
        raise ValueError("it is torn")
      return PARSERS[path.name](io.StringIO(content, newline=""))
    except (
      *(ValueError, KeyError, TypeError, csv.Error),
      *(OverflowError, RecursionError),
    ) as error:
      raise ValueError(
        f"{path} cannot be read: {type(error).__name__} {error}"
      ) from error


def floats(values: list) -> np.ndarray:
  """Returns numbers of JSON as an array, null as NaN."""
  return np.array(values, float)


def _repeats(file):
  """Returns a list of records.Repeat."""
  content = schema.load(file.read(), records.Repeats)
  return [
    records.Repeat(r["repeat"], r["round"], floats(r["fil"]))
    for r in content["repeats"]
  ]


def _debug(file):
  content = schema.load(file.read(), records.Debug)
  content["bad"] = [text.unescaped(name) for name in content["bad"]]
  return content


def _screening(file):
  """Returns a list of records.Scores."""
  content = schema.load(file.read(), records.Screening)
  return [
    records.Scores(**{name: _array(v) for name, v in scores.items()})
    for scores in content["scores"]
  ]


def _array(value):
  return np.array(value, float) if isinstance(value, list) else value


def _influence(file):
  """Returns the ids [R] and the other columns [R]: numbers, or words."""
  rows = _rows(file)
  columns = {}
  for name in rows[0] if rows else ():
    read = _words if name.startswith("effect_") else _floats
    if name != "client_id":
      columns[name] = read([row[name] for row in rows])
  return [text.of_cell(row["client_id"]) for row in rows], columns


def _words(cells):
  for cell in cells:
    if cell and cell not in tables.EFFECTS.values():
      raise ValueError(f"{cell!r} is no effect")
  return np.array(cells, object)


def _rows(file):
  """Returns the rows of a CSV file, each cell under its title."""
  titles, *rows = csv.reader(file, strict=True)
  titles = [text.of_cell(title) for title in titles]
  return [dict(zip(titles, row, strict=True)) for row in rows]


def _layers(file):
  """Returns client → layer → estimator → field → [N]."""
  traces: dict[tuple[str, ...], list[dict[str, str]]] = {}
  for row in _rows(file):
    titles = ("client", "layer", "estimator")
    place = tuple(text.of_cell(row[title]) for title in titles)
    traces.setdefault(place, []).append(row)
  tracked: dict[str, dict] = {}
  for (client, layer, estimator), rows in traces.items():
    layers = tracked.setdefault(client, {})
    layers.setdefault(layer, {})[estimator] = {
      field: _floats(row[field] for row in rows)
      for field in ("round", "error", "norm")
    }
  return tracked


def _floats(cells):
  values = np.array([float(cell or "nan") for cell in cells])
  return np.where(np.isfinite(values), values, np.nan)


PARSERS = {
  records.SUMMARY: lambda file: schema.load(file.read(), records.Summary),
  records.CONFIG: lambda file: schema.load(file.read(), records.About),
  records.METRICS: lambda file: [
    schema.load(line, records.Metrics) for line in file
  ],
  records.INFLUENCE: _influence,
  records.CLIENTS: lambda file: schema.load(file.read(), portraits.Portraits),
  records.HISTORY: lambda file: [
    schema.load(line, records.History) for line in file
  ],
  records.LAYERS: _layers,
  records.CLEANSE: lambda file: schema.load(file.read(), records.Cleanse),
  records.DEBUG: _debug,
  records.SCREENING: _screening,
  records.REPEATS: _repeats,
}
