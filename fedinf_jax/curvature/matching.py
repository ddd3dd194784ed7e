"""Participants as mixtures of the server's examples.

A participant's update says which gradient it followed. Its data are represented
by weights ω_k >= 0 over the server's examples, summing to one: those on which m
local steps from w_{t-1} would give the same update,

    (1/m) Σ_{i<m} (I − ηH_ω)^i Σ_z ω_z g_z  =  (w_{t-1} − w_{t,m}^k) / (ηm),

or come as near to it as the examples allow. All of it is computed from products
of gradients, S × S, which serve all participants of a round.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import tree
from fedinf_jax.curvature import dense_layers
from fedinf_jax.linalg import low_rank

STEPS, RESTART = 400, 20  # Of the solver, in all and before it starts afresh.
FIRST = 100  # Steps by which candidates are chosen.


class Gradients(NamedTuple):
  """Those of the server's examples at w_{t-1}, as √(η/S) g."""

  # With the examples' own labels: what updates follow.
  observed: dense_layers.PerExample
  # Those of the Fisher matrix, perhaps of sampled labels.
  rows: dense_layers.PerExample


class Matched(NamedTuple):
  """Mixtures of some of the server's examples."""

  chosen: jax.Array  # int [S'], which examples
  weights: jax.Array  # ω, [B, S']
  residual: jax.Array  # [B], ‖update of the mixture − update‖ / ‖update‖


