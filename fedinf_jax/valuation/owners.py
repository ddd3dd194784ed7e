"""Whose the test examples are: influence on a client's own rows and others'.

Examples of one owner are alike. What differs between owners, not between their
examples, says how another test set would have judged; `intervals` resamples
owners for that reason.
"""

from collections.abc import Callable
from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.data import packing


class Owners(NamedTuple):
  """N examples in G groups, one per owner; an example of nobody is its own."""

  group: np.ndarray  # int [N], in which group each example is
  counts: np.ndarray  # int [G], examples of each group
  client: np.ndarray  # int [G], position of the client it belongs to; -1: none


def nobody(num_examples: int) -> Owners:
  """Returns the owners of examples that belong to nobody."""
  alone = np.arange(num_examples)
  return Owners(alone, np.ones_like(alone), np.full_like(alone, -1))


def take(owners: Owners, rows: np.ndarray) -> Owners:
  """Returns the owners of some of the examples.

  Args:
    owners: of all examples.
    rows: int, which of them.
  """
  kept, group = np.unique(owners.group[rows], return_inverse=True)
  return Owners(group, np.bincount(group), owners.client[kept])


def read(owners: Any, num_examples: int, ids: Sequence[Any]) -> Owners:
  """Reads who owns the test examples.

  Args:
    owners: ids of clients, [N], None among them for an example of nobody; or a
      FederatedData that holds the examples, whose clients need not be those
      that train; or None: nobody owns any.
    num_examples: N.
    ids: of the clients that train.

  Raises:
    ValueError: if there are not N, or one is no client.
  """
  if owners is None:
    return nobody(num_examples)
  where = {str(i): k for k, i in enumerate(ids)}
  if isinstance(owners, federated.FederatedData):
    _require_number(len(owners.x), num_examples)
    client = [where.get(str(i), -1) for i in owners.ids]
    return Owners(owners.owners, owners.num_examples, np.array(client))
  owners = packing.listed("owners", owners)
  _require_number(len(owners), num_examples)
  groups: dict[int | str, int] = {}  # A row that is nobody's: its own group.
  client, group = [], []
  for row, owner in enumerate(owners):
    if owner is not None and str(owner) not in where:
      raise ValueError(
        f"owners: {owner!r} (example {row}) is no client of this run; None"
        " stands for nobody, and a FederatedData may hold others' examples"
      )
    key = row if owner is None else str(owner)
    if key not in groups:
      groups[key] = len(groups)
      client.append(-1 if owner is None else where[str(owner)])
    group.append(groups[key])
  return Owners(np.array(group), np.bincount(group), np.array(client))


def _require_number(found, num_examples):
  if found != num_examples:
    raise ValueError(
      f"owners has {found} entries; there are {num_examples} test examples"
    )


def per_group(model: types.Model, owners: Owners) -> Callable:
  """Returns the metric [2, G]: loss and accuracy of each group's examples.

  The accuracy is NaN where there are no labels.
  """
  group = np.asarray(owners.group, np.int32)
  return _per_group(model, group.tobytes(), len(owners.counts))


@functools.lru_cache(maxsize=8)  # The same function compiles only once.
def _per_group(model, group, num_groups):
  group = np.frombuffer(group, np.int32)
  counts = np.bincount(group, minlength=num_groups)

  def metric(outputs, y):
    losses = model.loss(outputs, y)
    hits = jnp.full_like(losses, jnp.nan)
    labels = jnp.issubdtype(y.dtype, jnp.integer) and y.ndim == 1
    if labels and outputs.shape[:-1] == y.shape:
      hits = (outputs.argmax(-1) == y).astype(losses.dtype)
    both = jnp.stack([losses, hits])
    if num_groups == len(group):
      return both[:, np.argsort(group)]
    sums = jax.ops.segment_sum(both.T, group, num_segments=num_groups)
    return sums.T / counts.astype(losses.dtype)[None]

  return metric


def mean(change: np.ndarray, owners: Owners) -> np.ndarray:
  """Returns the mean over all examples, [R], of a mean per group, [R, G]."""
  return change @ (owners.counts / owners.counts.sum())


def own_and_others(
  change: np.ndarray, owners: Owners, removed: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the mean change on own rows and on everybody else's, each [R].

  NaN where there are no such rows.

  Args:
    change: [R, G], mean change of each group.
    owners: whose the examples are.
    removed: bool [R, K], who is taken out; None: one client after another.
  """
  if removed is None:
    is_own = owners.client == np.arange(len(change))[:, None]
  else:
    is_own = removed[:, owners.client] & (owners.client >= 0)
  own = _weighted(change, np.where(is_own, owners.counts, 0))
  return own, _weighted(change, np.where(is_own, 0, owners.counts))


def _weighted(change, weights):
  total = weights.sum(1)
  sums = (change * weights).sum(1)
  return np.where(total > 0, sums / np.maximum(total, 1), np.nan)
