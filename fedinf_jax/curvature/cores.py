"""One set of rows for all participants, and what each makes of them.

With rows G, scaled gradients of the server's examples, and X = GGᵀ, each
participant has a core C_k: P_k = I − Gᵀ C_k G. One core may stand for
everybody's, or each participant is matched with a mixture of the examples.

Some of the server's examples may be a client's own, held out from its training.
In the removal of that client nobody has such examples, and P contracts less
without them, just where the client mattered most. There their rows are left
out: C_k becomes T C_k T / (1 − π), where T is zero for these rows and one for
the others, and π their share.
"""

import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp

from fedinf_jax import removals
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import dense_layers
from fedinf_jax.curvature import gradients
from fedinf_jax.curvature import matching
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import low_rank
from fedinf_jax.linalg import spectra

LEAST_LEFT = 0.5  # Of P, where its rows are mostly those of a removed client.


class Owned(NamedTuple):
  """Which rows are clients' own."""

  removed_in: jax.Array  # int32 [S, Q], the removals that take a row out
  shares: jax.Array  # ω_k, a row's share of a mixture, [B, S] or [1, S]


class Cores(NamedTuple):
  """The participants of a round, as the server sees them."""

  rows: types.Params  # √(η/S) g_z, leaves [S, P_j]
  cores: list[jax.Array]  # C_k of each block of layers, [B, S, S] or [1, S, S]
  grams: list[jax.Array]  # GGᵀ of each block, [S, S]
  owned: Owned | None  # None: no row is a client's own
  residual: jax.Array | None  # [B], how far from any mixture


def has_cores(curvature: wall.Curvature) -> bool:
  """Tells whether a curvature is made of gradients at w_{t-1} alone."""
  options = curvature.options
  return (
    isinstance(options, gradients.Options)
    and curvature.first_step_only
    and options.rank is None
  )


def shared_fields(curvature: wall.Curvature) -> dict[str, Any]:
  """Returns the fields of a curvature with one core for all participants."""
  return {
    "make": functools.partial(
      _one_core, curvature.layerwise, curvature.options
    ),
    "absorb": functools.partial(_absorb, curvature.layerwise),
    "lost": _refuse,
    "symmetric": True,
  }


def fields(curvature: wall.Curvature) -> dict[str, Any]:
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
    "symmetric": True,
  }


def _refuse(descent, report, eps):
  raise ValueError("a matched curvature is absorbed for all participants")


def _mixtures(layerwise, options, num_rows, setup, client, held, participants):
  """Makes the report: rows, and a core per participant."""
  size = setup.max_examples
  plain = options._replace(labels="observed", label_draws=1)
  rows = observed = _rows(setup, client, plain)
  if options.labels == "sampled":
    rows = _rows(setup, client, options)
  eta, power = setup.descent.eta, setup.fed.local_steps
  unit = jnp.sqrt(eta / size) / (eta * power)
  matched = matching.mixtures(
    matching.Gradients(observed, rows),
    dense_layers.plain(
      jax.tree.map(
        lambda a: -unit * a.reshape(len(a), -1), participants.updates
      )
    ),
    participants.counts,
    num_rows=num_rows,
    local_steps=power,
  )
  rows = jax.tree.map(lambda a: a[matched.chosen], rows)
  grams, weights = _grams(rows, layerwise), size * matched.weights
  core = functools.partial(_core, options.spectrum, power)
  return Cores(
    rows=rows.rows,
    cores=[lax.map(functools.partial(core, x), weights) for x in grams],
    grams=grams,
    owned=_owned(held.take(matched.chosen), matched.weights),
    residual=matched.residual,
  )


def _one_core(layerwise, options, setup, client, held, participants):
  """Makes the report where one core stands for everybody's."""
  del participants
  rows = _rows(setup, client, options)
  grams = _grams(rows, layerwise)
  core = lambda x: spectra.core(x, options.spectrum, setup.fed.local_steps)
  size = setup.max_examples
  return Cores(
    rows=rows.rows,
    cores=[core(x)[None] for x in grams],
    grams=grams,
    owned=_owned(held, jnp.full((1, size), 1 / size, grams[0].dtype)),
    residual=None,
  )


