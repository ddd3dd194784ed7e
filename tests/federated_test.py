"""FederatedData: what goes in comes out, and what is wrong is named."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import ml_dtypes
import numpy as np
import pytest

import fedinf_jax as fi

make = fi.FederatedData.from_clients


def good(n=3, features=2):
  return np.ones((n, features)), np.zeros(n, int)


NAN = np.array([[1.0, 2.0], [np.nan, 0.0]])
BAD = {
  "no clients": ([], {}, "clients is empty"),
  "empty client": ([good(), good(0)], {}, "client 1: has no examples"),
  "not a pair": ([good(), 7], {}, r"client 1: expected a pair \(x, y\)"),
  "lengths": (
    [(np.ones((3, 2)), np.zeros(2, int))],
    {},
    "client 0: x has 3 examples but y has 2",
  ),
  "shapes": ([good(), good(features=5)], {}, "client 1: x has examples of"),
  "dtypes": (
    [good(), (np.ones((3, 2)), np.zeros(3))],
    {},
    "client 1: y is float64, client 0's is int64",
  ),
  "ragged rows": ([([[1.0], [1.0, 2.0]], [0, 1])], {}, "client 0: x is not a"),
  "text": ([(np.array([["a"]]), [0])], {}, "client 0: x is not a rectangular"),
  "scalar": ([(np.float64(3), [0])], {}, "client 0: x is a scalar"),
  "nan pixel": (
    [good(), (NAN, [0, 1])],
    {"ids": ["a", "b"]},
    r"client 'b': x has a value that is not finite \(example 1\)",
  ),
  "nan target": ([(np.ones((1, 2)), [np.inf])], {}, "client 0: y has a value"),
  "label too large": (
    [good(), (np.ones((2, 2)), [0, 3])],
    {"num_classes": 3},
    r"client 1: y has a label outside 0 … 2 \(example 1\)",
  ),
  "label negative": (
    [(np.ones((1, 2)), [-1])],
    {"num_classes": 3},
    "client 0: y has a label outside",
  ),
  "label float": (
    [(np.ones((1, 2)), [1.0])],
    {"num_classes": 3},
    "num_classes=3 asks for one integer label",
  ),
  "id twice": ([good(), good()], {"ids": ["1", 1]}, "ids: '1' occurs twice"),
  "id missing": ([good(), good()], {"ids": ["a"]}, "ids has 1 entries for 2"),
  "id kind": ([good()], {"ids": [None]}, "ids: None is neither"),
  "id surrogate": (
    [good()],
    {"ids": ["a\ud800"]},
    r"ids: 'a\\ud800' is not a string of Unicode characters",
  ),
  "ids of nothing": ([good()], {"ids": 3}, "ids is 3; it must be a list"),
  "clients of nothing": (None, {}, "clients is None; it must be a list"),
  "no features": (
    [(np.ones((3, 0)), np.zeros(3, int))],
    {},
    r"client 0: x has examples of shape \[0\], without a number",
  ),
  "masked": (
    [good(), (np.ma.masked_equal(NAN[:1], 2.0), [0])],
    {},
    "client 1: x has masked entries",
  ),
  "masked rows": (
    [([np.ma.masked_equal(NAN[0], 2.0)], [0])],
    {},
    "client 0: x has masked entries",
  ),
  "num_classes": ([good()], {"num_classes": 2.0}, "num_classes is 2.0"),
  "no classes": ([good()], {"num_classes": 0}, "num_classes is 0"),
  "huge": (
    [(np.broadcast_to(1.0, (10**13, 2)), np.broadcast_to(0, 10**13))],
    {},
    r"client 0: x would need 160,000,000,000,000 bytes of memory or more",
  ),
  "huge halves": (
    [(np.broadcast_to(np.float16(1), (10**13, 2)), [0])],
    {},
    r"client 0: x would need 80,000,000,000,000 bytes",
  ),
}


@pytest.mark.parametrize("name", BAD)
def test_names_what_is_wrong(name):
  clients, kwargs, message = BAD[name]
  with pytest.raises(ValueError, match=message):
    make(clients, **kwargs)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_floats_and_boolean_labels_are_cast(dtype):
  x, y = np.eye(3).astype(dtype), np.array([True, False, True])
  data = make([(x, y)], num_classes=2)
  assert (data.x.dtype, data.y.dtype) == (np.float32, np.int32)
  np.testing.assert_array_equal(data.x, np.eye(3))
  np.testing.assert_array_equal(data.y, [1, 0, 1])
  unmasked = np.ma.masked_array(np.eye(3), mask=False)
  assert make([(unmasked, y)]).x.dtype == np.float64
  wide = make([(np.eye(3).astype(np.longdouble), y)])
  assert wide.x.dtype == np.float64


def test_what_is_made_by_hand_is_checked_too():
  data = make([good(3), good(2)], num_classes=1)
  for changes, message in (
    ({"y": data.y + 1}, "client 0: y has a label outside 0 … 0"),
    ({"x": data.x * np.nan}, "client 0: x has a value that is not finite"),
    ({"x": data.x.astype(np.float16)}, "x is float16; use from_clients"),
    ({"y": data.y == 0}, "y is bool; use from_clients"),
    ({"num_examples": np.array([3, 3])}, "num_examples does not divide"),
    ({"ids": ("a",)}, "ids has 1 entries for 2 clients"),
  ):
    with pytest.raises(ValueError, match=message):
      dataclasses.replace(data, **changes)


def test_positions_are_not_counted_from_the_end():
  data = make([good(), good()])
  for call in (data.client, lambda k: data.take([k])):
    for k in (-1, 0.0, "0", None, True):
      with pytest.raises(ValueError, match=f"client is {k!r}; it must be an"):
        call(k)
    with pytest.raises(ValueError, match="positions run from 0 to 1"):
      call(2)


def test_keeps_every_example_in_place():
  clients = [(np.full((n, 2), n, np.float32), np.arange(n)) for n in (2, 5, 1)]
  data = make(clients, ids=["a", 7, "c"], num_classes=5)
  assert (data.num_clients, data.ids) == (3, ("a", 7, "c"))
  np.testing.assert_array_equal(data.num_examples, [2, 5, 1])
  for k, (x, y) in enumerate(clients):
    np.testing.assert_array_equal(data.client(k)[0], x)
    np.testing.assert_array_equal(data.client(k)[1], y)
    assert data.client(k)[0].dtype == np.float32
  np.testing.assert_array_equal(data.pooled()[1], [0, 1, 0, 1, 2, 3, 4, 0])
  left = data.without(["7"])
  assert left.ids == ("a", "c")
  np.testing.assert_array_equal(left.pooled()[1], [0, 1, 0])
  with pytest.raises(ValueError, match="no client has the id 'z'"):
    data.without(["z"])
  with pytest.raises(ValueError, match="positions run from 0 to 2"):
    data.client(3)


def test_whole_clients_are_held_out_by_id():
  ids = [f"w{k}" for k in range(40)]
  data = make([(np.full((2, 1), k), np.zeros(2, int)) for k in range(40)], ids)
  train, out = data.hold_out(0.25, seed=3)
  assert out.num_clients == 10 and not set(train.ids) & set(out.ids)
  assert sorted(train.ids + out.ids) == sorted(ids)
  assert [i for i in ids if i in train.ids] == list(train.ids)  # In order.
  for part in (train, out):
    for k, i in enumerate(part.ids):
      np.testing.assert_array_equal(part.client(k)[0], int(i[1:]))
  order = np.random.default_rng(0).permutation(40)
  assert set(data.take(order).hold_out(0.25, seed=3)[1].ids) == set(out.ids)
  assert set(data.hold_out(0.25, seed=4)[1].ids) != set(out.ids)
  # Without one who stays, nobody changes sides; without one who goes, one does.
  fewer = data.without([train.ids[0]]).hold_out(10 / 39, seed=3)[1]
  assert set(fewer.ids) == set(out.ids)
  fewer = data.without([out.ids[0]]).hold_out(10 / 39, seed=3)[1]
  assert len(set(fewer.ids) - set(out.ids)) == 1
  assert [p.num_clients for p in data.hold_out(0.001, seed=0)] == [39, 1]
  assert [p.num_clients for p in data.hold_out(0.999, seed=0)] == [1, 39]
  with pytest.raises(ValueError, match=r"fraction is 1\.0; it must lie"):
    data.hold_out(1, seed=0)
  with pytest.raises(ValueError, match="hold_out needs at least two clients"):
    data.take([3]).hold_out(0.5, seed=0)


def test_split_is_a_partition_by_id():
  data = make(
    [(np.arange(n)[:, None] + 100.0 * n, np.arange(n)) for n in (1, 5, 30)],
    ids=["one", "five", "thirty"],
  )
  train, test = data.split(0.9, seed=3)
  assert train.ids == data.ids and test.ids == ("five", "thirty")
  np.testing.assert_array_equal(train.num_examples, [1, 4, 27])
  both = np.concatenate([train.x, test.x]).ravel()
  np.testing.assert_array_equal(np.sort(both), np.sort(data.x.ravel()))
  again, _ = data.take([2, 0, 1]).split(0.9, seed=3)
  np.testing.assert_array_equal(again.client(0)[0], train.client(2)[0])
  other, _ = data.split(0.9, seed=4)
  assert (other.client(2)[0] != train.client(2)[0]).any()
  with pytest.raises(ValueError, match=r"train_fraction is 1\.5"):
    data.split(1.5, seed=0)
  with pytest.raises(ValueError, match="leaves no client a test example"):
    data.take([0]).split(0.5, seed=0)


ARRAYS = st.one_of(
  hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
  ),
  st.lists(st.lists(st.floats(), max_size=2), max_size=3),
  st.none(),
  st.text(max_size=2),
  st.integers(),
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(
  st.lists(st.one_of(st.tuples(ARRAYS, ARRAYS), ARRAYS), max_size=3),
  st.one_of(st.none(), st.integers(-1, 4)),
)
def test_hostile_input_is_packed_or_refused_by_name(clients, num_classes):
  try:
    data = make(clients, num_classes=num_classes)
  except ValueError as error:
    assert "client" in str(error) or "num_classes is" in str(error)
    return
  assert data.num_clients == len(clients)
  assert (data.num_examples > 0).all()
  for k, (x, y) in enumerate(clients):
    np.testing.assert_array_equal(data.client(k)[0], np.asarray(x))
    np.testing.assert_array_equal(data.client(k)[1], np.asarray(y))


def test_an_integer_too_wide_is_refused(enable_x32):
  del enable_x32
  with pytest.raises(
    ValueError, match="client 0: x has an integer beyond int32"
  ):
    make([(np.array([[2**40]]), [0])])
  with pytest.raises(ValueError, match="client 0: x has a value that is not"):
    make([(np.array([[1e300]]), [0])])
  assert make([good()]).x.dtype == np.float32
