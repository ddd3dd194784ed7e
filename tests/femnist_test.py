"""FEMNIST: exact both ways, and no file content that is not explained."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import jax
import numpy as np
import pytest

from fedinf_jax.data import femnist
from fedinf_jax.data import leaf as leaf_
from tests import cases

DELETE = object()
HUGE = 10**400  # Beyond float64; json reads it.
WRITER = "f0001_é"
ROW = ("user_data", "w", "x", 0)  # The place of w's first image.

# (where in the file, what is put there, what the error must say)
BAD_VALUES = (
  ((), [], "users"),
  (("users",), DELETE, "users is missing"),
  (("users",), "f0001", "users is 'f0001'.*list"),
  (("users",), [], "num_samples has 2 entries for 0 users"),
  (("users",), [WRITER, WRITER], "'w' must be in both users and user_data"),
  (("users", 0), 7, r"users\[0\] is 7.*string"),
  (("users", 0), "\ud800", r"users\[0\].*string"),
  (("users", 0), "other", "'.*' must be in both users and user_data"),
  (("num_samples",), DELETE, "num_samples is missing"),
  (("num_samples",), 2, "num_samples is 2.*list"),
  (("num_samples",), [3], "num_samples has 1 entries for 2 users"),
  (("num_samples", 0), 4, f"'{WRITER}': x has 3.* is 4"),
  (("num_samples", 0), 3.0, r"is 3\.0"),
  (("num_samples", 0), HUGE, "num_samples is 1000"),
  (("user_data",), DELETE, "user_data is missing"),
  (("user_data",), [], "user_data is .*dict"),
  (("user_data", WRITER), DELETE, f"'{WRITER}' must be in both"),
  (("user_data", WRITER), 1, f"'{WRITER}': expected an object"),
  (("user_data", WRITER, "x"), DELETE, "x is missing"),
  (("user_data", WRITER, "x"), {}, "x is {}.*list"),
  (("user_data", WRITER, "x"), [], "x has 0 examples, y has 3"),
  (("user_data", WRITER, "x", 1), 0.5, r"x\[1\] must be.*784 pixels"),
  (("user_data", WRITER, "x", 1), [0.5] * 783, "784 pixels, not 783"),
  (("user_data", WRITER, "x", 1, 9), "0", r"x\[1\].*not a number"),
  (("user_data", WRITER, "x", 1, 9), None, "not a number"),
  (("user_data", WRITER, "x", 1, 9), True, "not a number"),
  (("user_data", WRITER, "x", 1, 9), [0.5], "not a number"),
  (("user_data", WRITER, "x", 1, 9), np.nan, "not between 0 and 1"),
  (("user_data", WRITER, "x", 1, 9), np.inf, "not between 0 and 1"),
  (("user_data", WRITER, "x", 1, 9), -1e-9, "not between 0 and 1"),
  (("user_data", WRITER, "x", 1, 9), 255, "not between 0 and 1"),
  (("user_data", WRITER, "x", 1, 9), HUGE, "not between 0 and 1"),
  (("user_data", WRITER, "y"), DELETE, "y is missing"),
  (("user_data", WRITER, "y"), "012", "y is '012'.*list"),
  (("user_data", WRITER, "y"), [0, 1], "y has 2 labels"),
  (("user_data", WRITER, "y", 2), 3.5, r"y\[2\] is 3\.5.*0 to 61"),
  (("user_data", WRITER, "y", 2), True, r"y\[2\] is True"),
  (("user_data", WRITER, "y", 2), "3", r"y\[2\] is '3'"),
  (("user_data", WRITER, "y", 2), -1, r"y\[2\] is -1"),
  (("user_data", WRITER, "y", 2), 62, r"y\[2\] is 62"),
  (("user_data", WRITER, "y", 2), HUGE, r"y\[2\] is 1000"),
)

BAD_BYTES = (
  (b"", "not LEAF's JSON"),
  (b'{"users": ["f0', "not LEAF's JSON"),
  (b"\xff\xfe{}", "not LEAF's JSON.*utf-8"),
  (b"[" * 100_000, "not LEAF's JSON.*recursion"),
  (b"1" * 5000, "not LEAF's JSON"),
  (b'{"users": [], "users": []}', "the key 'users' occurs twice"),
  (b'{"users": [], "num_samples": [], "user_data": {}}', "names a writer"),
)


def leaf(sizes, digits=4, seed=0):
  """A LEAF file's content, and the same pixels as greys [N, 28, 28, 1]."""
  draw = np.random.default_rng(seed)
  greys = draw.integers(0, 256, (sum(sizes.values()), 784))
  greys[0, :256] = np.arange(256)
  rows = np.split(greys, np.cumsum(list(sizes.values()))[:-1])
  user_data = {
    writer: {
      "x": [[round(g / 255, digits) for g in row.tolist()] for row in x],
      "y": draw.integers(0, 62, len(x)).tolist(),
    }
    for writer, x in zip(sizes, rows, strict=True)
  }
  content = {
    "users": list(sizes),
    "num_samples": list(sizes.values()),
    "user_data": user_data,
  }
  return content, greys.reshape(-1, 28, 28, 1)


