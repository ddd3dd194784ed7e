"""Writers from an .npz, whose every byte may be wrong."""

import os
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax.data import files
from fedinf_jax.data import npz


def read(
  path: str | os.PathLike, split: str, num_classes: int, num_pixels: int
) -> tuple[list[Any], np.ndarray, np.ndarray, np.ndarray]:
  """Reads the arrays of one split, checked against one another.

  Args:
    path: see `femnist.from_npz`.
    split: the end of the arrays' names.
    num_classes: labels lie below it.
    num_pixels: of an image.

  Returns:
    users, U ids; x uint8 [N, num_pixels]; y int32 [N]; owner int64 [N].
  """
  names = ("users", f"x_{split}", f"y_{split}", f"u_{split}")
  path = files.path("path", path)
  users, x, y, owner = npz.load(path, names)
  if x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != num_pixels:
    raise ValueError(
      f"{path}: {names[1]} is {x.dtype} {list(x.shape)}; it must be uint8"
      f" [N, {num_pixels}], labels and users integers"
    )
  for name, array in zip(names[2:], (y, owner), strict=True):
    if not np.issubdtype(array.dtype, np.integer) or array.ndim != 1:
      raise ValueError(
        f"{path}: {name} is {array.dtype} {list(array.shape)}; it must hold"
        " integers [N]"
      )
  if not len(x) == len(y) == len(owner) or not len(x):
    raise ValueError(
      f"{path}: {', '.join(names[1:])} have {len(x)}, {len(y)} and"
      f" {len(owner)} rows; they must agree, and there must be one"
    )
  users = _users(f"{path}: users", users)
  # Before they are cast: 2^32 + 3 is no 3.
  _within(f"{path}: {names[2]}", y, num_classes, "a label")
  _within(f"{path}: {names[3]}", owner, len(users), "a row of users")
  return users, x, y.astype(np.int32), owner.astype(np.int64)


def _users(name, users):
  """Returns the writers' ids, which are text or integers."""
  if users.ndim != 1 or users.dtype.kind not in "USiu":
    raise ValueError(
      f"{name} is {users.dtype} {list(users.shape)}; it must be a list of names"
    )
  try:
    ids = [str(user) for user in users.tolist()]
  except UnicodeError as error:
    raise ValueError(f"{name}: {error}") from error
  return [checks.identifier(name, i) for i in ids]


def _within(name, values, limit, what):
  """Requires integers in [0, limit)."""
  known = (values >= 0) & (values < limit)
  if not known.all():
    row = int(np.argmin(known))
    raise ValueError(
      f"{name}[{row}] is {values[row]}; {what} is an integer from 0 to"
      f" {limit - 1}"
    )
