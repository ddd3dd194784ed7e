"""What a run is worth at a round: the numbers of the paper's evaluation."""

from collections.abc import Callable
import math
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from experiments import problem as problems
import fedinf_jax as fi
from fedinf_jax import sharding


class Evaluation(NamedTuple):
  """All numbers of one round. "exact" stands among the names if it is known."""

  loss: float
  accuracy: float
  fil: dict[str, np.ndarray]  # [R]; NaN where a removal was not replayed
  fia: dict[str, np.ndarray]  # [R]
  norm: dict[str, np.ndarray]  # ‖ε_(j)‖ of the examined removals, [E, L]
  error: dict[str, np.ndarray]  # ‖ε_(j) − ε*_(j)‖, [E, L]; without "exact"
  health: dict[str, fi.Health]


def evaluator(
  problem: problems.Problem, rows: np.ndarray
) -> Callable[..., Evaluation]:
  """Builds the evaluation of a state.

  Args:
    problem: what is being trained.
    rows: int [E], removals whose ε is examined: those replayed, where some are.
  """
  model, num_removals = problem.model, problem.train.num_clients
  everyone = len(rows) == num_removals

  def both(outputs, y):
    return jnp.stack(
      [model.loss(outputs, y).mean(), fi.metrics.accuracy(outputs, y)]
    )

  @jax.jit
  def now(params, x, y):
    return both(model.apply(params, x), y)

  @jax.jit
  def layer_norms(eps, minus):
    away = [0] * len(eps) if minus is None else minus
    square = lambda a: jnp.square(a).reshape(len(a), -1).sum(1)
    pairs = zip(eps, away, strict=True)
    return jnp.sqrt(jnp.stack([square(a - b) for a, b in pairs], axis=1))

  def norms(run, name, minus=None):
    """Returns the norms of the examined rows, [E, L], less other rows."""
    eps = run.spread_exact if name == "exact" else run.spread_eps[name]
    eps = jax.tree.leaves(eps)
    if name != "exact" and not everyone:
      # As many as were replayed, those that fill up included.
      count = len(rows)
      if run.spread_exact is not None:
        count = len(jax.tree.leaves(run.spread_exact)[0])
      eps = [a[np.resize(rows, count)] for a in eps]
    found = layer_norms(eps, None if minus is None else jax.tree.leaves(minus))
    return np.asarray(sharding.whole(found), float)[: len(rows)]

  def evaluate(state) -> Evaluation:
    run = fi.Run.of(model, state)
    exact = run.spread_exact
    x, y = sharding.put(
      sharding.mesh_of(state), (problem.x, problem.y), sharding.WHOLE
    )
    names = [*(["exact"] if exact is not None else []), *run.spread_eps]
    influence, norm, error = {}, {}, {}
    for name in names:
      found = np.asarray(run.influence(both, x, y, of=name), float)
      if name == "exact":
        influence[name] = np.full((num_removals, 2), np.nan)
        influence[name][run.exact_rows] = found
      else:
        influence[name] = found
      norm[name] = norms(run, name)
      if name != "exact" and exact is not None:
        error[name] = norms(run, name, exact)
    loss, accuracy = np.asarray(now(run.params, x, y), float)
    return Evaluation(
      float(loss),
      float(accuracy),
      {name: a[:, 0] for name, a in influence.items()},
      {name: a[:, 1] for name, a in influence.items()},
      norm,
      error,
      run.health,
    )

  return evaluate


def agreement(evaluation: Evaluation, name: str) -> dict[str, float | None]:
  """Returns how near an estimator is to the ground truth, None if unknown."""
  truncated = np.asarray(evaluation.health[name].truncated_at) > 0
  found = dict.fromkeys(
    ("fil_pearson", "fil_spearman", "fia_pearson", "fip_error",
     "fip_relative_error")
  )  # fmt: skip
  if "exact" in evaluation.fil:
    fil, fia = evaluation.fil, evaluation.fia
    total = lambda a: np.sqrt(np.square(a).sum(1)).mean()
    error = total(evaluation.error[name])
    size = total(evaluation.norm["exact"])
    found = {
      "fil_pearson": correlation(stats.pearsonr, fil[name], fil["exact"]),
      "fil_spearman": correlation(stats.spearmanr, fil[name], fil["exact"]),
      "fia_pearson": correlation(stats.pearsonr, fia[name], fia["exact"]),
      "fip_error": float(error),
      "fip_relative_error": float(error / size) if size > 0 else None,
    }
  return {**found, "truncated_fraction": float(truncated.mean())}


def correlation(kind, estimated, exact) -> float | None:
  """Returns a correlation over what was replayed; None if it is undefined."""
  known = np.isfinite(exact)
  estimated, exact = estimated[known], exact[known]
  if len(exact) < 3 or not np.isfinite(estimated).all():
    return None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", stats.ConstantInputWarning)
    warnings.simplefilter("ignore", stats.NearConstantInputWarning)
    value = float(kind(estimated, exact)[0])
  return value if math.isfinite(value) else None


def metrics_line(round_: int, evaluation: Evaluation) -> dict:
  """Returns a line of metrics.jsonl."""
  return {
    "round": round_,
    "loss": evaluation.loss,
    "accuracy": evaluation.accuracy,
    "estimators": {
      name: agreement(evaluation, name) for name in evaluation.health
    },
  }


def history_line(round_: int, evaluation: Evaluation) -> dict:
  """Returns a line of history.jsonl: FIL to six digits."""
  short = lambda a: [float(f"{v:.5e}") for v in a]
  fil = {name: short(values) for name, values in evaluation.fil.items()}
  return {"round": round_, "fil": fil}


def layer_lines(round_, evaluation, layers, examined, tracked, ids):
  """Yields the cells of layers.csv: round, client, layer, name, error, norm.

  Args:
    round_: which round.
    evaluation: its numbers.
    layers: names of the L layers.
    examined: int [E], the removals that `evaluation.norm` is about.
    tracked: removals to write, among those.
    ids: of all clients.
  """
  for row in tracked:
    e = int(np.flatnonzero(np.asarray(examined) == row)[0])
    for name, norm in evaluation.norm.items():
      error = evaluation.error.get(name)
      for j, layer in enumerate(layers):
        away = 0.0 if name == "exact" else None
        if error is not None:
          away = float(error[e, j])
        yield round_, ids[row], layer, name, away, float(norm[e, j])


def trust(health: fi.Health) -> dict:
  """Returns what summary.json says about truncation and growth."""
  truncated_at = np.asarray(health.truncated_at)
  growth = np.asarray(health.growth, float)
  layers = {}
  for j, layer in enumerate(health.layer_names):
    rounds = truncated_at[:, j][truncated_at[:, j] > 0]
    layers[layer] = {
      "truncated_fraction": float((truncated_at[:, j] > 0).mean()),
      "first_truncated_round": int(rounds.min()) if len(rounds) else None,
      "largest_growth": float(growth[:, j].max()),
    }
  return {
    "largest_growth": float(growth.max()),
    "nonfinite_fraction": float((np.asarray(health.nonfinite_at) > 0).mean()),
    "layers": layers,
  }
