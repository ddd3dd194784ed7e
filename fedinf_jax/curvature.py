"""Curvatures (Sections 3 and 4.2): how local training carries influence.

    P_k ≈ ∂w_{t,m}^k / ∂w_{t,0}^k = Π_i (I − ηH_{t,i}^k)

A curvature has two sides with a wall between them. `report` runs on the client
and sees its data; `lost` runs on the server and sees the report only. What
crosses the wall is what a participant would upload. A report that cannot cross
it stays with a client that is asked: sent every ε, it does both, and sends back
an `answer` of R models.
"""

from collections.abc import Callable
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import flatten_util
from jax import lax
import jax.numpy as jnp

from fedinf_jax import fedavg
from fedinf_jax import lanczos
from fedinf_jax import memory
from fedinf_jax import packing
from fedinf_jax import rng
from fedinf_jax import tangent
from fedinf_jax import tree
from fedinf_jax import types

MAX_DENSE = 4096  # Parameters of the largest explicit Hessian block.

# 1 − f(x) of the spectra: what a step takes away along an eigenvector whose
# eigenvalue is x = ηs. None is gradient descent itself, f = 1 − x. Negative
# curvature would expand; the others leave it alone.
SPECTRA = {
  None: lambda x: x,
  "clip": lambda x: jnp.clip(x, 0, 2),
  "relu": lambda x: jnp.clip(x, 0, 1),
  "exp": lambda x: -jnp.expm1(-jnp.maximum(x, 0)),
  "implicit": lambda x: jnp.maximum(x, 0) / (1 + jnp.maximum(x, 0)),
}


class Client(NamedTuple):
  """What a participant has at hand after its local training."""

  iterates: types.Params  # w_{t,i}^k, i = 0 … m-1: leaves [M, ...]
  examples: packing.Examples
  draws: rng.Draws


class Setup(NamedTuple):
  """What client and server both know."""

  model: types.Model
  fed: fedavg.FedAvg
  eta: float | None  # of plain gradient descent; None: another linear optimiser
  max_rows: int  # the most examples that any local step of any client has


class Rows(NamedTuple):
  """A report of low rank: step i is I − Σ_s factor_s g_s g_sᵀ.

  With η and 1/S_k in it already (η only for plain gradient descent).
  """

  rows: types.Params  # g, leaves [M, S, P_j]
  factor: jax.Array | None  # [M, S]; None: all ones


class Answer(NamedTuple):
  """What a participant that was sent every ε sends back."""

  lost: types.Params  # ε − P_k ε, leaves [R, ...]


class Curvature(NamedTuple):
  """A local propagator P_k, as a client side and a server side."""

  name: str
  layerwise: bool  # no flow between layers: a guard may examine each
  uploads: bool  # False: the report cannot leave the client, who must be asked
  linear: bool  # asks for an optimiser that is linear
  key: str  # curvatures with one key share one report
  report: Callable[[Setup, Client], Any]
  lost: Callable[[Setup, Any, types.Params], types.Params]  # ε − P_k ε
  sampled: bool = False  # reads a few examples, however many the client has


def propagate(curvature: Curvature, setup: Setup, report, eps):
  """Returns P_k ε for leaves [R, ...]."""
  return jax.tree.map(jnp.subtract, eps, curvature.lost(setup, report, eps))


def answer(curvature: Curvature, setup: Setup, client: Client, eps) -> Answer:
  """Makes a participant's answer to every ε (leaves [R, ...])."""
  return Answer(curvature.lost(setup, curvature.report(setup, client), eps))


def exact_hessian() -> Curvature:
  """Makes the basic estimator's propagator: the derivative of local training.

  Full Hessians, mini-batches and any differentiable optimiser included. Its
  report is the linearised training, which no client could upload: it must be
  asked. Where R <= m N_s, its answer is no more than the paper uploads.
  """

  def report(setup, client):
    train = fedavg.local_training(setup.model, setup.fed)
    start = jax.tree.map(lambda a: a[0], client.iterates)
    move = lambda w: jax.tree.map(
      jnp.subtract, w, train(w, client.examples, client.draws)[0]
    )
    linear = jax.linearize(move, start)[1]
    return linear, _tangent_bytes(setup, client, start)

  def lost(setup, report, eps):
    del setup
    linear, row_bytes = report
    return _map_removals(linear, eps, row_bytes)

  return Curvature(
    "exact_hessian", False, False, False, "exact_hessian", report, lost
  )


