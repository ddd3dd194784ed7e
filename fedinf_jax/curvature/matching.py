"""Participants as mixtures of the server's examples.

A participant's update says which gradient it followed. The weights ω_k >= 0
over the server's examples, summing to one, whose weighted gradient at w_{t-1}
comes nearest to it,

    ω_k = argmin ‖Σ_z ω_z g_z − (w_{t-1} − w_{t,m}^k) / (ηm)‖,

stand for the participant's data. All participants share the rows G; with
X = GGᵀ each has a core C_k of its own: P_k = I − Gᵀ C_k G.
"""

import functools
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import removals
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import gradients
from fedinf_jax.curvature import rows as row_reports
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import lanczos
from fedinf_jax.linalg import low_rank

STEPS, RESTART = 400, 100  # Of the solver, in all and before it starts afresh.


class Mixtures(NamedTuple):
  """The participants of a round, as the server sees them."""

  rows: types.Params  # √(η/S) g_z, leaves [S, P_j]
  cores: list[jax.Array]  # C_k of each block of layers, [B, S, S]
  grams: list[jax.Array]  # GGᵀ of each block, [S, S]
  residual: jax.Array  # [B], ‖Σ_z ω_z g_z − target‖ / ‖target‖


def simplex_weights(gram: jax.Array, targets: jax.Array) -> jax.Array:
  """Minimises ½ωᵀXω − bᵀω over ω >= 0, Σω = 1, for many b at once.

  Accelerated mirror descent with the entropy as its distance: weights stay
  positive without projections. A fixed number of steps, afresh every RESTART.

  Args:
    gram: X, [S, S].
    targets: b, [B, S].

  Returns:
    ω, [B, S].
  """
  scale = jnp.maximum(jnp.abs(gram).max(), jnp.finfo(gram.dtype).tiny)
  gram, targets = gram / scale, targets / scale

  def step(carry, i):
    x, log_z = carry
    t = (i % RESTART).astype(gram.dtype)
    log_z = jnp.where(i % RESTART == 0, jnp.log(jnp.maximum(x, 1e-30)), log_z)
    theta = 2 / (t + 2)
    z = jax.nn.softmax(log_z)
    y = (1 - theta) * x + theta * z
    gradient = low_rank.matmul(y, gram) - targets
    log_z = jax.nn.log_softmax(log_z - gradient / theta)
    return ((1 - theta) * x + theta * jnp.exp(log_z), log_z), None

  start = jnp.full_like(targets, 1 / targets.shape[1])
  (x, _), _ = lax.scan(step, (start, jnp.log(start)), jnp.arange(STEPS))
  return x


def fields(curvature: wall.Curvature) -> dict:
  """Returns the fields of a matched curvature, from that of participants."""
  options = curvature.options
  if (
    not isinstance(options, gradients.Options)
    or not curvature.first_step_only
    or options.rank is not None
  ):
    raise ValueError(
      'match=True needs fisher(..., per="round") without a rank: mixtures are'
      " found at w_{t-1}"
    )

  def check(setup):
    curvature.check(setup)
    setup.descent.require_plain("match", True)

  return {
    "make": functools.partial(_mixtures, curvature.layerwise, options),
    "absorb": functools.partial(_absorb, curvature.layerwise),
    "lost": _refuse,
    "check": check,
    "matched": True,
  }


def _refuse(descent, report, eps):
  raise ValueError("a matched curvature is absorbed for all participants")


