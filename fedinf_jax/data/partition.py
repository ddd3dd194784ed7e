"""Ways to deal one data set out: every example goes to exactly one client."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax import rng
from fedinf_jax.data import federated
from fedinf_jax.data import packing


def iid(
  x, y, *, num_clients: int, seed: int = 0, num_classes: int | None = None
) -> federated.FederatedData:
  """Deals examples out at random, evenly: sizes differ by at most one.

  Examples:
    >>> fi.data.partition.iid(*test, num_clients=6).num_examples
    array([7, 7, 7, 7, 6, 6])
  """
  x, y = _arrays(x, y, num_clients)
  checks.integer("seed", seed)
  draw = rng.host_generator(seed, rng.Stream.PARTITION, num_clients)
  parts = np.array_split(draw.permutation(len(x)), num_clients)
  return _deal(x, y, parts, None, num_classes)


def dirichlet(
  x,
  y,
  *,
  num_clients: int,
  alpha: float,
  seed: int = 0,
  num_classes: int | None = None,
) -> federated.FederatedData:
  """Deals each class out in proportions of its own, drawn from Dirichlet(α).

  Small α gives each client few classes, large α approaches IID. A client left
  with nothing gets one example from the largest.

  Args:
    x: [N, ...].
    y: int [N].
    num_clients: K.
    alpha: concentration, > 0.
    seed: of the draw.
    num_classes: passed on.

  Examples:
    >>> skewed = fi.data.partition.dirichlet(*test, num_clients=4, alpha=0.3)
    >>> skewed.num_clients, skewed.num_examples.sum()
    (4, np.int64(40))
  """
  x, y = _arrays(x, y, num_clients)
  checks.integer("seed", seed)
  alpha = checks.positive("alpha", alpha)
  if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
    raise ValueError("y must hold one integer label per example")
  draw = rng.host_generator(seed, rng.Stream.PARTITION, num_clients)
  parts: list[list[int]] = [[] for _ in range(num_clients)]
  for label in np.unique(y):
    rows = draw.permutation(np.flatnonzero(y == label))
    share = draw.dirichlet(np.full(num_clients, alpha))
    # A tiny alpha can underflow to shares that do not sum to one.
    cuts = np.nan_to_num(np.cumsum(share))[:-1] * len(rows)
    pieces = np.split(rows, np.minimum(cuts.round().astype(int), len(rows)))
    for part, piece in zip(parts, pieces, strict=True):
      part.extend(piece)
  for part in parts:
    if not part:
      part.append(max(parts, key=len).pop())
  return _deal(x, y, parts, None, num_classes)


def by_writer(
  x, y, *, writers: Sequence[Any], num_classes: int | None = None
) -> federated.FederatedData:
  """Gives each writer's examples to a client of its own, named after it.

  Args:
    x: [N, ...].
    y: [N, ...].
    writers: N ids, one per example; clients come in order of first appearance.
    num_classes: passed on.

  Examples:
    >>> writers = ["ann", "bob"] * 20
    >>> fi.data.partition.by_writer(*test, writers=writers).ids
    ('ann', 'bob')
  """
  x, y = _arrays(x, y, 1)
  writers = packing.listed("writers", writers)
  if len(writers) != len(x):
    raise ValueError(
      f"writers has {len(writers)} entries for {len(x)} examples"
    )
  rows: dict[Any, list[int]] = {}
  for row, writer in enumerate(writers):
    rows.setdefault(checks.identifier("writers", writer), []).append(row)
  return _deal(x, y, list(rows.values()), list(rows), num_classes)


def _arrays(x, y, num_clients):
  x, y = checks.array("x", x), checks.array("y", y)
  if x.ndim == 0 or y.ndim == 0 or len(x) != len(y):
    raise ValueError(
      f"x of shape {list(x.shape)} and y of shape {list(y.shape)} do not hold"
      " the same examples"
    )
  if checks.positive_integer("num_clients", num_clients) > len(x):
    raise ValueError(
      f"num_clients is {num_clients}; there are only {len(x)} examples"
    )
  return x, y


def _deal(x, y, parts, ids, num_classes):
  return federated.FederatedData.from_clients(
    [(x[part], y[part]) for part in parts], ids, num_classes
  )