def exact_difference() -> Curvature:
  """Makes P_k ε = train_k(w + ε) − train_k(w): nothing is linearised.

  The estimate is then the exact replay, done by the participants: asked, each
  of them trains R times.
  """

  def report(setup, client):
    train = fedavg.local_training(setup.model, setup.fed)
    start = jax.tree.map(lambda a: a[0], client.iterates)
    go = lambda w: train(w, client.examples, client.draws)[0]
    return go, start, _tangent_bytes(setup, client, start)

  def lost(setup, report, eps):
    del setup
    go, start, row_bytes = report
    end = go(start)

    def one(e):
      moved = go(jax.tree.map(jnp.add, start, e))
      return jax.tree.map(lambda e, a, b: e - (a - b), e, moved, end)

    return _map_removals(one, eps, row_bytes)

  name = "exact_difference"
  return Curvature(name, False, False, False, name, report, lost)


def layerwise_hessian() -> Curvature:
  """Makes Π(I − ηH_(j)) for each layer by Hessian-vector products.

  Needs the client's data on the way: a client must be asked.
  """

  def report(setup, client):
    start = jax.tree.map(lambda a: a[0], client.iterates)
    return client, _tangent_bytes(setup, client, start)

  def lost(setup, report, eps):
    client, row_bytes = report
    treedef = jax.tree.structure(eps)

    def apply(step, sigma):
      i, w = step
      rows = fedavg.batch(setup.fed, client.examples, client.draws, i)
      leaves = jax.tree.leaves(w)

      def product(j):
        """H_(j) as a function: nothing is differentiated by other layers."""

        def loss(leaf):
          whole = treedef.unflatten([*leaves[:j], leaf, *leaves[j + 1 :]])
          return fedavg.step_loss(setup.model, whole, *rows)

        return jax.linearize(jax.grad(loss), leaves[j])[1]

      products = [product(j) for j in range(len(leaves))]

      def diagonal(sigma):
        leaves = jax.tree.leaves(sigma)
        pairs = zip(products, leaves, strict=True)
        return treedef.unflatten([h(a) for h, a in pairs])

      return _scaled(setup, _map_removals(diagonal, sigma, row_bytes))

    steps = jnp.arange(setup.fed.local_steps), client.iterates
    return tangent.lost(setup.fed, setup.eta, apply, steps, eps)

  return Curvature(
    "layerwise_hessian", True, False, True, "layerwise_hessian", report, lost
  )


def dense_hessian(
  *, layerwise: bool = True, upload: str = "product"
) -> Curvature:
  """Makes the same from explicit Hessian blocks, for small models.

  Args:
    layerwise: blocks on the diagonal only, or the full matrix.
    upload: "product": the client multiplies (the paper's naive 1); "steps": it
      uploads the Hessian of every step (naive 2).
  """
  if upload not in ("product", "steps"):
    raise ValueError(f'upload is {upload!r}; it must be "product" or "steps"')

  def apply(step, sigma):
    flat, unflatten = _blocks_of(sigma, layerwise)
    return unflatten([_matmul(a, h.T) for a, h in zip(flat, step, strict=True)])

  def report(setup, client):
    def hessians(step):
      i, w = step
      blocks = _hessian_blocks(_step_gradient(setup, client, i), w, layerwise)
      return _scaled(setup, blocks)

    steps = lax.map(
      hessians, (jnp.arange(setup.fed.local_steps), client.iterates)
    )
    if upload == "steps":
      return steps
    # Row r of a block's product is what is lost of the r-th unit vector.
    apply_one = lambda step, sigma: [_matmul(sigma[0], step[0].T)]
    return [
      tangent.lost(
        setup.fed,
        setup.eta,
        apply_one,
        [h],
        [jnp.eye(h.shape[1], dtype=h.dtype)],
      )[0]
      for h in steps
    ]

  def lost(setup, report, eps):
    if upload == "steps":
      return tangent.lost(setup.fed, setup.eta, apply, report, eps)
    flat, unflatten = _blocks_of(eps, layerwise)
    return unflatten([_matmul(a, x) for a, x in zip(flat, report, strict=True)])

  key = f"dense_hessian {layerwise} {upload}"
  return Curvature("dense_hessian", layerwise, True, True, key, report, lost)


