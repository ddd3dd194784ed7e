"""A Flower strategy that wraps FedAvg and keeps ε of every client ever seen."""

from collections.abc import Callable
from collections.abc import Iterable
import contextlib
import logging
import pathlib
import time
from typing import Any

from flwr import app
from flwr import serverapp
from flwr.serverapp import strategy as strategies
import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import metrics
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.flower import evaluation
from fedinf_jax.flower import exchange
from fedinf_jax.flower import identity
from fedinf_jax.flower import records
from fedinf_jax.flower import store as stores
from fedinf_jax.running import lock
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds
from fedinf_jax.server import table as tables

LOG = logging.getLogger("flwr")


class InfluenceStrategy(strategies.Strategy):
  """FedAvg, and who helps it.

  What clients are asked for follows from the estimators; see
  `server.rounds.server`. With `fi.server_side` alone they may be any Flower
  clients that answer `train` with a model and `num-examples`.

  Examples:
    >>> from flwr.serverapp.strategy import FedAvg
    >>> silent = {"silent": fi.presets.nothing_uploaded(num_samples=10)}
    >>> strategy = flower.InfluenceStrategy(
    ...   FedAvg(fraction_evaluate=0.0), model, fed, silent, run.params,
    ...   test=test, server_data=test, max_examples=20,
    ... )
    >>> strategy.table().ids  # Nobody yet; then .start(grid).
    ()
  """

  def __init__(
    self,
    inner: strategies.FedAvg,
    model: types.Model,
    fed: fedavg.FedAvg,
    estimators: dict[str, influence.Estimator],
    params: types.Params,
    *,
    test: tuple[Any, Any],
    max_examples: int,
    server_data: Any = None,
    seed: int = 0,
    identify: identity.Resolve | None = None,
    limits: replies.Limits | None = None,
    wait_for: int = 1,
    workdir: str | pathlib.Path | None = None,
    evaluate_every: int = 1,
    report: bool = False,
    on_round: Callable[[int, tables.Table], Iterable[str]] | None = None,
  ):
    """Wraps a strategy that averages by num-examples.

    Args:
      inner: whose averages are the model, and who evaluates.
      model: what clients train, as pure functions.
      fed: how they train; `cohort_size` of them take part in a round.
      estimators: by name; the first is the one that `on_round` sees.
      params: w_0. The names of its layers are the keys of what is sent.
      test: (x [N, ...], y [N, ...]) that influence is measured on.
      max_examples: of the largest client.
      server_data: examples of the server's own, for `fi.server_side`.
      seed: of cohorts and of draws.
      identify: who a node is, `identity.asked()` by default.
      limits: of what is taken from a client.
      wait_for: clients that must be there before the first round of this
        server; later rounds wait for `inner.min_available_nodes`.
      workdir: where state and output are kept; None: nowhere.
      evaluate_every: rounds between evaluations of influence.
      report: whether report.html is written at each of them.
      on_round: (round, table) -> clients to leave out from now on. Where it has
        a dictionary `memory`, this is checkpointed with the round.
    """
    if not isinstance(inner, strategies.FedAvg):
      raise ValueError(
        f"inner is a {type(inner).__name__}; it must be Flower's FedAvg"
      )
    test = agreement.evaluation(model, params, metrics.loss, test)
    self._inner = inner
    self._server = rounds.server(
      model, fed, estimators, params, max_examples=max_examples, seed=seed,
      server_data=server_data, example=(test[0][:1], test[1][:1]),
      limits=limits,
    )  # fmt: skip
    self._nodes = identity.Nodes(identify or identity.asked())
    self._evaluation = evaluation.Evaluation(
      self._server, test,
      every=checks.positive_integer("evaluate_every", evaluate_every),
      folder=None if workdir is None else pathlib.Path(workdir),
      report=checks.boolean("report", report),
    )  # fmt: skip
    self._workdir = None if workdir is None else pathlib.Path(workdir)
    self._data = test, _of_server(server_data)
    self._on_round = on_round
    self._wait_for = checks.positive_integer("wait_for", wait_for)
    self._params = jax.tree.map(jnp.asarray, params)
    self._ledger = ledgers.init(estimators, self._params)
    self._left_out: tuple[str, ...] = ()
    self._store: stores.Store | None = None
    self._offset = 0  # rounds that an earlier server did
    self._cohort: dict[int, str] = {}  # node -> client, in the order drawn
    self._grid: serverapp.Grid | None = None
    self._timeout = 3600.0

  @property
  def ledger(self) -> ledgers.Ledger:
    """What is known of every client ever seen."""
    return self._ledger

  @property
  def server(self) -> rounds.Server:
    """The server's side, as functions of the ledger."""
    return self._server

  @property
  def left_out(self) -> tuple[str, ...]:
    """Whom `on_round` has left out so far."""
    return self._left_out

  def table(self, name: str | None = None) -> tables.Table:
    """Returns the influence of every client, by an estimator (the first)."""
    return self._evaluation.table(self._ledger, name, self._left_out)

  def summary(self):
    """Logs what is wrapped, and what clients are asked for."""
    made = self._server
    asked = "nothing beyond FedAvg"
    if made.interactive:
      asked = "answers to every ε"
    elif made.uploads:
      asked = "a report of their curvature"
    LOG.info("\t├──> Fed-Influence: %s", ", ".join(made.estimators))
    LOG.info("\t├──> Clients are asked for %s", asked)
    self._inner.summary()

  def start(
    self,
    grid: serverapp.Grid,
    initial_arrays: app.ArrayRecord | None = None,
    num_rounds: int | None = None,
    timeout: float = 3600,
    train_config: app.ConfigRecord | None = None,
    evaluate_config: app.ConfigRecord | None = None,
    evaluate_fn: Callable[[int, app.ArrayRecord], Any] | None = None,
  ) -> strategies.Result:
    """Runs the federation up to a round, from where an earlier server was.

    Args:
      grid: the nodes.
      initial_arrays: w_0; None: the `params` of the strategy.
      num_rounds: counted from the first; None: those of `fed`.
      timeout: seconds to wait for replies.
      train_config: sent to clients.
      evaluate_config: sent to clients.
      evaluate_fn: (round, arrays) -> metrics.

    Returns:
      Flower's result; its rounds are those of this server.
    """
    with contextlib.ExitStack() as stack:
      if self._workdir is not None:  # A second server would spoil its files.
        stack.enter_context(lock.owned(self._workdir))
      return self._start(
        grid, initial_arrays, num_rounds, timeout, train_config,
        evaluate_config, evaluate_fn,
      )  # fmt: skip

  def _start(
    self, grid, initial_arrays, num_rounds, timeout, train_config,
    evaluate_config, evaluate_fn,
  ):  # fmt: skip
    """Does what `start` says, in a workdir that is ours."""
    self._timeout = timeout
    if initial_arrays is not None:
      given = records.from_record(initial_arrays, self._params)
      self._params = jax.tree.map(jnp.asarray, given)
    self._ledger = ledgers.init(self._server.estimators, self._params)
    self.resume()
    evaluate = evaluate_fn and (
      lambda round_, arrays: evaluate_fn(round_ + self._offset, arrays)
    )
    if num_rounds is None:
      num_rounds = self._server.setup.fed.rounds
    try:
      result = super().start(
        grid,
        records.to_record(self._ledger.state.params),
        max(0, num_rounds - self._offset),
        timeout,
        train_config,
        evaluate_config,
        evaluate,
      )
    finally:
      if self._store is not None:
        self._store.close()
    result.arrays = records.to_record(self._ledger.state.params)
    return result

  def resume(self):
    """Reads the workdir: the ledger is where an earlier server left it."""
    if self._workdir is None:
      return
    fingerprint = stores.fingerprint(self._server, self._params, *self._data)
    store = stores.Store(
      self._workdir, self._server.estimators, self._params, fingerprint
    )
    self._store = store
    kept = store.restore(lambda line: _warn([line]))
    if kept is not None:
      self._ledger, self._left_out, memory = kept
      self._remember(memory)
      self._offset = self._ledger.round
      LOG.info("Resuming after round %d", self._offset)
    self._evaluation.resume(self._offset)

  def configure_train(
    self,
    server_round: int,
    arrays: app.ArrayRecord,
    config: app.ConfigRecord,
    grid: serverapp.Grid,
  ) -> Iterable[app.Message]:
    """Draws the cohort from the seed and the ids, and sends it the model."""
    round_ = server_round + self._offset
    self._grid = grid
    there = self._wait(grid)
    ids = [i for i in there if i not in self._left_out]
    cohort = self._server.cohort(round_, ids)
    self._cohort = {there[i]: i for i in cohort}
    LOG.info("configure_train: %d of %d clients", len(cohort), len(there))
    config[records.ROUND] = round_
    content = app.RecordDict(
      {self._inner.arrayrecord_key: arrays,
       self._inner.configrecord_key: config}
    )  # fmt: skip
    train = app.MessageType.TRAIN
    return [app.Message(content, node, train) for node in self._cohort]

  def aggregate_train(
    self, server_round: int, replies: Iterable[app.Message]
  ) -> tuple[app.ArrayRecord | None, app.MetricRecord | None]:
    """Examines replies, lets FedAvg average, and carries every ε on."""
    del server_round  # The ledger knows the round.
    accepted, messages = self._accepted(replies)
    arrays, metrics_ = None, app.MetricRecord()
    before = self._ledger
    self._ledger, lines = self._server.end(before, accepted)
    _warn(lines)
    self._evaluation.attended(self._ledger.round, [a.client for a in accepted])
    if accepted:
      messages = [messages[a.client] for a in accepted]
      local = [a.local for a in accepted]
      records.for_fedavg(messages, local, self._inner.weighted_by_key)
      arrays, found = self._inner.aggregate_train(before.round + 1, messages)
      metrics_ = found or metrics_
      self._take_over(arrays)
    for key, value in self._evaluated().items():
      metrics_[key] = value
    if self._store is not None:
      memory = dict(self._memory)
      self._store.save(stores.Kept(self._ledger, self._left_out, memory))
    return arrays, metrics_ or None

  def configure_evaluate(
    self,
    server_round: int,
    arrays: app.ArrayRecord,
    config: app.ConfigRecord,
    grid: serverapp.Grid,
  ) -> Iterable[app.Message]:
    """Leaves evaluation by clients to the strategy within."""
    return self._inner.configure_evaluate(
      server_round + self._offset, arrays, config, grid
    )

  def aggregate_evaluate(
    self, server_round: int, replies: Iterable[app.Message]
  ) -> app.MetricRecord | None:
    """Leaves evaluation to the strategy within; nothing broken ends it."""
    try:
      return self._inner.aggregate_evaluate(
        server_round + self._offset, replies
      )
    except Exception as error:  # What a client sent must not end a federation.
      _warn([f"evaluation: left out ({exchange.first_line(error)})"])
      return None

  def _wait(self, grid):
    """Returns the node of each client, once there are enough of them."""
    least = max(1, self._inner.min_available_nodes)
    if self._ledger.round == self._offset:
      least = max(least, self._wait_for)
    there, lines = self._nodes.update(grid, self._timeout)
    _warn(lines)
    while len(there) < least:
      LOG.info("Waiting for clients: %d, at least %d", len(there), least)
      time.sleep(1)
      there, _ = self._nodes.update(grid, self._timeout)
    return there

  def _accepted(self, received):
    """Returns the replies that take part, and their messages by client."""
    accepted, messages, lines = exchange.examine(
      self._server,
      self._ledger,
      self._cohort,
      received,
      self._inner.weighted_by_key,
    )
    if self._server.interactive:
      accepted, more = exchange.ask(
        self._server,
        self._ledger,
        self._cohort,
        accepted,
        self._grid,
        self._timeout,
      )
      lines += more
    _warn(lines)
    return accepted, messages

  def _take_over(self, arrays):
    """Takes the model that FedAvg made; refuses one that is no average."""
    own = self._ledger.state.params
    made = records.from_record(arrays, own)
    for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(own), strict=True):
      if not np.allclose(a, b, rtol=1e-3, atol=1e-4):
        raise ValueError(
          f"inner: {type(self._inner).__name__} does not average models by"
          f" {self._inner.weighted_by_key}, which influence is about"
        )
    state = self._ledger.state._replace(params=jax.tree.map(jnp.asarray, made))
    self._ledger = self._ledger._replace(state=state)

  @property
  def _memory(self):
    """Returns what the hook remembers; it is the hook's own dictionary."""
    memory = getattr(self._on_round, "memory", None)
    return memory if isinstance(memory, dict) else {}

  def _remember(self, memory):
    """Gives the hook what it remembered after the checkpoint's round."""
    own = self._memory
    own.clear()
    own.update(memory)

  def _evaluated(self):
    """Evaluates where it is due, and asks the hook whom to leave out."""
    found = self._evaluation.after_round(self._ledger, self._left_out)
    if found is None:
      return {}
    if self._on_round is not None:
      named = list(self._on_round(self._ledger.round, found))
      unknown = [i for i in named if i not in self._ledger.ids]
      if unknown:
        raise ValueError(f"on_round: {unknown[0]!r} is no client's id")
      new = [i for i in dict.fromkeys(named) if i not in self._left_out]
      _warn([f"client {i!r}: left out from now on, by on_round" for i in new])
      self._left_out += tuple(new)
    return self._evaluation.extremes(found)


def _of_server(data):
  """Returns the server's own examples, and whose they are."""
  if isinstance(data, federated.FederatedData):
    return data.x, data.y, data.num_examples, list(map(str, data.ids))
  return jax.tree.map(np.asarray, data)


def _warn(lines: list[str]):
  for line in lines:
    LOG.warning("%s", line)
