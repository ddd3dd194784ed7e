"""Bad clients, planted on purpose, to see whether influence finds them.

Each function returns (data, touched): the new data and the ids it changed.
`clients` is a number, drawn from the seed, or the ids themselves.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax import rng
from fedinf_jax.data import federated

Corrupted = tuple[federated.FederatedData, tuple[Any, ...]]


def flip_labels(
  data: federated.FederatedData,
  clients: int | Sequence[Any],
  *,
  fraction: float = 1.0,
  seed: int = 0,
) -> Corrupted:
  """Replaces a fraction of the labels by another class, drawn uniformly.

  Examples:
    >>> spoiled, bad = fi.data.corrupt.flip_labels(data, ["hospital 3"])
    >>> bad, int((spoiled.client(3)[1] == data.client(3)[1]).sum())
    (('hospital 3',), 0)
  """
  federated.check(data)
  if data.num_classes is None or data.num_classes < 2:
    raise ValueError("flip_labels needs data with num_classes of at least 2")
  fraction = checks.number(
    "fraction", fraction, "lie in (0, 1]", lambda f: 0 < f <= 1
  )

  def flip(x, y, draw):
    wrong = (y + draw.integers(1, data.num_classes, len(y))) % data.num_classes
    hit = draw.permutation(len(y)) < np.ceil(fraction * len(y))
    return x, np.where(hit, wrong, y).astype(y.dtype)

  return _replace(data, clients, seed, flip)


def add_noise(
  data: federated.FederatedData,
  clients: int | Sequence[Any],
  *,
  scale: float = 0.5,
  seed: int = 0,
) -> Corrupted:
  """Adds N(0, scale²) to every input, kept within the range of the data.

  Examples:
    >>> noisy, bad = fi.data.corrupt.add_noise(data, 2, scale=0.5, seed=0)
    >>> len(bad), noisy.num_examples.sum()
    (2, np.int64(120))
  """
  scale = checks.positive("scale", scale)
  _require_floats(data)

  def blur(x, y, draw):
    noisy = x + draw.normal(0, scale, x.shape)
    return noisy.clip(data.x.min(), data.x.max()).astype(x.dtype), y

  return _replace(data, clients, seed, blur)


def free_rider(
  data: federated.FederatedData,
  clients: int | Sequence[Any],
  *,
  seed: int = 0,
) -> Corrupted:
  """Makes clients claim n_k examples that they made up.

  Inputs are uniform over the range of the data and labels are those of
  examples drawn from it, so that sizes and label counts look right.

  Examples:
    >>> made_up, bad = fi.data.corrupt.free_rider(data, ["hospital 3"])
    >>> made_up.num_examples[3]  # As many as before.
    np.int64(20)
  """
  _require_floats(data)
  low, high = float(data.x.min()), float(data.x.max())
  if high - low == np.inf:
    raise ValueError(f"x runs from {low} to {high}, too far to draw from")

  def fabricate(x, y, draw):
    made_up = draw.uniform(low, high, x.shape)
    return made_up.astype(x.dtype), draw.choice(data.y, len(y))

  return _replace(data, clients, seed, fabricate)


def duplicate(
  data: federated.FederatedData,
  clients: int | Sequence[Any],
  *,
  seed: int = 0,
) -> Corrupted:
  """Gives clients a copy of the examples of another client, left untouched.

  Examples:
    >>> copied, bad = fi.data.corrupt.duplicate(data, ["hospital 3"])
    >>> bad, copied.num_examples[3]
    (('hospital 3',), np.int64(20))
  """
  touched = _positions(data, clients, seed)
  others = np.setdiff1d(np.arange(data.num_clients), touched)
  if not len(others):
    raise ValueError("duplicate must leave at least one client untouched")
  return _replace(
    data, clients, seed, lambda x, y, draw: data.client(draw.choice(others))
  )


def _replace(data, clients, seed, change):
  """Applies `change(x, y, generator)` to the chosen clients."""
  positions = _positions(data, clients, seed)
  words = rng.id_words(data.ids)
  pairs = data.clients()
  for k in positions:
    draw = rng.host_generator(seed, rng.Stream.CORRUPT, words[k])
    pairs[k] = change(*pairs[k], draw)
  changed = federated.FederatedData.from_clients(
    pairs, data.ids, data.num_classes
  )
  return changed, tuple(data.ids[k] for k in positions)


def _positions(data, clients, seed):
  federated.check(data)
  checks.integer("seed", seed)
  if isinstance(clients, (int, np.integer, float)):
    checks.positive_integer("clients", clients)
    if clients > data.num_clients:
      raise ValueError(
        f"clients is {clients}; it must be between 1 and {data.num_clients}"
      )
    draw = rng.host_generator(seed, rng.Stream.CORRUPT)
    return np.sort(draw.choice(data.num_clients, clients, replace=False))
  return np.array(data.positions(clients))


def _require_floats(data):
  federated.check(data)
  if not np.issubdtype(data.x.dtype, np.floating):
    raise ValueError(f"x is {data.x.dtype}; noise needs floating inputs")
