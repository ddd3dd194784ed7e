"""Compares JSON with the records it was written from."""

import json
import types
import typing

import numpy as np


def load(content: str, record):
  """Reads JSON that was written from a record; `check` says what it must be."""
  found = json.loads(content)
  check(found, record)
  return found


def check(content, record, where: str = ""):
  """Checks that JSON has the fields of a record, each of its type.

  Args:
    content: as json.load returns it.
    record: a NamedTuple, or the type of a field. A float may be null: what is
      not finite is written so. A field with a default may be missing.
    where: the field that `content` is, in words.

  Raises:
    ValueError: naming the first field that does not fit.
  """
  origin, parts = typing.get_origin(record), typing.get_args(record)
  if record is typing.Any:
    return
  if origin in (types.UnionType, typing.Union):
    if content is not None:
      check(content, parts[0], where)
  elif origin is dict:
    _require(isinstance(content, dict), where)
    for key, value in content.items():
      check(value, parts[1], f"{where}.{key}" if where else key)
  elif origin is list or record is np.ndarray:
    _require(isinstance(content, list), where)
    for value in content:
      check(value, parts[0] if parts else float, where)
  elif hasattr(record, "_fields"):
    _check_fields(content, record, where)
  else:
    _require(_is_a(content, record), where)


def _check_fields(content, record, where):
  _require(isinstance(content, dict), where)
  for name, kind in typing.get_type_hints(record).items():
    place = f"{where}.{name}" if where else name
    if name in content:
      check(content[name], kind, place)
    elif name not in record._field_defaults:
      raise ValueError(f"it lacks {place}")


def _is_a(content, kind):
  if kind is float:
    kind = (int, float, types.NoneType)
  return isinstance(content, kind) and (
    kind is bool or not isinstance(content, bool)
  )


def _require(holds, where):
  if not holds:
    raise ValueError(f"its {where or 'content'} is not what was written")
