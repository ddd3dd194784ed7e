"""What a client hands in: an id and a pair of arrays, checked one by one."""

from collections.abc import Sequence
from collections.abc import Sized
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax import memory


def ids(ids: Any, num_clients: int) -> tuple[Any, ...]:
  """Returns K distinct ids; None: positions.

  Args:
    ids: as in `FederatedData.from_clients`.
    num_clients: K.
  """
  if num_clients == 0:
    raise ValueError("clients is empty; at least one client is needed")
  if ids is None:
    return tuple(range(num_clients))
  ids = listed("ids", ids)
  if len(ids) != num_clients:
    raise ValueError(f"ids has {len(ids)} entries for {num_clients} clients")
  seen = set()
  for i in ids:
    text = str(checks.identifier("ids", i))
    if text in seen:
      raise ValueError(f"ids: {text!r} occurs twice; ids must be distinct")
    seen.add(text)
  return tuple(ids)


def listed(name: str, values: Any) -> list:
  """Returns a list of what must be several things."""
  try:
    if isinstance(values, Sized):
      memory.require(name, 8 * len(values))
    return list(values)
  except TypeError as error:
    raise ValueError(f"{name} is {values!r}; it must be a list") from error


def pair(client_id: Any, client: Any) -> tuple[np.ndarray, np.ndarray]:
  """Returns one client's (x, y), in dtypes that JAX keeps."""
  where = f"client {client_id!r}"
  if not isinstance(client, (tuple, list)) or len(client) != 2:
    raise ValueError(f"{where}: expected a pair (x, y)")
  x, y = (
    examples(f"{where}: {field}", value)
    for field, value in zip("xy", client, strict=True)
  )
  if len(x) != len(y):
    raise ValueError(f"{where}: x has {len(x)} examples but y has {len(y)}")
  if not len(x):
    raise ValueError(f"{where}: has no examples; leave it out")
  return x, labels(y)


def examples(name: str, value: Any) -> np.ndarray:
  """Returns an array of examples [N, ...], each with a number in it."""
  array = checks.array(name, value)
  if array.ndim == 0:
    raise ValueError(f"{name} is a scalar; its first axis is examples")
  if 0 in array.shape[1:]:
    raise ValueError(
      f"{name} has examples of shape {list(array.shape[1:])}, without a number"
      " in them"
    )
  return array


def labels(y: np.ndarray) -> np.ndarray:
  """Returns labels or targets; False and True are the labels 0 and 1."""
  return y.astype(np.int32) if y.dtype == bool else y


def alike(field: str, ids: Sequence[Any], arrays: list[np.ndarray]):
  """Requires of all clients the first one's example shape and dtype."""
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
