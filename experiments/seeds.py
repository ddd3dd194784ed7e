"""Several seeds of one recipe: mean and spread of what each run found."""

import numpy as np
from rich import table as rich_table


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
  return {
    "name": first["name"],
    "source": first["source"],
    "seeds": [s["seed"] for s in summaries],
    "loss": _spread([s["loss"] for s in summaries]),
    "accuracy": _spread([s["accuracy"] for s in summaries]),
    "estimators": estimators,
  }


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
