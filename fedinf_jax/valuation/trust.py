"""What agreement with retraining to expect of an estimate nobody has checked.

Pearson's correlation over clients of estimated with exact influence is unknown
where nobody is replayed. Signs of it can be had in a few trainings. Fisher's z
of the correlation is taken as linear in them,

    arctanh(expected) = b_0 + Σ_i b_i f_i(sign_i),    b_i >= 0,

where every f_i falls as its sign gets worse: no bad sign raises what is
expected. The b_i are learnt from federations that were replayed in full.
"""

from collections.abc import Sequence
import math
from typing import Any
from typing import NamedTuple

import numpy as np
import scipy

from fedinf_jax import checks


class Signs(NamedTuple):
  """Of one estimator in one run; see `simulation.signs` for A and B.

  d_r: how the loss of each test example changes without the clients in r.
  Correlations are means over spot checks.
  """

  check: float  # cosine of estimated with exact d_A, d_B and d_{A∪B}
  smoothness: float  # of exact d_A and d_B with what A and B add to the other
  redrawn: float  # cosine of estimated d_A, d_B, d_{A∪B} with those redrawn
  growth: float  # largest growth of ε in a round; > 1 is Case 3
  truncated: float  # share of layers whose ε was dropped at some time
  residual: float  # mean residual of matched clients; 0: not matched


class Trust(NamedTuple):
  """What Pearson's correlation with retraining to expect."""

  pearson: float
  low: float  # of the interval, which held in COVERED of the calibration
  high: float
  reasons: list[str]  # what lowers it, the worst first
  signs: Signs


class Calibration(NamedTuple):
  """What was learnt: see `fit`."""

  start: float  # b_0
  slopes: tuple[float, ...]  # b_i, in the order of Signs
  errors: tuple[float, float]  # of z, between which COVERED of them lie


LIMIT = 0.9995  # Correlations beyond it are the same to us.
COVERED = 0.9
LEAST_LOSS = 0.25  # of z, below which a sign is no reason
# From python -m experiments.calibrate: 240 rows of five settings.
CALIBRATION = Calibration(
  start=-0.375,
  slopes=(0.761, 0.160, 0.140, 0.00907, 0.0, 0.0),
  errors=(-0.794, 0.850),
)


def expected(signs: Signs, calibration: Calibration = CALIBRATION) -> Trust:
  """Returns the expected Pearson correlation, its interval, and why.

  Args:
    signs: of an estimator; one that is not finite means an overflow, and
      nothing good is expected then.
    calibration: another one.

  Examples:
    >>> signs = fi.valuation.Signs(
    ...   check=0.9, smoothness=1.0, redrawn=0.9, growth=1.0, truncated=0.0,
    ...   residual=0.0,
    ... )
    >>> found = fi.valuation.expected(signs)
    >>> found.low < found.pearson < found.high
    True
  """
  if not isinstance(signs, Signs):
    raise ValueError(
      f"signs is a {type(signs).__name__}; it must be fi.valuation.Signs"
    )
  any_number = lambda value: True
  for name, value in signs._asdict().items():
    checks.number(name, value, "be a number", any_number)
  if not np.isfinite(signs).all():
    low, high = -1.0, math.tanh(calibration.errors[1])
    return Trust(0.0, low, high, ["it overflowed"], signs)
  z = calibration.start + float(np.dot(calibration.slopes, features(signs)))
  low, high = (math.tanh(z + error) for error in calibration.errors)
  return Trust(math.tanh(z), low, high, _reasons(signs, calibration), signs)


def features(signs: Signs) -> np.ndarray:
  """Returns the f_i, [6]: the larger, the better."""
  return np.array(
    [
      _z(signs.check),
      _z(signs.smoothness),
      _z(signs.redrawn),
      -math.log(max(1.0, signs.growth)),
      -signs.truncated,
      -min(1.0, signs.residual),
    ]
  )


def _z(correlation):
  return math.atanh(min(LIMIT, max(-LIMIT, correlation)))


def fit(signs: Sequence[Signs], pearson: Sequence[float]) -> Calibration:
  """Learns a calibration from runs that were replayed in full.

  Least squares with slopes of at least 0.

  Args:
    signs: of n estimators.
    pearson: [n], what was found.
  """
  x = np.stack([features(s) for s in signs])
  z = [_z(value) for value in pearson]
  ones = np.ones((len(x), 1))
  (up, down, *slopes), _ = scipy.optimize.nnls(np.hstack([ones, -ones, x]), z)
  slopes = tuple(float(slope) for slope in slopes)
  return Calibration(float(up - down), slopes, (0.0, 0.0))


def cosine(a: np.ndarray, b: np.ndarray) -> float:
  """Returns the cosine of two arrays of one shape; 1 where both are zero."""
  a, b = np.ravel(a), np.ravel(b)
  sizes = float(np.linalg.norm(a)), float(np.linalg.norm(b))
  if not all(sizes):
    return float(sizes[0] == sizes[1])
  return float(a @ b / sizes[0] / sizes[1])


def mean(correlations: Sequence[float]) -> float:
  """Returns the mean of correlations, taken as Fisher's z."""
  return math.tanh(np.mean([_z(value) for value in correlations]))


def smoothness(effects: np.ndarray) -> float:
  """Returns how nearly the effects of two removals add up.

  The metasmoothness of a training in the weights of clients: is a step's effect
  the same after another step? Mean of cos(d_{A∪B} − d_B, d_A) and
  cos(d_{A∪B} − d_A, d_B).

  Args:
    effects: d_A, d_B and d_{A∪B}, [3, N].
  """
  a, b, both = effects
  return (cosine(both - b, a) + cosine(both - a, b)) / 2


def _reasons(signs, calibration):
  """Says in words what lowers the expectation, the worst first."""
  of_words: Any = Signs
  words = of_words(
    check="retraining without a few groups of clients, it agrees on the test"
    f" examples to {signs.check:.2f}",
    smoothness="effects of two groups do not add up (smoothness"
    f" {signs.smoothness:.2f})",
    redrawn=f"with other draws it agrees with itself to {signs.redrawn:.2f}",
    growth=f"ε grew in a round by up to ×{signs.growth:.3g}",
    truncated=f"{100 * signs.truncated:.0f} % of layers were truncated",
    residual="the server's examples do not resemble the clients' (residual"
    f" {signs.residual:.2f})",
  )
  best = Signs(1.0, 1.0, 1.0, 1.0, 0.0, 0.0)
  lost = calibration.slopes * (features(best) - features(signs))
  return [words[i] for i in np.argsort(-lost) if lost[i] >= LEAST_LOSS]
