"""Intervals over test sets: by their definition, and do they cover?"""

import numpy as np
import pytest
from scipy import stats

import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax.valuation import intervals

TRUTH = 0.003
REPEATS = 200
KINDS = {
  "normal": lambda draw, shape: draw.normal(size=shape),
  "heavy tails": lambda draw, shape: draw.standard_t(3, shape),
  "skewed": lambda draw, shape: draw.exponential(size=shape) - 1,
}
SIZES = {
  "equal": lambda draw, count: np.full(count, 20),
  "unequal": lambda draw, count: draw.integers(1, 60, count),
  "very unequal": lambda draw, count: (
    1 + draw.lognormal(2, 1, count).astype(int)
  ),
}


def literal(change, counts, level, resamples, seed):
  """One removal, one draw after another, as the docstring has it."""
  groups = counts.sum() ** 2 / np.square(counts).sum()

  def value_and_error(d, n):
    value = (n * d).sum() / n.sum()
    square = (np.square(n) * np.square(d - value)).sum() / n.sum() ** 2
    return value, np.sqrt(square * groups / (groups - 1))

  value, error = value_and_error(change, counts)
  draw = rng.host_generator(seed, rng.Stream.RESAMPLE)
  found = []
  for some in draw.integers(len(counts), size=(resamples, len(counts))):
    v, s = value_and_error(change[some], counts[some])
    found.append((v - value) / s)
  student = stats.t(groups - 1)
  q = student.ppf((1 + level) / 2)
  lower, upper = np.quantile(
    found, [(1 - level) / 2, (1 + level) / 2], method="nearest"
  )
  down, up = np.clip([upper, -lower], q, 4 * q) * error
  nearest = down if value > 0 else up
  p = 2 * student.sf(q * abs(value) / nearest)
  return value - down, value + up, p


def test_equals_its_definition():
  draw = np.random.default_rng(0)
  change = draw.normal(size=(4, 12)) + 0.5
  counts = draw.integers(1, 30, 12)
  found = fi.valuation.bootstrap(
    change, counts, level=0.9, resamples=300, seed=5
  )
  for r, row in enumerate(change):
    expected = literal(row, counts, 0.9, 300, 5)
    np.testing.assert_allclose([a[r] for a in found], expected, rtol=1e-9)


def test_blocks_of_draws_change_nothing(monkeypatch):
  change = np.random.default_rng(0).normal(size=(3, 7))
  counts = np.arange(1, 8)
  whole = fi.valuation.bootstrap(change, counts, resamples=50)
  monkeypatch.setattr(intervals, "_CELLS", 7 * 8)
  np.testing.assert_allclose(
    fi.valuation.bootstrap(change, counts, resamples=50), whole, rtol=1e-12
  )


@pytest.mark.parametrize("groups", [10, 100])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_intervals_cover_a_known_influence(kind, sizes, groups):
  draw = np.random.default_rng(1)
  covered = []
  for seed in range(REPEATS // 10):  # Ten removals share a test set.
    counts = SIZES[sizes](draw, groups)
    change = TRUTH + 0.01 * KINDS[kind](draw, (10, groups))
    found = fi.valuation.bootstrap(change, counts, seed=seed)
    covered += list((found.low <= TRUTH) & (found.high >= TRUTH))
  assert len(covered) == REPEATS
  assert 0.90 <= np.mean(covered) <= 0.99


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_nobody_is_called_helpful_or_harmful_without_reason(kind, sizes):
  draw = np.random.default_rng(2)
  called, rejected = [], []
  for seed in range(REPEATS // 10):
    counts = SIZES[sizes](draw, 40)
    change = KINDS[kind](draw, (50, 40))
    found = fi.valuation.bootstrap(change, counts, seed=seed)
    value = change @ counts / counts.sum()
    called.append(fi.valuation.effects(value, found.p) != 0)
    rejected.append(found.p < 0.05)
  assert np.mean(called) <= 0.05
  assert np.mean(rejected) <= 0.10  # One by one; skewed ones are the worst.


def test_most_of_those_that_are_called_have_an_effect():
  draw = np.random.default_rng(3)
  false, true = 0, 0
  for seed in range(20):
    change = draw.normal(size=(100, 40))
    change[:10] += 1.0
    change[10:20] -= 1.0
    found = fi.valuation.bootstrap(change, np.full(40, 5), seed=seed)
    effect = fi.valuation.effects(change.mean(1), found.p)
    false += (effect[20:] != 0).sum()
    true += (effect[:10] == 1).sum() + (effect[10:20] == -1).sum()
  assert true > 0.95 * 20 * 20
  assert false < 0.08 * true


def test_intervals_and_p_agree_at_their_ends():
  change = np.random.default_rng(4).normal(size=(200, 15)) + 0.5
  found = fi.valuation.bootstrap(change, np.full(15, 3))
  beyond = (found.low > 0) | (found.high < 0)
  assert 20 < beyond.sum() < 180
  np.testing.assert_array_equal(beyond, found.p < 0.05)


def test_effects_by_hand():
  # Benjamini and Hochberg: the largest k with p_(k) <= 0.05 k / 4.
  p = np.array([0.01, 0.024, 0.037, 0.9, 1e-9, 0.0])
  value = np.array([1.0, -1.0, 1.0, 1.0, np.nan, 0.0])
  assert fi.valuation.effects(value, p).tolist() == [1, -1, 1, 0, 0, 0]
  p[2] = 0.038
  assert fi.valuation.effects(value, p).tolist() == [1, -1, 0, 0, 0, 0]


def test_edges():
  alone = fi.valuation.bootstrap([[0.3], [0.1]], [5])
  assert np.isnan(alone.low).all() and alone.p.tolist() == [1, 1]
  same = fi.valuation.bootstrap([[0.25, 0.25, 0.25], [0, 0, 0]], [5, 6, 7])
  np.testing.assert_allclose(same.low, [0.25, 0], atol=1e-15)
  assert same.p.tolist() == [0, 1]
  # One large group leaves nothing to judge by.
  huge = fi.valuation.bootstrap([[0.1, 0.3]], [10**6, 1])
  assert np.isnan(huge.low).all() and huge.p.tolist() == [1]


@pytest.mark.parametrize(
  "changes, message",
  [
    ({"change": [1.0, 2.0]}, r"^change has shape \[2\] and counts \[2\]"),
    ({"counts": [1, 2, 3]}, r"^change has shape \[1, 2\] and counts \[3\]"),
    ({"counts": [1, 0]}, "^counts must be >= 1"),
    ({"change": [[1.0, np.nan]]}, "^change has a value that is not finite"),
    ({"level": 1}, "^level is 1.0; it must lie between 0 and 1"),
    ({"resamples": 0}, "^resamples is 0"),
    ({"seed": -1}, "^seed is -1"),
  ],
)
def test_bad_input_is_one_line(changes, message):
  asked = {"change": [[1.0, 2.0]], "counts": [1, 2]} | changes
  with pytest.raises(ValueError, match=message):
    fi.valuation.bootstrap(**asked)
