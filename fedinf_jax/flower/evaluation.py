"""What a running federation says of its clients, every n rounds."""

import pathlib
from typing import Any

import numpy as np

from fedinf_jax import metrics
from fedinf_jax.flower import output as outputs
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import rounds
from fedinf_jax.server import table as tables

EXTREMES = 3  # clients at either end that go into Flower's own logs


class Evaluation:
  """Measures influence on a test set, and writes it down."""

  def __init__(
    self,
    server: rounds.Server,
    test: tuple[Any, Any],
    *,
    every: int,
    folder: pathlib.Path | None,
    report: bool,
  ):
    self._server = server
    self._model = server.setup.model
    self._estimators = server.estimators
    self._test = test
    self._every = every
    self._report = report
    self._output = None
    if folder is not None:
      self._output = outputs.Output(folder, server, len(test[0]))

  def resume(self, round_: int):
    """Cuts back what was written after a round."""
    if self._output is not None:
      self._output.resume(round_)

  def attended(self, round_: int, ids: list[str]):
    """Enters who took part in a round."""
    if self._output is not None:
      self._output.attended(round_, ids)

  def table(
    self,
    ledger: ledgers.Ledger,
    name: str | None = None,
    left_out: tuple[str, ...] = (),
  ) -> tables.Table:
    """Returns the table of an estimator, the first unless it is named."""
    name = next(iter(self._estimators)) if name is None else name
    if name not in self._estimators:
      raise ValueError(
        f"name is {name!r}; it must be one of {list(self._estimators)}"
      )
    found = tables.table(self._model, ledger, name, self._test)
    return found._replace(left_out=left_out)

  def after_round(
    self, ledger: ledgers.Ledger, left_out: tuple[str, ...]
  ) -> tables.Table | None:
    """Evaluates where it is due, and returns the first estimator's table."""
    if ledger.round % self._every or not ledger.ids:
      return None
    found = {n: self.table(ledger, n, left_out) for n in self._estimators}
    if self._output is not None:
      loss, accuracy = self._metrics(ledger.state.params)
      self._output.add(ledger, found, loss, accuracy, report=self._report)
    return next(iter(found.values()))

  def extremes(self, found: tables.Table) -> dict[str, float]:
    """Returns the clients at both ends: a record of Flower holds numbers."""
    order = found.order()
    harms = [k for k in order[:EXTREMES] if found.fil[k] < 0]
    helps = [k for k in order[::-1][:EXTREMES] if found.fil[k] > 0]
    named = {f"harms/{found.ids[k]}": float(found.fil[k]) for k in harms}
    return {
      **{f"helps/{found.ids[k]}": float(found.fil[k]) for k in helps},
      **named,
    }

  def _metrics(self, params):
    """Returns loss and accuracy; NaN where labels are no classes."""
    x, y = self._test
    outputs_ = self._model.apply(params, x)
    loss = metrics.of_model(metrics.loss, self._model)(outputs_, y)
    accuracy = np.nan
    if tables.classifies(self._model, params, self._test):
      accuracy = metrics.accuracy(outputs_, y)
    return float(loss), float(accuracy)
