"""Who helps and who hurts, as of a round."""

from typing import Any
from typing import NamedTuple

import numpy as np

from fedinf_jax import agreement
from fedinf_jax import metrics
from fedinf_jax import types
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.simulation import scores
from fedinf_jax.valuation import intervals


class Table(NamedTuple):
  """Influence of every client ever seen, by one estimator.

  FIL > 0: the test loss would be higher without the client, it helps.

  Examples:
    >>> from fedinf_jax.server import ledger, table
    >>> start = ledger.init(ours, run.params)
    >>> table.table(model, start, "ours", test).order()  # Nobody is known yet.
    array([], dtype=int64)
  """

  round: int
  ids: tuple[str, ...]  # K
  num_examples: np.ndarray  # int [K], as last stated
  times: np.ndarray  # int [K], rounds that each took part in
  fil: np.ndarray  # [K], influence on the test loss
  fil_error: np.ndarray  # [K], its standard error over test examples
  interval: intervals.Intervals  # of FIL, over test examples
  fia: np.ndarray  # [K], influence on the accuracy; NaN: labels are no classes
  left_out: tuple[str, ...] = ()  # who takes no part any more

  def order(self) -> np.ndarray:
    """Returns rows by FIL, who hurts most first; ids settle ties."""
    return np.lexsort((np.asarray(self.ids), self.fil))


def table(
  model: types.Model,
  ledger: ledgers.Ledger,
  name: str,
  test: tuple[Any, Any],
) -> Table:
  """Measures the influence of every client on a test set.

  Args:
    model: what is trained.
    ledger: after any round.
    name: of an estimator.
    test: (x [N, ...], y [N, ...]), checked.
  """
  count = len(ledger.ids)
  params = ledger.state.params
  eps = ledger.state.estimators[name].eps  # All rows: fewer programs.
  if not count:
    nothing = np.zeros(0)
    return Table(
      ledger.round, (), ledger.num_examples, ledger.times, nothing, nothing,
      intervals.Intervals(*[nothing] * 3), nothing,
    )  # fmt: skip
  losses = scores.influence(model, params, eps, model.loss, test)
  losses = np.asarray(losses, np.float64)[:count]
  error = np.zeros(count)
  if losses.shape[1] > 1:
    error = losses.std(1, ddof=1) / np.sqrt(losses.shape[1])
  fia = np.full(count, np.nan)
  if classifies(model, params, test):
    fia = scores.influence(model, params, eps, metrics.accuracy, test)
  return Table(
    round=ledger.round,
    ids=ledger.ids,
    num_examples=ledger.num_examples,
    times=ledger.times,
    fil=losses.mean(1),
    fil_error=error,
    interval=intervals.bootstrap(losses, np.ones(losses.shape[1], int)),
    fia=np.asarray(fia, np.float64)[:count],
  )


def classifies(model, params, test) -> bool:
  """Returns whether outputs and labels are those of a classifier."""
  try:
    agreement.evaluation(model, params, metrics.accuracy, test)
  except ValueError:
    return False
  return True
