"""What a run is at any moment, and what it leaves behind."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import tree
from fedinf_jax import types


class State(NamedTuple):
  """All that changes from round to round: what a checkpoint holds."""

  round: jax.Array  # int32 [], rounds done
  params: types.Params  # w_t
  estimators: dict[str, influence.EstimatorState]
  replay: types.Params | None  # w_t^(r) of the replayed rows, leaves [E, ...]
  rows: jax.Array | None  # int32 [E], which removals they are
  diverged: jax.Array  # int32 [], first client of a non-finite upload; or -1


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
  """What a run leaves behind.

  Attributes:
    params: w_T.
    eps: each estimator's FIP, leaves [R, ...].
    health: how each estimator fared.
    exact_eps: exact FIP of `exact_rows`, leaves [E, ...]; or None.
    exact_rows: int [E], which removals were replayed; or None.
    model: the model that was trained.
  """

  params: types.Params
  eps: dict[str, types.Params]
  health: dict[str, influence.Health]
  exact_eps: types.Params | None
  exact_rows: np.ndarray | None
  model: types.Model

  @classmethod
  def of(cls, model: types.Model, state: State) -> "Run":
    """Reads a run off its state, after any round."""
    rows, exact = None, None
    if state.rows is not None:
      rows = np.asarray(state.rows)
      exact = jax.tree.map(lambda a, w: a - w[None], state.replay, state.params)
    return cls(
      state.params,
      {name: s.eps for name, s in state.estimators.items()},
      {name: influence.health(s) for name, s in state.estimators.items()},
      exact,
      rows,
      model,
    )

  def influence(self, metric, x, y, of: str) -> jax.Array:
    """Returns F(w + ε) − F(w), the influence of each removal on a metric.

    For a loss, > 0 means that the loss rises without the client: it helps.
    For an accuracy, < 0 means the same.

    Args:
      metric: (outputs, y) -> array; `metrics.loss` is the model's own.
      x: [N, ...] test inputs.
      y: [N, ...] test labels.
      of: the name of an estimator, or "exact", the ground truth.

    Returns:
      [R, ...]; for "exact" one entry for each of `exact_rows`.
    """
    eps = self.exact_eps if of == "exact" else self.eps.get(of)
    if eps is None:
      known = [*self.eps, *(["exact"] if self.exact_eps is not None else [])]
      raise ValueError(
        f"of is {of!r}; this run has {', '.join(map(repr, known)) or 'nothing'}"
        ' ("exact" needs exact=True or a list of rows)'
      )
    x, y = jnp.asarray(x), jnp.asarray(y)
    if jax.default_backend() == "cpu":
      # Batched, the time was quadratic in the removals: XLA seems to add w + ε
      # within the product, once for each output.
      chunk = 1
    else:
      per_row = memory.intermediate_bytes(self.model.apply, self.params, x)
      per_row += memory.tree_bytes(self.params)
      chunk = memory.chunk_size(jax.tree.leaves(eps)[0].shape[0], per_row)
    without, present, moved = _scores(
      self.params, eps, x, y, model=self.model, metric=metric, chunk=chunk
    )
    # Out here because a fused difference would be one of unrounded values. An ε
    # of zero has no influence, whatever a batched product rounds to.
    keep = moved.reshape(-1, *[1] * (without.ndim - 1))
    return jnp.where(keep, without - present[None], 0)


@functools.partial(jax.jit, static_argnames=("model", "metric", "chunk"))
def _scores(params, eps, x, y, *, model, metric, chunk):
  """Returns F(w + ε) of every removal, F(w), and which ε are not zero."""
  metric = metrics.of_model(metric, model)
  with jax.default_matmul_precision("highest"):
    score = lambda w: metric(model.apply(w, x), y)
    without = lambda e: score(jax.tree.map(jnp.add, params, e))
    moves = [
      (a != 0).reshape(a.shape[0], -1).any(1) for a in jax.tree.leaves(eps)
    ]
    moved = functools.reduce(jnp.logical_or, moves)
    return tree.map_rows(without, eps, chunk), score(params), moved
