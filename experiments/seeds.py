"""Several seeds of one recipe: mean and spread of what each run found."""

from typing import Any

import numpy as np
from rich import table as rich_table
import scipy

from fedinf_jax.report import remedies
from fedinf_jax.running import workdir
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import intervals


def parse(texts: list[str]) -> list[int]:
  """Reads the seeds of a command line."""
  for text in texts:
    if not text.isdecimal():
      raise ValueError(f"--seeds: {text!r} is not a non-negative integer")
  return [int(text) for text in texts]


def spread(summaries: list[dict]) -> dict:
  """Returns mean and spread of the numbers of several runs."""
  first = summaries[0]
  fields = ("fil_pearson", "fil_spearman", "fia_pearson", "fip_relative_error",
            "truncated_fraction")  # fmt: skip
  estimators = {}
  for name in first["estimators"]:
    runs = [s["estimators"][name] for s in summaries]
    estimators[name] = {f: _spread([run[f] for run in runs]) for f in fields}
    estimators[name]["last_quarter_fil_pearson"] = _spread(
      [run["last_quarter"]["fil_pearson"] for run in runs]
    )
  ceilings = {}
  if "reliability" in first:
    repeated = [s["reliability"] for s in summaries]
    ceilings = {
      "ceiling": _spread([r["last"]["ceiling"] for r in repeated]),
      "last_quarter_ceiling": _spread(
        [r["last_quarter"]["ceiling"] for r in repeated]
      ),
    }
  return {
    "name": first["name"],
    "source": first["source"],
    "seeds": [s["seed"] for s in summaries],
    "loss": _spread([s["loss"] for s in summaries]),
    "accuracy": _spread([s["accuracy"] for s in summaries]),
    **ceilings,
    "estimators": estimators,
  }


def clients(runs: list[workdir.Contents]) -> str:
  """Returns seeds.csv: mean and spread of each client's FIL over S seeds.

  fil_NAME and fil_std_NAME; effect_NAME says helps, hurts or cannot tell, by
  Student's test over the seeds and Benjamini and Hochberg. Empty where a seed
  does not know the client's FIL. Only clients that all seeds have.
  """
  ids = [i for i in runs[0].ids if all(i in set(run.ids) for run in runs)]
  columns: dict[str, Any] = {"client_id": ids}
  for name in ("exact", *runs[0].names):
    fil = np.array([_column(run, f"fil_{name}", ids) for run in runs])
    mean = fil.mean(0)
    std = np.full(len(ids), np.nan)
    if len(runs) > 1:
      std = fil.std(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
      size = np.abs(mean) / (std / np.sqrt(len(runs)))
    p = 2 * scipy.stats.t.sf(size, max(1, len(runs) - 1))
    effect = intervals.effects(mean, p).tolist()
    words = [tables.EFFECTS[e] for e in effect]
    known = np.isfinite(mean) & np.isfinite(std)
    columns[f"fil_{name}"] = mean
    columns[f"fil_std_{name}"] = std
    columns[f"effect_{name}"] = np.where(known, words, "")
  return tables.csv_text(columns)


def _column(run, title, ids):
  where = {i: k for k, i in enumerate(run.ids)}
  return run.columns[title][[where[i] for i in ids]]


def debugged(runs: list[workdir.Contents]) -> dict:
  """Returns mean and spread of how well each score finds bad clients.

  Args:
    runs: of experiments.debug, which differ in their seeds only.
  """
  found = [run.debug or {} for run in runs]
  first = found[0]
  scores = {
    name: {
      field: _spread([one["scores"][name][field] for one in found])
      for field in ("auroc", "precision_at_k")
    }
    for name in first["scores"]
    if all(name in one["scores"] for one in found)
  }
  gain = {
    who: {
      field: _spread([one["gain"][who][field] for one in found])
      for field in ("loss", "accuracy")
    }
    for who in ("nobody", "the bad ones", *scores)
  }
  mean = {name: one["auroc"].get("mean") for name, one in scores.items()}
  bad, clients = len(first["bad"]), first["clients"]
  return {
    "source": runs[0].summary["source"],
    "seeds": [run.summary["seed"] for run in runs],
    "bad": bad,
    "clients": clients,
    "verdict": remedies.winner(mean, bad, clients, len(runs)),
    "scores": scores,
    "gain": gain,
  }


def debug_table(found: dict[str, dict]) -> rich_table.Table:
  """Returns AUROCs for people to read, a column per kind of bad clients."""
  first = next(iter(found.values()))
  shown = rich_table.Table(
    "score", *found, title=f"AUROC, mean ± spread, seeds {first['seeds']}"
  )
  for name in first["scores"]:
    cells = [_shown(f["scores"][name]["auroc"]) for f in found.values()]
    shown.add_row(name, *cells)
  return shown


def table(spread: dict) -> rich_table.Table:
  """Returns mean and spread for people to read."""
  titles = ("estimator", "Pearson", "last quarter", "Spearman")
  shown = rich_table.Table(*titles, title=f"seeds {spread['seeds']}")
  for name, e in spread["estimators"].items():
    shown.add_row(
      name,
      _shown(e["fil_pearson"]),
      _shown(e["last_quarter_fil_pearson"]),
      _shown(e["fil_spearman"]),
    )
  if "ceiling" in spread:
    ceilings = spread["ceiling"], spread["last_quarter_ceiling"]
    shown.add_row("(ceiling)", *map(_shown, ceilings), "")
  return shown


def _spread(values):
  if any(v is None for v in values):
    return {"values": values}
  return {
    "mean": float(np.mean(values)),
    "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
    "min": min(values),
    "max": max(values),
    "values": values,
  }


def _shown(found):
  if "mean" not in found:
    return "–"
  return f"{found['mean']:.4f} ± {found['std'] or 0:.4f}"
