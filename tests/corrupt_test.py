"""Corruptions change the clients they name, as they say, and nobody else."""

import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.data import corrupt

WAYS = {
  "flip": corrupt.flip_labels,
  "noise": corrupt.add_noise,
  "free_rider": corrupt.free_rider,
  "duplicate": corrupt.duplicate,
}


def make_data():
  draw = np.random.default_rng(0)
  return fi.FederatedData.from_clients(
    [
      (draw.uniform(size=(n, 3)), draw.integers(0, 4, n))
      for n in (40, 60, 20, 80, 10)
    ],
    ids="abcde",
    num_classes=4,
  )


@pytest.mark.parametrize("clients", [2, ["d", "a"]])
@pytest.mark.parametrize("name", WAYS)
def test_touches_only_whom_it_says(name, clients):
  data = make_data()
  changed, touched = WAYS[name](data, clients, seed=3)
  assert len(touched) == 2 and changed.ids == data.ids
  if not isinstance(clients, int):
    assert touched == ("d", "a")
  for k, i in enumerate(data.ids):
    same = all(
      np.array_equal(a, b)
      for a, b in zip(data.client(k), changed.client(k), strict=True)
    )
    assert same == (i not in touched)
  again, _ = WAYS[name](data, clients, seed=3)
  np.testing.assert_array_equal(again.x, changed.x)
  np.testing.assert_array_equal(again.y, changed.y)
  assert changed.x.min() >= 0 and changed.x.max() <= 1


def test_each_does_what_its_name_says():
  data = make_data()
  flipped, _ = corrupt.flip_labels(data, ["d"], fraction=0.5)
  assert (flipped.client(3)[1] != data.client(3)[1]).sum() == 40
  flipped, _ = corrupt.flip_labels(data, ["d"])
  assert (flipped.client(3)[1] != data.client(3)[1]).all()
  noisy, _ = corrupt.add_noise(data, ["a"], scale=0.1)
  assert 0.05 < np.std(noisy.client(0)[0] - data.client(0)[0]) < 0.11
  rider, _ = corrupt.free_rider(data, ["a"])
  assert np.abs(np.corrcoef(rider.client(0)[0].T, data.client(0)[0].T)
                [:3, 3:]).max() < 0.6  # fmt: skip
  copied, _ = corrupt.duplicate(data, ["a"])
  assert any(
    np.array_equal(copied.client(0)[0], data.client(k)[0]) for k in range(1, 5)
  )


BAD = {
  "nobody": (lambda d: corrupt.add_noise(d, 0), "clients is 0"),
  "too many": (lambda d: corrupt.add_noise(d, 6), "clients is 6"),
  "unknown": (lambda d: corrupt.flip_labels(d, ["z"]), "no client has the id"),
  "fraction": (
    lambda d: corrupt.flip_labels(d, 1, fraction=0),
    "fraction is 0",
  ),
  "scale": (lambda d: corrupt.add_noise(d, 1, scale=-1), "scale is -1"),
  "all copies": (lambda d: corrupt.duplicate(d, 5), "at least one client"),
  "no classes": (
    lambda d: corrupt.flip_labels(
      fi.FederatedData.from_clients(d.clients()), 1
    ),
    "num_classes",
  ),
  "integers": (
    lambda d: corrupt.free_rider(
      fi.FederatedData.from_clients([([[1]], [0])]), 1
    ),
    "floating inputs",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_errors(name):
  call, message = BAD[name]
  with pytest.raises(ValueError, match=message):
    call(make_data())
