r"""Influence backwards: every client at once, whatever their number.

What a metric F can see of ε lies almost wholly in a few directions: its
gradient at w_T and the strongest eigenvectors of its Hessian there. Let V
[D, P] be an orthonormal basis of them, and carry it back through the training:

    Λ_T = V,   Λ_{t−1} = Λ_t M_t,   M_t = Σ_{k∈C_t} a_k ∂w_{t,m}^k / ∂w_{t−1}

To first order in the weight of client c, V ε_T^{−c} is then

    z_c = Σ_{t: c∈C_t} a_c/(1 − a_c) · Λ_t (w_t − w_{t,m}^c).

A round that client c has to itself (a_c = 1) would have been skipped: its term
is Λ_t (w_{t−1} − w_t).

A server without the clients' trainings takes P of its own curvature in place of
∂w_{t,m}^k / ∂w_{t−1}, and can do so long after the rounds: see `Kept`.
"""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
from jax import flatten_util
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg
from fedinf_jax import removals
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import lanczos

PROBES = 10  # Random vectors that estimate the curvature left out.


class Directions(NamedTuple):
  """What is carried backwards, at the model where it begins."""

  basis: jax.Array  # V, [D, P], orthonormal rows
  gradient: jax.Array  # V ∇F, [D]
  carried: jax.Array  # [], share of ‖∇²F‖² that lies in the directions


class Passed(NamedTuple):
  """What a backward pass leaves of every participation.

  With the change d = w_t − w_{t,m}^c; w_{t−1} − w_t for a participant alone.
  """

  pushed: jax.Array  # Λ_t d, [T, B, D]
  seen: jax.Array  # Λ_{t−1} d, [T, B, D]
  # (Λ_{t−1} − Λ_t ∂w_{t,m}^c/∂w_{t−1}) d, [T, B, D]; (Λ_t − Λ_{t−1}) d for a
  # participant alone.
  gap: jax.Array
  gram: jax.Array  # Λ_{t−1} Λ_{t−1}ᵀ, [T, D, D]


class Weights(NamedTuple):
  """What a participation weighs."""

  share: np.ndarray  # a_c, [T, B]; 0 for a participant alone
  gain: np.ndarray  # a_c/(1 − a_c), [T, B]; 1 for a participant alone


def num_directions(count: int, params: types.Params) -> int:
  """Returns D: the gradient and `count` eigenvectors, at most P."""
  return min(count + 1, sum(a.size for a in jax.tree.leaves(params)))


def directions(
  score: Callable, params: types.Params, count: int, key: jax.Array
) -> Directions:
  """Finds the directions that a metric sees.

  Args:
    score: F, params -> [].
    params: w_T.
    count: eigenvectors beside the gradient.
    key: of the Krylov space's start and the probes.
  """
  flat, unravel = flatten_util.ravel_pytree(params)
  gradient, product = jax.linearize(jax.grad(lambda w: score(unravel(w))), flat)
  start_key, probe_key = jax.random.split(key)
  columns = gradient[:, None]
  if count:
    start = jax.random.normal(start_key, flat.shape, flat.dtype)
    steps = min(flat.size, 2 * count + 10)
    vectors = lanczos.largest_eigenpairs(product, start, count, steps)[1]
    columns = jnp.concatenate([columns, vectors.T], axis=1)
  basis = jnp.linalg.qr(columns)[0].T
  shape = PROBES, flat.size
  probes = jax.random.rademacher(probe_key, shape, flat.dtype)
  probes = probes - _dot(_dot(probes, basis.T), basis)
  squares = lambda rows: jnp.square(lax.map(product, rows)).sum()
  within, outside = squares(basis), squares(probes) / PROBES
  total = within + outside
  carried = jnp.where(total > 0, within / jnp.where(total > 0, total, 1), 1)
  return Directions(basis, _dot(basis, gradient), carried)


