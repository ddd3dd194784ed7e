"""How well two sets of influences agree, and how well the truth with itself.

Where training is not convex, retraining from a starting point a hair away gives
another exact influence. Their correlation is the *reliability* of the truth.
If both are a common part plus independent noise of the same size, whatever is
unrelated to that noise correlates with either by at most √reliability, the
*ceiling* (attenuation; Spearman, 1904).
"""

import itertools
import math
from typing import Any
from typing import NamedTuple
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from fedinf_jax import checks
from fedinf_jax import rng
from fedinf_jax import types


class Agreement(NamedTuple):
  """How near an estimate is to the truth; None where it is unknown."""

  pearson: float | None
  spearman: float | None
  fip_relative_error: float | None  # mean ‖ε − ε*‖ / mean ‖ε*‖


class Reliability(NamedTuple):
  """How well the truth agrees with itself; None where it is unknown."""

  pearson: float | None
  spearman: float | None
  ceiling: float | None  # √pearson, 0 if that is negative
  ceiling_mean: float | None  # the same for agreement with their mean


def reliability(a: Any, b: Any, *others: Any) -> Reliability:
  """Compares exact influences of the same removals.

  Of N influences with reliability ρ, the mean has Nρ/(1 + (N − 1)ρ) (Spearman
  and Brown, 1910); `ceiling_mean` is the root of that.

  Args:
    a: [R]; NaN where it is unknown.
    b: [R], likewise, of a training from another starting point (`jitter`).
    *others: more of them; correlations are then means over all pairs.

  Examples:
    >>> round(fi.reliability([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]).ceiling, 3)
    1.0
  """
  names = ("a", "b", *(f"others[{i}]" for i in range(len(others))))
  found = [
    checks.array(name, values)
    for name, values in zip(names, (a, b, *others), strict=True)
  ]
  for name, values in zip(names, found, strict=True):
    if values.ndim != 1 or values.shape != found[0].shape:
      raise ValueError(
        f"a has shape {list(found[0].shape)} and {name} {list(values.shape)};"
        " both must be [R]"
      )
  known = np.isfinite(found).all(0)
  pearson = _over_pairs(scipy.stats.pearsonr, found, known)
  ceiling, ceiling_mean = None, None
  if pearson is not None:
    shared, count = max(0.0, pearson), len(found)
    ceiling = math.sqrt(shared)
    ceiling_mean = math.sqrt(count * shared / (1 + (count - 1) * shared))
  return Reliability(
    pearson=pearson,
    spearman=_over_pairs(scipy.stats.spearmanr, found, known),
    ceiling=ceiling,
    ceiling_mean=ceiling_mean,
  )


def _over_pairs(kind, found, known):
  """Returns the mean correlation of two of them; None if one is undefined."""
  pairs = itertools.combinations([values[known] for values in found], 2)
  every = [correlation(kind, a, b) for a, b in pairs]
  values = [value for value in every if value is not None]
  return None if len(values) < len(every) else float(np.mean(values))


def jitter(
  params: types.Params, scale: float = 1e-5, seed: int = 0
) -> types.Params:
  """Returns a starting point a hair away.

  To each layer is added normal noise, `scale` times the standard deviation of
  its entries; times one, where they are all the same.

  Args:
    params: w_0, floating arrays.
    scale: of the noise.
    seed: of the noise.

  Examples:
    >>> w = model.init(jax.random.key(0))
    >>> again = fi.simulate(model, data, fed, exact=True, params=fi.jitter(w))
    >>> other = again.influence(fi.metrics.loss, *test, of="exact")
    >>> round(fi.reliability(fil, other).ceiling, 3)
    1.0
  """
  checks.not_negative("scale", scale)
  key = rng.stream_key(checks.seed(seed), rng.Stream.JITTER)
  leaves, structure = jax.tree.flatten(params)
  moved = []
  for i, leaf in enumerate(leaves):
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.floating):
      raise ValueError(
        f"params: array {i} is {leaf.dtype}; jitter moves floating arrays"
      )
    noise = jax.random.normal(jax.random.fold_in(key, i), leaf.shape)
    spread = leaf.std()
    size = scale * jnp.where(spread > 0, spread, 1)
    moved.append(leaf + (size * noise).astype(leaf.dtype))
  return jax.tree.unflatten(structure, moved)


def correlation(kind, estimated, exact) -> float | None:
  """Returns a correlation over what is known of both; None if undefined.

  Args:
    kind: `scipy.stats.pearsonr` or `spearmanr`.
    estimated: [R]; where it is not finite although the truth is known, nothing
      can be said.
    exact: [R], NaN where it is unknown.
  """
  known = np.isfinite(exact)
  estimated, exact = estimated[known], exact[known]
  if len(exact) < 3 or not np.isfinite(estimated).all():
    return None
  with warnings.catch_warnings():
    warnings.simplefilter("ignore", scipy.stats.ConstantInputWarning)
    warnings.simplefilter("ignore", scipy.stats.NearConstantInputWarning)
    value = float(kind(estimated, exact)[0])
  return value if math.isfinite(value) else None
