"""FederatedData: ragged clients, validated once, stored back to back."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
from typing import Any

import jax
import numpy as np

from fedinf_jax import rng


@dataclasses.dataclass(frozen=True, eq=False)
class FederatedData:
  """K clients' examples in one flat block: no client is padded to another.

  Build it with `from_clients`, which validates; treat it as read-only.

  Attributes:
    x: [N, ...] inputs, client after client.
    y: [N, ...] labels (integers) or targets (floats).
    num_examples: int64 [K], the n_k.
    ids: K distinct ids. A client's random draws follow its id, so clients
      with ids can be dropped or reordered without touching the others.
    num_classes: labels lie in [0, num_classes); None where not declared.
  """

  x: np.ndarray
  y: np.ndarray
  num_examples: np.ndarray
  ids: tuple[Any, ...]
  num_classes: int | None = None

  @classmethod
  def from_clients(
    cls,
    clients: Sequence[tuple[Any, Any]] | Mapping[Any, tuple[Any, Any]],
    ids: Sequence[Any] | None = None,
    num_classes: int | None = None,
  ) -> "FederatedData":
    """Validates and packs clients.

    Floating inputs become JAX's default float: float32, or float64 where they
    are float64 and JAX's x64 flag is on.

    Args:
      clients: K pairs (x [n_k, ...], y [n_k, ...]), n_k >= 1; or a dictionary
        {id: pair}.
      ids: K distinct strings or integers; None: positions 0 … K-1, or the keys
        of the dictionary.
      num_classes: if given, y must hold integers in [0, num_classes).

    Raises:
      ValueError: naming the client and the field that is wrong.
    """
    if isinstance(clients, Mapping):
      if ids is not None:
        raise ValueError("ids: a dictionary of clients has its ids as keys")
      ids, clients = list(clients), clients.values()
    clients = list(clients)
    ids = _checked_ids(ids, len(clients))
    pairs = [_arrays(i, client) for i, client in zip(ids, clients, strict=True)]
    for field, j in (("x", 0), ("y", 1)):
      _check_alike(field, ids, [pair[j] for pair in pairs])
    data = cls(
      np.concatenate([x for x, _ in pairs]),
      np.concatenate([y for _, y in pairs]),
      np.array([len(x) for x, _ in pairs], np.int64),
      ids,
      num_classes,
    )
    data._check_values()
    return data

  @property
  def num_clients(self) -> int:
    """K."""
    return len(self.ids)

  @property
  def offsets(self) -> np.ndarray:
    """int64 [K + 1]: client k's rows are offsets[k] … offsets[k + 1] - 1."""
    return np.concatenate([[0], np.cumsum(self.num_examples)])

  def client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns client k's (x, y), by position."""
    if not 0 <= k < self.num_clients:
      raise ValueError(
        f"client {k}: positions run from 0 to {self.num_clients - 1}"
      )
    rows = slice(*self.offsets[k : k + 2])
    return self.x[rows], self.y[rows]

  def clients(self) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns every client's (x, y)."""
    ends = self.offsets[1:-1]
    return list(
      zip(np.split(self.x, ends), np.split(self.y, ends), strict=True)
    )

  def pooled(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns all examples as one (x, y)."""
    return self.x, self.y

  def take(self, positions: Sequence[int]) -> "FederatedData":
    """Returns the clients at `positions`, in that order, with their ids."""
    clients = self.clients()
    return FederatedData.from_clients(
      [clients[k] for k in positions],
      [self.ids[k] for k in positions],
      self.num_classes,
    )

  def positions(self, ids: Sequence[Any]) -> list[int]:
    """Returns where the clients with these ids stand."""
    where = {str(i): k for k, i in enumerate(self.ids)}
    for i in ids:
      if str(i) not in where:
        raise ValueError(f"no client has the id {i!r}")
    return [where[str(i)] for i in ids]

  def without(self, ids: Sequence[Any]) -> "FederatedData":
    """Returns the data with the named clients left out."""
    gone = set(self.positions(ids))
    return self.take([k for k in range(self.num_clients) if k not in gone])

  def split(
    self, train_fraction: float, seed: int
  ) -> tuple["FederatedData", "FederatedData"]:
    """Splits every client's examples at random, by a draw of its own.

    As LEAF does: max(1, int(train_fraction * n_k)) examples go to the first
    part. A client with none left over is absent from the second.
    """
    if not 0 < train_fraction < 1:
      raise ValueError(
        f"train_fraction is {train_fraction}; it must lie between 0 and 1"
      )
    train, test, tested = [], [], []
    words = rng.id_words(self.ids)
    for k, (x, y) in enumerate(self.clients()):
      draw = rng.host_generator(seed, rng.Stream.SPLIT, words[k])
      order = draw.permutation(len(x))
      cut = max(1, int(train_fraction * len(x)))
      train.append((x[order[:cut]], y[order[:cut]]))
      if cut < len(x):
        test.append((x[order[cut:]], y[order[cut:]]))
        tested.append(self.ids[k])
    if not test:
      raise ValueError(
        f"train_fraction {train_fraction} leaves no client a test example"
      )
    make = FederatedData.from_clients
    return (
      make(train, self.ids, self.num_classes),
      make(test, tested, self.num_classes),
    )

  def _check_values(self):
    """Checks values on the packed block, then names the client of a bad row."""
    for field, values in (("x", self.x), ("y", self.y)):
      if np.issubdtype(values.dtype, np.floating):
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        self._require(finite, f"{field} has a value that is not finite")
    if self.num_classes is None:
      return
    if not np.issubdtype(self.y.dtype, np.integer) or self.y.ndim != 1:
      raise ValueError(
        f"num_classes={self.num_classes} asks for one integer label per"
        f" example; client {self.ids[0]!r}: y is {self.y.dtype} of shape [n"
        f"{''.join(f', {d}' for d in self.y.shape[1:])}]"
      )
    self._require(
      (self.y >= 0) & (self.y < self.num_classes),
      f"y has a label outside 0 … {self.num_classes - 1}",
    )

  def _require(self, row_is_good, problem):
    if not row_is_good.all():
      row = int(np.argmin(row_is_good))
      k = int(np.searchsorted(self.offsets, row, side="right")) - 1
      example = row - int(self.offsets[k])
      raise ValueError(f"client {self.ids[k]!r}: {problem} (example {example})")


def _checked_ids(ids, num_clients):
  if num_clients == 0:
    raise ValueError("clients is empty; at least one client is needed")
  if ids is None:
    return tuple(range(num_clients))
  ids = tuple(ids)
  if len(ids) != num_clients:
    raise ValueError(f"ids has {len(ids)} entries for {num_clients} clients")
  seen = set()
  for i in ids:
    if isinstance(i, bool) or not isinstance(i, (str, int, np.integer)):
      raise ValueError(f"ids: {i!r} is neither a string nor an integer")
    if str(i) in seen:
      raise ValueError(f"ids: {str(i)!r} occurs twice; ids must be distinct")
    seen.add(str(i))
  return ids


def _arrays(client_id, client):
  """Returns one client's (x, y) as arrays of a dtype JAX will keep."""
  where = f"client {client_id!r}"
  if not isinstance(client, (tuple, list)) or len(client) != 2:
    raise ValueError(f"{where}: expected a pair (x, y)")
  arrays = []
  for field, value in zip("xy", client, strict=True):
    try:
      array = np.asarray(value)
    except ValueError:  # NumPy's word for rows of different lengths.
      array = np.empty((), object)
    if array.dtype.kind not in "iufb":
      raise ValueError(
        f"{where}: {field} is not a rectangular array of real numbers"
      )
    if array.ndim == 0:
      raise ValueError(
        f"{where}: {field} is a scalar; its first axis is examples"
      )
    wide = array.dtype
    with np.errstate(over="ignore"):  # An overflow is reported as not finite.
      array = array.astype(jax.dtypes.canonicalize_dtype(wide))
    if wide.kind in "iu" and array.dtype != wide and not (array == value).all():
      raise ValueError(f"{where}: {field} has an integer beyond {array.dtype}")
    arrays.append(array)
  x, y = arrays
  if len(x) != len(y):
    raise ValueError(f"{where}: x has {len(x)} examples but y has {len(y)}")
  if not len(x):
    raise ValueError(f"{where}: has no examples; leave it out")
  return x, y


def _check_alike(field, ids, arrays):
  """Every client must have the first one's example shape and kind."""
  first = arrays[0]
  for i, array in zip(ids, arrays, strict=True):
    if array.shape[1:] != first.shape[1:]:
      raise ValueError(
        f"client {i!r}: {field} has examples of shape {list(array.shape[1:])},"
        f" client {ids[0]!r} of shape {list(first.shape[1:])}"
      )
    if array.dtype != first.dtype:
      raise ValueError(
        f"client {i!r}: {field} is {array.dtype},"
        f" client {ids[0]!r}'s is {first.dtype}"
      )
