"""Exact Hessians that can be uploaded: explicit blocks, or a few eigenpairs."""

import functools

import jax
from jax import flatten_util
from jax import lax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import rows
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import lanczos
from fedinf_jax.linalg import low_rank
from fedinf_jax.linalg import spectra

MAX_DENSE = 4096  # Parameters of the largest explicit Hessian block.


def dense_hessian(
  *, layerwise: bool = True, upload: str = "product"
) -> wall.Curvature:
  """Makes the same from explicit Hessian blocks, for small models.

  Args:
    layerwise: blocks on the diagonal only, or the full matrix.
    upload: "product": the client multiplies (the paper's naive 1); "steps": it
      uploads the Hessian of every step (naive 2).

  Examples:
    >>> made = fi.estimator(fi.dense_hessian(), fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)  # Blocks, 12 × 12 and 3 × 3.
    612
  """
  checks.boolean("layerwise", layerwise)
  checks.one_of("upload", upload, ("product", "steps"))

  def apply(step, sigma):
    flat, unflatten = _blocks_of(sigma, layerwise=layerwise)
    pairs = zip(flat, step, strict=True)
    return unflatten([low_rank.matmul(a, h.T) for a, h in pairs])

  def report(setup, client):
    def hessians(step):
      i, w = step
      gradient = jax.grad(wall.step_loss(setup, client, i))
      return setup.descent.scaled(
        hessian_blocks(gradient, w, layerwise=layerwise)
      )

    steps = lax.map(
      hessians, (jnp.arange(setup.fed.local_steps), client.iterates)
    )
    if upload == "steps":
      return steps
    return [_multiplied(setup.descent, h) for h in steps]

  def lost(descent, report, eps):
    if upload == "steps":
      return descents.lost(descent, apply, report, eps)
    flat, unflatten = _blocks_of(eps, layerwise=layerwise)
    pairs = zip(flat, report, strict=True)
    return unflatten([low_rank.matmul(a, x) for a, x in pairs])

  return wall.Curvature(
    name="dense_hessian",
    key=wall.key("dense_hessian", layerwise, upload),
    layerwise=layerwise,
    report=report,
    lost=lost,
    absorb=wall.one_by_one(lost, layerwise=layerwise),
    check_report=_check_report(layerwise, upload),
  )


def lowrank_hessian(
  *, rank: int, per: str = "step", spectrum: str | None = None
) -> wall.Curvature:
  """Makes the exact Hessian's `rank` eigenpairs of largest absolute value.

  By Lanczos with Hessian-vector products on the client. It carries residual
  and negative curvature, which no Fisher matrix can.

  Args:
    rank: eigenpairs to upload.
    per: "step", or "round": those of the first step serve for all.
    spectrum: as for `fisher`; negative curvature is then left out.

  Examples:
    >>> curvature = fi.lowrank_hessian(rank=2, per="round")
    >>> made = fi.estimator(curvature, fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)
    128
  """
  checks.one_of("per", per, ("step", "round"))
  checks.positive_integer("rank", rank)
  rows.check_options(rank, spectrum)

  def check(setup):
    setup.descent.require_plain("spectrum", spectrum)
    setup.descent.require_plain("per", None if per == "step" else per)

  def eigenpairs(setup, client, step):
    i, w = step
    values, vectors = _largest_eigenpairs(setup, client, i, w, rank)
    return vectors, setup.descent.scaled(values)

  def report(setup, client):
    check(setup)
    pairs = functools.partial(eigenpairs, setup, client)
    steps = jnp.arange(setup.fed.local_steps), client.iterates
    if per == "step":
      vectors, values = lax.map(pairs, steps)
      return low_rank.Rows(vectors, spectra.taken_away(values, spectrum, 1))
    vectors, values = pairs(jax.tree.map(lambda a: a[0], steps))
    factor = spectra.taken_away(values, spectrum, setup.fed.local_steps)
    return jax.tree.map(lambda a: a[None], low_rank.Rows(vectors, factor))

  return rows.curvature(
    name="lowrank_hessian",
    key=wall.key("lowrank_hessian", rank, per, spectrum),
    layerwise=False,
    spectrum=spectrum,
    num_steps=1 if per == "round" else None,
    first_step_only=per == "round",
    report=report,
    check=check,
  )


