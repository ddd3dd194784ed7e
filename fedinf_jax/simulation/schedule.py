"""Who trains when: static shapes without padding everyone to the largest.

A compiled program needs static shapes, and clients are ragged. Each client is
read from the flat data as a slice of its *size class*, the smallest of a few
sizes that holds it. A round is a sequence of *waves* of clients (vmapped) of
one class. The class of a wave is data, chosen by a `lax.switch`, so the whole
run is one program whatever the cohorts are.
"""

from typing import NamedTuple

import numpy as np

MAX_CLASSES = 8  # Each class is compiled once; compile time bounds them.
MIN_EXAMPLES = 16  # Fewer cost no less time.
MAX_CANDIDATES = 512  # Distinct sizes considered as class boundaries.
GOOD_PADDING = 0.2  # Stop adding classes, or widening waves, at this share.


class Schedule(NamedTuple):
  """Who trains when, arranged in waves. Lives on the host."""

  sizes: tuple[int, ...]  # examples of each size class, ascending
  clients: np.ndarray  # int32 [T, W, G]; K stands for an empty lane
  size_class: np.ndarray  # int32 [T, W]
  padding: float  # share of the examples computed on that are padding


def size_classes(sizes: np.ndarray, num_classes: int) -> np.ndarray:
  """Chooses the class sizes that leave the least padding, exactly.

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
  # cost[i, j]: examples computed on if sizes i + 1 … j form one class.
  cost = (clients_up_to - clients_up_to[:, None]) * np.append(0, value)
  cost = np.where(j[:, None] < j, cost, np.inf)
  best, previous = np.where(j == 0, 0, np.inf), []
  for _ in range(min(num_classes, len(value))):
    total = best[:, None] + cost
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
    batch_size: the most examples per client and step; None: all.
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
      sizes=tuple(int(c) for c in classes),
      clients=waves.astype(np.int32),
      size_class=size_class.astype(np.int32),
      padding=float(1 - needed / computed),
    )

  # No class is larger than the data, of which a client is a slice.
  candidates = num_examples.clip(min(MIN_EXAMPLES, num_examples.sum()))
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
