"""A run that was handed over from Python, as the files of a workdir.

Layer by layer nothing is known of its rounds, so that layers.csv has no rows,
and of earlier rounds what `simulate(evaluate=...)` has kept.
"""

import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np
import scipy

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import simulation
from fedinf_jax.data import federated
from fedinf_jax.data import files as data_files
from fedinf_jax.data import packing
from fedinf_jax.running import evaluation as evaluations
from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.running import summaries
from fedinf_jax.running import workdir
from fedinf_jax.simulation import measuring
from fedinf_jax.simulation import portraits
from fedinf_jax.simulation import recorder
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import reliability

WRITTEN_BY = "fi.report.write"  # stands in config.json
SOURCE = "clients given in Python"


class Given(NamedTuple):
  """All that the files hold."""

  about: records.About
  metrics: list[records.Metrics]
  history: list[records.History]
  table: tables.Table
  portraits: portraits.Portraits
  summary: records.Summary


def measure(
  run: simulation.Run, test: Any, owners: Any = None, name: str = "run"
) -> Given:
  """Measures a run on test examples.

  Args:
    run: any.
    test: (x, y), or a FederatedData, whose clients own them.
    owners: [N] ids of their owners, as of `run.table`.
    name: of the run, for the title.

  Raises:
    ValueError: naming the argument at fault.
  """
  if not isinstance(run, simulation.Run):
    raise ValueError(
      f"run is a {type(run).__name__}; it must be what fi.simulate returned"
    )
  checks.identifier("name", name)
  x, y, owners = _examples(test, owners)
  known = {} if run.spread_exact is not None else {"exact": None}
  names = list(run.made.estimators if run.made else run.spread_eps)
  table = measuring.table(
    run,
    x,
    y,
    of=["exact", *names],
    owners=owners,
    seed=_seed(run) or 0,
    known=known,
  )
  loss, accuracy = recorder.performance(run.model, run.params, x, y)
  last = _last(run, table, loss, accuracy)
  metrics, history = _rounds(run, last)
  told = _about(run, str(name))
  late = summaries.last_quarter(files.plain(metrics), metrics[-1].round)
  model_bytes = memory.tree_bytes(run.params)
  return Given(
    about=told,
    metrics=metrics,
    history=history,
    table=table,
    portraits=portraits.portraits(run),
    summary=summaries.summary(
      told,
      table,
      run.params,
      rounds=run.rounds,
      train_examples=int(np.asarray(run.num_examples).sum()),
      test_examples=len(x),
      seed=_seed(run),
      loss=loss,
      accuracy=accuracy,
      estimators={
        n: summaries.estimator(
          run.made and run.made.estimators.get(n),
          run.health[n],
          model_bytes,
          evaluations.agreement(last, n),
          late[n],
        )
        for n in names
      },
      git_revision=None,
      members=_members(run),
      notes=_notes(run, metrics[-1], loss) or None,
    ),
  )


def write(folder: Any, given: Given) -> pathlib.Path:
  """Writes the files; what an earlier call wrote is replaced.

  Returns:
    The folder.

  Raises:
    ValueError: if it holds something else, or cannot be written to.
  """
  folder = claim(folder)
  folder.mkdir(parents=True, exist_ok=True)
  # The last one to be written says that the others are whole.
  for name in (records.SUMMARY, *records.LOGS):
    (folder / name).unlink(missing_ok=True)
  files.write_json(folder / records.CONFIG, given.about)
  for metrics, history in zip(given.metrics, given.history, strict=True):
    records.append_round(folder, metrics, history, [])
  records.write_influence(folder, given.table)
  records.write_clients(folder, given.portraits)
  records.write_summary(folder, given.summary)
  return folder


def claim(folder: Any) -> pathlib.Path:
  """Returns the folder for a run; refuses one that holds something else."""
  folder = data_files.path("folder", folder)
  workdir.check(folder, "folder")
  if (folder / records.CONFIG).exists():
    config = files.read_json(folder / records.CONFIG).get("config")
    mine = isinstance(config, dict) and config.get("written_by") == WRITTEN_BY
    if not mine:
      raise ValueError(
        f"folder={folder} holds another run, which fi.report.write did not"
        " write; choose another"
      )
  return folder


