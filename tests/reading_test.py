"""Readers: what a file holds is found by looking, or named in one line."""

import json
import pathlib
import subprocess
import sys

import numpy as np
from PIL import Image
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import fedinf_jax as fi
from tests import binaries

HEADER = "hospital,age,sex,outcome"


def hospitals(num_clients=3, rows=6):
  """Lines of a table: `rows` for each hospital, in turns."""
  line = lambda k, i: f"h{k},{20 + 7 * i + k},{'mf'[i % 2]},{'ny'[i % 3 > 0]}"
  return [line(k, i) for i in range(rows) for k in range(num_clients)]


def write(path, lines=None, header=HEADER, encoding="utf-8"):
  lines = hospitals() if lines is None else lines
  text = "\n".join([header, *lines]) + "\n"
  path.write_bytes(text.encode(encoding))
  return path


def image(path, shape=(4, 3), dtype=np.uint8, seed=0):
  path.parent.mkdir(parents=True, exist_ok=True)
  draw = np.random.default_rng(seed)
  Image.fromarray(draw.integers(0, 200, shape).astype(dtype)).save(path)


def test_a_csv_is_understood(tmp_path):
  found = fi.data.read(write(tmp_path / "hospitals.csv"))
  assert found.line == (
    "hospitals.csv: 3 clients by column hospital, 18 rows, 1 numeric column"
    " (standardised), 1 category (one-hot, 2 values), label outcome with 2"
    " classes"
  )
  assert found.task == "classification" and found.classes == ("n", "y")
  data = found.data
  assert data.ids == ("h0", "h1", "h2") and data.num_classes == 2
  x, y = data.client(1)
  ages = 20 + 7 * np.arange(6) + 1
  every = 20 + 7 * np.arange(6)[:, None] + np.arange(3)
  np.testing.assert_allclose(x[:, 0], (ages - every.mean()) / every.std())
  np.testing.assert_array_equal(x[:, 1:], np.eye(2)[[1, 0, 1, 0, 1, 0]])
  np.testing.assert_array_equal(y, [0, 1, 1, 0, 1, 1])


def test_another_file_is_encoded_alike(tmp_path):
  found = fi.data.read(write(tmp_path / "train.csv"))
  x, y, owners = found.encode(write(tmp_path / "test.csv", hospitals(4, 2)))
  assert owners == ("h0", "h1", "h2", None) * 2
  for k in range(3):
    np.testing.assert_array_equal(x[k::4], found.data.client(k)[0][:2])
    np.testing.assert_array_equal(y[k::4], found.data.client(k)[1][:2])
  # No clients, an unknown category, and columns in another order.
  without = write(tmp_path / "x.csv", ["y,x,25"], "outcome,sex,age")
  x, y, owners = found.encode(without)
  assert x[0, 1:].tolist() == [0, 0] and y == [1] and owners is None
  refused = {
    "column age is missing": (["f,y"], "sex,outcome"),
    "column outcome is missing": (["25,f"], "age,sex"),
    "row 2 is 'maybe'; the classes are n, y": (["h0,25,f,maybe"], HEADER),
    "column age, row 2 holds 'old'": (["h0,old,f,y"], HEADER),
  }
  for problem, (lines, header) in refused.items():
    with pytest.raises(ValueError, match=rf"x\.csv: .*{problem}"):
      found.encode(write(tmp_path / "x.csv", lines, header))
  np.savez(tmp_path / "x.npz", x=np.ones((2, 3)), outcome=np.array(["n", "y"]))
  with pytest.raises(ValueError, match=r"x\.npz: .* of the same kind"):
    found.encode(tmp_path / "x.npz")


def columns():
  """The table as arrays."""
  cells = [line.split(",") for line in hospitals()]
  made = dict(
    zip(HEADER.split(","), map(list, zip(*cells, strict=True)), strict=True)
  )
  return made | {"age": list(map(int, made["age"]))}


def as_folder(folder):
  for k in range(3):
    lines = [s.split(",", 1)[1] for s in hospitals()[k::3]]
    write(folder / f"h{k}.csv", lines, "age,sex,outcome")
  return folder


