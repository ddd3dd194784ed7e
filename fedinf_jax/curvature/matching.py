"""Participants as mixtures of the server's examples.

A participant's update says which gradient it followed. The weights ω_k >= 0
over the server's examples, summing to one, whose weighted gradient at w_{t-1}
comes nearest to it,

    ω_k = argmin ‖Σ_z ω_z g_z − (w_{t-1} − w_{t,m}^k) / (ηm)‖,

stand for the participant's data. All participants share the rows G; with
X = GGᵀ each has a core C_k of its own: P_k = I − Gᵀ C_k G.

Mixtures are sparse, so many candidates and few rows go together: a first, rough
solution over all examples of the round picks those of the largest weights.
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
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import low_rank
from fedinf_jax.linalg import spectra

STEPS, RESTART = 400, 100  # Of the solver, in all and before it starts afresh.
FIRST = 100  # Steps by which candidates are chosen.


class Mixtures(NamedTuple):
  """The participants of a round, as the server sees them."""

  rows: types.Params  # √(η/S) g_z, leaves [S, P_j]
  cores: list[jax.Array]  # C_k of each block of layers, [B, S, S] or [1, S, S]
  grams: list[jax.Array]  # GGᵀ of each block, [S, S]
  residual: jax.Array | None  # [B], ‖Σ_z ω_z g_z − target‖ / ‖target‖


def simplex_weights(
  gram: jax.Array, targets: jax.Array, steps: int = STEPS
) -> jax.Array:
  """Minimises ½ωᵀXω − bᵀω over ω >= 0, Σω = 1, for many b at once.

  Accelerated mirror descent with the entropy as its distance: weights stay
  positive without projections. A fixed number of steps, afresh every RESTART.

  Args:
    gram: X, [S, S].
    targets: b, [B, S].
    steps: how many.

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
  (x, _), _ = lax.scan(step, (start, jnp.log(start)), jnp.arange(steps))
  return x


def has_cores(curvature: wall.Curvature) -> bool:
  """Tells whether a curvature is made of gradients at w_{t-1} alone."""
  options = curvature.options
  return (
    isinstance(options, gradients.Options)
    and curvature.first_step_only
    and options.rank is None
  )


def shared_fields(curvature: wall.Curvature) -> dict:
  """Returns the fields of a curvature with one core for all participants."""
  return {
    "make": functools.partial(
      _one_core, curvature.layerwise, curvature.options
    ),
    "absorb": functools.partial(_absorb, curvature.layerwise),
    "lost": _refuse,
  }


def fields(curvature: wall.Curvature) -> dict:
  """Returns the fields of a matched curvature, from that of participants."""
  if not has_cores(curvature):
    raise ValueError(
      'match=True needs fisher(..., per="round") without a rank: mixtures are'
      " found at w_{t-1}"
    )

  def check(setup):
    curvature.check(setup)
    setup.descent.require_plain("match", True)

  return {
    "make": functools.partial(
      _mixtures,
      curvature.layerwise,
      curvature.options,
      curvature.num_samples,
    ),
    "absorb": functools.partial(_absorb, curvature.layerwise),
    "lost": _refuse,
    "check": check,
    "matched": True,
  }


def _refuse(descent, report, eps):
  raise ValueError("a matched curvature is absorbed for all participants")


def _mixtures(layerwise, options, num_rows, setup, client, updates):
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
  gram, dots = _products(observed, observed), _products(targets, observed)
  if num_rows < size:
    chosen = _candidates(gram, dots, num_rows)
    gram, dots = gram[chosen][:, chosen], dots[:, chosen]
    observed, rows = (
      jax.tree.map(lambda g: g[chosen], a) for a in (observed, rows)
    )
  weights = simplex_weights(gram, dots)
  mixed = jax.tree.map(lambda g: low_rank.matmul(weights, g), observed)
  norm = lambda a: jnp.sqrt(tree.layer_dots(a, a).sum(1))
  size_of_target = norm(targets)
  grams = _grams(rows, layerwise)
  core = functools.partial(_core, options.spectrum, power)
  return Mixtures(
    rows=rows,
    cores=[lax.map(functools.partial(core, x), size * weights) for x in grams],
    grams=grams,
    residual=norm(tree.subtract(mixed, targets))
    / jnp.where(size_of_target > 0, size_of_target, 1),
  )


def _products(a, b):
  """Returns the products of all rows of a with all of b."""
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return sum(low_rank.matmul(x, y.T) for x, y in pairs)