def write(path, content):
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(json.dumps(content), encoding="utf-8")


def changed(content, keys, value):
  """A copy of `content` with `value` in the place that `keys` lead to."""
  if not keys:
    return value
  content = content.copy()
  if value is DELETE and len(keys) == 1:
    del content[keys[0]]
  else:
    content[keys[0]] = changed(content[keys[0]], keys[1:], value)
  return content


def assert_same(a, b):
  assert a.ids == b.ids
  assert a.num_classes == b.num_classes == 62
  np.testing.assert_array_equal(a.num_examples, b.num_examples)
  for one, other in ((a.x, b.x), (a.y, b.y)):
    assert one.dtype == other.dtype
    assert one.tobytes() == other.tobytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
  """Two train files, whose order and writers are not sorted, and one test."""
  made = tmp_path_factory.mktemp("leaf")
  write(made / "train" / "b.json", leaf({"z": 2, "a": 1}, seed=1)[0])
  content = leaf({WRITER: 3, "f0000": 2})[0] | {"hierarchies": ["", ""]}
  write(made / "train" / "a.json", content)
  write(made / "test" / "a.json", leaf({"z": 1, WRITER: 2}, seed=2)[0])
  return made


@pytest.fixture(scope="module")
def real_folder(folder):
  """The LEAF folder that FEDINF_DATA names, else the one made here."""
  named = pathlib.Path(os.environ.get("FEDINF_DATA") or folder)
  has_leaf = any(named.glob("train/*.json")) or any(named.glob("*.json"))
  return named if has_leaf else folder


def test_reads_files_in_sorted_and_writers_in_file_order(folder):
  data = femnist.from_leaf(folder)
  assert data.ids == (WRITER, "f0000", "z", "a")
  assert data.num_examples.tolist() == [3, 2, 2, 1]
  assert data.num_classes == 62
  content, greys = leaf({WRITER: 3, "f0000": 2})
  np.testing.assert_array_equal(data.y[:3], content["user_data"][WRITER]["y"])
  np.testing.assert_array_equal(data.x[:5], (greys / 255).astype(np.float32))
  assert femnist.from_leaf(folder, "test").ids == ("z", WRITER)


def test_reads_a_flat_folder(folder):
  flat = femnist.from_leaf(folder / "train")
  assert_same(flat, femnist.from_leaf(folder))


@pytest.mark.parametrize("x64", [False, True])
def test_dtypes_are_the_same_with_and_without_x64(folder, x64):
  with jax.enable_x64(x64):
    data = femnist.from_leaf(folder)
  assert (data.x.dtype, data.y.dtype) == (np.float32, np.int32)


@pytest.mark.parametrize("digits", [4, 6, 17])
def test_printed_greys_are_restored_exactly(tmp_path, digits):
  content, greys = leaf({"w": 1}, digits)
  write(tmp_path / "a.json", content)
  x = femnist.from_leaf(tmp_path).x
  assert x.tobytes() == (greys / 255).astype(np.float32).tobytes()


def test_other_pixels_are_kept(tmp_path):
  given = [0, 1, -0.0, 0.5, 10.019 / 255, 10.021 / 255, 9.979 / 255]
  row = given + [1.0] * (784 - len(given))
  write(tmp_path / "a.json", changed(leaf({"w": 1})[0], ROW, row))
  x = femnist.from_leaf(tmp_path).x.ravel()[: len(given)]
  wanted = [0, 1, 0, 0.5, 10 / 255, 10.021 / 255, 9.979 / 255]
  assert x.tobytes() == np.array(wanted, np.float32).tobytes()


@pytest.mark.parametrize(("keys", "value", "problem"), BAD_VALUES)
def test_a_bad_value_is_named(tmp_path, keys, value, problem):
  content = leaf({WRITER: 3, "w": 1})[0]
  write(tmp_path / "bad.json", changed(content, keys, value))
  with pytest.raises(ValueError, match=problem) as error:
    femnist.from_leaf(tmp_path)
  assert str(tmp_path / "bad.json") in str(error.value)
  if len(keys) > 2:
    assert f"writer {WRITER!r}: " in str(error.value)


