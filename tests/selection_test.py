"""Who is taken out and who is replayed: masks, numbers, rows and ids."""

import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax import selection


def data_of(ids):
  one = np.ones((1, 2)), np.zeros(1, int)
  return fi.FederatedData.from_clients([one] * len(ids), ids)


NAMES = ["a", "b", "c", "d"]
MOVED = [3, 2, 1, 0]  # each id is another client's row
APART = [10, 20, 30, 40]


def test_a_number_is_drawn_as_recipes_draw_it():
  for seed in (0, 1, 2**32 - 1):
    rows = selection.replayed(5, 30, seed)
    assert rows.tolist() == recipes.exact_rows("5", 30, seed)
  assert len(set(rows)) == 5 and (np.diff(rows) > 0).all()
  drawn = {tuple(selection.replayed(5, 30, seed)) for seed in range(9)}
  assert len(drawn) > 5
  assert selection.replayed(np.int64(4), 4, 0).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
  ("exact", "ids", "rows"),
  [
    (True, NAMES, [0, 1, 2, 3]),
    (np.True_, NAMES, [0, 1, 2, 3]),
    (False, NAMES, []),
    ([2, 0], NAMES, [2, 0]),
    (["c", "a"], NAMES, [2, 0]),
    (np.array(["c", "a"]), NAMES, [2, 0]),
    (("d",), NAMES, [3]),
    ([2, 0], None, [2, 0]),  # Groups: rows of removals.
    ([2, 0], [0, 1, 2, 3], [2, 0]),  # Ids are rows.
    ([20, 10], APART, [1, 0]),
    ([np.int64(20)], APART, [1]),
    ([1, 3], APART, [1, 3]),  # They can be rows only.
    (np.array([1, 3]), MOVED, [1, 3]),  # An array holds rows.
    (["1", "3"], MOVED, [2, 0]),  # Text is ids.
    ([], MOVED, []),
  ],
)
def test_rows_and_ids(exact, ids, rows):
  found = selection.replayed(exact, 4, 0, ids)
  assert found.dtype == int and found.tolist() == rows


BAD = {
  "none": (0, NAMES, "^exact is 0; it must be True, False, a list, or a numb"),
  "too many": (5, NAMES, "number of removals from 1 to 4$"),
  "unknown": (["c", "x"], NAMES, "^exact: no client has the id 'x'$"),
  "groups": (["c"], None, "^exact: with removals=, give rows of it as numbers"),
  "either": (
    [1],
    MOVED,
    r"^exact: 1 is a row, and the id of the client in row 2; give ids as text"
    r" \('1'\), or rows as a NumPy array$",
  ),
  "neither": ([1, 30, 50], APART, "run from 0 to 3; 30 is none, and 1 is no"),
  "mixed": ([20, 3], APART, "run from 0 to 3; 20 is none, and 3 is no client"),
  "text": ("c", NAMES, "^exact must be True, False or a list"),
  "float": ([0.5], NAMES, "^exact must be True, False or a list"),
  "bool": ([True, False], APART, "^exact must be True, False or a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_could_be_two_things_is_refused(name):
  exact, ids, message = BAD[name]
  with pytest.raises(ValueError, match=message) as error:
    selection.replayed(exact, 4, 0, ids)
  assert "\n" not in str(error.value)


def test_groups_are_lists_of_ids():
  data = data_of(NAMES)
  mask = selection.removals([["a", "c"], {"d"}, ()], data)
  assert mask.tolist() == [[1, 0, 1, 0], [0, 0, 0, 1], [0, 0, 0, 0]]
  assert selection.removals([[0], [3, 1]], data_of(MOVED)).tolist() == [
    [0, 0, 0, 1],
    [1, 0, 1, 0],
  ]
  rows = [[True, False, True, False], [False] * 4]
  np.testing.assert_array_equal(selection.removals(rows, data), rows)
  assert selection.removals(None, data) is None


BAD_GROUPS = {
  "unknown": ([["a", "x"]], "^removals: no client has the id 'x'$"),
  "position": ([[0, 1]], "^removals: no client has the id 0$"),
  "twice": ([["b", "a", "b"]], "^removals: 'b' occurs twice in a list of ids"),
  "flat": (["a", "b"], r"^removals is <U1 of shape \[2\]; it must be bool"),
  "kind": ([["a", None]], "^removals: ids: None is neither"),
  "none": ([], "it must be bool"),
  "ragged mask": ([[True], [True, False]], "^removals is"),
}


@pytest.mark.parametrize("name", BAD_GROUPS)
def test_bad_groups_are_one_line(name):
  groups, message = BAD_GROUPS[name]
  with pytest.raises(ValueError, match=message) as error:
    selection.removals(groups, data_of(NAMES))
  assert "\n" not in str(error.value)


def test_a_mask_of_numbers_is_no_list_of_ids():
  with pytest.raises(ValueError, match=r"^removals: 0 occurs twice"):
    selection.removals([[0, 1, 0, 0]], data_of([0, 1, 2, 3]))
