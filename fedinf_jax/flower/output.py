"""Live output: the files of a workdir, as a simulation writes them.

A federation has no end that the server knows of, so the files are those of a
run that is finished after every evaluation. Clients stand in the order of their
first reply; before it their influence is exactly zero.
"""

import json
import pathlib
from typing import Any

import numpy as np

from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import version
from fedinf_jax.report import page
from fedinf_jax.running import files
from fedinf_jax.running import finishing
from fedinf_jax.running import records
from fedinf_jax.running import summaries
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import rounds
from fedinf_jax.server import table as tables
from fedinf_jax.simulation import made
from fedinf_jax.simulation import table as simulation_table

ATTENDANCE = "attendance.jsonl"  # who took part in each round


class Output:
  """What has been measured so far, and the files that say so."""

  def __init__(
    self, folder: pathlib.Path, server: rounds.Server, test_examples: int
  ):
    self._folder = folder
    self._server = server
    self._test_examples = test_examples
    if folder.exists() and not folder.is_dir():
      raise ValueError(f"workdir: {folder} is not a folder")

  def resume(self, round_: int):
    """Cuts the logs back to a round; 0: the federation begins."""
    for name in (records.METRICS, records.HISTORY, ATTENDANCE):
      path = self._folder / name
      lines = path.read_text("utf-8").splitlines() if path.is_file() else []
      kept = [line for line in lines if _round_of(line) <= round_]
      files.write(path, "".join(line + "\n" for line in kept))

  def attended(self, round_: int, ids: list[str]):
    """Enters who took part in a round."""
    line = {"round": round_, "clients": ids}
    files.append_json(self._folder / ATTENDANCE, line)

  def add(
    self,
    ledger: ledgers.Ledger,
    found: dict[str, tables.Table],
    loss: float,
    accuracy: float,
    *,
    report: bool,
  ):
    """Enters an evaluation, and writes the files anew.

    Args:
      ledger: after the round.
      found: the table of each estimator.
      loss: on the test set.
      accuracy: on the test set.
      report: whether report.html is written, too.
    """
    metrics = records.Metrics(
      ledger.round, loss, accuracy, dict.fromkeys(found, records.UNKNOWN)
    )
    fil = {name: t.fil for name, t in found.items()}
    self._logs(metrics, records.History(ledger.round, fil))
    table = influence_table(self._folder, ledger, found)
    records.write_influence(self._folder, table)
    if report:
      self._summary(ledger, metrics, table)
      page.write(self._folder)

  def _logs(self, metrics, history):
    """Adds a round to the logs; earlier rounds get zeros for who is new."""
    path = self._folder / records.HISTORY
    width = len(next(iter(history.fil.values())))
    lines = path.read_text("utf-8").splitlines() if path.is_file() else []
    wider = []
    for line in map(json.loads, lines):
      for name, values in line["fil"].items():
        line["fil"][name] = values + [0.0] * (width - len(values))
      wider.append(json.dumps(line))
    files.write(path, "".join(line + "\n" for line in wider))
    (self._folder / records.LAYERS).unlink(missing_ok=True)
    records.append_round(self._folder, metrics, history, [])

  def _summary(self, ledger, metrics, table):
    """Writes what the report reads beside tables and logs."""
    config = {"seed": self._server.seed, "fedinf_jax": version.VERSION}
    about = summaries.about("flower", "the clients of a federation", config)
    files.write_json(self._folder / records.CONFIG, about)
    summary = summaries.summary(
      about,
      table,
      ledger.state.params,
      rounds=ledger.round,
      train_examples=int(ledger.num_examples.sum()),
      test_examples=self._test_examples,
      seed=self._server.seed,
      loss=metrics.loss,
      accuracy=metrics.accuracy,
      estimators={
        name: _estimator(self._server, name, ledger)
        for name in self._server.estimators
      },
      git_revision=None,
    )
    records.write_summary(self._folder, summary)


def influence_table(
  folder: pathlib.Path,
  ledger: ledgers.Ledger,
  found: dict[str, tables.Table],
) -> simulation_table.Table:
  """Returns influence.csv as a table, a row per client ever seen.

  Nobody is known to own test examples, and nobody is replayed.
  """
  columns = ledger.ids, ledger.num_examples, ledger.times, _last(folder, ledger)
  clients = dict(zip(simulation_table.CLIENT, columns, strict=True))
  unknown = np.full(len(ledger.ids), np.nan)
  measured = {
    name: simulation_table.Measured(
      fil=t.fil,
      fia=t.fia,
      own=unknown,
      others=t.fil,
      low=t.interval.low,
      high=t.interval.high,
      p=t.interval.p,
    )
    for name, t in found.items()
  }
  history = finishing.history(folder)
  return simulation_table.make(clients, {"exact": None, **measured}, history)


def _last(folder, ledger):
  """Returns the last round of each client, int [K]."""
  last: dict[str, int] = {}
  path = folder / ATTENDANCE
  lines = path.read_text("utf-8").splitlines() if path.is_file() else []
  for line in map(json.loads, lines):
    last |= dict.fromkeys(line["clients"], line["round"])
  return np.array([last.get(i, 0) for i in ledger.ids], int)


def _estimator(server, name, ledger):
  """Returns an estimator of summary.json: nobody knows the truth."""
  health = influence.health(ledger.state.estimators[name])
  count = len(ledger.ids)
  cut: Any = lambda a: np.asarray(a)[:count]  # [K, L]
  health = health._replace(
    truncated_at=cut(health.truncated_at),
    growth=cut(health.growth),
    nonfinite_at=cut(health.nonfinite_at),
  )
  truncated = float((health.truncated_at > 0).mean())
  curvature = server.estimators[name].curvature
  upload = server.upload_bytes(name, ledger)
  return summaries.estimator(
    made.Kind(curvature.name, upload, curvature.interactive),
    health,
    memory.tree_bytes(ledger.state.params),
    records.UNKNOWN._replace(truncated_fraction=truncated),
    dict.fromkeys(records.LAST_QUARTER),
  )


def _round_of(line):
  """Returns the round of a line; one that is torn is none we keep."""
  try:
    return int(json.loads(line)["round"])
  except (ValueError, KeyError, TypeError):
    return 2**62