def pull_back(model: types.Model, fed: fedavg.FedAvg, chunk: int) -> Callable:
  """Builds what carries directions back through one local training.

  Args:
    model: what is trained.
    fed: how.
    chunk: directions that are carried together.

  Returns:
    ((w_{t−1}, Λ_t [D, P]), examples, draws) -> (w_{t,m}^k,
    Λ_t ∂w_{t,m}^k/∂w_{t−1} [D, P]).
  """
  if fed.learning_rate is None:
    return _through_the_optimizer(model, fed, chunk)

  eta = fed.learning_rate

  def pull(operand, examples, draws):
    params, rows = operand
    unravel = flatten_util.ravel_pytree(params)[1]

    def forwards(w, i):
      loss = fedavg.step_loss(model, fed, examples, draws, i)
      g, product = jax.linearize(jax.grad(loss), w)  # product: v -> Hv
      return jax.tree.map(lambda w, g: w - eta * g, w, g), product

    def back(rows, product):
      # H is symmetric: differentiating forwards takes less than transposing.
      # (Not so where a model's derivative is made up, as by custom_vjp.)
      def one(row):
        return flatten_util.ravel_pytree(product(unravel(row)))[0]

      return rows - eta * tree.map_rows(one, rows, chunk), None

    local, products = lax.scan(forwards, params, jnp.arange(fed.local_steps))
    return local, lax.scan(back, rows, products, reverse=True)[0]

  return pull


def _through_the_optimizer(model, fed, chunk):
  """Builds `pull_back` for any differentiable optimiser."""
  train = fedavg.local_training(model, fed)

  def pull(operand, examples, draws):
    params, rows = operand
    unravel = flatten_util.ravel_pytree(params)[1]
    local, transposed = jax.vjp(lambda w: train(w, examples, draws)[0], params)

    def one(row):
      return flatten_util.ravel_pytree(transposed(unravel(row))[0])[0]

    return local, tree.map_rows(one, rows, chunk)

  return pull


class Kept(NamedTuple):
  """What a server keeps of a round, to score every client later."""

  report: Any  # of a curvature that is the server's own
  changes: jax.Array  # w_t − w_{t,m}^k, [B, P]; w_{t−1} − w_t of one alone
  clients: jax.Array  # int [B]
  shares: jax.Array  # a_k, [B]


def served(
  curvature: wall.Curvature,
  descent: descents.Descent,
  report: Any,
  rows: jax.Array,
  shares: jax.Array,
  like: types.Params,
) -> jax.Array:
  """Returns Σ_k a_k Λ P_k by the server's curvature, whose P_k are symmetric.

  Args:
    curvature: `server_side(fisher(..., per="round"))`, matched or not.
    descent: how participants train.
    report: what the curvature has made in the round.
    rows: Λ, [D, P].
    shares: a_k for each of the rows, [D, B].
    like: a model, for the shapes.
  """
  unravel = flatten_util.ravel_pytree(like)[1]
  stacked = jax.vmap(unravel)(rows)
  attendance = removals.Attendance(
    shares=shares,
    base=shares[0],
    slots=jnp.zeros(shares.shape[1], jnp.int32),
  )
  lost, _ = curvature.absorb(
    descent, report, stacked, tree.zeros_like(stacked), attendance, None, None
  )
  return rows - jax.vmap(lambda a: flatten_util.ravel_pytree(a)[0])(lost)


def score_kept(
  curvature: wall.Curvature,
  descent: descents.Descent,
  kept: Sequence[Kept],
  basis: jax.Array,
  like: types.Params,
  num_clients: int,
) -> jax.Array:
  """Scores every client from the last rounds that a server has kept.

  Args:
    curvature: of which the reports are.
    descent: how participants train.
    kept: the last W rounds in which somebody took part, in their order. What
      clients did before is not counted.
    basis: V, [D, P], of `directions` at the present model.
    like: a model, for the shapes.
    num_clients: K.

  Returns:
    z, [K, D].
  """
  rows, z = basis, jnp.zeros((num_clients, len(basis)), basis.dtype)
  for report, changes, clients, shares in reversed(kept):
    alone = shares == 1
    gains = jnp.where(alone, 1, shares / jnp.where(alone, 1, 1 - shares))
    z = z.at[clients].add(gains[:, None] * _dot(changes, rows.T))
    every = jnp.broadcast_to(shares, (len(rows), len(shares)))
    rows = served(curvature, descent, report, rows, every, like)
  return z