def _candidates(gram, dots, num_rows):
  """Returns the examples of the largest weights, equally many of each mixture.

  An example that two participants want comes twice, which changes nothing.
  """
  rough = simplex_weights(gram, dots, FIRST)
  each = max(1, num_rows // len(dots))
  return lax.top_k(rough, each)[1].reshape(-1)


def _one_core(layerwise, options, setup, client, updates):
  """Makes the report where one core stands for everybody's."""
  del updates
  step = jnp.int32(0), client.start
  rows = gradients.sampled(
    setup, client, step, setup.max_examples, options.labels
  )
  grams = _grams(rows, layerwise)
  core = lambda x: spectra.core(x, options.spectrum, setup.fed.local_steps)
  return Mixtures(
    rows=rows,
    cores=[core(x)[None] for x in grams],
    grams=grams,
    residual=None,
  )


def _grams(rows, layerwise):
  """Returns GGᵀ of each block of layers."""
  leaves = jax.tree.leaves(rows)
  blocks = tree.layer_blocks(len(leaves), layerwise=layerwise)
  return [
    sum(low_rank.matmul(leaves[j], leaves[j].T) for j in block)
    for block in blocks
  ]


def _core(spectrum, power, gram, weights):
  """Returns C with I − GᵀCG = f(ηF)^m, F the weighted Fisher matrix.

  With D = diag(weights): D½ g(D½XD½) D½, g(x) = (1 − f(x)^m) / x.
  """
  root = jnp.sqrt(weights)
  core = spectra.core(root[:, None] * gram * root[None], spectrum, power)
  return root[:, None] * core * root[None]


def _absorb(layerwise, descent, report, eps, lost, attendance, examiner, _):
  """Adds Σ_k a_{r,k} (ε_r − P_k ε_r) = Gᵀ (Σ_k a_{r,k} C_k) G ε_r."""
  del descent
  leaves, treedef = jax.tree.flatten(eps)
  rows = jax.tree.leaves(report.rows)
  flat = [a.reshape(a.shape[0], -1) for a in leaves]
  blocks = tree.layer_blocks(len(leaves), layerwise=layerwise)
  out, grown = [None] * len(leaves), [None] * len(leaves)
  parts = zip(blocks, report.cores, report.grams, strict=True)
  for block, cores, gram in parts:
    e, g = [flat[j] for j in block], [rows[j] for j in block]
    found = None
    if examiner is not None:
      before = examiner.before[:, :, block[0]]
      c, found = _kept(e, g, cores, gram, before, examiner, attendance)
      taken = [low_rank.matmul(c, a) for a in g]
    elif len(cores) == 1 and _explicit_is_cheaper(e, g):
      taken = _explicit(e, g, cores[0])
    else:
      c = _mixed(_dots(e, g), cores, attendance)
      taken = [low_rank.matmul(c, a) for a in g]
    for j, a in zip(block, taken, strict=True):
      out[j], grown[j] = a.reshape(leaves[j].shape), found
  lost = tree.add(lost, treedef.unflatten(out))
  return lost, None if examiner is None else jnp.stack(grown, 2)


def _dots(e, g):
  """Returns u = Gε, [R, S]."""
  return sum(low_rank.matmul(a, b.T) for a, b in zip(e, g, strict=True))


def _mixed(u, cores, attendance: removals.Attendance):
  """Returns Σ_k a_{r,k} C_k u_r, [R, S].

  Removals that the cohort does not touch share one core. Of a removal whose
  cohort is empty nothing is asked: its round is skipped.
  """
  shares, base, hits = attendance.shares, attendance.base, attendance.hits
  if len(cores) == 1:
    return low_rank.matmul(u, cores[0])
  own = lambda shares, u: low_rank.einsum("rk,kst,rt->rs", shares, cores, u)
  if hits is None:
    return own(shares, u)
  core = jnp.tensordot(base, cores, 1, precision=lax.Precision.HIGHEST)
  c = low_rank.matmul(u, core)
  return c.at[hits].set(own(shares[hits], u[hits]), mode="drop")


def _kept(e, g, cores, gram, before, examiner, attendance):
  """Returns the same of those terms that a fine guard keeps, and which grew."""
  shares, u = attendance.shares, _dots(e, g)
  each = low_rank.einsum("kst,rt->rks", cores, u)
  inner = low_rank.einsum("rks,st->rkt", each, gram) - 2 * u[:, None]
  gain = jnp.broadcast_to((each * inner).sum(2), shares.shape)  # [R, B]
  square = sum(jnp.square(a).sum(1) for a in e)[:, None]
  square = jnp.broadcast_to(square, gain.shape)
  found = examiner.grows(gain, square, shares)
  kept = jnp.where(found | before, 0, shares)
  if len(cores) == 1:
    return kept.sum(1)[:, None] * each[:, 0], found
  return low_rank.einsum("rk,rks->rs", kept, each), found


def _explicit_is_cheaper(e, g):
  """Tells whether to make GᵀCG itself, by counting operations."""
  num_removals, size = len(e[0]), len(g[0])
  width = sum(a.shape[1] for a in g)
  direct = size * num_removals * (4 * width + 2 * size)
  return 2 * width * (size * (size + width) + width * num_removals) < direct


def _explicit(e, g, core):
  """All of GᵀCG, [P, P], for models of few parameters and many removals."""
  widths = [a.shape[1] for a in g]
  ends = [sum(widths[: i + 1]) for i in range(len(widths) - 1)]
  rows, e = jnp.concatenate(g, axis=1), jnp.concatenate(e, axis=1)
  matrix = low_rank.matmul(rows.T, low_rank.matmul(core, rows))
  return jnp.split(low_rank.matmul(e, matrix), ends, axis=1)