def mixtures(
  gradients: Gradients,
  targets: dense_layers.PerExample,
  counts: jax.Array,
  *,
  num_rows: int,
  local_steps: int,
) -> Matched:
  """Finds the mixtures of a round's participants.

  Mixtures are sparse, so many candidates and few rows go together: a first,
  rough solution over all examples picks those of the largest weights.

  Args:
    gradients: of the candidates.
    targets: (w_{t-1} − w_{t,m}^k) / (ηm) in the unit of the gradients, B rows.
    counts: examples of each participant, n_k, [B].
    num_rows: how many examples are kept.
    local_steps: m.
  """
  squares = tree.layer_dots(targets.rows, targets.rows).sum(1)  # [B]
  gram = dense_layers.products(gradients.observed, gradients.observed)
  dots = dense_layers.products(targets, gradients.observed)
  size = len(gram)
  apart = _how_far_apart(gram, dots, squares, counts)[:, None]
  chosen, common = jnp.arange(size), jnp.full(size, 1 / size, gram.dtype)
  if num_rows < size:
    wanted = _candidates(gram, dots, counts, max(1, num_rows // 2))
    # The first of the candidates are a random sample, as good as any.
    others = max(1, num_rows - len(wanted))
    chosen = jnp.concatenate([wanted, jnp.arange(others)])
    common = jnp.pad(jnp.full(others, 1 / others, gram.dtype), (len(wanted), 0))
    gradients = jax.tree.map(lambda g: g[chosen], gradients)
  found, residual = _fit(gradients, targets, size, local_steps)
  size_of = jnp.where(squares > 0, jnp.sqrt(squares), 1)
  return Matched(
    chosen=chosen,
    weights=apart * found + (1 - apart) * common[None],
    residual=residual / size_of,
  )


def simplex_weights(
  gram: jax.Array, targets: jax.Array, correction=None
) -> jax.Array:
  """Minimises ½ωᵀXω − bᵀω over ω >= 0, Σω = 1, for many b at once.

  Accelerated mirror descent with the entropy as its distance: weights stay
  positive without projections. A fixed number of steps, afresh every RESTART.

  Args:
    gram: X, [S, S].
    targets: b, [B, S].
    correction: correction(ω), [B, S], is added to b at every restart.

  Returns:
    ω, [B, S].
  """
  scale = jnp.maximum(jnp.abs(gram).max(), jnp.finfo(gram.dtype).tiny)
  start = jnp.full_like(targets, 1 / targets.shape[1])

  def afresh(carry, i):
    x, b = carry
    if correction is not None:
      b = jnp.where(i > 0, b + correction(x), b)
    return (_descend(gram / scale, b / scale, x, RESTART), b), None

  (x, _), _ = lax.scan(afresh, (start, targets), jnp.arange(STEPS // RESTART))
  return x


def _descend(gram, targets, start, steps):
  """Takes some steps of accelerated mirror descent; X has entries up to 1."""

  def step(carry, i):
    x, log_z = carry
    theta = 2 / (i.astype(gram.dtype) + 2)
    y = (1 - theta) * x + theta * jax.nn.softmax(log_z)
    gradient = low_rank.matmul(y, gram) - targets
    log_z = jax.nn.log_softmax(log_z - gradient / theta)
    return ((1 - theta) * x + theta * jnp.exp(log_z), log_z), None

  begun = start, jnp.log(jnp.maximum(start, 1e-30))
  return lax.scan(step, begun, jnp.arange(steps))[0][0]


def _fit(gradients, targets, size, local_steps):
  """Returns ω, [B, S'], and the norm of what they leave, [B].

  Args:
    gradients: of the S' examples kept.
    targets: as in `mixtures`.
    size: S, of which the unit of the gradients is made.
    local_steps: m.
  """
  observed, rows = gradients
  gram, dots = (
    dense_layers.products(observed, observed),
    dense_layers.products(targets, observed),
  )
  cross, fisher = (
    dense_layers.products(rows, observed),
    dense_layers.products(rows, rows),
  )

  def curved(weights):
    """How the rows bend the mean gradient of m steps, [B, S']."""
    # Σ_z S ω_z ‖row‖² bounds the largest eigenvalue of ηH. Above 2, descent
    # would not be stable, and a participant's was.
    trace = size * weights * jnp.diagonal(fisher)[None]
    bound = jnp.maximum(trace.sum(1, keepdims=True) / 2, 1)
    diagonal = size * weights / bound
    first = low_rank.matmul(weights, cross.T)
    step = lambda i, b: b - diagonal * (i * first + low_rank.matmul(b, fisher))
    bent = lax.fori_loop(0, local_steps, step, jnp.zeros_like(weights))
    return bent / local_steps

  def correction(weights):
    straight = low_rank.matmul(weights, gram)
    return dots - straight - low_rank.matmul(curved(weights), cross)

  weights = simplex_weights(gram, dots, correction)
  bent = curved(weights)
  left = jax.tree.map(
    lambda o, r, t: low_rank.matmul(weights, o) + low_rank.matmul(bent, r) - t,
    observed.rows, rows.rows, targets.rows,
  )  # fmt: skip
  return weights, jnp.sqrt(tree.layer_dots(left, left).sum(1))


def _how_far_apart(gram, dots, squares, counts):
  """Returns how far participants are from the server's mean, 0 to 1, [B].

  Clients of the same distribution as the server's examples differ from them by
  chance, too: an update by V/n_k in the mean square, V the variance of a
  gradient. The share of ‖difference‖² beyond that is James and Stein's factor
  of shrinkage: mixtures must not follow chance.
  """
  mean = gram.mean()  # ‖ḡ‖²
  variance = jnp.trace(gram) / len(gram) - mean
  away = squares - 2 * dots.mean(1) + mean
  chance = variance / jnp.maximum(counts, 1).astype(gram.dtype)
  return jnp.clip(1 - chance / jnp.where(away > 0, away, jnp.inf), 0, 1)


def _candidates(gram, dots, counts, num_rows):
  """Returns the examples of the largest weights, equally many of each mixture.

  Who has no examples does not count: a reply that was refused, or padding.
  """
  scale = jnp.maximum(jnp.abs(gram).max(), jnp.finfo(gram.dtype).tiny)
  start = jnp.full_like(dots, 1 / len(gram))
  rough = _descend(gram / scale, dots / scale, start, FIRST)
  rank = jnp.argsort(jnp.argsort(-rough, axis=1), axis=1)
  best = jnp.where(counts[:, None] > 0, rank, len(gram)).min(0)
  return lax.top_k(-best, num_rows)[1]