def weigh(num_examples: np.ndarray, cohorts: np.ndarray) -> Weights:
  """Returns the weights of every participation; nobody's are 0.

  Args:
    num_examples: n_k, [K].
    cohorts: int [T, B], K for nobody.
  """
  own = np.append(num_examples, 0)[cohorts].astype(np.float64)
  others = own.sum(1, keepdims=True) - own
  alone = (others == 0) & (own > 0)
  some = np.maximum(others, 1)  # Examples are counted: at least one.
  return Weights(
    share=np.where(alone, 0, own / (own + some)),
    gain=np.where(alone, 1, own / some),
  )


def derivative(
  passed: Passed, weights: Weights, gradient: jax.Array, cohorts, num_clients
) -> jax.Array:
  """Returns dF/dθ_c, [K], where n_c is scaled by 1 − θ_c in every round.

      dF/dθ_c = Σ_{t: c∈C_t} a_c ∇F Φ_t (w_t − w_{t,m}^c)

  with Φ_t the propagator from round t to the last.
  """
  each = weights.share * _dot(passed.pushed, gradient)
  return jnp.zeros(num_clients, each.dtype).at[cohorts].add(each)


def coordinates(
  passed: Passed, weights: Weights, cohorts, num_clients, *, own_part: bool
) -> jax.Array:
  """Returns z [K, D], what removing each client does along the directions.

  Without client c, round t carries ε_{t−1} by M^{−c} and not by M. With
  `own_part`, the difference a_c/(1 − a_c) (M − J_c) ε_{t−1} is accounted for
  as far as ε_{t−1} lies along the client's own change of the round: a multiple
  (see `own_multiple`) between 0 and the sum of its gains so far.

  Args:
    passed: what the backward pass has left.
    weights: of every participation.
    cohorts: int [T, B], K for nobody: nothing is added up for them.
    num_clients: K.
    own_part: whether to do so.
  """

  def one_round(carry, inputs):
    z, gains = carry
    clients, gain, (pushed, seen, gap, gram) = inputs
    moved = pushed
    if own_part:
      multiple = own_multiple(z[clients], seen, gram)
      # ε holds Σ gain · d of the rounds before, and training contracts them.
      multiple = jnp.clip(multiple, 0, gains[clients])
      moved = moved + multiple[:, None] * gap
    z = z.at[clients].add(gain[:, None] * moved)
    return (z, gains.at[clients].add(gain)), None

  dtype = passed.gram.dtype
  zero = jnp.zeros((num_clients, passed.gram.shape[-1]), dtype)
  start = zero, jnp.zeros(num_clients, dtype)
  inputs = cohorts, weights.gain, passed
  return lax.scan(one_round, start, inputs)[0][0]


def own_multiple(z: jax.Array, seen: jax.Array, gram: jax.Array) -> jax.Array:
  """Estimates which multiple of a client's change its ε_{t−1} holds.

  Known of ε are its products z = Λε. If ε = α d + noise without a preferred
  direction, z = α Λd + noise of covariance ΛΛᵀ. The estimate is the least
  squares α, shrunk by (1 − 1/f)₊ with f its F-statistic (James and Stein's
  rule): where d explains no more of z than any vector would, nothing is taken.

  Args:
    z: Λ_{t−1} ε_{t−1} of the participants, [B, D].
    seen: Λ_{t−1} d, [B, D].
    gram: Λ_{t−1} Λ_{t−1}ᵀ, [D, D].

  Returns:
    α, [B].
  """
  values, vectors = lanczos.eigh(gram)
  tolerance = jnp.sqrt(jnp.finfo(gram.dtype).eps)
  real = values > tolerance * jnp.abs(values).max()
  scale = jnp.where(real, lax.rsqrt(jnp.where(real, values, 1)), 0)
  # In these coordinates the noise is white.
  white = lambda rows: _dot(rows, vectors) * scale[None]
  z, seen = white(z), white(seen)
  dot = lambda a, b: (a * b).sum(1)
  length, product = dot(seen, seen), dot(seen, z)
  explained = product**2 / jnp.where(length > 0, length, 1)
  noise = jnp.maximum(dot(z, z) - explained, 0)
  # 1/f, without a division by what may be zero.
  freedom = real.sum() - 1
  ample = explained * freedom > noise
  shrink = 1 - noise / jnp.where(ample, explained * freedom, 1)
  multiple = shrink * product / jnp.where(length > 0, length, 1)
  return jnp.where(ample & (length > 0), multiple, 0)


def _dot(a, b):
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)