def as_parquet(folder):
  pq.write_table(pa.table(columns()), folder / "hospitals.parquet")
  return folder / "hospitals.parquet"


class Frame:
  """Has columns, as a pandas.DataFrame has."""

  columns = HEADER.split(",")

  def __getitem__(self, name):
    return columns()[name]


OTHER_TABLES = {
  "folder": as_folder,
  "parquet": as_parquet,
  "semicolons": lambda folder: write(
    folder / "a.csv",
    [s.replace(",", ";") for s in hospitals()],
    HEADER.replace(",", ";"),
  ),
  "a mark and blank lines": lambda folder: write(
    folder / "a.csv", ["", *hospitals(), ""], HEADER, "utf-8-sig"
  ),
  "an index of pandas": lambda folder: write(
    folder / "a.csv",
    [f"{i},{s}" for i, s in enumerate(hospitals())],
    f",{HEADER}",
  ),
  "an id": lambda folder: write(
    folder / "a.csv",
    [f"p{i},{s}" for i, s in enumerate(hospitals())],
    f"patient_id,{HEADER}",
  ),
  "arrow": lambda folder: pa.table(columns()),
  "dictionary": lambda folder: columns(),
  "frame": lambda folder: Frame(),
}


@pytest.mark.parametrize("kind", OTHER_TABLES)
def test_other_tables_give_the_same(kind, tmp_path):
  expected = fi.data.read(columns())
  (tmp_path / "in").mkdir()
  (tmp_path / "in/README.txt").write_text("Not a table.")
  source = OTHER_TABLES[kind](tmp_path / "in")
  found = fi.data.read(source)
  assert found.data.ids == expected.data.ids
  np.testing.assert_array_equal(found.data.x, expected.data.x)
  np.testing.assert_array_equal(found.data.y, expected.data.y)
  assert found.classes == expected.classes
  assert ("patient_id left out" in found.line) == (kind == "an id")
  assert ("3 clients by file" in found.line) == (kind == "folder")
  x, y, owners = found.encode(source)
  for k, name in enumerate(found.data.ids):
    own = np.array(owners) == name
    np.testing.assert_array_equal(x[own], expected.data.client(k)[0])
    np.testing.assert_array_equal(y[own], expected.data.client(k)[1])


def test_a_table_of_pandas_is_read():
  pandas = pytest.importorskip("pandas")
  frame = pandas.DataFrame(columns()).iloc[::2]
  data = fi.FederatedData.from_dataframe(frame)
  assert data.x.shape == (9, 3)


def test_targets_are_standardised():
  table = columns()
  price = 1e5 + np.arange(18) * 1e3
  found = fi.data.read(table | {"price": price}, label="price")
  assert found.task == "regression" and found.classes is None
  assert "target price (standardised)" in found.line
  assert found.data.num_classes is None
  expected = ((price - price.mean()) / price.std()).reshape(6, 3).T.ravel()
  np.testing.assert_allclose(found.data.y, expected)
  assert "6 numeric" not in found.line and "+" in found.line  # sex, outcome