def _rows(setup, client, options):
  """Returns √(η/S) g of the server's examples at w_{t-1}, in their order."""
  step, (x, y, *_) = (jnp.int32(0), client.start), client.examples
  g = gradients.of_each(setup, client.draws, step, (x, y), options)
  share = (setup.descent.eta or 1.0) / len(x)
  return g.scaled(jnp.full(len(x), jnp.sqrt(share)))


def _owned(held, shares):
  """Returns which rows are clients' own; None where nobody says so."""
  return None if held.owner is None else Owned(held.removed_in, shares)


def _grams(rows, layerwise):
  """Returns GGᵀ of each block of layers."""
  blocks = tree.layer_blocks(len(rows.outer), layerwise=layerwise)
  return [dense_layers.products(rows, rows, block) for block in blocks]


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
  out: list[Any] = [None] * len(leaves)
  grown: list[Any] = [None] * len(leaves)
  owned = report.owned
  for i, block in enumerate(blocks):
    cores, gram = report.cores[i], report.grams[i]
    e, g = [flat[j] for j in block], [rows[j] for j in block]
    found = None
    if owned is None and examiner is None and _explicit_is_cheaper(e, g, cores):
      taken = _explicit(e, g, cores[0])
    else:
      u = _dots(e, g)
      others = _without_own(u, owned)
      if examiner is None:
        c = _mixed(others, cores, attendance)
        c = _without_own(c, owned, attendance)
      else:
        before = examiner.before[:, :, block[0]]
        each = low_rank.einsum("kst,rt->krs", cores, others)
        each = jax.vmap(lambda c: _without_own(c, owned, attendance))(each)
        square = sum(jnp.square(a).sum(1) for a in e)
        c, found = _kept(each, u, square, gram, before, examiner, attendance)
      taken = [low_rank.matmul(c, a) for a in g]
    for j, a in zip(block, taken, strict=True):
      out[j], grown[j] = a.reshape(leaves[j].shape), found
  lost = tree.add(lost, jax.tree.unflatten(treedef, out))
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


def _without_own(c, owned, attendance: removals.Attendance | None = None):
  """Leaves out of c [R, S] the rows that a removal's clients own.

  With the attendance, the other rows stand for what is missing: c / (1 − π).
  """
  if owned is None:
    return c
  where, rows = owned.removed_in, jnp.arange(c.shape[1])[:, None]
  c = c.at[where, rows].set(0, mode="drop")
  if attendance is None:
    return c
  # Σ_k a_{r,k} π_k, from the shares of the participants in these removals.
  shares = attendance.shares.at[where].get(mode="fill", fill_value=0)
  own = (shares * owned.shares.T[:, None]).sum(2)  # [S, Q]
  own = jnp.zeros(len(c), c.dtype).at[where].add(own, mode="drop")
  return c / jnp.maximum(1 - own, LEAST_LEFT)[:, None]


def _kept(each, u, square, gram, before, examiner, attendance):
  """Returns the same of those terms that a fine guard keeps, and which grew.

  Args:
    each: C_k u_r, [B, R, S] or [1, R, S].
    u: Gε, [R, S].
    square: ‖ε‖², [R].
    gram: GGᵀ.
    before: bool [R, B], terms dropped in earlier rounds.
    examiner: of the guard.
    attendance: the weights of participants.
  """
  shares = attendance.shares
  inner = low_rank.einsum("krs,st->krt", each, gram) - 2 * u[None]
  gain = jnp.broadcast_to((each * inner).sum(2).T, shares.shape)  # [R, B]
  square = jnp.broadcast_to(square[:, None], gain.shape)
  found = examiner.grows(gain, square, shares)
  kept = jnp.where(found | before, 0, shares)
  if len(each) == 1:
    return kept.sum(1)[:, None] * each[0], found
  return low_rank.einsum("rk,krs->rs", kept, each), found


def _explicit_is_cheaper(e, g, cores):
  """Tells whether to make GᵀCG itself, by counting operations."""
  if len(cores) > 1:
    return False
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
