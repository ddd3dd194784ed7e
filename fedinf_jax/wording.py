"""Estimators and scores in plain words, for screens, pages and presets."""

# Name of a recipe's estimator → what a reader who knows no symbols is told.
PLAIN = {
  "exact": "retraining without the client",
  "basic": "the paper's method with the whole Hessian",
  "only_lwet": "the paper's method, truncation only",
  "only_ha": "the paper's method, approximate Hessian only",
  "both": "the paper's method",
  "both_fine": "the paper's method, truncating per participant",
  "sampled_lwet": "the paper's method with sampled labels",
  "whole": "ours, same upload, nothing damped",
  "clip": "ours, same upload, clipped",
  "relu": "ours, same upload",
  "exp": "ours, same upload, exponential",
  "implicit": "ours, same upload, implicit steps",
  "relu_rank10": "ours, a fifth of the upload",
  "relu_observed": "ours, same upload, observed labels",
  "lowrank": "ours, low rank, a fifth of the upload",
  "lowrank_step": "ours, low rank at each step",
  "lowrank_relu": "ours, low rank, damped",
  "server": "ours, nothing uploaded, one for all",
  "matched": "ours, nothing uploaded",
  "server_lowrank": "ours, nothing uploaded, low rank",
  "difference": "retraining by the participants",
  "truncated": "earlier rounds ignored",
  "adjoint": "ours, one pass backwards",
  "adjoint_server": "ours, one pass backwards by the server",
  # Scores that need no influence, of valuation.baselines.
  "update_norm": "size of the updates",
  "cosine": "cosine to the round's update",
  "cosine_others": "cosine to the others' updates",
  "dig_fl": "DIG-FL",
  "gtg_shapley": "GTG-Shapley",
}


def plain(name: str) -> str:
  """Returns an estimator in plain words; its name if it has none.

  Args:
    name: of a recipe, with or without its number: "matched@400".
  """
  return PLAIN.get(name.partition("@")[0], name)


def titled(name: str) -> str:
  """Returns plain words, and the name of the recipe behind them."""
  words = plain(name)
  return words if words == name else f"{words} ({name})"


def listed(parts: list[str]) -> str:
  """Joins words as a sentence does: "a, b and c"."""
  *first, last = parts
  return f"{', '.join(first)} and {last}" if first else last


def counted(count: int, noun: str) -> str:
  """Returns "1 client", "1,000 clients"."""
  return f"{count:,} {noun}" + "s" * (count != 1)
