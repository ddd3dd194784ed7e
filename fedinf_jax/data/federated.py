"""FederatedData: ragged clients, validated once, stored back to back."""

from collections.abc import Mapping
from collections.abc import Sequence
import dataclasses
import os
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import rng
from fedinf_jax.data import packing


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

  Examples:
    >>> data.num_clients, data.ids[0], data.num_examples[0]
    (6, 'hospital 0', np.int64(20))
    >>> x_0, y_0 = data.client(0)
    >>> len(data.clients()), data.pooled()[0].shape, data.offsets[-1]
    (6, (120, 4), np.int64(120))
    >>> train, held_out = data.split(0.8, seed=0)
    >>> held_out.owners[:5]  # Whose each row is, as a position of clients.
    array([0, 0, 0, 0, 1])
    >>> some, others = data.hold_out(0.3, seed=0)  # Whole clients.
    >>> others.num_clients, data.without(["hospital 0"]).num_clients
    (2, 5)
    >>> data.positions(["hospital 2"]), data.take([4, 2]).ids
    ([2], ('hospital 4', 'hospital 2'))
    >>> data.with_examples(np.arange(30)).num_examples
    array([20, 10])
    >>> data.require_labels(3, "this example asks")
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
    are float64 and JAX's x64 flag is on. Boolean labels become 0 and 1.

    Args:
      clients: K pairs (x [n_k, ...], y [n_k, ...]), n_k >= 1; or a dictionary
        {id: pair}.
      ids: K distinct strings or integers; None: positions 0 … K-1, or the keys
        of the dictionary.
      num_classes: if given, y must hold integers in [0, num_classes).

    Raises:
      ValueError: naming the client and the field that is wrong.

    Examples:
      >>> pairs = [(x[0], y[0]), (x[1], y[1])]
      >>> fi.FederatedData.from_clients(pairs, ids=["a", "b"]).ids
      ('a', 'b')
      >>> by_id = {"a": pairs[0], "b": pairs[1]}
      >>> fi.FederatedData.from_clients(by_id).num_examples
      array([20, 20])
    """
    if isinstance(clients, Mapping):
      if ids is not None:
        raise ValueError("ids: a dictionary of clients has its ids as keys")
      ids, clients = list(clients), list(clients.values())
    clients = packing.listed("clients", clients)
    ids = packing.ids(ids, len(clients))
    pairs = list(map(packing.pair, ids, clients))
    for field, arrays in zip("xy", zip(*pairs, strict=True), strict=True):
      packing.alike(field, ids, arrays)
      memory.require(f"clients: {field}", sum(a.nbytes for a in arrays))
    return cls(
      np.concatenate([x for x, _ in pairs]),
      np.concatenate([y for _, y in pairs]),
      np.array([len(x) for x, _ in pairs], np.int64),
      ids,
      num_classes,
    )

  @classmethod
  def from_csv(cls, path: str | os.PathLike, **options) -> "FederatedData":
    r"""Reads a CSV or Parquet file, or a folder of one per client.

    `fi.data.read`, which also says what was found and encodes other files.

    Args:
      path: of the file or folder.
      **options: `client` and `label`, names of columns, and `task`.

    Examples:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "hospitals.csv")
      >>> _ = path.write_text("hospital,age,ill\na,34,no\nb,51,yes\n")
      >>> fi.FederatedData.from_csv(path).ids
      ('a', 'b')
    """
    return _read(path, options)

  @classmethod
  def from_npz(cls, path: str | os.PathLike, **options) -> "FederatedData":
    """Reads an .npz with the arrays x [N, ...], y [N] and client [N].

    Args:
      path: of the file.
      **options: `client` and `label`, other names of the arrays, and `task`.

    Examples:
      >>> import pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp(), "hospitals.npz")
      >>> np.savez(path, x=test[0], y=test[1], client=np.arange(40) % 4)
      >>> fi.FederatedData.from_npz(path).num_examples
      array([10, 10, 10, 10])
    """
    return _read(path, options)

  @classmethod
  def from_dataframe(cls, frame: Any, **options) -> "FederatedData":
    """Takes a table with a row per example, encoded as `fi.data.read` does.

    Args:
      frame: anything with columns: of pandas, Polars or Arrow, or a dictionary.
      **options: `client` and `label`, names of columns, and `task`.

    Examples:
      >>> table = {"site": ["a", "b"] * 2, "age": [34, 51, 42, 67]}
      >>> table["ill"] = ["no", "yes", "no", "yes"]
      >>> fi.FederatedData.from_dataframe(table).num_classes
      2
    """
    return _read(frame, options)

  @classmethod
  def from_dict(
    cls,
    clients: Mapping[Any, tuple[Any, Any]],
    num_classes: int | None = None,
  ) -> "FederatedData":
    """Takes {id: (x [n_k, ...], y [n_k, ...])}; see `from_clients`.

    Examples:
      >>> fi.FederatedData.from_dict(clients).ids[0]
      'hospital 0'
    """
    if not isinstance(clients, Mapping):
      raise ValueError(
        f"clients is a {type(clients).__name__}; it must be a dictionary"
        " {id: (x, y)}"
      )
    return cls.from_clients(clients, num_classes=num_classes)

  @classmethod
  def from_arrays(
    cls, x: Any, y: Any, client: Sequence[Any], num_classes: int | None = None
  ) -> "FederatedData":
    """Takes examples and the client of each, as they are.

    Args:
      x: [N, ...].
      y: [N, ...].
      client: N ids; clients come in order of first appearance.
      num_classes: as in `from_clients`.

    Examples:
      >>> owners = np.repeat(["north", "south"], 20)
      >>> fi.FederatedData.from_arrays(*test, owners).ids
      ('north', 'south')
    """
    # Here because it imports this file.
    from fedinf_jax.data import partition

    if isinstance(client, np.ndarray):
      memory.require("client", 8 * client.size)
      client = client.tolist()  # Python's own text and integers.
    return partition.by_writer(x, y, writers=client, num_classes=num_classes)

  def __post_init__(self):
    self._check_layout()
    for field, values in (("x", self.x), ("y", self.y)):
      if np.issubdtype(values.dtype, np.floating):
        finite = np.isfinite(values).reshape(len(values), -1).all(1)
        self._require(finite, f"{field} has a value that is not finite")
    if self.num_classes is not None:
      checks.positive_integer("num_classes", self.num_classes)
      self.require_labels(
        self.num_classes, f"num_classes={self.num_classes} asks"
      )

  @property
  def num_clients(self) -> int:
    """K."""
    return len(self.ids)

  @property
  def offsets(self) -> np.ndarray:
    """int64 [K + 1]: client k's rows are offsets[k] … offsets[k + 1] - 1."""
    return np.concatenate([[0], np.cumsum(self.num_examples)])

  @property
  def owners(self) -> np.ndarray:
    """int64 [N]: whose each example is, as a position of clients."""
    return np.repeat(np.arange(self.num_clients), self.num_examples)

  def client(self, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns client k's (x, y), by position."""
    (k,) = self._checked([k])
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

  def take(self, positions: Sequence[int] | np.ndarray) -> "FederatedData":
    """Returns the clients at `positions`, in that order, with their ids."""
    clients = self.clients()
    positions = self._checked(packing.listed("positions", positions))
    return FederatedData.from_clients(
      [clients[k] for k in positions],
      [self.ids[k] for k in positions],
      self.num_classes,
    )

  def with_examples(self, rows: np.ndarray) -> "FederatedData":
    """Returns these rows of x and y; clients with none of them are left out.

    Args:
      rows: int [M], in any order; they stay in the order of clients.
    """
    rows = np.sort(np.asarray(rows))
    counts = np.bincount(self.owners[rows], minlength=self.num_clients)
    kept = np.flatnonzero(counts)
    return FederatedData(
      self.x[rows],
      self.y[rows],
      counts[kept],
      tuple(self.ids[k] for k in kept),
      self.num_classes,
    )

  def positions(self, ids: Sequence[Any]) -> list[int]:
    """Returns where the clients with these ids stand."""
    ids = packing.listed("ids", ids)
    where = {str(i): k for k, i in enumerate(self.ids)}
    for i in ids:
      if str(i) not in where:
        raise ValueError(f"no client has the id {i!r}")
    return [where[str(i)] for i in ids]

  def without(self, ids: Sequence[Any]) -> "FederatedData":
    """Returns the data with the named clients left out."""
    gone = set(self.positions(ids))
    return self.take([k for k in range(self.num_clients) if k not in gone])

  def hold_out(
    self, fraction: float, seed: int
  ) -> tuple["FederatedData", "FederatedData"]:
    """Holds out whole clients, drawn at random: (train, held_out).

    Every client draws a number from its own id and the seed, and the smallest
    are held out. So the order of clients does not matter, and where one joins
    or leaves, at most one other changes sides.

    Args:
      fraction: of the clients to hold out, rounded; at least one client stays
        on either side.
      seed: of the draw.
    """
    seed = checks.integer("seed", seed)
    fraction = checks.number(
      "fraction", fraction, "lie between 0 and 1", lambda f: 0 < f < 1
    )
    count = self.num_clients
    if count < 2:
      raise ValueError("hold_out needs at least two clients; there is one")
    draw = lambda words: rng.host_generator(seed, rng.Stream.HOLD_OUT, words)
    order = np.argsort(
      [draw(words).random() for words in rng.id_words(self.ids)]
    )
    out = order[: min(count - 1, max(1, round(fraction * count)))]
    return (
      self.take(np.setdiff1d(np.arange(count), out)),
      self.take(np.sort(out)),
    )

  def split(
    self, train_fraction: float, seed: int
  ) -> tuple["FederatedData", "FederatedData"]:
    """Splits every client's examples at random, by a draw of its own.

    As LEAF does: max(1, int(train_fraction * n_k)) examples go to the first
    part. A client with none left over is absent from the second.
    """
    checks.integer("seed", seed)
    train_fraction = checks.number(
      "train_fraction",
      train_fraction,
      "lie between 0 and 1",
      lambda fraction: 0 < fraction < 1,
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

  def require_labels(self, num_classes: int, why: str):
    """Requires one integer label in [0, num_classes) per example.

    Args:
      num_classes: C.
      why: who asks for them, to begin a message with.
    """
    if not np.issubdtype(self.y.dtype, np.integer) or self.y.ndim != 1:
      raise ValueError(
        f"{why} for one integer label per example;"
        f" client {self.ids[0]!r}: y is {self.y.dtype} of shape [n"
        f"{''.join(f', {d}' for d in self.y.shape[1:])}]"
      )
    known = (self.y >= 0) & (self.y < num_classes)
    self._require(known, f"y has a label outside 0 … {num_classes - 1}")

  def _check_layout(self):
    """Checks what `from_clients` gets right, for those who go without it."""
    for field, values in (("x", self.x), ("y", self.y)):
      kept = packing.examples(field, values)
      kept = packing.labels(kept) if field == "y" else kept
      if kept is not values:
        kind = getattr(values, "dtype", type(values).__name__)
        raise ValueError(f"{field} is {kind}; use from_clients, which casts it")
    counts = checks.array("num_examples", self.num_examples)
    packing.ids(self.ids, len(counts) if counts.ndim else 0)
    if (
      not np.issubdtype(counts.dtype, np.integer)
      or counts.min() < 1
      or not counts.sum() == len(self.x) == len(self.y)
    ):
      raise ValueError("num_examples does not divide x and y into clients")

  def _require(self, row_is_good, problem):
    """Names the client and the example of the first bad row."""
    if not row_is_good.all():
      row = int(np.argmin(row_is_good))
      k = int(np.searchsorted(self.offsets, row, side="right")) - 1
      example = row - int(self.offsets[k])
      raise ValueError(f"client {self.ids[k]!r}: {problem} (example {example})")

  def _checked(self, positions):
    """Returns positions of clients; NumPy would count negative ones back."""
    for k in positions:
      if checks.integer("client", k) >= self.num_clients:
        raise ValueError(
          f"client {k}: positions run from 0 to {self.num_clients - 1}"
        )
    return positions


def _read(source, options):
  # Here because it imports this file.
  from fedinf_jax.data import reading

  return reading.read(source, **options).data


def check(data: Any) -> FederatedData:
  """Returns the clients, or says what was handed in instead."""
  if not isinstance(data, FederatedData):
    raise ValueError(
      f"data is a {type(data).__name__}; it must be a FederatedData, made by"
      " fi.FederatedData.from_clients or by fi.data"
    )
  return data