def fisher(
  *,
  num_samples: int = 50,
  labels: str = "observed",
  layerwise: bool = True,
  rank: int | None = None,
  spectrum: str | None = None,
) -> Curvature:
  """Makes the paper's approximation H ≈ (1/S) Σ g gᵀ and its σ recursion.

      σ ← σ − (η/S_k) Σ_z g(w_{t,i}^k, z) (g(w_{t,i}^k, z)ᵀ σ),  i = 0 … m-1

  Args:
    num_samples: N_s; a step uploads S_k = min(N_s, its examples) gradients,
      drawn without replacement.
    labels: "observed", or "sampled" from the model's own predictions, which
      makes the mean an unbiased estimate of the Gauss–Newton matrix.
    layerwise: each layer for itself, or gradients as whole vectors.
    rank: upload only the best factor of this rank, for each step (and layer).
    spectrum: a name of SPECTRA: f(ηs) in place of 1 − ηs on the eigenvalues s
      of each step's matrix, so that nothing ever grows.
  """
  if labels not in ("observed", "sampled"):
    raise ValueError(
      f'labels is {labels!r}; it must be "observed" or "sampled"'
    )
  _check_positive("num_samples", num_samples)
  _check_rank_and_spectrum(rank, spectrum)

  def report(setup, client):
    size = min(num_samples, setup.max_rows)
    num_layers = len(jax.tree.leaves(client.iterates))
    blocks = layer_blocks(num_layers, layerwise)

    def step(inputs):
      rows = _sampled_gradients(setup, client, inputs, size, labels)
      if rank is None and spectrum is None:
        return rows
      leaves, treedef = jax.tree.flatten(rows)
      return treedef.unflatten(
        _reshape_spectrum(leaves, blocks, rank, spectrum)
      )

    _require_plain(setup, "spectrum", spectrum)
    steps = jnp.arange(setup.fed.local_steps), client.iterates
    # All steps at once: collected one by one, they would be held twice.
    return Rows(jax.vmap(step)(steps), None)

  # The gradients themselves are the same with and without layers.
  shape = f" {layerwise} {rank} {spectrum}" if rank or spectrum else ""
  return Curvature(
    "fisher",
    layerwise,
    True,
    True,
    f"fisher {num_samples} {labels}{shape}",
    report,
    functools.partial(_rows_lost, layerwise),
    sampled=True,
  )


