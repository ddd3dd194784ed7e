"""The server's state on disk: a restarted server goes on where it was.

The arrays are one of orbax's checkpoints (`running/checkpoint`); who is who and
who is left out stands in a file beside it, since shapes depend on it.
"""

from collections.abc import Callable
import pathlib
from typing import Any
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
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds


class Kept(NamedTuple):
  """What a restarted server needs."""

  ledger: ledgers.Ledger
  left_out: tuple[str, ...]
  memory: dict[str, Any]  # of `on_round`, where it has one


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
      "memory": kept.memory,
    }
    files.write_json(self._about(ledger.round), about)
    state = jax.tree.map(jnp.asarray, ledger.state)
    self._checkpoints.save(state, ledger.round)
    there = {self._about(r).name for r in self._checkpoints.rounds()}
    for path in self._folder.glob("clients-*.json"):
      if path.name not in there:
        path.unlink()

  def restore(self, warn: Callable[[str], None]) -> Kept | None:
    """Returns the latest state that is whole; None: there is none yet.

    Raises:
      ValueError: where the workdir is another federation's, or nothing in it
        can be used: what clients have worked for is not thrown away silently.
    """
    there = sorted(self._checkpoints.rounds(), reverse=True)
    for round_ in there:
      about = self._read(round_, warn)
      if about is None:
        continue
      if about["identity"] != self._identity:
        raise ValueError(
          f"workdir: {self._folder.parent} holds a federation with another"
          " model, seed, training, data or estimators; give another"
        )
      kept = self._restored(round_, about, warn)
      if kept is not None:
        return kept
    if there:
      raise ValueError(
        f"workdir: {self._folder.parent} has checkpoints, but none that this"
        " federation can use; give another"
      )
    return None

  def _read(self, round_, warn):
    """Returns who is who; None: it is damaged."""
    try:
      about = files.read_json(self._about(round_))
      lists = {k: about[k] for k in ("ids", "num_examples", "times")}
      if len({len(values) for values in lists.values()}) > 1:
        raise ValueError("its lists differ in length")
      if not len(about["ids"]) <= int(about["num_rows"]) < 2**31:
        raise ValueError("it has fewer rows than clients")
      if "left_out" not in about or "memory" not in about:
        raise ValueError("it does not say who is left out")
      return about
    except (ValueError, KeyError, TypeError) as error:
      reason = f"no {error}" if isinstance(error, KeyError) else error
      warn(f"the checkpoint of round {round_} cannot be used ({reason})")
      return None

  def _restored(self, round_, about, warn):
    """Returns the state after a round; None: it is damaged."""
    init = lambda: jax.tree.map(
      jnp.asarray,
      ledgers.init(self._estimators, self._params, about["num_rows"]).state,
    )
    state, found = self._checkpoints.restore(init, [round_], warn)
    if not found:
      return None
    ledger = ledgers.Ledger(
      round=round_,
      ids=tuple(about["ids"]),
      num_examples=np.asarray(about["num_examples"], np.int64),
      times=np.asarray(about["times"], np.int64),
      state=state,
    )
    return Kept(ledger, tuple(about["left_out"]), about["memory"])

  def _about(self, round_):
    return self._folder / f"clients-{round_}.json"


def fingerprint(
  server: rounds.Server, params: types.Params, *given: Any
) -> str:
  """Returns a fingerprint of all that must not change on the way.

  The number of rounds may, and what is taken from clients at most. Of an
  optimiser only the form of its state is known: functions have no content.

  Args:
    server: how clients train, and what is estimated.
    params: w_0.
    *given: arrays, and objects with a `repr` that says all.
  """
  fed = server.setup.fed
  optimizer = fed.client_optimizer
  if optimizer is not None:
    made = jax.eval_shape(optimizer.init, params)
    optimizer = str(jax.tree.structure(made))
  about: list[Any] = [
    server.seed, fed.cohort_size, fed.local_steps, fed.learning_rate, optimizer,
    fed.batch_size, server.setup.max_examples,
  ]  # fmt: skip
  for name, e in server.estimators.items():
    about.append((name, e.curvature.key, e.guard))
  is_array = lambda a: hasattr(a, "dtype")
  leaves = jax.tree.leaves(given)
  about += [leaf for leaf in leaves if not is_array(leaf)]
  text = np.frombuffer(repr(about).encode(), np.uint8)
  arrays = [np.asarray(leaf) for leaf in leaves if is_array(leaf)]
  # Labels are 32 or 64 bits wide as JAX is set up; they say the same.
  wide = lambda a: a.astype(np.int64) if a.dtype.kind in "iu" else a
  arrays = [wide(a) for a in arrays]
  return replies.digest((params, text, arrays))