@pytest.mark.parametrize(("content", "problem"), BAD_BYTES)
def test_bad_bytes_are_named(tmp_path, content, problem):
  (tmp_path / "bad.json").write_bytes(content)
  with pytest.raises(ValueError, match=problem) as error:
    femnist.from_leaf(tmp_path)
  assert "bad.json" in str(error.value)


def test_a_writer_must_have_images(tmp_path):
  write(tmp_path / "bad.json", leaf({"w": 1, "idle": 0})[0])
  with pytest.raises(ValueError, match=r"bad\.json: writer 'idle': x has no"):
    femnist.from_leaf(tmp_path)


def test_a_writer_must_be_in_one_file(tmp_path):
  write(tmp_path / "a.json", leaf({"w": 1})[0])
  write(tmp_path / "b.json", leaf({"v": 1, "w": 1})[0])
  with pytest.raises(ValueError, match=r"b\.json: writer 'w' .* in a\.json"):
    femnist.from_leaf(tmp_path)


def test_a_writer_must_be_in_a_file_once(tmp_path):
  content = leaf({"w": 1})[0] | {"users": ["w", "w"], "num_samples": [1, 1]}
  write(tmp_path / "a.json", content)
  with pytest.raises(ValueError, match=r"a\.json: writer 'w' .* in a\.json"):
    femnist.from_leaf(tmp_path)


def test_a_file_without_writers_adds_none(tmp_path):
  empty = {"users": [], "num_samples": [], "user_data": {}}
  write(tmp_path / "a.json", empty)
  write(tmp_path / "b.json", leaf({"w": 1})[0])
  assert femnist.from_leaf(tmp_path).ids == ("w",)


@pytest.mark.parametrize(
  "read", [femnist.from_leaf, lambda f: femnist.prepare_tfds(f, f / "tfds")]
)
def test_a_folder_must_have_files(tmp_path, read):
  with pytest.raises(ValueError, match=r"nowhere: is not a folder"):
    read(tmp_path / "nowhere")
  with pytest.raises(ValueError, match=r"has no \*\.json.*'train'"):
    read(tmp_path)
  (tmp_path / "train").mkdir()
  with pytest.raises(ValueError, match=r"train: has no \*\.json"):
    read(tmp_path)


def test_a_file_must_be_readable(tmp_path):
  (tmp_path / "a.json").mkdir()
  with pytest.raises(ValueError, match=r"a\.json: cannot be read"):
    femnist.from_leaf(tmp_path)


@pytest.mark.parametrize(
  "make", [os.mkfifo, lambda p: os.symlink("/dev/zero", p)]
)
def test_a_pipe_or_a_device_is_not_waited_for(tmp_path, make):
  make(tmp_path / "a.json")
  for read in (femnist.from_leaf, lambda f: femnist.from_npz(f / "a.json")):
    with (
      pytest.raises(ValueError, match=r"a\.json: .* not a regular file"),
      cases.patience(10),
    ):
      read(tmp_path)


def test_a_sparse_file_is_not_read_into_memory(tmp_path):
  with open(tmp_path / "a.json", "wb") as file:
    file.truncate(10**13)
  for read in (femnist.from_leaf, lambda f: femnist.from_npz(f / "a.json")):
    with pytest.raises(
      ValueError, match=r"a\.json: its content would need 10,"
    ):
      read(tmp_path)


@pytest.mark.parametrize("folder", [None, 3, "a\0b", "a" * 5000, "\ud800"])
def test_a_folder_is_a_path(folder):
  for read in (femnist.from_leaf, femnist.from_npz, femnist.from_tfds):
    with pytest.raises(ValueError, match="it must be a path"):
      read(folder)


def writers_npz(path, **changes):
  """Writes three images by two of three writers; some arrays changed."""
  arrays = {
    "users": np.array(["v", "w", "idle"]),
    "x_train": np.arange(3 * 784, dtype=np.uint8).reshape(3, 784),
    "y_train": np.array([3, 61, 0]),
    "u_train": np.array([1, 0, 1]),
  } | changes
  np.savez(path, **{k: a for k, a in arrays.items() if a is not DELETE})


