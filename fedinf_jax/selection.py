"""Who is taken out and who is replayed, as users say it: masks, rows, ids."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax.data import federated


def removals(
  given: Any, data: federated.FederatedData | None
) -> np.ndarray | None:
  """Returns the mask [R, K]; None, for leave-one-out, builds no matrix.

  Args:
    given: bool [R, K]; or R lists of clients' ids; or None.
    data: the K clients; None: not known, and no mask either.
  """
  if given is None or data is None:
    return None
  num_clients = data.num_clients
  if _are_groups(given):
    return _mask(given, data)
  mask = _array(given)
  if mask.dtype != bool or mask.ndim != 2 or not len(mask):
    raise ValueError(
      f"removals is {mask.dtype} of shape {list(mask.shape)};"
      f" it must be bool [R, {num_clients}], or a list of lists of ids"
    )
  if mask.shape[1] != num_clients:
    raise ValueError(
      f"removals has {mask.shape[1]} columns for {num_clients} clients"
    )
  return mask


def _array(value):
  """Returns an array; of objects, where rows are of several lengths."""
  try:
    return np.asarray(value)
  except ValueError:
    return np.asarray(value, object)


def _are_groups(given):
  """Says whether removals are lists of ids, not rows of a mask."""
  if not isinstance(given, list | tuple) or not given:
    return False
  if not all(isinstance(r, list | tuple | set | frozenset) for r in given):
    return False
  return not all(isinstance(i, bool | np.bool_) for r in given for i in r)


def _mask(groups, data):
  """Returns bool [R, K], a row for each list of ids."""
  mask = np.zeros((len(groups), data.num_clients), bool)
  for row, group in zip(mask, groups, strict=True):
    try:
      found = data.positions([checks.identifier("ids", i) for i in group])
    except ValueError as error:
      raise ValueError(f"removals: {error}") from error
    row[found] = True
    if row.sum() < len(found):
      twice = next(i for i in group if found.count(data.positions([i])[0]) > 1)
      raise ValueError(
        f"removals: {twice!r} occurs twice in a list of ids (a mask of rows is"
        " bool)"
      )
  return mask


def replayed(
  exact: Any,
  num_removals: int,
  seed: int = 0,
  ids: Sequence[Any] | None = None,
) -> np.ndarray:
  """Returns the removals to replay, int [E].

  Args:
    exact: True, False, a number of removals, drawn from the seed, a list of
      rows of removals, or of ids. Text is an id. An integer is a row; in a
      Python list it may be an id as well, where ids are integers, if it cannot
      be both a row and another client's id.
    num_removals: R.
    seed: of the draw.
    ids: of the R clients that are removed alone; None: removals are groups.

  Raises:
    ValueError: also where an integer could mean either of two clients.
  """
  if isinstance(exact, bool | np.bool_):
    return np.arange(num_removals if exact else 0)
  if _is_whole(exact):
    return draw(exact, num_removals, seed)
  if isinstance(exact, np.ndarray) and exact.dtype.kind in "UO":
    exact = exact.tolist()
  if isinstance(exact, list | tuple):
    named = any(isinstance(i, str) for i in exact)
    if named and ids is None:
      raise ValueError(
        "exact: with removals=, give rows of it as numbers, not ids"
      )
    if named or _could_be_ids(exact, ids):
      return _rows_of(exact, num_removals, ids, named=named)
  chosen = _array(exact)
  if chosen.ndim != 1 or (
    len(chosen) and not np.issubdtype(chosen.dtype, np.integer)
  ):
    raise ValueError(
      "exact must be True, False or a list of rows of removals, a number of"
      " them, or a list of ids"
    )
  if len(chosen) and not (chosen.min() >= 0 and chosen.max() < num_removals):
    raise ValueError(f"exact: rows run from 0 to {num_removals - 1}")
  return chosen.astype(int)


def draw(count: Any, num_removals: int, seed: int) -> np.ndarray:
  """Draws some of the removals, int [count] in order."""
  if not 0 < count <= num_removals:
    raise ValueError(
      f"exact is {count}; it must be True, False, a list, or a number of"
      f" removals from 1 to {num_removals}"
    )
  order = np.random.default_rng(seed).permutation(num_removals)
  return np.sort(order[:count])


def _is_whole(value):
  return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _could_be_ids(exact, ids):
  """Says whether integers may be ids that are not the clients' positions."""
  if ids is None or not all(map(_is_whole, exact)):
    return False
  return any(_is_whole(i) and i != k for k, i in enumerate(ids))


def _rows_of(exact, num_removals, ids, *, named):
  """Returns the rows of a list of ids, or of integers that are one or other.

  Args:
    exact: the list.
    num_removals: R.
    ids: of the R clients.
    named: whether there is text in the list: then all of it is ids.
  """
  where = {str(i): k for k, i in enumerate(ids)}
  rows = [where.get(str(i)) for i in exact]
  unknown = [i for i, k in zip(exact, rows, strict=True) if k is None]
  if not unknown:
    are_rows = not named and all(0 <= i < num_removals for i in exact)
    if are_rows and list(map(int, exact)) != rows:
      i = next(i for i, k in zip(exact, rows, strict=True) if i != k)
      raise ValueError(
        f"exact: {i} is a row, and the id of the client in row {where[str(i)]};"
        f" give ids as text ({str(i)!r}), or rows as a NumPy array"
      )
    return np.array(rows, int)
  if named:
    raise ValueError(f"exact: no client has the id {unknown[0]!r}")
  outside = [i for i in exact if not 0 <= i < num_removals]
  if outside:
    raise ValueError(
      f"exact: rows run from 0 to {num_removals - 1}; {outside[0]} is none, and"
      f" {unknown[0]} is no client's id"
    )
  return np.array(exact, int)
