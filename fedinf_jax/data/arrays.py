"""Examples that are arrays already: an .npz, or LEAF's JSON."""

from collections.abc import Callable
from collections.abc import Sequence
import pathlib
import reprlib

import jax.numpy as jnp
import numpy as np
import pyarrow as pa

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax.data import leaf
from fedinf_jax.data import npz
from fedinf_jax.data import rows as rows_

# What Arrow raises for values that it cannot hold.
_REFUSALS = pa.ArrowException, OverflowError, UnicodeError
_SQUARE = {784: (28, 28, 1)}  # LEAF's FEMNIST writes images as rows


def of_npz(
  path: pathlib.Path, client: str | None, label: str | None, known: bool
) -> rows_.Rows:
  """Reads an .npz with the arrays x [N, ...], y [N] and client [N].

  Args:
    path: of the file.
    client: another name of the clients' array.
    label: another name of the labels' array.
    known: as of `sources.read`.
  """
  client, label = client or "client", label or "y"
  there = npz.names(path)
  owned = client in there or not known
  wanted = ("x", label, client) if owned else ("x", label)
  for name in wanted:
    if name not in there:
      raise ValueError(
        f"{path}: array {name} is missing; there are {rows_.listed(there)};"
        f" there must be {', '.join(wanted)}"
      )
  found = dict(zip(wanted, npz.load(path, wanted), strict=True))
  where = lambda name, row: f"{path}: {name}[{row}]"
  for name in wanted[1:]:
    if found[name].ndim != 1:
      raise ValueError(
        f"{path}: {name} has shape {list(found[name].shape)}; it must be [N],"
        " one for each example"
      )
  lengths = {name: len(np.atleast_1d(a)) for name, a in found.items()}
  if len(set(lengths.values())) > 1:
    apart = ", ".join(f"{name} {n}" for name, n in lengths.items())
    raise ValueError(
      f"{path}: the arrays differ in length ({apart}); they must agree"
    )
  return rows_.Rows(
    path.name,
    examples(str(path), found["x"], where),
    _column(path, label, found[label]),
    _column(path, client, found[client]) if owned else None,
    label,
    client,
    f"by array {client}",
    where,
  )


def of_leaf(folder: pathlib.Path, paths: Sequence[pathlib.Path]) -> rows_.Rows:
  """Reads LEAF's JSON: users, and x and y of each in user_data.

  Args:
    folder: to be named by.
    paths: the files, in it or in a subfolder.
  """
  x, y, names, starts = [], [], [], []
  kind: type | None = None
  for user in leaf.users(paths, "user", counted=False):
    x.append(_numbers(user))
    kind = kind or (str if isinstance(user.y[0], str) else float)
    y += [_label(user, i, kind) for i in range(len(user.y))]
    if x[-1].shape[1:] != x[0].shape[1:]:
      raise ValueError(
        f"{user.where}: x has examples of shape {list(x[-1].shape[1:])}, those"
        f" before it have {list(x[0].shape[1:])}"
      )
    names += [user.name] * len(user.x)
    starts += [(user.where, i) for i in range(len(user.x))]

  def where(name, row):
    user, i = starts[row]
    return f"{user}: {name}[{i}]"

  flat = np.concatenate(x)
  shape = _SQUARE.get(flat[0].size, flat.shape[1:])
  return rows_.Rows(
    folder.name,
    examples(str(folder), flat.reshape(len(flat), *shape), where),
    pa.chunked_array([pa.array(y if kind is str else np.array(y))]),
    pa.chunked_array([pa.array(names)]),
    "y",
    "users",
    "by user",
    where,
  )


def examples(
  name: str, x: np.ndarray, where: Callable[[str, int], str]
) -> np.ndarray:
  """Returns x [N, ...] as a model takes it.

  Bytes are grey levels and become 0 … 1; images without channels get one.

  Args:
    name: of the source, to begin a message with.
    x: numbers.
    where: names an example.
  """
  if x.dtype.kind not in "iufb" or not x.ndim or not x.size:
    raise ValueError(
      f"{name}: x is {x.dtype} {list(x.shape)}; it must hold numbers [N, ...],"
      " and at least one"
    )
  if x.ndim == 1:
    x = x[:, None]
  if x.dtype == np.uint8:
    memory.require(f"{name}: x", 4 * x.size)
    x = x / jnp.result_type(float).type(255)
    x = x[..., None] if x.ndim == 3 else x
  x = checks.array(f"{name}: x", x)
  if x.dtype.kind == "f":
    good = np.isfinite(x).reshape(len(x), -1).all(1)
    if not good.all():
      raise ValueError(
        f"{where('x', int(good.argmin()))} has a value that is not finite; fill"
        " it in, or leave the example out"
      )
  return x


def _column(path, name, values):
  """Returns an array as a column of Arrow's."""
  if values.dtype.kind == "S":
    values = np.char.decode(values, "utf-8", "replace")
  if values.dtype.kind not in "iufbU":
    raise ValueError(
      f"{path}: {name} is {values.dtype}; it must hold numbers or text"
    )
  try:
    native = values.astype(values.dtype.newbyteorder("="))
    return pa.chunked_array([pa.array(native)])
  except _REFUSALS as error:
    raise ValueError(f"{path}: {name} is no text ({error})") from error


def _numbers(user):
  """Returns a user's x as an array."""
  try:
    x = np.array(user.x, np.float64)
  except (TypeError, ValueError, OverflowError) as error:
    row = next((i for i, e in enumerate(user.x) if not _is_like(e, user.x)), 0)
    raise ValueError(
      f"{user.where}: x[{row}] must be a list of as many numbers as the others"
    ) from error
  return x.astype(jnp.result_type(float))


def _label(user, i, kind):
  """Returns a label that Arrow can hold."""
  label = user.y[i]
  number = isinstance(label, int | float) and abs(label) < 2**63
  if not (isinstance(label, str) if kind is str else number):
    raise ValueError(
      f"{user.where}: y[{i}] is {reprlib.repr(label)}; labels must be all"
      " numbers or all text"
    )
  if kind is str:
    return checks.identifier(f"{user.where}: y[{i}]", label)
  return int(label) if label == int(label) else label


def _is_like(example, others):
  try:
    return np.shape(np.array(example, np.float64)) == np.shape(others[0])
  except (TypeError, ValueError, OverflowError):
    return False
