"""What config.json and summary.json say about a run, whoever has run it."""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from fedinf_jax import influence
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.running import evaluation as evaluations
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.simulation import made
from fedinf_jax.simulation import table as tables

LATE = 0.75  # The last quarter of the rounds begins here.


def about(name: str, source: str, config: dict[str, Any]) -> records.About:
  """Returns config.json of a run that no recipe made.

  Args:
    name: of the run.
    source: where the data are from, in words.
    config: what is known of its settings.
  """
  data = {"source": source, "stand_in": False, "digest": "", "bad": []}
  return records.About(name, config, data, workdir.versions())


def summary(
  told: records.About, table: tables.Table, params: types.Params, **more: Any
) -> records.Summary:
  """Returns summary.json.

  Args:
    told: config.json.
    table: influence.csv.
    params: w_T.
    **more: the other fields.
  """
  return records.Summary(
    name=told.name,
    source=told.data["source"],
    stand_in=told.data["stand_in"],
    clients=len(table),
    num_params=sum(a.size for a in jax.tree.leaves(params)),
    layer_names=list(tree.names(params)),
    effects={name: table.counts(name) for name in table.names},
    data_digest=told.data["digest"],
    versions=told.versions,
    **more,
  )


def estimator(
  kind: made.Kind | None,
  health: influence.Health,
  model_bytes: int,
  agreement: records.Agreement,
  last_quarter: dict[str, float | None],
) -> records.Estimator:
  """Returns what is said about an estimator that has ε.

  Args:
    kind: what it is; None: not known.
    health: at the last round.
    model_bytes: of one model.
    agreement: with the truth, at the last round.
    last_quarter: see `last_quarter`.
  """
  upload = kind and kind.upload_bytes
  return records.Estimator(
    description=kind.description if kind else "",
    upload_bytes_per_participant=upload,
    upload_models=None if upload is None else upload / model_bytes,
    interactive=bool(kind and kind.interactive),
    simulated=False,
    **agreement._asdict(),
    last_quarter=last_quarter,
    largest_growth=float(np.asarray(health.growth, float).max()),
    nonfinite_fraction=float((np.asarray(health.nonfinite_at) > 0).mean()),
    layers=evaluations.trust(health),
  )


def last_quarter(
  metrics: list[dict[str, Any]], rounds: int
) -> dict[str, dict[str, float | None]]:
  """Returns means over the evaluated rounds of the last quarter.

  Args:
    metrics: lines of metrics.jsonl.
    rounds: of the whole run.
  """
  lines = [line["estimators"] for line in late(metrics, rounds)]
  return {
    name: {
      field: mean(line[name][field] for line in lines)
      for field in records.LAST_QUARTER
    }
    for name in lines[0]
  }


def late(metrics: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
  """Returns the lines about the last quarter, one at least."""
  lines = [line for line in metrics if line["round"] > LATE * rounds]
  return lines or metrics[-1:]


def mean(values: Iterable[float | None]) -> float | None:
  """Returns the mean of what is known; None if nothing is."""
  known = [value for value in values if value is not None]
  return float(np.mean(known)) if known else None
