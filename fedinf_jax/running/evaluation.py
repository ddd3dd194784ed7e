"""What a run is worth at a round: the numbers of the paper's evaluation."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedinf_jax import influence
from fedinf_jax import metrics as metrics_
from fedinf_jax import simulation
from fedinf_jax import tree
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.simulation import devices
from fedinf_jax.valuation import reliability


class Evaluation(NamedTuple):
  """All numbers of one round. "exact" stands among the names if it is known.

  A pass backwards has FIL and FIA only, NaN at rounds where it was not turned.
  """

  loss: float
  accuracy: float
  fil: dict[str, np.ndarray]  # [R]; NaN where a removal was not replayed
  fia: dict[str, np.ndarray]  # [R]
  norm: dict[str, np.ndarray]  # ‖ε_(j)‖ of the examined removals, [E, L]
  error: dict[str, np.ndarray]  # ‖ε_(j) − ε*_(j)‖, [E, L]; without "exact"
  health: dict[str, influence.Health]
  layers: tuple[str, ...]  # names of the L layers
  # Exact FIL from other starting points, [R] each, NaN where not replayed.
  repeats: tuple[np.ndarray, ...] = ()


def evaluator(
  task: tasks.Task,
  scores: Sequence[records.Scores] = (),
  repeats: Sequence[records.Repeat] = (),
) -> Callable[[simulation.State], Evaluation]:
  """Builds the evaluation of a state of a task.

  Args:
    task: what is being trained.
    scores: what its passes backwards have found.
    repeats: what retraining from other starting points has found.
  """
  model, rows = task.model, tasks.examined(task)
  passed = {(s.estimator, s.round): s for s in scores}

  def loss_and_accuracy(outputs, y):
    hits = jnp.nan
    if jnp.issubdtype(y.dtype, jnp.integer) and y.shape == outputs.shape[:-1]:
      hits = metrics_.accuracy(outputs, y)
    return jnp.stack([model.loss(outputs, y).mean(), hits])

  @jax.jit
  def present(params, x, y):
    return loss_and_accuracy(model.apply(params, x), y)

  def evaluate(state) -> Evaluation:
    run = simulation.Run.of(model, state, copy=False)
    x, y = devices.put(
      devices.mesh_of(state), (task.x, task.y), devices.REPLICATED
    )
    change = {
      name: run.everyone(run.influence(loss_and_accuracy, x, y, of=name), name)
      for name in run.names
    }
    for name in task.passes:
      known = passed.get((name, int(state.round)))
      unknown = np.full((run.num_removals, 2), np.nan)
      change[name] = np.stack([known.fil, known.fia], 1) if known else unknown
    loss, accuracy = np.asarray(present(run.params, x, y), float)
    return measured(
      run,
      rows,
      change,
      loss=float(loss),
      accuracy=float(accuracy),
      repeats=tuple(r.fil for r in repeats if r.round == int(state.round)),
    )

  return evaluate


def measured(
  run: simulation.Run,
  rows: np.ndarray,
  change: dict[str, np.ndarray],
  *,
  loss: float,
  accuracy: float,
  repeats: tuple[np.ndarray, ...] = (),
) -> Evaluation:
  """Returns the numbers of a round.

  Args:
    run: after it.
    rows: int [E], the removals whose ε is examined.
    change: FIL and FIA by name, [R, 2].
    loss: of the model itself.
    accuracy: of the model itself.
    repeats: see `Evaluation`.
  """
  exact, error = run.spread_exact, {}
  if exact is not None:
    error = {n: _norms(run, n, rows, minus=exact) for n in run.spread_eps}
  return Evaluation(
    loss=loss,
    accuracy=accuracy,
    fil={name: a[:, 0] for name, a in change.items()},
    fia={name: a[:, 1] for name, a in change.items()},
    norm={name: _norms(run, name, rows) for name in run.names},
    error=error,
    health=run.health,
    layers=tree.names(run.params),
    repeats=repeats,
  )


def _norms(run, name, rows, minus=None):
  """Returns the norms of the examined rows, [E, L], less other rows."""
  eps = run.spread_exact if name == "exact" else run.spread_eps[name]
  eps = jax.tree.leaves(eps)
  if name != "exact" and len(rows) < run.num_removals:
    # As many as were replayed, padding rows included.
    count = len(rows)
    if run.spread_exact is not None:
      count = len(jax.tree.leaves(run.spread_exact)[0])
    eps = [a[np.resize(rows, count)] for a in eps]
  found = _layer_norms(eps, None if minus is None else jax.tree.leaves(minus))
  return np.asarray(devices.replicate(found), float)[: len(rows)]


@jax.jit
def _layer_norms(eps, minus):
  away = [0] * len(eps) if minus is None else minus
  square = lambda a: jnp.square(a).reshape(len(a), -1).sum(1)
  pairs = zip(eps, away, strict=True)
  return jnp.sqrt(jnp.stack([square(a - b) for a, b in pairs], axis=1))


def names(evaluation: Evaluation) -> list[str]:
  """Returns the estimators, passes backwards last."""
  passes = evaluation.fil.keys() - evaluation.health.keys() - {"exact"}
  return [*evaluation.health, *sorted(passes)]


def agreement(evaluation: Evaluation, name: str) -> records.Agreement:
  """Returns how near an estimator is to the ground truth."""
  truncated = None
  if name in evaluation.health:
    at = np.asarray(evaluation.health[name].truncated_at)
    truncated = float((at > 0).mean())
  found = records.UNKNOWN._replace(truncated_fraction=truncated)
  if "exact" not in evaluation.fil:
    return found
  fil, fia = evaluation.fil, evaluation.fia
  found = found._replace(
    fil_pearson=reliability.correlation(
      scipy.stats.pearsonr, fil[name], fil["exact"]
    ),
    fil_spearman=reliability.correlation(
      scipy.stats.spearmanr, fil[name], fil["exact"]
    ),
    fia_pearson=reliability.correlation(
      scipy.stats.pearsonr, fia[name], fia["exact"]
    ),
  )
  if name not in evaluation.error:
    return found
  total = lambda a: np.sqrt(np.square(a).sum(1)).mean()
  error = total(evaluation.error[name])
  size = total(evaluation.norm["exact"])
  return found._replace(
    fip_error=float(error),
    fip_relative_error=float(error / size) if size > 0 else None,
  )


def repeated(evaluation: Evaluation) -> records.Reliability | None:
  """Returns how reproducible the truth is; None where nothing was repeated."""
  if not evaluation.repeats:
    return None
  exact = np.stack([evaluation.fil["exact"], *evaluation.repeats])
  mean = exact.mean(0)  # NaN where one of them is unknown
  return records.Reliability(
    repeats=len(exact),
    clients=int(np.isfinite(mean).sum()),
    **reliability.reliability(*exact)._asdict(),
    estimators={
      name: records.WithMean(
        reliability.correlation(
          scipy.stats.pearsonr, evaluation.fil[name], mean
        ),
        reliability.correlation(
          scipy.stats.spearmanr, evaluation.fil[name], mean
        ),
      )
      for name in names(evaluation)
    },
  )


def metrics(round_: int, evaluation: Evaluation) -> records.Metrics:
  """Returns a line of metrics.jsonl."""
  return records.Metrics(
    round=round_,
    loss=evaluation.loss,
    accuracy=evaluation.accuracy,
    estimators={
      name: agreement(evaluation, name) for name in names(evaluation)
    },
    reliability=repeated(evaluation),
  )


def layers(
  round_: int, evaluation: Evaluation, task: tasks.Task, tracked: np.ndarray
) -> list[records.Layer]:
  """Returns the rows of layers.csv about one round.

  Args:
    round_: which round.
    evaluation: its numbers.
    task: what is being trained.
    tracked: clients to write about, among those examined.
  """
  examined = tasks.examined(task)
  rows = []
  for client in tracked:
    e = int(np.flatnonzero(examined == client)[0])
    for name, norm in evaluation.norm.items():
      error = evaluation.error.get(name)
      for j, layer in enumerate(evaluation.layers):
        away = 0.0 if name == "exact" else None
        if error is not None:
          away = float(error[e, j])
        rows.append(
          records.Layer(
            round=round_,
            client=task.train.ids[client],
            layer=layer,
            estimator=name,
            error=away,
            norm=float(norm[e, j]),
          )
        )
  return rows


def trust(health: influence.Health) -> dict[str, records.LayerTrust]:
  """Returns what became of each layer's influence, by the layer's name."""
  truncated_at = np.asarray(health.truncated_at)
  growth = np.asarray(health.growth, float)
  found = {}
  for j, layer in enumerate(health.layer_names):
    rounds = truncated_at[:, j][truncated_at[:, j] > 0]
    found[layer] = records.LayerTrust(
      truncated_fraction=float((truncated_at[:, j] > 0).mean()),
      first_truncated_round=int(rounds.min()) if len(rounds) else None,
      largest_growth=float(growth[:, j].max()),
    )
  return found