BAD_ARRAYS = {
  "wide label": (
    {"y_train": np.array([1, 2**32 + 3, 1])},
    r"y_train\[1\] is 4294967299; a label is an integer from 0 to 61",
  ),
  "label": ({"y_train": np.array([1, 1, -1])}, r"y_train\[2\] is -1"),
  "float label": ({"y_train": np.ones(3)}, r"y_train is float64 \[3\]; it"),
  "bool label": ({"y_train": np.ones(3, bool)}, "y_train is bool"),
  "columns": ({"y_train": np.ones((3, 1), int)}, r"y_train is int64 \[3, 1\]"),
  "scalar": ({"x_train": np.uint8(3)}, r"x_train is uint8 \[\]"),
  "grey": ({"x_train": np.ones((3, 784))}, "x_train is float64 .* be uint8"),
  "fewer": ({"y_train": np.array([1, 2])}, "have 3, 2 and 3 rows; they must"),
  "no users": ({"users": DELETE}, r"is no \.npz with users, x_train"),
  "owner": ({"u_train": np.array([0, 3, 0])}, r"u_train\[1\] is 3; a row of"),
  "object": ({"users": np.array([None, 1, 2])}, "it holds Python objects"),
  "users": ({"users": np.ones(3)}, r"users is float64 \[3\]; it must be"),
  "twice": ({"users": np.array(["w", "w", "v"])}, "'w' occurs twice"),
  "surrogate": (
    {"users": np.array(["\ud800", "w", "v"])},
    "users: .*surrogate",
  ),
  "nobody": (
    {"x_train": np.zeros((0, 784), np.uint8), "y_train": np.zeros(0, int),
     "u_train": np.zeros(0, int)},
    "have 0, 0 and 0 rows",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_a_bad_array_is_named(tmp_path, name):
  changes, problem = BAD_ARRAYS[name]
  writers_npz(tmp_path / "bad.npz", **changes)
  with pytest.raises(ValueError, match=problem) as error:
    femnist.from_npz(tmp_path / "bad.npz")
  assert "bad.npz" in str(error.value)


def test_an_npz_gives_writers_in_the_order_of_users(tmp_path):
  writers_npz(tmp_path / "good.npz")
  data = femnist.from_npz(tmp_path / "good.npz")
  assert data.ids == ("v", "w")
  assert data.y.tolist() == [61, 3, 0] and data.y.dtype == np.int32
  greys = np.arange(3 * 784, dtype=np.uint8).reshape(3, 28, 28, 1)
  np.testing.assert_array_equal(data.x, femnist.from_greys(greys[[1, 0, 2]]))


def test_a_header_may_not_claim_more_than_there_is(tmp_path):
  writers_npz(tmp_path / "good.npz")
  with (
    zipfile.ZipFile(tmp_path / "good.npz") as good,
    zipfile.ZipFile(tmp_path / "bad.npz", "w") as bad,
  ):
    for name in good.namelist():
      content = good.read(name)
      if name == "x_train.npy":
        claim = b"(%d, 784), }" % 10**12
        content = content.replace(b"(3, 784), }".ljust(len(claim)), claim)
      bad.writestr(name, content)
  with pytest.raises(ValueError, match=r"bad\.npz.*claims 784,000,000,000,000"):
    femnist.from_npz(tmp_path / "bad.npz")


def test_round_trip_through_tfds(real_folder, tmp_path):
  femnist.prepare_tfds(real_folder, tmp_path)
  for split in leaf_.splits(real_folder):
    data = femnist.from_leaf(real_folder, split)
    assert data.x.shape[1:] == (28, 28, 1)
    assert_same(data, femnist.from_tfds(tmp_path, split))
  with pytest.raises(ValueError, match=r"no split 'train\[:9\]'.*'train'"):
    femnist.from_tfds(tmp_path, "train[:9]")
  with pytest.raises(ValueError, match="there is a data set already"):
    femnist.prepare_tfds(real_folder, tmp_path)


def test_tfds_has_the_splits_that_leaf_has(folder, tmp_path):
  femnist.prepare_tfds(folder / "train", tmp_path)
  assert_same(femnist.from_leaf(folder), femnist.from_tfds(tmp_path))
  with pytest.raises(ValueError, match="no split 'test'"):
    femnist.from_tfds(tmp_path, "test")
  for name in ("*.array_record-*", "dataset_info.json"):
    next(tmp_path.rglob(name)).write_bytes(b"cut")
    with pytest.raises(ValueError, match="prepare_tfds again"):
      femnist.from_tfds(tmp_path)


@pytest.mark.parametrize(
  ("value", "problem"),
  [(0.5, "train: writer 'w': x has a pixel.*from_leaf"), (2, "not between")],
)
def test_tfds_takes_greys_or_nothing(tmp_path, value, problem):
  content = changed(leaf({"v": 1, "w": 1})[0], (*ROW, 5), value)
  write(tmp_path / "leaf" / "train" / "a.json", content)
  with pytest.raises(ValueError, match=problem):
    femnist.prepare_tfds(tmp_path / "leaf", tmp_path / "tfds")
  with pytest.raises(ValueError, match="no FEMNIST at"):
    femnist.from_tfds(tmp_path / "tfds")


def test_importing_is_quick():
  code = "import sys; from fedinf_jax.data import femnist;"
  code += "assert 'tensorflow_datasets' not in sys.modules"
  subprocess.run([sys.executable, "-c", code], check=True)
