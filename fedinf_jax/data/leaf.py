"""LEAF's JSON: users, and for each of them lists of examples and labels."""

import collections
from collections.abc import Iterator
from collections.abc import Sequence
import json
import os
import pathlib
import reprlib
from typing import Any
from typing import NamedTuple

from fedinf_jax import checks
from fedinf_jax.data import files


def splits(folder: str | os.PathLike) -> list[str]:
  """Returns which of train and test `folder` has; a flat one is train."""
  folder = files.path("folder", folder)
  return [s for s in ("train", "test") if (folder / s).is_dir()] or ["train"]


def paths(folder: str | os.PathLike, split: str) -> list[pathlib.Path]:
  """Returns the sorted *.json of one split, at least one."""
  folder = files.path("folder", folder)
  files.path("split", split)
  if (folder / split).is_dir():
    folder = folder / split
  paths = sorted(folder.glob("*.json"))
  if not paths:
    problem = "has no *.json" if folder.is_dir() else "is not a folder"
    raise ValueError(
      f"{folder}: {problem}; LEAF's files belong there or in its subfolder"
      f" {split!r}"
    )
  return paths


class User(NamedTuple):
  """One user's examples, as JSON has them."""

  name: str
  x: list
  y: list
  where: str  # to begin a message with


def users(
  paths: Sequence[pathlib.Path], noun: str, *, counted: bool
) -> Iterator[User]:
  """Yields the users of all files, each of them once.

  Args:
    paths: the files, at least one.
    noun: what a user is called in messages.
    counted: whether num_samples must be there; else it may be missing.

  Raises:
    ValueError: naming the file, the user and the field that is wrong.
  """
  home: dict[str, pathlib.Path] = {}
  for path in paths:
    for user in _read(path, noun, counted):
      if user.name in home:
        raise ValueError(
          f"{path}: {noun} {user.name!r} is already in"
          f" {home[user.name].name}; a {noun}'s examples belong together"
        )
      home[user.name] = path
      yield user
  if not home:
    names = ", ".join(path.name for path in paths)
    raise ValueError(f"{paths[0].parent}: no file names a {noun} ({names})")


def _read(path, noun, counted):
  """Yields the users of one file, trusting nothing in it."""
  content = files.read(path)
  try:
    leaf = json.loads(content.decode(), object_pairs_hook=_distinct)
  except (ValueError, RecursionError, MemoryError) as error:
    raise ValueError(f"{path}: is not LEAF's JSON ({error})") from error
  names = _field(leaf, "users", list, path)
  num_samples = None
  if counted or "num_samples" in leaf:
    num_samples = _field(leaf, "num_samples", list, path)
  user_data = _field(leaf, "user_data", dict, path)
  _check_names(path, noun, names, num_samples, user_data)
  for i, name in enumerate(names):
    where = f"{path}: {noun} {name!r}"
    x = _field(user_data[name], "x", list, where)
    y = _field(user_data[name], "y", list, where)
    n = len(x) if num_samples is None else num_samples[i]
    if type(n) is not int or not len(x) == len(y) == n:
      raise ValueError(
        f"{where}: x has {len(x)} examples, y has {len(y)} labels, num_samples"
        f" is {reprlib.repr(n)}; they must agree"
      )
    if not n:
      raise ValueError(f"{where}: x has no examples; leave the {noun} out")
    yield User(name, x, y, where)


def _check_names(path, noun, names, num_samples, user_data):
  for i, name in enumerate(names):
    if not isinstance(name, str):
      raise ValueError(
        f"{path}: users[{i}] is {reprlib.repr(name)}; it must be a string"
      )
    checks.identifier(f"{path}: users[{i}]", name)
  if num_samples is not None and len(num_samples) != len(names):
    raise ValueError(
      f"{path}: num_samples has {len(num_samples)} entries for {len(names)}"
      " users; it must have one for each"
    )
  astray = user_data.keys() ^ set(names)
  if astray:
    raise ValueError(
      f"{path}: {noun} {min(astray)!r} must be in both users and user_data"
    )


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """Makes a JSON object, where `dict` would drop a repeated key silently."""
  made = dict(pairs)
  if len(made) < len(pairs):
    counts = collections.Counter(key for key, _ in pairs)
    twice = counts.most_common(1)[0][0]
    raise ValueError(f"the key {twice!r} occurs twice in an object")
  return made


def _field(owner, name, kind, where):
  """Returns owner[name], checked to be there and of the right kind."""
  if not isinstance(owner, dict):
    raise ValueError(
      f"{where}: expected an object with {name!r}, not {reprlib.repr(owner)}"
    )
  if name not in owner:
    raise ValueError(f"{where}: {name} is missing")
  if not isinstance(owner[name], kind):
    raise ValueError(
      f"{where}: {name} is {reprlib.repr(owner[name])}; it must be a"
      f" {kind.__name__}"
    )
  return owner[name]
