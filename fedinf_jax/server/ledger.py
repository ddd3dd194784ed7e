"""What a server remembers of every client that ever took part.

A client has a row of ε from its first accepted reply on. Before that its
influence is exactly zero, by the method, so that a new row of zeros is no
approximation. Rows are kept for a power of two of clients: those that belong to
nobody are removals of nobody and stay zero, and fewer programs are compiled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from fedinf_jax import federation
from fedinf_jax import influence
from fedinf_jax import tree
from fedinf_jax import types

LEAST_ROWS = 8


class Ledger(NamedTuple):
  """What a server keeps between rounds.

  Examples:
    >>> from fedinf_jax.server import ledger
    >>> start = ledger.init(ours, run.params)
    >>> start.ids, start.num_rows  # Room for eight clients.
    ((), 8)
    >>> start.eps("ours")["dense"]["bias"].shape
    (0, 3)
  """

  round: int  # rounds done
  ids: tuple[str, ...]  # K of them, in the order of their first reply
  num_examples: np.ndarray  # int64 [K], n_k as last stated
  times: np.ndarray  # int64 [K], rounds that each took part in
  state: federation.ServerState  # ε has leaves [R, ...], R >= K

  @property
  def num_rows(self) -> int:
    """R, a power of two."""
    estimator = next(iter(self.state.estimators.values()))
    return len(jax.tree.leaves(estimator.eps)[0])

  def eps(self, name: str) -> types.Params:
    """Returns an estimator's ε of the K clients, leaves [K, ...]."""
    return tree.first_rows(self.state.estimators[name].eps, len(self.ids))


def rows_for(num_clients: int) -> int:
  """Returns how many rows are kept for so many clients."""
  return max(LEAST_ROWS, 1 << (num_clients - 1).bit_length())


def init(
  estimators: dict[str, influence.Estimator],
  params: types.Params,
  num_rows: int = LEAST_ROWS,
) -> Ledger:
  """Returns the ledger before the first round: nobody is known.

  Args:
    estimators: by name.
    params: w_0.
    num_rows: R.
  """
  nothing = np.zeros(0, np.int64)
  states = {
    name: e.init(params, num_rows, num_slots=num_rows)
    for name, e in estimators.items()
  }
  state = federation.ServerState(params, states)
  return Ledger(0, (), nothing, nothing, state)


def admit(
  estimators: dict[str, influence.Estimator],
  ledger: Ledger,
  ids: Sequence[str],
) -> Ledger:
  """Gives a row of zeros to everyone who has none yet."""
  known = set(ledger.ids)
  new = tuple(i for i in dict.fromkeys(ids) if i not in known)
  if not new:
    return ledger
  pad = lambda a: np.concatenate([a, np.zeros(len(new), np.int64)])
  everyone = ledger.ids + new
  state = ledger.state
  if len(everyone) > ledger.num_rows:
    state = _grown(estimators, state, rows_for(len(everyone)))
  return ledger._replace(
    ids=everyone,
    num_examples=pad(ledger.num_examples),
    times=pad(ledger.times),
    state=state,
  )


def positions(ledger: Ledger, ids: Sequence[str]) -> np.ndarray:
  """Returns the rows of clients that have one, int [len(ids)]."""
  place = {client: k for k, client in enumerate(ledger.ids)}
  return np.asarray([place[i] for i in ids], int)


def _grown(estimators, state, num_rows):
  """Returns the state with more rows, and more places of a fine guard."""
  larger = init(estimators, state.params, num_rows).state

  def put(new, old):
    return new.at[tuple(slice(n) for n in old.shape)].set(old)

  return larger._replace(
    estimators=jax.tree.map(put, larger.estimators, state.estimators)
  )
