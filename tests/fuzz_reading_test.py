"""Hostile files of every kind: read, or explained in one line."""

import contextlib
import io
import zipfile

import numpy as np
from PIL import Image
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedinf_jax as fi
from tests import cases
from tests import hostile

NUM_FILES = 1000  # of each kind
SECONDS = 20  # that one try may take
SLOW = pytest.param(1, marks=pytest.mark.slow, id="all")
FEW = pytest.param(20, id="few")

CELLS = (
  "", "nan", "inf", "-1", "1e400", "x", "é", "\u2028", '"', "'", 'a"b', ",,",
  "\n", "\r\n", "\0", "0x1F", "2020-01-01", "12:30", "true", "1,5", " 3 ",
  "99999999999999999999", "=1+1", "[1]", "NULL", "-0", "\ufffd",
)  # fmt: skip


def csv_file(draw):
  rows = [["hospital", "age", "sex", "outcome"]]
  rows += [
    [f"h{i % 3}", str(20 + i), "mf"[i % 2], "ny"[i % 3 > 0]] for i in range(8)
  ]
  if draw.integers(2):
    return hostile.mangled("\n".join(map(",".join, rows)).encode(), draw)
  cell = lambda: CELLS[draw.integers(len(CELLS))]
  for _ in range(draw.integers(1, 4)):
    row = rows[draw.integers(len(rows))]
    at, way = draw.integers(len(row) + 1), draw.integers(5)
    if way < 3:
      row[at : at + 1] = [cell()]
    elif way == 3:
      row.append(cell())
    else:
      del row[at:]
  end, between = (
    ("\n", "\r\n", "\r")[draw.integers(3)],
    ",;\t"[draw.integers(3)],
  )
  encodings = "utf-8", "utf-8-sig", "utf-16", "latin-1"
  encoding = encodings[draw.choice(4, p=[0.6, 0.2, 0.1, 0.1])]
  return end.join(map(between.join, rows)).encode(encoding, "replace")


COLUMNS = (
  lambda: pa.array([None] * 4),
  lambda: pa.array([b"\xff"] * 4),
  lambda: pa.array([[1], [2], [3], [4]]),
  lambda: pa.array([{"a": 1}] * 4),
  lambda: pa.array([1.5, None, np.nan, 2]),
  lambda: pa.array([np.inf, 1, 2, 3]),
  lambda: pa.array([True, False, None, True]),
  lambda: pa.array([2**63, 2**64 - 1] * 2, pa.uint64()),
  lambda: pa.array(list("abab")).dictionary_encode(),
  lambda: pa.array([1, 2, 3, 4]).dictionary_encode(),
  lambda: pa.array([1, 2, 3, 4], pa.timestamp("s")),
  lambda: pa.array([1, 2, 3, 4], pa.duration("s")),
  lambda: pa.array([1, 2, 3, 4], pa.decimal128(5, 2)),
  lambda: pa.array(["1", "2", "x", "3"]),
  lambda: pa.array(list("abab"), pa.string_view()),
)


def parquet_file(draw):
  table = {"client": list("abab"), "v": [1, 2, 3, 4], "an_id": list("xyxy")}
  table = pa.table(table | {"label": [0, 1, 0, 1]})
  spoil = draw.integers(2)
  if spoil:
    at = int(draw.integers(4))
    column = COLUMNS[draw.integers(len(COLUMNS))]()
    table = table.set_column(at, table.column_names[at], column)
  file = io.BytesIO()
  pq.write_table(table, file)
  content = file.getvalue()
  return content if spoil else hostile.mangled(content, draw)


def npz_file(draw):
  images = draw.integers(0, 256, (6, 4, 4), np.uint8)
  arrays = {
    "x": images if draw.integers(2) else draw.normal(size=(6, 3)),
    "y": draw.integers(0, 2, 6),
    "client": np.array(list("abcabc")),
  }
  way, name = draw.integers(3), list(arrays)[draw.integers(3)]
  if way == 0:
    with contextlib.suppress(ValueError):  # Names are no numbers.
      spoil = hostile.ARRAYS[draw.integers(len(hostile.ARRAYS))]
      arrays[name] = spoil(arrays[name], draw)
  file = io.BytesIO()
  np.savez(file, **arrays)
  if way == 0:
    return file.getvalue()
  if way == 1:
    return hostile.mangled(file.getvalue(), draw)
  made = io.BytesIO()
  with zipfile.ZipFile(file) as good, zipfile.ZipFile(made, "w") as bad:
    for entry in good.namelist():
      content = good.read(entry)
      forge = entry == f"{name}.npy"
      bad.writestr(entry, hostile.forged(content, draw) if forge else content)
  return made.getvalue()


def json_file(draw):
  user = lambda k: {"x": [[1.0, 2.0]], "y": [k]}
  content = {
    "users": ["v", "w"],
    "num_samples": [1, 1],
    "user_data": {"v": user(0), "w": user(1)},
  }
  return hostile.spoiled_json(content, draw)


def png_file(draw):
  file = io.BytesIO()
  Image.fromarray(draw.integers(0, 256, (5, 4), np.uint8)).save(file, "png")
  return hostile.mangled(file.getvalue(), draw)


def attempt(path, source):
  """Returns what went wrong with one source; None if nothing did."""
  try:
    with cases.patience(SECONDS):
      found = fi.data.read(source)
      x, y, owners = found.encode(source)
    assert len(x) == len(y) == len(owners) == len(found.data.x)
    assert np.isfinite(found.data.x).all() and np.isfinite(found.data.y).all()
    assert found.line.isprintable()
  except ValueError as error:
    said = str(error)
    if type(error) is ValueError and path.stem in said and "\n" not in said:
      return None
    return repr(error)
  except BaseException as error:
    return repr(error)
  return None


MAKE = {
  "csv": csv_file,
  "parquet": parquet_file,
  "npz": npz_file,
  "json": json_file,
  "png": png_file,
}


@pytest.mark.parametrize("share", [FEW, SLOW])
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.filterwarnings("ignore")  # NumPy warns of headers of Python 2.
def test_a_hostile_file_is_read_or_explained(kind, share, tmp_path):
  folder = tmp_path / "hostile"
  path = folder / f"hostile.{kind}"
  if kind == "png":
    path = folder / "b" / "v" / "hostile.png"
    for name in ("a/u/1.png", "a/v/2.png", "b/u/3.png"):
      (folder / name).parent.mkdir(parents=True)
      Image.fromarray(np.zeros((5, 4), np.uint8)).save(folder / name)
  path.parent.mkdir(parents=True, exist_ok=True)
  failures = []
  for number in range(0, NUM_FILES, share):
    path.write_bytes(MAKE[kind](np.random.default_rng([7, number])))
    source = folder if kind in ("json", "png") else path
    problem = attempt(path, source)
    if problem is not None:
      failures.append(f"{kind} {number}: {problem}")
  assert not failures, "\n".join(failures[:20])