def _mixtures(layerwise, options, setup, client, updates):
  """Makes the report: rows, and a core per participant."""
  size = setup.max_examples
  step = jnp.int32(0), client.start
  observed = gradients.sampled(setup, client, step, size, "observed")
  rows = observed
  if options.labels == "sampled":
    rows = gradients.sampled(setup, client, step, size, "sampled")
  # In units of the rows, which are √(η/S) g.
  eta, power = setup.descent.eta, setup.fed.local_steps
  unit = jnp.sqrt(eta / size)
  targets = jax.tree.map(
    lambda a: -(unit / (eta * power)) * a.reshape(len(a), -1), updates
  )
  dots = lambda a, b: sum(
    low_rank.matmul(x, y.T)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  )
  weights = simplex_weights(dots(observed, observed), dots(targets, observed))
  mixed = jax.tree.map(lambda g: low_rank.matmul(weights, g), observed)
  norm = lambda a: jnp.sqrt(tree.layer_dots(a, a).sum(1))
  size_of_target = norm(targets)
  leaves = jax.tree.leaves(rows)
  blocks = tree.layer_blocks(len(leaves), layerwise=layerwise)
  grams = [
    sum(low_rank.matmul(leaves[j], leaves[j].T) for j in block)
    for block in blocks
  ]
  core = functools.partial(_core, options.spectrum, power)
  return Mixtures(
    rows=rows,
    cores=[lax.map(functools.partial(core, x), size * weights) for x in grams],
    grams=grams,
    residual=norm(tree.subtract(mixed, targets))
    / jnp.where(size_of_target > 0, size_of_target, 1),
  )


def _core(spectrum, power, gram, weights):
  """Returns C with I − GᵀCG = f(ηF)^m, F the weighted Fisher matrix.

  With D = diag(weights): D½ g(D½XD½) D½, g(x) = (1 − f(x)^m) / x.
  """
  root = jnp.sqrt(weights)
  x, u = lanczos.eigh(root[:, None] * gram * root[None])
  tiny = jnp.finfo(x.dtype).tiny
  away = row_reports.taken_away(x, spectrum, power)
  ratio = jnp.where(x > tiny, away / jnp.maximum(x, tiny), power)
  vectors = root[:, None] * u
  return low_rank.matmul(vectors * ratio[None], vectors.T)


def _absorb(layerwise, descent, report, eps, lost, attendance, examiner, _):
  """Adds Σ_k a_{r,k} (ε_r − P_k ε_r) = Gᵀ (Σ_k a_{r,k} C_k) G ε_r."""
  del descent
  leaves, treedef = jax.tree.flatten(eps)
  rows = jax.tree.leaves(report.rows)
  flat = [a.reshape(a.shape[0], -1) for a in leaves]
  blocks = tree.layer_blocks(len(leaves), layerwise=layerwise)
  out, grown = [None] * len(leaves), [None] * len(leaves)
  for block, cores, gram in zip(
    blocks, report.cores, report.grams, strict=True
  ):
    u = sum(low_rank.matmul(flat[j], rows[j].T) for j in block)  # [R, S]
    if examiner is None:
      c = _mixed(u, cores, attendance)
    else:
      each = low_rank.einsum("kst,rt->rks", cores, u)
      inner = low_rank.einsum("rks,st->rkt", each, gram) - 2 * u[:, None]
      gain = (each * inner).sum(2)  # [R, B]
      square = sum(jnp.square(flat[j]).sum(1) for j in block)[:, None]
      square = jnp.broadcast_to(square, gain.shape)
      found = examiner.grows(gain, square, attendance.shares)
      before = examiner.before[:, :, block[0]]
      kept = jnp.where(found | before, 0, attendance.shares)
      c = low_rank.einsum("rk,rks->rs", kept, each)
    for j in block:
      out[j] = low_rank.matmul(c, rows[j]).reshape(leaves[j].shape)
      grown[j] = found if examiner is not None else None
  lost = tree.add(lost, treedef.unflatten(out))
  return lost, None if examiner is None else jnp.stack(grown, 2)


def _mixed(u, cores, attendance: removals.Attendance):
  """Returns Σ_k a_{r,k} C_k u_r, [R, S].

  Removals that the cohort does not touch share one core; an emptied cohort is
  none of theirs.
  """
  shares, base, hits = attendance.shares, attendance.base, attendance.hits
  own = lambda shares, u: low_rank.einsum("rk,kst,rt->rs", shares, cores, u)
  if hits is None:
    return own(shares, u)
  core = jnp.tensordot(base, cores, 1, precision=lax.Precision.HIGHEST)
  c = low_rank.matmul(u, core)
  return c.at[hits].set(own(shares[hits], u[hits]), mode="drop")