def lowrank_hessian(
  *, rank: int, per: str = "step", spectrum: str | None = None
) -> Curvature:
  """Makes the exact Hessian's `rank` eigenpairs of largest absolute value.

  By Lanczos with Hessian-vector products on the client. It carries residual
  and negative curvature, which no Fisher matrix can.

  Args:
    rank: eigenpairs to upload.
    per: "step", or "round": those of the first step serve for all.
    spectrum: as for `fisher`; negative curvature is then left out.
  """
  if per not in ("step", "round"):
    raise ValueError(f'per is {per!r}; it must be "step" or "round"')
  _check_positive("rank", rank)
  _check_rank_and_spectrum(rank, spectrum)

  def report(setup, client):
    _require_plain(setup, "spectrum", spectrum)
    _require_plain(setup, "per", None if per == "step" else per)
    steps = jnp.arange(setup.fed.local_steps), client.iterates

    def eigenpairs(step):
      i, w = step
      flat, unravel = flatten_util.ravel_pytree(w)
      product = jax.linearize(_step_gradient(setup, client, i), w)[1]
      matvec = lambda v: flatten_util.ravel_pytree(product(unravel(v)))[0]
      key = client.draws.key(rng.Stream.LANCZOS, i)
      start = jax.random.normal(key, flat.shape, flat.dtype)
      values, vectors = lanczos.largest_eigenpairs(
        matvec, start, rank, min(flat.size, 2 * rank + 10)
      )
      rows = jax.tree.map(
        lambda a: a.reshape(rank, -1), jax.vmap(unravel)(vectors)
      )
      return rows, SPECTRA[spectrum](_scaled(setup, values))

    if per == "step":
      return Rows(*lax.map(eigenpairs, steps))
    rows, factor = eigenpairs(jax.tree.map(lambda a: a[0], steps))
    # m equal steps at once: 1 − f^m.
    factor = 1 - (1 - factor) ** setup.fed.local_steps
    return jax.tree.map(lambda a: a[None], Rows(rows, factor))

  return Curvature(
    "lowrank_hessian",
    False,
    True,
    True,
    f"lowrank_hessian {rank} {per} {spectrum}",
    report,
    functools.partial(_rows_lost, False),
  )


def truncated() -> Curvature:
  """Makes P_k = 0: combinatorial influence alone, nothing uploaded."""
  return Curvature(
    "truncated",
    True,
    True,
    False,
    "truncated",
    lambda setup, client: (),
    lambda setup, report, eps: eps,
  )


def layer_blocks(num_layers: int, layerwise: bool) -> list[tuple[int, ...]]:
  """Returns which layers belong together: each alone, or all."""
  layers = range(num_layers)
  return [(j,) for j in layers] if layerwise else [tuple(layers)]


def _rows_lost(layerwise, setup, report, eps):
  """The σ recursion, step by step."""
  leaves, treedef = jax.tree.flatten(eps)
  blocks = layer_blocks(len(leaves), layerwise)

  def apply(step, sigma):
    out = [None] * len(leaves)
    rows = jax.tree.leaves(step.rows)
    sigma = [a.reshape(a.shape[0], -1) for a in jax.tree.leaves(sigma)]
    for block in blocks:
      u = sum(_matmul(sigma[j], rows[j].T) for j in block)  # [R, S]
      if step.factor is not None:
        u = u * step.factor[None]
      for j in block:
        out[j] = _matmul(u, rows[j]).reshape(leaves[j].shape)
    return treedef.unflatten(out)

  return tangent.lost(setup.fed, setup.eta, apply, report, eps)


def _sampled_gradients(setup, client, step, size, labels):
  """Returns √(η/S_k) g of one step's sampled examples: leaves [S, P_j]."""
  i, w = step
  model = setup.model
  x, y, own = fedavg.batch(setup.fed, client.examples, client.draws, i)
  limit = own.shape[0]
  key = client.draws.key(rng.Stream.EXAMPLES, i)
  index, valid = rng.choose(key, own.sum(), size=min(size, limit), limit=limit)
  row = jnp.argmax(own) + index
  x, y = x[row], y[row]
  if labels == "sampled":
    key = client.draws.key(rng.Stream.LABELS, i)
    # A key for each slot: the draw must not depend on how many slots follow.
    draw = lambda slot, out: model.sample(
      jax.random.fold_in(key, slot), out[None]
    )[0]
    y = jax.vmap(draw)(jnp.arange(len(index)), model.apply(w, x))
  loss = lambda w, x, y: model.loss(model.apply(w, x[None]), y[None])[0]
  g = jax.vmap(jax.grad(loss), (None, 0, 0))(w, x, y)

  def scaled(a):
    share = (setup.eta or 1.0) / jnp.maximum(valid.sum(), 1)
    scale = jnp.where(valid, jnp.sqrt(share), 0).astype(a.dtype)
    rows = a.reshape(a.shape[0], -1) * scale[:, None]
    return jnp.pad(rows, ((0, size - len(rows)), (0, 0)))

  return jax.tree.map(scaled, g)


