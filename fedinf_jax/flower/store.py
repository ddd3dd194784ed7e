"""The server's state on disk: a restarted server goes on where it was.

The arrays are one of orbax's checkpoints (`running/checkpoint`); who is who and
who is left out stands in a file beside it, since shapes depend on it.
"""

from collections.abc import Callable
import pathlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import influence
from fedinf_jax import types
from fedinf_jax.running import checkpoint
from fedinf_jax.running import files
from fedinf_jax.running import records
from fedinf_jax.server import ledger as ledgers


class Kept(NamedTuple):
  """What a restarted server needs."""

  ledger: ledgers.Ledger
  left_out: tuple[str, ...]


class Store:
  """The states of a server that are kept in a workdir."""

  def __init__(
    self,
    folder: pathlib.Path,
    estimators: dict[str, influence.Estimator],
    params: types.Params,
    identity: str,
  ):
    """Opens the store.

    Args:
      folder: the workdir.
      estimators: by name.
      params: w_0.
      identity: a fingerprint of all that must not change on the way.
    """
    self._folder = folder / records.CHECKPOINTS
    self._folder.mkdir(parents=True, exist_ok=True)
    self._estimators = estimators
    self._params = params
    self._identity = identity
    self._checkpoints = checkpoint.Checkpoints(self._folder, keep=())
    self.close = self._checkpoints.close

  def save(self, kept: Kept):
    """Saves the state after a round."""
    ledger = kept.ledger
    about = {
      "identity": self._identity,
      "ids": list(ledger.ids),
      "num_examples": ledger.num_examples,
      "times": ledger.times,
      "num_rows": ledger.num_rows,
      "left_out": list(kept.left_out),
    }
    files.write_json(self._about(ledger.round), about)
    state = jax.tree.map(jnp.asarray, ledger.state)
    self._checkpoints.save(state, ledger.round)
    there = {self._about(r).name for r in self._checkpoints.rounds()}
    for path in self._folder.glob("clients-*.json"):
      if path.name not in there:
        path.unlink()

  def restore(self, warn: Callable[[str], None]) -> Kept | None:
    """Returns the latest state that is whole; None: there is none."""
    for round_ in sorted(self._checkpoints.rounds(), reverse=True):
      try:
        about = files.read_json(self._about(round_))
      except ValueError as error:
        warn(f"the checkpoint of round {round_} cannot be used ({error})")
        continue
      if about["identity"] != self._identity:
        raise ValueError(
          f"workdir: {self._folder.parent} holds a federation with another"
          " model, seed or estimators; give another"
        )
      init = lambda rows=about["num_rows"]: jax.tree.map(
        jnp.asarray, ledgers.init(self._estimators, self._params, rows).state
      )
      state, found = self._checkpoints.restore(init, [round_], warn)
      if found:
        integers = lambda name: np.asarray(about[name], np.int64)  # noqa: B023
        ledger = ledgers.Ledger(
          round=round_,
          ids=tuple(about["ids"]),
          num_examples=integers("num_examples"),
          times=integers("times"),
          state=state,
        )
        return Kept(ledger, tuple(about["left_out"]))
    return None

  def _about(self, round_):
    return self._folder / f"clients-{round_}.json"