LABELS = {
  "text": (["b", "a", "c"] * 6, "auto", ("a", "b", "c")),
  "bool": ([True, False, True] * 6, "auto", ("false", "true")),
  "signs": ([-1, 1, 1] * 6, "auto", ("-1", "1")),
  "two rows": ([0, 1], "auto", ("0", "1")),
  "gap": ([10, 9, 2] * 6, "auto", ("2", "9", "10")),
  "whole floats": ([1.0, 0.0, 1.0] * 6, "auto", ("0", "1")),
  "counted": (list(range(26)) * 2, "auto", tuple(map(str, range(26)))),
  "once each": (list(range(18)), "auto", None),
  "far apart": ([7 * i for i in range(24)] * 2, "auto", None),
  "floats": ([0.5 * i for i in range(18)], "auto", None),
  "told": ([0, 1, 1] * 6, "regression", None),
  "numbers as text": (["0.5", "1", "2"] * 6, "regression", None),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_classes_or_numbers(kind):
  values, task, classes = LABELS[kind]
  table = {"client": ["a", "b"] * (len(values) // 2), "x": range(len(values))}
  found = fi.data.read(table | {"label": values}, task=task)
  assert found.classes == classes
  assert found.task == ("classification" if classes else "regression")
  y = found.encode(table | {"label": values})[1]
  if classes:
    names = [str(v).lower().removesuffix(".0") for v in values]
    assert [classes[label] for label in y] == names
  else:
    values = np.array(values, float)
    np.testing.assert_allclose(y, (values - values.mean()) / values.std())


def test_names_are_guessed_or_told(tmp_path):
  lines = [f"{i % 3},{i},{i % 2}" for i in range(12)]
  read = lambda header, **told: fi.data.read(
    write(tmp_path / "a.csv", lines, header), **told
  )
  assert "by column Client ID" in read("Client ID,a,b").line
  assert "label b (the last column) with 2" in read("site_id,a,b").line
  assert read("user,target,b").task == "regression"  # 0 … 11
  told = read("a,client,b", client="a", label="b")
  assert told.data.ids == ("0", "1", "2") and told.data.x.shape == (12, 1)
  lines = [f"00{i % 3},{i},{i % 2}" for i in range(12)]
  assert read("client,a,b").data.ids == ("000", "001", "002")
  assert read("c,a,b", client="c").data.ids == ("000", "001", "002")


def test_a_client_may_have_one_row(tmp_path):
  lines = [*hospitals(), "alone,44,m,y"]
  data = fi.data.read(write(tmp_path / "a.csv", lines)).data
  assert data.ids[-1] == "alone" and data.num_examples.tolist() == [6, 6, 6, 1]


def mixed(**changes):
  """Arrays of an .npz: images of bytes, and names."""
  draw = np.random.default_rng(0)
  return {
    "x": draw.integers(0, 256, (8, 4, 3)).astype(np.uint8),
    "y": np.array(["u", "v"] * 4),
    "client": np.arange(8) % 3,
  } | changes


def test_an_npz_is_read(tmp_path):
  np.savez(tmp_path / "a.npz", **mixed())
  found = fi.data.read(tmp_path / "a.npz")
  assert found.line == (
    "a.npz: 3 clients by array client, 8 rows, examples of 4 × 3 × 1, label y"
    " with 2 classes"
  )
  x, y = found.data.client(1)
  np.testing.assert_allclose(x[..., 0], mixed()["x"][1::3] / 255)
  assert y.tolist() == [1, 0, 1] and found.data.ids == ("0", "1", "2")
  floats = mixed(x=np.random.default_rng(0).normal(size=(8, 5)))
  floats["hospital"] = floats.pop("client")
  np.savez(tmp_path / "b.npz", **floats)
  data = fi.FederatedData.from_npz(tmp_path / "b.npz", client="hospital")
  np.testing.assert_array_equal(data.client(1)[0], floats["x"][1::3])
  del floats["hospital"]
  np.savez(tmp_path / "c.npz", **floats)
  with pytest.raises(ValueError, match=r"c\.npz: .* have the shape \[5\]"):
    found.encode(tmp_path / "c.npz")


def leaf_json(**changes):
  user = lambda k: {"x": [[k, 1.5], [2, k]], "y": [k, 0]}
  return {
    "users": ["a", "b"],
    "num_samples": [2, 2],
    "user_data": {"a": user(0), "b": user(1)},
  } | changes


def test_a_leaf_folder_is_read(tmp_path):
  for split in ("train", "test"):
    (tmp_path / split).mkdir()
    (tmp_path / split / "a.json").write_text(json.dumps(leaf_json()))
  found = fi.data.read(tmp_path)
  assert "2 clients by user, 4 rows, examples of 2, label y" in found.line
  np.testing.assert_array_equal(found.data.client(1)[0], [[1, 1.5], [2, 1]])
  assert found.encode(tmp_path / "test")[2] == ("a", "a", "b", "b")
  uncounted = leaf_json()
  del uncounted["num_samples"]
  uncounted["user_data"]["a"]["x"] = np.eye(2, 784).tolist()
  uncounted["user_data"]["b"]["x"] = np.eye(2, 784).tolist()
  (tmp_path / "a.json").write_text(json.dumps(uncounted))
  (tmp_path / "train/a.json").unlink()
  (tmp_path / "train").rmdir()
  assert fi.data.read(tmp_path).data.x.shape == (4, 28, 28, 1)


def test_a_folder_of_images_is_read(tmp_path):
  for seed, name in enumerate(("b/10/1.png", "b/9/1.png", "a/9/x.png")):
    image(tmp_path / name, seed=seed)
  (tmp_path / "a/9/notes.md").write_text("not an image")
  found = fi.data.read(tmp_path)
  assert "2 clients by folder, 3 rows, examples of 4 × 3 × 1" in found.line
  assert found.classes == ("9", "10") and found.data.ids == ("a", "b")
  expected = np.asarray(Image.open(tmp_path / "b/10/1.png")) / 255
  np.testing.assert_allclose(found.data.client(1)[0][0, ..., 0], expected)
  assert found.data.client(1)[1].tolist() == [1, 0]
  colours = tmp_path / "colours"
  for name in ("a/p/1.png", "b/q/2.png"):
    image(colours / name, (4, 3, 3))
  (colours / "notes.txt").touch()
  x = fi.data.read(colours).data.x
  assert x.shape == (2, 4, 3, 3) and 0 <= x.min() < x.max() <= 1
  (colours / "labels.csv").touch()
  with pytest.raises(ValueError, match=r"tables \(labels\.csv\) and images"):
    fi.data.read(colours)


def spoiled(row, column, cell):
  """The table with one cell changed; rows as an editor counts them."""
  lines = hospitals()
  cells = lines[row - 2].split(",")
  cells[HEADER.split(",").index(column)] = cell
  return [*lines[: row - 2], ",".join(cells), *lines[row - 1 :]]


BAD_TABLES = {
  "text": (
    spoiled(7, "age", "old"),
    r"a\.csv: column age, row 7 holds 'old'; .* must be one",
  ),
  "decimal comma": (
    spoiled(7, "age", '"3,5"'),
    r"column age, row 7 holds '3,5'; .* decimal point",
  ),
  "decimal commas": (
    [f'h{i % 2},"{i // 4},5",m,{i % 2}' for i in range(12)],
    "column age, row 2 holds '0,5'; the column is mostly numbers",
  ),
  "empty number": (spoiled(7, "age", ""), "column age, row 7 is empty; fill"),
  "nan": (spoiled(8, "age", "nan"), "column age, row 8 is empty; fill it in"),
  "empty text": (spoiled(9, "sex", ""), "column sex, row 9 is empty; fill"),
  "empty label": (spoiled(9, "outcome", ""), "column outcome, row 9 is empty"),
  "empty client": (spoiled(9, "hospital", ""), "column hospital, row 9 is em"),
  "infinite": (spoiled(5, "age", "inf"), "column age, row 5 is infinite; it"),
  "beyond floats": (spoiled(5, "age", "1e308"), "row 5 is 1e.308; so large"),
  "after blank lines": (
    ["", "", *spoiled(5, "age", "")],
    "column age, row 7 is empty",
  ),
  "after a long cell": (
    [*hospitals()[:2], 'h0,33,"m\nm",y', *spoiled(5, "age", "inf")],
    "column age, row 9 is infinite",
  ),
  "too long": (
    [*hospitals(), "h1,2,m,y,"],
    r"row 20 has 5 cells, the first row has 4 .*after column outcome",
  ),
  "too short": (
    [*hospitals(), "h1,2,m"],
    r"row 20 has 3 cells, .* \(column outcome is missing\)",
  ),
  "one class": (
    [s.replace(",n", ",y") for s in hospitals()],
    "column outcome, row 2: every label is 'y'; a classifier needs two",
  ),
  "dates": (
    [
      s.replace(",m", ",2020-01-03").replace(",f", ",2020-01-04")
      for s in hospitals()
    ],
    "column sex, row 2 is of type date.*; it must be a number or text",
  ),
  "many texts": (
    [f"h0,3,t{i},{i % 2}" for i in range(60)],
    "column sex, row 2: the column holds 60 different texts; .* at most 50",
  ),
  "no rows": ([], "a.csv: has no rows; at least one example is needed"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_bad_table_is_named(case, tmp_path):
  lines, problem = BAD_TABLES[case]
  path = write(tmp_path / "a.csv", lines)
  with pytest.raises(ValueError, match=problem) as error:
    fi.data.read(path)
  assert str(tmp_path / "a.csv") in str(error.value)
  assert "\n" not in str(error.value)


BAD_HEADERS = {
  "hospital,age,age,outcome": "column 'age' is there twice",
  "hospital,age,,outcome": "column 3 has no name",
  "a,age,sex,outcome": "no column is called like a client .* a, age, sex,",
}


@pytest.mark.parametrize("header", BAD_HEADERS)
def test_a_bad_header_is_named(header, tmp_path):
  with pytest.raises(ValueError, match=BAD_HEADERS[header]):
    fi.data.read(write(tmp_path / "a.csv", header=header))


BAD_OPTIONS = {
  "client": ({"client": "clinic"}, "column clinic is missing; there are hosp"),
  "label": ({"label": "result"}, "column result is missing; there are hosp"),
  "both": ({"client": "age", "label": "age"}, "age cannot be both client and"),
  "task": ({"task": "clustering"}, "task is 'clustering'; it must be 'auto'"),
  "name": ({"client": 3}, "client is 3; it must be a column's name"),
  "regression": (
    {"task": "regression"},
    "column outcome, row 2 holds 'n'; it must be a number",
  ),
  "float label": (
    {"label": "age", "task": "classification"},
    "column age, row 3 is 20.5; a class is text or an integer",
  ),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_a_bad_option_is_named(case, tmp_path):
  options, problem = BAD_OPTIONS[case]
  path = write(tmp_path / "a.csv", spoiled(3, "age", "20.5"))
  with pytest.raises(ValueError, match=problem):
    fi.data.read(path, **options)


def test_a_label_that_is_no_class_is_a_mistake(tmp_path):
  lines = [f"{'ab'[i % 2]},{i},{i // 2 % 2}" for i in range(30)]
  lines[4] = "a,4,0.5"
  path = write(tmp_path / "a.csv", lines, "client,x,label")
  with pytest.raises(ValueError, match=r"column label, row 6 is 0\.5; a class"):
    fi.data.read(path)
  lines[4] = "a,4,O"
  with pytest.raises(ValueError, match="column label, row 6 holds 'O'; the"):
    fi.data.read(write(path, lines, "client,x,label"))
  lines[6] = "a,4,O"  # Twice: a class like others.
  assert fi.data.read(write(path, lines, "client,x,label")).classes == (
    *("0", "1", "O"),
  )


ENCODINGS = {
  "latin-1": ("latin-1", r"column sex, row 7 holds '.*', which is not UTF-8"),
  "utf-16": ("utf-16", "a.csv: is UTF-16; save it as CSV in UTF-8"),
}


@pytest.mark.parametrize("name", ENCODINGS)
def test_a_file_must_be_utf_8(name, tmp_path):
  encoding, problem = ENCODINGS[name]
  path = write(tmp_path / "a.csv", spoiled(7, "sex", "é"), HEADER, encoding)
  with pytest.raises(ValueError, match=problem):
    fi.data.read(path)
  header = write(path, header=HEADER.replace("age", "âge"), encoding="latin-1")
  with pytest.raises(ValueError, match=r"row 1 holds '.*', which is not UTF-8"):
    fi.data.read(header)


def test_the_files_of_a_folder_must_fit(tmp_path):
  folder = as_folder(tmp_path)
  write(folder / "h1.csv", ["33,y"], "age,outcome")
  with pytest.raises(ValueError, match=r"h1\.csv: column sex is missing; h0"):
    fi.data.read(folder)
  write(folder / "h1.csv", ["33,m,2,y"], "age,sex,more,outcome")
  with pytest.raises(ValueError, match=r"h0\.csv: column more is missing; h1"):
    fi.data.read(folder)
  write(folder / "h1.csv", ["old,m,y"], "age,sex,outcome")
  with pytest.raises(ValueError, match=r"h1\.csv: column age .*all numbers or"):
    fi.data.read(folder)
  write(folder / "h1.csv", ["33,m,y", "34,,y"], "age,sex,outcome")
  with pytest.raises(ValueError, match=r"h1\.csv: column sex, row 3 is empty"):
    fi.data.read(folder)
  with pytest.raises(ValueError, match="client=hospital is for one file"):
    fi.data.read(folder, client="hospital")
  write(folder / "h1.tsv", ["33,m,y"], "age,sex,outcome")
  with pytest.raises(ValueError, match=r"h1\.tsv: there is another .* 'h1'"):
    fi.data.read(folder)


def test_a_column_that_names_the_file_is_no_feature(tmp_path):
  for k in range(3):
    write(tmp_path / f"h{k}.csv", hospitals()[k::3])
  found = fi.data.read(tmp_path)
  assert "3 clients by file (one hospital each, left out)" in found.line
  np.testing.assert_array_equal(found.data.x, fi.data.read(columns()).data.x)


BAD_ARRAYS = {
  "client": ({"client": None}, "array client is missing; there are x, y; th"),
  "lengths": ({"y": np.arange(7)}, r"length \(x 8, y 7, client 8\); they must"),
  "objects": (
    {"client": np.array(["a"] * 8, object)},
    "client: it holds Python objects, .* must be an array of dtype str",
  ),
  "one-hot": ({"y": np.eye(8)}, r"y has shape \[8, 8\]; it must be \[N\]"),
  "complex": ({"y": np.ones(8, complex)}, "y is complex128; it must hold num"),
  "text": ({"x": np.array(["a"] * 8)}, "x is <U1 .*; it must hold numbers"),
  "nan": ({"x": np.array([0, 1] * 3 + [np.nan, 1])}, r"a\.npz: x\[6\] has a"),
  "nan label": ({"y": np.array([0, 1] * 3 + [np.nan, 1])}, r"y\[6\] is not a"),
  "one class": ({"y": np.ones(8, int)}, r"y\[0\]: every label is '1'; a cl"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_a_bad_array_is_named(case, tmp_path):
  changes, problem = BAD_ARRAYS[case]
  made = {k: v for k, v in mixed(**changes).items() if v is not None}
  np.savez(tmp_path / "a.npz", **made)
  with pytest.raises(ValueError, match=problem) as error:
    fi.data.read(tmp_path / "a.npz")
  assert "a.npz: " in str(error.value) and "\n" not in str(error.value)


BAD_USERS = {
  "ragged": ([[1, 2], [3]], r"user 'a': x\[1\] must be a list of as many"),
  "text": ([[1, 2], ["b", 3]], r"user 'a': x\[1\] must be a list of as many"),
  "longer": ([[1, 2, 3], [1, 2, 3]], r"'b': x has examples of shape \[2\], "),
  "nan": ([[1, 2], [float("nan"), 3]], r"user 'a': x\[1\] has a value that"),
  "few": ([[1, 2]], "user 'a': x has 1 examples, y has 2 labels"),
}


@pytest.mark.parametrize("case", BAD_USERS)
def test_a_bad_user_is_named(case, tmp_path):
  rows, problem = BAD_USERS[case]
  content = leaf_json()
  content["user_data"]["a"]["x"] = rows
  (tmp_path / "a.json").write_text(json.dumps(content))
  with pytest.raises(ValueError, match=problem):
    fi.data.read(tmp_path)


def test_a_bad_image_is_named(tmp_path):
  for name in ("a/9/1.png", "a/8/2.png", "b/9/3.png"):
    image(tmp_path / name)
  image(tmp_path / "b/9/4.png", (4, 5))
  with pytest.raises(ValueError, match=r"4\.png: is 4 × 5 in grey, .*2\.png"):
    fi.data.read(tmp_path)
  image(tmp_path / "b/9/4.png", (4, 3, 3))
  with pytest.raises(ValueError, match=r"4\.png: is 4 × 3 in colours"):
    fi.data.read(tmp_path)
  content = (tmp_path / "a/9/1.png").read_bytes()
  for damaged in (b"", b"GIF89a", content[:-30], content[:40] + b"?" * 30):
    (tmp_path / "b/9/4.png").write_bytes(damaged)
    with pytest.raises(ValueError, match=r"4\.png: cannot be read as an image"):
      fi.data.read(tmp_path)
  (tmp_path / "b/9/4.png").rename(tmp_path / "b/4.png")
  with pytest.raises(ValueError, match=r"4\.png: stands outside client/label"):
    fi.data.read(tmp_path)


NOTHING = {
  "nowhere": (lambda path: None, "cannot be read"),
  "nowhere.csv": (lambda path: None, "cannot be read"),
  "folder": (pathlib.Path.mkdir, "is an empty folder; it must be .csv, .pa"),
  "a.csv": (pathlib.Path.touch, "is empty; it must have a line of column"),
  "b.csv": (lambda path: path.write_text("\n\n"), "is empty; it must have"),
  "a.parquet": (pathlib.Path.touch, "is no Parquet file"),
  "a.npz": (pathlib.Path.touch, "is no .npz"),
  "a.xlsx": (pathlib.Path.touch, "has another ending; it must be .csv"),
}


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_read_is_named(name, tmp_path):
  make, problem = NOTHING[name]
  make(tmp_path / name)
  with pytest.raises(ValueError, match=rf"{name}: .*{problem}"):
    fi.data.read(tmp_path / name)


def test_a_folder_of_other_things_is_named(tmp_path):
  (tmp_path / "notes.md").touch()
  with pytest.raises(ValueError, match="holds nothing that can be read; it mu"):
    fi.data.read(tmp_path)
  with pytest.raises(ValueError, match="the table is a int; it must have colu"):
    fi.data.read(3)


def test_federated_data_from_what_is_in_memory(tmp_path):
  make = fi.FederatedData
  path = write(tmp_path / "a.csv")
  np.testing.assert_array_equal(
    make.from_csv(path).x, make.from_dataframe(columns()).x
  )
  assert make.from_csv(path, label="sex").y.dtype == np.int32
  x, y = np.arange(12.0).reshape(6, 2), np.array([0, 2, 0, 2, 0, 2])
  data = make.from_arrays(x, y, ["b", "a", "b", "a", "b", "a"])
  assert data.ids == ("b", "a") and data.y.tolist() == [0, 0, 0, 2, 2, 2]
  same = make.from_dict({"b": (x[::2], y[::2]), "a": (x[1::2], y[1::2])}, 3)
  np.testing.assert_array_equal(same.x, data.x)
  assert same.num_classes == 3
  with pytest.raises(ValueError, match="clients is a list; it must be a dict"):
    make.from_dict([(x, y)])


MEASURED = """
import resource, sys
import jax
import fedinf_jax as fi
from fedinf_jax.data import encoding
jax.devices()
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
found = fi.data.read(sys.argv[1])
print(*found.data.x.shape, found.data.num_clients, peak() - before)
"""


@pytest.mark.slow
def test_a_million_rows_take_a_few_times_their_size(tmp_path):
  draw, n = np.random.default_rng(0), 1_000_000
  among = lambda names: np.array(names)[draw.integers(0, len(names), n)]
  table = {f"v{j}": draw.normal(size=n).round(4) for j in range(10)}
  table |= {"hospital": among([f"h{k}" for k in range(40)])}
  table |= {"ward": among(list("abcd")), "label": among([0, 1])}
  path = tmp_path / "a.csv"
  pacsv.write_csv(pa.table(table), path)
  done = subprocess.run(
    [sys.executable, "-c", MEASURED, str(path)],
    env=binaries.environment(),
    capture_output=True,
    text=True,
    check=True,
  )
  *found, peak = map(int, done.stdout.split())
  assert found == [n, 14, 40]
  # Text, Arrow's columns and the array x, and one column at a time beside.
  assert peak < 3 * (path.stat().st_size + 4 * 14 * n)