def hessian_blocks(gradient, w, *, layerwise: bool) -> list[jax.Array]:
  """Returns explicit Hessian blocks [P_b, P_b]: of each layer, or of all."""
  leaves, treedef = jax.tree.flatten(w)
  names = tree.names(w)
  blocks = []
  for block in tree.layer_blocks(len(leaves), layerwise=layerwise):
    size = sum(leaves[j].size for j in block)
    if size > MAX_DENSE:
      name = names[block[0]] if layerwise else "the whole model"
      raise ValueError(
        f"dense_hessian: {name} has {size:,} parameters; at most"
        f" {MAX_DENSE:,} fit an explicit Hessian. layerwise_hessian and"
        " exact_hessian have no such limit"
      )
    flat, unravel = flatten_util.ravel_pytree([leaves[j] for j in block])

    def part(v, block=block, unravel=unravel):
      moved = list(leaves)
      for j, leaf in zip(block, unravel(v), strict=True):
        moved[j] = leaf
      g = jax.tree.leaves(gradient(jax.tree.unflatten(treedef, moved)))
      return flatten_util.ravel_pytree([g[j] for j in block])[0]

    blocks.append(jax.jacfwd(part)(flat))
  return blocks


def _check_report(layerwise, upload):
  """Builds `Curvature.check_report`."""

  def check_report(descent, report, num_participants, eps):
    sizes = [e[0].size for e in jax.tree.leaves(eps)]
    sizes = sizes if layerwise else [sum(sizes)]
    if len(report) != len(sizes):
      raise ValueError(
        f"report: it has {len(report)} matrices; it must have {len(sizes)}"
      )
    steps = [descent.fed.local_steps] if upload == "steps" else []
    for i, (matrix, size) in enumerate(zip(report, sizes, strict=True)):
      shape = num_participants, *steps, size, size
      wall.require_shape(f"matrix {i}", matrix, shape)

  return check_report


def _multiplied(descent, hessians):
  """Returns I − Π(I − ηH) of one block's steps, [P_b, P_b], transposed."""
  apply = lambda step, sigma: [low_rank.matmul(sigma[0], step[0].T)]
  # Row r of the product is what is lost of the r-th unit vector.
  eye = jnp.eye(hessians.shape[1], dtype=hessians.dtype)
  return descents.lost(descent, apply, [hessians], [eye])[0]


def _largest_eigenpairs(setup, client, i, w, rank):
  """Returns a step's eigenvalues [r] and eigenvectors, leaves [r, P_j]."""
  flat, unravel = flatten_util.ravel_pytree(w)
  gradient = jax.grad(wall.step_loss(setup, client, i))
  product = jax.linearize(gradient, w)[1]
  matvec = lambda v: flatten_util.ravel_pytree(product(unravel(v)))[0]
  key = client.draws.key(rng.Stream.LANCZOS, i)
  start = jax.random.normal(key, flat.shape, flat.dtype)
  values, vectors = lanczos.largest_eigenpairs(
    matvec, start, rank, min(flat.size, 2 * rank + 10)
  )
  flatten = lambda a: a.reshape(rank, -1)
  return values, jax.tree.map(flatten, jax.vmap(unravel)(vectors))


def _blocks_of(eps, *, layerwise):
  """Flattens leaves [R, ...] to one matrix [R, P_b] per block, and back."""
  leaves, treedef = jax.tree.flatten(eps)
  flat = [a.reshape(a.shape[0], -1) for a in leaves]
  sizes = [a.shape[1] for a in flat]
  if not layerwise:
    flat = [jnp.concatenate(flat, axis=1)]

  def unflatten(flat):
    if not layerwise:
      ends = [sum(sizes[: j + 1]) for j in range(len(sizes) - 1)]
      flat = jnp.split(flat[0], ends, axis=1)
    return jax.tree.unflatten(
      treedef, [a.reshape(b.shape) for a, b in zip(flat, leaves, strict=True)]
    )

  return flat, unflatten
