"""What damaged and hostile files hold."""

import json

import numpy as np

JSON = (
  None, True, -1, 62, 0.5, 10**400, float("nan"), float("inf"), "", "w",
  "\ud800", [], {}, [None], [[]], {"x": []}, [0.5] * 784, [2] * 784,
  2**31, 2**63, 2**64, -(10**400), json.loads("[" * 200 + "]" * 200),
)  # fmt: skip


def spoiled_json(content, draw):
  """Returns JSON with something wrong in it, in bytes."""
  if draw.integers(2):
    return mangled(json.dumps(content).encode(), draw)
  for _ in range(draw.integers(1, 3)):
    place = content
    while True:
      keys = list(place) if isinstance(place, dict) else range(len(place))
      if not keys:
        break
      key = keys[draw.integers(len(keys))]
      deeper = isinstance(place[key], dict | list) and place[key]
      if deeper and draw.integers(3):
        place = place[key]
        continue
      if draw.integers(4) == 0:
        del place[key]
      else:
        place[key] = JSON[draw.integers(len(JSON))]
      break
  return json.dumps(content).encode()


def mangled(content, draw):
  """Flips, cuts, drops, repeats or inserts bytes."""
  content = bytearray(content)
  for _ in range(draw.integers(1, 4)):
    at, way = int(draw.integers(len(content) + 1)), draw.integers(5)
    length = int(draw.integers(1, 40))
    if way == 0:
      for i in draw.integers(0, max(len(content), 1), 8):
        content[i : i + 1] = bytes([draw.integers(256)])
    elif way == 1:
      del content[at:]
    elif way == 2:
      del content[at : at + length]
    elif way == 3:
      content[at:at] = content[at : at + length]
    else:
      content[at:at] = draw.bytes(length)
  return bytes(content)


ARRAYS = (
  lambda a, draw: a.astype(np.float32),
  lambda a, draw: a.astype(bool),
  lambda a, draw: a.astype(object),
  lambda a, draw: a.astype(np.int64) - 5,
  lambda a, draw: a.astype(np.int64) + 2**32,
  lambda a, draw: a.astype(np.uint64) + 2**63,
  lambda a, draw: a.astype("S"),
  lambda a, draw: a.astype("U"),
  lambda a, draw: a.astype(complex),
  lambda a, draw: a.view("V1") if a.dtype.itemsize == 1 else a[None],
  lambda a, draw: a[:0],
  lambda a, draw: a[: draw.integers(len(a))],
  lambda a, draw: a[..., None],
  lambda a, draw: a.ravel()[0],
  lambda a, draw: np.repeat(a, 2, axis=0),
  lambda a, draw: np.full(a.shape, np.nan),
  lambda a, draw: np.array("2020-01-01", "M8[D]"),
  lambda a, draw: np.array(["\ud800"] * len(a)),
)
HEADERS = (
  "{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000, 784), }",
  "{'descr': '|u1', 'fortran_order': False, 'shape': (-3, 784), }",
  "{'descr': '|u1', 'fortran_order': True, 'shape': (784, 3), }",
  "{'descr': '|O', 'fortran_order': False, 'shape': (3, 784), }",
  "{'descr': '<M8[s]', 'fortran_order': False, 'shape': (294,), }",
  "{'descr': [('a', '|u1', (784,))], 'fortran_order': False, 'shape': (3,), }",
  "{'descr': '<U999999999', 'fortran_order': False, 'shape': (3,), }",
  "{'descr': 'zzz', 'fortran_order': False, 'shape': (3,), }",
  "{'descr': '|u1', 'fortran_order': 7, 'shape': [3, 784], }",
  "{'descr': '|u1', 'fortran_order': False, 'shape': (3.5, 784), }",
  "{'descr': '|u1', 'fortran_order': False, 'shape': (True, 784), }",
  "{'descr': '|u1', 'fortran_order': False, 'shape': (3, 784), 'more': 1, }",
  "{'descr': '|u1'}",
  "__import__('os')",
  "(" * 3000,
  "\0",
)


def forged(content, draw):
  """Gives an .npy another header."""
  length = int.from_bytes(content[8:10], "little")
  header = HEADERS[draw.integers(len(HEADERS))].encode() + b"\n"
  version = bytes([draw.choice([1, 1, 1, 2, 3, 9]), 0])
  size = len(header).to_bytes(2 if version[0] == 1 else 4, "little")
  return content[:6] + version + size + header + content[10 + length :]
