"""Which rows a round computes on: static shapes without padding to the max.

A compiled program needs static shapes, and clients are ragged. Each client is
read from the flat data as a slice of its *size class*, the smallest of a few
sizes that holds it. A round is a sequence of *waves* of clients (vmapped) of
one class. The class of a wave is data, chosen by a `lax.switch`, so the whole
run is one program whatever the cohorts are.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import rng
from fedinf_jax.data import federated

MAX_CLASSES = 8  # Each class is compiled once; compile time bounds them.
MIN_ROWS = 16  # Fewer rows than this cost no less time.
MAX_CANDIDATES = 512  # Distinct sizes considered as class boundaries.
GOOD_PADDING = 0.2  # Stop adding classes, or widening waves, at this share.


class Examples(NamedTuple):
  """A slice of the flat data that holds one client's examples."""

  x: jax.Array  # [L, ...]
  y: jax.Array  # [L, ...]
  first: jax.Array  # [] where the client's own rows begin within the slice
  count: jax.Array  # [] how many they are, n_k


class Clients(NamedTuple):
  """The clients on the device. Position K is nobody: it has no examples."""

  x: jax.Array  # [N, ...]
  y: jax.Array  # [N, ...]
  offset: jax.Array  # int32 [K + 1]
  count: jax.Array  # int32 [K + 1]
  words: jax.Array  # uint32 [K + 1, 2], hashed ids


class Schedule(NamedTuple):
  """Who trains when, arranged in waves. Lives on the host."""

  sizes: tuple[int, ...]  # rows of each size class, ascending
  clients: np.ndarray  # int32 [T, W, G]; K stands for an empty lane
  size_class: np.ndarray  # int32 [T, W]
  padding: float  # share of the rows computed on that are nobody's


def clients(data: federated.FederatedData) -> Clients:
  """Puts `data` on the device."""
  return jax.tree.map(jnp.asarray, on_host(data))


def on_host(data: federated.FederatedData) -> Clients:
  """Returns `data` as it will lie on the device, in NumPy arrays."""
  return Clients(
    data.x,
    data.y,
    np.append(data.offsets[:-1], 0).astype(np.int32),
    np.append(data.num_examples, 0).astype(np.int32),
    rng.id_words([*data.ids, "nobody"]),
  )


def excerpt(packed: Clients, some: np.ndarray, rows: int):
  """Returns x, y and offset of some clients only.

  Args:
    packed: all clients, on the host.
    some: which.
    rows: examples to return; what is left over repeats the first.
  """
  index = [
    np.arange(packed.offset[k], packed.offset[k] + packed.count[k])
    for k in some
  ]
  index = np.resize(np.concatenate([*index, [0]]).astype(int), rows)
  offset = np.zeros_like(packed.offset)
  offset[some] = np.cumsum(packed.count[some]) - packed.count[some]
  return packed.x[index], packed.y[index], offset


def take(packed: Clients, client: jax.Array, size: int) -> Examples:
  """Reads the rows of one client as a slice of `size` rows.

  Rows that are not the client's belong to its neighbours. They are real
  examples, so no model meets an input that its user did not supply; their
  weight is zero.
  """
  start = jnp.minimum(packed.offset[client], packed.x.shape[0] - size)
  read = lambda a: lax.dynamic_slice_in_dim(a, start, size)
  return Examples(
    read(packed.x),
    read(packed.y),
    packed.offset[client] - start,
    packed.count[client],
  )


def size_classes(sizes: np.ndarray, num_classes: int) -> np.ndarray:
  """Chooses the class sizes that leave the fewest padded rows, exactly.

  Dynamic programming over the distinct sizes v_1 < … < v_J: the best q classes
  for the first j sizes end in a class (i, j], which pads its clients to v_j.

  Args:
    sizes: [K] client sizes.
    num_classes: how many classes there may be.

  Returns:
    Ascending class sizes, the last one max(sizes).
  """
  value, count = np.unique(sizes, return_counts=True)
  if len(value) > MAX_CANDIDATES:
    kept = np.linspace(0, len(value) - 1, MAX_CANDIDATES).round().astype(int)
    owner = np.searchsorted(kept, np.arange(len(value)))
    value, count = value[kept], np.bincount(owner, count)
  clients_up_to = np.concatenate([[0], np.cumsum(count)])  # [J + 1]
  j = np.arange(len(value) + 1)
  # rows[i, j]: rows computed on if sizes i + 1 … j form one class.
  rows = (clients_up_to - clients_up_to[:, None]) * np.append(0, value)
  rows = np.where(j[:, None] < j, rows, np.inf)
  best, previous = np.where(j == 0, 0, np.inf), []
  for _ in range(min(num_classes, len(value))):
    total = best[:, None] + rows
    previous.append(total.argmin(0))
    best = total.min(0)
  ends, end = [], len(value)
  for back in reversed(previous):
    ends.append(value[end - 1])
    end = back[end]
  return np.array(ends[::-1])


def schedule(
  cohorts: np.ndarray,
  num_examples: np.ndarray,
  batch_size: int | None,
  max_lanes: int | None = None,
) -> Schedule:
  """Arranges the cohorts in waves.

  Takes the fewest size classes that keep padding low, then the widest waves.

  Args:
    cohorts: int [T, B].
    num_examples: [K], the n_k.
    batch_size: a step computes on at most this many rows a client.
    max_lanes: the widest wave allowed; None: the cohort.
  """
  num_clients, cohort_size = len(num_examples), cohorts.shape[1]
  sizes = np.append(num_examples, 0)
  # Largest first, so that neighbours in a wave are of similar size.
  order = np.argsort(-sizes[cohorts], axis=1, kind="stable")
  ordered = np.take_along_axis(cohorts, order, axis=1)

  def arrange(classes, lanes):
    empty = -cohort_size % lanes
    waves = np.pad(ordered, ((0, 0), (0, empty)), constant_values=num_clients)
    waves = waves.reshape(len(cohorts), -1, lanes)
    size_class = np.searchsorted(classes, sizes[waves[:, :, 0]])
    limit = batch_size or classes[-1]
    computed = np.minimum(classes[size_class], limit).sum() * lanes
    needed = np.minimum(sizes[ordered], limit).sum()
    return Schedule(
      tuple(int(c) for c in classes),
      waves.astype(np.int32),
      size_class.astype(np.int32),
      float(1 - needed / computed),
    )

  # No class is larger than the data: `take` reads a slice of it.
  candidates = num_examples.clip(min(MIN_ROWS, num_examples.sum()))
  for num_classes in range(1, MAX_CLASSES + 1):
    classes = size_classes(candidates, num_classes)
    narrow = arrange(classes, lanes=1)
    if narrow.padding <= GOOD_PADDING or len(classes) < num_classes:
      break
  for lanes in range(min(max_lanes or cohort_size, cohort_size), 1, -1):
    wide = arrange(classes, lanes)
    if wide.padding <= GOOD_PADDING:
      return wide
  return narrow