def contents(given: Given) -> workdir.Contents:
  """Returns what `workdir.read` would return of the files."""
  columns = dict(given.table.columns)
  ids = list(map(str, columns.pop("client_id")))
  numbers = lambda a: np.asarray(a, object if a.dtype == object else float)
  return workdir.contents(
    {
      records.CONFIG: files.plain(given.about),
      records.SUMMARY: files.plain(given.summary),
      records.METRICS: files.plain(given.metrics),
      records.HISTORY: files.plain(given.history),
      records.CLIENTS: files.plain(given.portraits),
      records.INFLUENCE: (ids, {n: numbers(a) for n, a in columns.items()}),
      records.LAYERS: {},
    }
  )


def _examples(test, owners):
  """Returns (x, y, whose they are)."""
  if isinstance(test, federated.FederatedData):
    if owners is not None:
      raise ValueError("owners: a FederatedData for test= has them in it")
    return *test.pooled(), test
  if not isinstance(test, tuple | list) or len(test) != 2:
    raise ValueError(
      "test must be a pair (x, y) of examples to measure influence on, or a"
      " FederatedData"
    )
  x, y = test
  y = packing.labels(packing.examples("y", y))
  return packing.examples("x", x), y, owners


def _last(run, table, loss, accuracy):
  """Returns the numbers of the last round."""
  rows = run.exact_rows
  if rows is None:
    rows = np.arange(run.num_removals)
  change = {
    name: np.stack(
      [table.columns[f"{kind}_{name}"] for kind in ("fil", "fia")], 1
    )
    for name in run.names
  }
  return evaluations.measured(run, rows, change, loss=loss, accuracy=accuracy)


def _rounds(run, last):
  """Returns the lines of metrics.jsonl and of history.jsonl."""
  metrics, lines = [], []
  history = run.history
  for i, round_ in enumerate([] if history is None else history.rounds):
    fil = {name: values[i] for name, values in history.fil.items()}
    metrics.append(
      records.Metrics(
        int(round_),
        float(history.loss[i]),
        float(history.accuracy[i]),
        {name: _agreement(run, name, fil, round_) for name in run.spread_eps},
      )
    )
    lines.append(records.History(int(round_), fil))
  if not metrics or metrics[-1].round != run.rounds:
    metrics.append(evaluations.metrics(run.rounds, last))
    lines.append(records.History(run.rounds, last.fil))
  return metrics, lines


def _agreement(run, name, fil, round_):
  """Returns how near an estimator was to the truth at an evaluated round."""
  at = np.asarray(run.health[name].truncated_at)
  found = records.UNKNOWN._replace(
    truncated_fraction=float(((at > 0) & (at <= round_)).mean())
  )
  if "exact" not in fil or name not in fil:
    return found
  of = lambda kind: reliability.correlation(kind, fil[name], fil["exact"])
  return found._replace(
    fil_pearson=of(scipy.stats.pearsonr), fil_spearman=of(scipy.stats.spearmanr)
  )


def _about(run, name):
  """Returns config.json."""
  config: dict[str, Any] = {"written_by": WRITTEN_BY}
  if run.made is not None:
    config |= {"seed": run.made.seed, "fed": run.made.fed}
    kinds = run.made.estimators.items()
    config["estimators"] = {n: kind.description for n, kind in kinds}
  count = 0 if run.exact_rows is None else len(run.exact_rows)
  config["retrained"] = f"{count} of {run.num_removals}"
  return summaries.about(name, SOURCE, config)


def _seed(run):
  return None if run.made is None else run.made.seed


def _members(run):
  """Returns the ids of each group; None: clients are removed alone."""
  if run.removed is None:
    return None
  return [[str(run.ids[k]) for k in np.flatnonzero(r)] for r in run.removed]


def _notes(run, line, loss):
  """Returns what a reader of the numbers must know."""
  notes = []
  if run.removed is not None:
    notes.append(
      f"A row is a group of clients that are left out together:"
      f" {run.num_removals:,} groups of {len(run.ids):,} clients."
    )
  if run.history is None:
    notes.append(
      "Only the last round was evaluated;"
      " fi.simulate(..., evaluate=(x, y)) keeps the others, too."
    )
  elif not np.isclose(line.loss, loss, rtol=1e-5, equal_nan=True):
    notes.append(
      "What is shown over rounds was measured on the examples of"
      " fi.simulate(..., evaluate=...), all else on those of test=, which are"
      " others."
    )
  return notes
