"""One set of rows for all participants, and what each makes of them.

With rows G, scaled gradients of the server's examples, and X = GGᵀ, each
participant has a core C_k: P_k = I − Gᵀ C_k G. One core may stand for
everybody's, or each participant is matched with a mixture of the examples.
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
from fedinf_jax.curvature import matching
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import low_rank
from fedinf_jax.linalg import spectra


class Cores(NamedTuple):
  """The participants of a round, as the server sees them."""

  rows: types.Params  # √(η/S) g_z, leaves [S, P_j]
  cores: list[jax.Array]  # C_k of each block of layers, [B, S, S] or [1, S, S]
  grams: list[jax.Array]  # GGᵀ of each block, [S, S]
  residual: jax.Array | None  # [B], how far from any mixture


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


def _mixtures(layerwise, options, num_rows, setup, client, participants):
  """Makes the report: rows, and a core per participant."""
  size = setup.max_examples
  step = jnp.int32(0), client.start
  observed = gradients.sampled(setup, client, step, size, "observed")
  rows = observed
  if options.labels == "sampled":
    rows = gradients.sampled(setup, client, step, size, "sampled")
  eta, power = setup.descent.eta, setup.fed.local_steps
  unit = jnp.sqrt(eta / size) / (eta * power)
  matched = matching.mixtures(
    matching.Gradients(observed, rows),
    jax.tree.map(lambda a: -unit * a.reshape(len(a), -1), participants.updates),
    participants.counts,
    num_rows=num_rows,
    local_steps=power,
  )
  rows = jax.tree.map(lambda g: g[matched.chosen], rows)
  grams, weights = _grams(rows, layerwise), size * matched.weights
  core = functools.partial(_core, options.spectrum, power)
  return Cores(
    rows=rows,
    cores=[lax.map(functools.partial(core, x), weights) for x in grams],
    grams=grams,
    residual=matched.residual,
  )


def _one_core(layerwise, options, setup, client, participants):
  """Makes the report where one core stands for everybody's."""
  del participants
  step = jnp.int32(0), client.start
  rows = gradients.sampled(
    setup, client, step, setup.max_examples, options.labels
  )
  grams = _grams(rows, layerwise)
  core = lambda x: spectra.core(x, options.spectrum, setup.fed.local_steps)
  return Cores(
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
