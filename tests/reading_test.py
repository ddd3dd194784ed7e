"""Readers: what a file holds is found by looking, or named in one line."""

import numpy as np
import pytest

import fedinf_jax as fi

HEADER = "hospital,age,sex,outcome\n"


def hospitals(num_clients=3, rows=6):
  """A table of `rows` per hospital."""
  line = lambda k, i: f"h{k},{20 + 7 * i + k},{'mf'[i % 2]},{'ny'[i % 3 > 0]}"
  return [line(k, i) for i in range(rows) for k in range(num_clients)]


def write(path, lines, header=HEADER):
  path.write_text(header + "\n".join(lines) + "\n", encoding="utf-8")
  return path


def test_a_csv_is_understood(tmp_path):
  path = write(tmp_path / "hospitals.csv", hospitals())
  found = fi.data.read(path)
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
  found = fi.data.read(write(tmp_path / "train.csv", hospitals()))
  x, y, owners = found.encode(write(tmp_path / "test.csv", hospitals(4, 2)))
  assert owners == ("h0", "h1", "h2", None) * 2
  for k in range(3):
    np.testing.assert_array_equal(x[k::4], found.data.client(k)[0][:2])
    np.testing.assert_array_equal(y[k::4], found.data.client(k)[1][:2])
  without = write(tmp_path / "x.csv", ["25,f,y"], "age,sex,outcome\n")
  assert found.encode(without)[2] is None
  lacking = write(tmp_path / "x.csv", ["f,y"], "sex,outcome\n")
  with pytest.raises(ValueError, match=r"x\.csv: column age is missing"):
    found.encode(lacking)
  unknown = write(tmp_path / "x.csv", ["h0,25,f,maybe"])
  with pytest.raises(ValueError, match=r"outcome, row 2 is 'maybe'; .* n, y$"):
    found.encode(unknown)