def _reshape_spectrum(rows, blocks, rank, spectrum):
  """Rotates each block's rows to its eigenvectors, by its S × S Gram matrix.

  With GGᵀ = U diag(x) Uᵀ the rows √((1 − f(x))/x) Uᵀ G have I − G'ᵀG' act as
  f(x) on each eigenvector; the last `rank` of them are the best factor.
  """
  out = list(rows)
  for block in blocks:
    gram = sum(_matmul(rows[j], rows[j].T) for j in block)
    x, u = lanczos.eigh(gram)
    tiny = jnp.finfo(x.dtype).tiny
    weight = jnp.where(x > tiny, SPECTRA[spectrum](x) / jnp.maximum(x, tiny), 1)
    turn = (u * jnp.sqrt(weight)[None]).T
    for j in block:
      keep = len(x)
      if rank is not None:
        alone = rows[j].shape[1] if len(block) == 1 else keep
        keep = min(rank, keep, alone)
      out[j] = _matmul(turn[-keep:], rows[j])
  return out


def _step_gradient(setup, client, i):
  """Returns w -> ∇L(w, the examples of step i)."""
  rows = fedavg.batch(setup.fed, client.examples, client.draws, i)
  loss = functools.partial(fedavg.step_loss, setup.model)
  return lambda w: jax.grad(loss)(w, *rows)


def _scaled(setup, curvatures):
  """Multiplies by η where the steps are plain gradient descent."""
  eta = 1.0 if setup.eta is None else setup.eta
  return jax.tree.map(lambda a: eta * a, curvatures)


def _tangent_bytes(setup, client, params):
  """Bounds the temporaries of one tangent through one local step."""
  gradient = lambda w: _step_gradient(setup, client, 0)(w)
  jvp = lambda w: jax.jvp(gradient, (w,), (w,))
  return memory.intermediate_bytes(jvp, params)


def _map_removals(function, eps, row_bytes):
  num_rows = jax.tree.leaves(eps)[0].shape[0]
  return tree.map_rows(
    function, eps, memory.models_at_once(num_rows, row_bytes)
  )


def _hessian_blocks(gradient, w, layerwise):
  """Returns explicit Hessian blocks [P_b, P_b]: of each layer, or of all."""
  leaves, treedef = jax.tree.flatten(w)
  names = tree.names(w)
  blocks = []
  for block in layer_blocks(len(leaves), layerwise):
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
      g = jax.tree.leaves(gradient(treedef.unflatten(moved)))
      return flatten_util.ravel_pytree([g[j] for j in block])[0]

    blocks.append(jax.jacfwd(part)(flat))
  return blocks


def _blocks_of(eps, layerwise):
  """Flattens leaves [R, ...] to one matrix [R, P_b] a block, and back."""
  leaves, treedef = jax.tree.flatten(eps)
  flat = [a.reshape(a.shape[0], -1) for a in leaves]
  sizes = [a.shape[1] for a in flat]
  if not layerwise:
    flat = [jnp.concatenate(flat, axis=1)]

  def unflatten(flat):
    if not layerwise:
      ends = [sum(sizes[: j + 1]) for j in range(len(sizes) - 1)]
      flat = jnp.split(flat[0], ends, axis=1)
    return treedef.unflatten(
      [a.reshape(b.shape) for a, b in zip(flat, leaves, strict=True)]
    )

  return flat, unflatten


def _matmul(a, b):
  return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _require_plain(setup, name, value):
  if value is not None and setup.eta is None:
    raise ValueError(
      f"{name}={value!r} is defined for plain gradient descent only; the"
      " client_optimizer is another"
    )


def _check_rank_and_spectrum(rank, spectrum):
  if rank is not None:
    _check_positive("rank", rank)
  if spectrum not in SPECTRA:
    names = ", ".join(repr(s) for s in SPECTRA)
    raise ValueError(f"spectrum is {spectrum!r}; it must be one of {names}")


def _check_positive(name, value):
  if isinstance(value, bool) or not isinstance(value, int) or value < 1:
    raise ValueError(f"{name} is {value!r}; it must be an integer >= 1")
