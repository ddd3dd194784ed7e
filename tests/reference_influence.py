"""Slow twin of the estimators: explicit P × P matrices, one client at a time.

Read off Sections 3 and 4 of the paper. JAX supplies derivatives and draws; the
rest is NumPy float64 with loops. Parameters are one vector [P], the leaves of
the pytree one after the other; a layer is a slice of it.
"""

from collections.abc import Callable
import functools
from typing import NamedTuple

import jax
from jax import flatten_util
import numpy as np
import optax

from fedinf_jax import rng
from tests import reference

TOLERANCE = 16 * np.finfo(np.float64).eps

SPECTRA = {
  "clip": lambda x: max(-1.0, 1 - x),
  "relu": lambda x: max(0.0, 1 - x),
  "exp": lambda x: np.exp(-x),
  "implicit": lambda x: 1 / (1 + x),
}


class Curvature(NamedTuple):
  """How P_k is made. Fields that a kind does not have are not read."""

  kind: str  # "exact", "layerwise", "fisher", "lowrank" or "truncated"
  num_samples: int = 50  # fisher
  labels: str = "observed"  # fisher: "observed" or "sampled"
  layerwise: bool = True  # fisher
  rank: int | None = None  # fisher, lowrank
  per: str = "step"  # lowrank: "step" or "round"
  spectrum: str | None = None  # fisher, lowrank: a key of SPECTRA


class Estimate(NamedTuple):
  """What `estimate` returns."""

  eps: list  # ε_0 … ε_T, each [R, P]
  truncated_at: np.ndarray  # int [R, L], 1-based round; 0: never
  dropped: set  # (r, k, layer), of the guard "lwet_participant"
  w: list  # w_0 … w_T, each [P]


class Flat(NamedTuple):
  """A model as functions of the vector w [P] and of one example."""

  unravel: Callable  # [P] -> params
  layers: list  # L slices of the vector
  gradient: Callable  # (w, x, y) -> [P]
  hessian: Callable  # (w, x, y) -> [P, P]
  outputs: Callable  # (w, x) -> [1, ...]
  sample: Callable  # (key, s, outputs [1, ...]) -> the s-th label


def remember(function):
  """Caches results; an array counts by its bytes, a pytree by its leaves'."""
  known = {}

  def name(arg):
    try:
      hash(arg)
    except TypeError:
      leaves, structure = jax.tree.flatten(arg)
      return structure, *(
        (np.shape(a), np.asarray(a).tobytes()) for a in leaves
      )
    return arg

  @functools.wraps(function)
  def remembered(*args):
    key = tuple(name(arg) for arg in args)
    if key not in known:
      known[key] = function(*args)
    return known[key]

  return remembered


def ravel(params) -> np.ndarray:
  """The pytree as one float64 vector [P], in the order of its leaves."""
  leaves = jax.tree.leaves(params)
  return np.concatenate([np.asarray(a, np.float64).ravel() for a in leaves])


def flat(model, params) -> Flat:
  """The model's functions of a vector shaped by `params`, compiled once."""
  leaves, structure = jax.tree.flatten(params)
  return _flat(model, structure, tuple(np.shape(a) for a in leaves))


@functools.cache
def _flat(model, structure, shapes):
  zeros = [np.zeros(shape, np.float64) for shape in shapes]
  w, unravel = flatten_util.ravel_pytree(jax.tree.unflatten(structure, zeros))
  assert w.dtype == np.float64, "the twin wants jax_enable_x64"
  ends = np.cumsum([a.size for a in zeros])
  layers = [slice(e - a.size, e) for e, a in zip(ends, zeros, strict=True)]

  def outputs(w, x):
    return model.apply(unravel(w), x[None])

  def loss(w, x, y):
    return model.loss(outputs(w, x), y[None])[0]

  def sample(key, s, outputs):
    return model.sample(jax.random.fold_in(key, s), outputs)[0]

  return Flat(
    unravel,
    layers,
    jax.jit(jax.grad(loss)),
    jax.jit(jax.hessian(loss)),
    jax.jit(outputs),
    jax.jit(sample),
  )


def client_data(data, k):
  """Client k's examples; floats as float64."""

  def double(a):
    a = np.asarray(a)
    return a.astype(np.float64) if np.issubdtype(a.dtype, np.floating) else a

  x, y = data.client(k)
  return double(x), double(y)


def step_rows(fed, data, k, round_, step, seed):
  """Which of client k's own examples local step `step` trains on."""
  count = int(data.num_examples[k])
  if fed.batch_size is None:
    return np.arange(count)
  return reference.client_batch(
    seed, data.ids[k], round_, step, count, fed.batch_size
  )


@remember
def local_iterates(model, fed, data, k, params, round_, seed):
  """Equation (2), literally.

  Args:
    model: a `Model`.
    fed: a `FedAvg`.
    data: a `FederatedData`.
    k: the client's position.
    params: w_{t-1}, a pytree.
    round_: t, from 1.
    seed: the run's.

  Returns:
    [w_{t,0}, …, w_{t,m-1}], w_{t,m} (vectors [P]), and each step's rows.
  """
  functions = flat(model, params)
  x, y = client_data(data, k)
  w = ravel(params)
  state = fed.optimizer.init(functions.unravel(w))
  iterates, rows = [], []
  for i in range(fed.local_steps):
    iterates.append(w)
    rows.append(step_rows(fed, data, k, round_, i, seed))
    g = np.zeros_like(w)
    for z in rows[i]:
      g += np.asarray(functions.gradient(w, x[z], y[z])) / len(rows[i])
    update, state = fed.optimizer.update(
      functions.unravel(g), state, functions.unravel(w)
    )
    w = w + ravel(update)
  return iterates, w, rows


@remember
def fedavg(model, fed, data, params, cohorts, seed, removed=()):
  """Equations (2), (3) with C_t replaced by C_t minus `removed`.

  Returns [w_0, …, w_T], vectors [P]; an empty round changes nothing.
  """
  unravel = flat(model, params).unravel
  history = [ravel(params)]
  for t, cohort in enumerate(cohorts, 1):
    w = history[-1]
    staying = [int(k) for k in cohort if k not in removed]
    total = sum(int(data.num_examples[k]) for k in staying)
    new = np.zeros_like(w) if staying else w
    for k in staying:
      _, local, _ = local_iterates(model, fed, data, k, unravel(w), t, seed)
      new = new + int(data.num_examples[k]) / total * local
    history.append(new)
  return history


def exact_fip(model, fed, data, params, cohorts, removals, seed):
  """Definition 1 after every round: [ε_0*, …, ε_T*], each [R, P]."""
  with_all = fedavg(model, fed, data, params, cohorts, seed)
  rows = []
  for row in np.asarray(removals, bool):
    removed = tuple(int(k) for k in np.flatnonzero(row))
    without = fedavg(model, fed, data, params, cohorts, seed, removed)
    rows.append([a - b for a, b in zip(without, with_all, strict=True)])
  return [np.stack(per_round) for per_round in zip(*rows, strict=True)]


# The step matrices H_{t,0} … H_{t,m-1} of one participant.


@remember
def hessians(model, fed, data, k, params, round_, seed):
  """The Hessian of each step's mean loss at w_{t,i}: m matrices [P, P]."""
  functions = flat(model, params)
  x, y = client_data(data, k)
  iterates, _, rows = local_iterates(model, fed, data, k, params, round_, seed)
  matrices = []
  for w, own in zip(iterates, rows, strict=True):
    h = np.zeros((len(w), len(w)))
    for z in own:
      h += np.asarray(functions.hessian(w, x[z], y[z])) / len(own)
    matrices.append((h + h.T) / 2)
  return matrices


def step_key(seed, stream, client_id, round_, step):
  """The key of (seed, stream, round, client id, step)."""
  key = rng.stream_key(seed, stream)
  key = rng.client_key(key, round_, rng.id_words([client_id])[0])
  return jax.random.fold_in(key, step)


@functools.cache
def fisher_positions(seed, client_id, round_, step, count, num_samples):
  """Which of the `count` rows of a step's batch give a gradient: [S_k]."""
  key = step_key(seed, rng.Stream.EXAMPLES, client_id, round_, step)
  size = min(num_samples, count)
  index, valid = rng.choose(key, count, size=size, limit=count)
  assert bool(valid.all())
  return np.asarray(index)


@remember
def fisher_gradients(
  model, fed, data, k, params, round_, seed, num_samples, labels
):
  """The sampled gradients of each step: m arrays [S_k, P]."""
  functions = flat(model, params)
  x, y = client_data(data, k)
  iterates, _, rows = local_iterates(model, fed, data, k, params, round_, seed)
  gradients = []
  for i, (w, own) in enumerate(zip(iterates, rows, strict=True)):
    positions = fisher_positions(
      seed, data.ids[k], round_, i, len(own), num_samples
    )
    key = step_key(seed, rng.Stream.LABELS, data.ids[k], round_, i)
    step = []
    for s, z in enumerate(own[positions]):
      if labels == "observed":
        label = y[z]
      else:
        assert labels == "sampled", labels
        label = functions.sample(key, s, functions.outputs(w, x[z]))
      step.append(np.asarray(functions.gradient(w, x[z], label)))
    gradients.append(np.stack(step))
  return gradients


def couples_layers(curvature):
  """Whether the matrices have entries between layers."""
  if curvature.kind == "fisher":
    return not curvature.layerwise
  return curvature.kind in ("exact", "lowrank")


def blocks(curvature, layers):
  """Pairs (layers of the block, slice): what is treated as a whole."""
  if couples_layers(curvature):
    return [(list(range(len(layers))), slice(0, layers[-1].stop))]
  return [([j], layer) for j, layer in enumerate(layers)]


def block_diagonal(matrix, slices):
  """The matrix with everything outside its diagonal blocks put to zero."""
  result = np.zeros_like(matrix)
  for s in slices:
    result[s, s] = matrix[s, s]
  return result


def best_rank(matrix, slices, rank):
  """Each block's eigenpairs of largest absolute value, `rank` of them."""
  result = np.zeros_like(matrix)
  for s in slices:
    values, vectors = np.linalg.eigh(matrix[s, s])
    for i in np.argsort(-np.abs(values))[:rank]:
      result[s, s] += values[i] * np.outer(vectors[:, i], vectors[:, i])
  return result


def step_matrices(model, fed, data, k, params, round_, seed, curvature):
  """What stands for H_{t,i}^k, i = 0 … m-1: matrices [P, P]."""
  who = model, fed, data, k, params, round_, seed
  slices = [s for _, s in blocks(curvature, flat(model, params).layers)]
  if curvature.kind == "exact":
    return hessians(*who)
  if curvature.kind == "layerwise":
    return [block_diagonal(h, slices) for h in hessians(*who)]
  if curvature.kind == "lowrank":
    matrices = [best_rank(h, slices, curvature.rank) for h in hessians(*who)]
    if curvature.per == "round":
      return [matrices[0]] * fed.local_steps
    assert curvature.per == "step", curvature.per
    return matrices
  assert curvature.kind == "fisher", curvature.kind
  matrices = []
  for gradients in fisher_gradients(
    *who, curvature.num_samples, curvature.labels
  ):
    f = sum(np.outer(g, g) for g in gradients) / len(gradients)
    f = block_diagonal(f, slices)
    if curvature.rank is not None:
      f = best_rank(f, slices, curvature.rank)
    matrices.append(f)
  return matrices


# The local propagator P_k.


def gradient_step(matrix, eta, slices, spectrum):
  """I - ηH, or f(ηλ) in place of 1 - ηλ on each eigenvalue of each block."""
  if spectrum is None:
    return np.eye(len(matrix)) - eta * matrix
  # Σ f v vᵀ written as I + Σ (f - 1) v vᵀ: a layer without curvature stays
  # untouched to the last bit, and no guard trips over rounding.
  result = np.eye(len(matrix))
  for s in slices:
    values, vectors = np.linalg.eigh(matrix[s, s])
    for value, v in zip(values, vectors.T, strict=True):
      factor = SPECTRA[spectrum](max(eta * value, 0.0))
      result[s, s] += (factor - 1) * np.outer(v, v)
  return result


@functools.cache
def _tangent_step(optimizer, unravel):
  """One step of the optimiser on a vector: (g, state, σ) -> (σ, state)."""

  def step(g, state, sigma):
    update, state = optimizer.update(unravel(g), state, unravel(sigma))
    return sigma + flatten_util.ravel_pytree(update)[0], state

  return jax.jit(step)


def through_optimizer(optimizer, unravel, matrices):
  """The steps H_i through a linear optimiser's own update, as a matrix.

  Column j is what becomes of the j-th unit vector.
  """
  step = _tangent_step(optimizer, unravel)
  columns = []
  for unit in np.eye(len(matrices[0])):
    sigma, state = unit, optimizer.init(unravel(unit))
    for h in matrices:
      sigma, state = step(h @ np.asarray(sigma), state, sigma)
    columns.append(np.asarray(sigma))
  return np.stack(columns, axis=1)


@functools.cache
def _training_jacobian(model, optimizer, unravel):
  def mean_loss(params, x, y):
    return model.loss(model.apply(params, x), y).mean()

  def train(w, batches):
    params = unravel(w)
    state = optimizer.init(params)
    for x, y in batches:
      g = jax.grad(mean_loss)(params, x, y)
      update, state = optimizer.update(g, state, params)
      params = optax.apply_updates(params, update)
    return flatten_util.ravel_pytree(params)[0]

  return jax.jit(jax.jacfwd(train))


def training_jacobian(model, fed, data, k, params, round_, seed):
  """∂w_{t,m}^k / ∂w_{t,0}^k of the local training itself, any optimiser."""
  x, y = client_data(data, k)
  _, _, rows = local_iterates(model, fed, data, k, params, round_, seed)
  batches = [(x[own], y[own]) for own in rows]
  jacobian = _training_jacobian(
    model, fed.optimizer, flat(model, params).unravel
  )
  return np.asarray(jacobian(ravel(params), batches))


@remember
def propagator(model, fed, data, k, params, round_, seed, curvature):
  """P_k, [P, P]; `params` is w_{t-1}."""
  who = model, fed, data, k, params, round_, seed
  functions = flat(model, params)
  size = functions.layers[-1].stop
  if curvature.kind == "truncated":
    return np.zeros((size, size))
  eta = fed.learning_rate
  if eta is None and curvature.kind == "exact":
    return training_jacobian(*who)
  matrices = step_matrices(*who, curvature)
  if eta is None:
    assert curvature.spectrum is None, "a spectrum is f(ηλ): give an η"
    return through_optimizer(fed.optimizer, functions.unravel, matrices)
  slices = [s for _, s in blocks(curvature, functions.layers)]
  product = np.eye(size)
  for h in matrices:
    product = gradient_step(h, eta, slices, curvature.spectrum) @ product
  return product


# The estimators.


def grows(after, before):
  """Whether a norm grew by more than rounding explains; never from zero."""
  before = np.linalg.norm(before)
  return before > 0 and np.linalg.norm(after) > (1 + TOLERANCE) * before


def mark(truncated_at, r, layers, t):
  """Notes the first round in which removal r lost something of a layer."""
  for j in layers:
    if truncated_at[r, j] == 0:
      truncated_at[r, j] = t


def sequential_influence(
  t, r, eps, a, terms, block, guard, truncated_at, dropped
):
  """Σ_k a_{r,k} (P_k ε)_(j) of one block, less what the guard drops.

  Args:
    t: the round.
    r: the removal.
    eps: ε_{t-1}^r, [P].
    a: {k: a_{r,k}}.
    terms: {k: P_k ε}.
    block: (layers, slice).
    guard: "none", "lwet" or "lwet_participant".
    truncated_at: written to.
    dropped: written to.
  """
  layers, s = block
  kept = sum(a[k] * terms[k][s] for k in a)
  if guard == "none":
    return kept
  if guard == "lwet":
    if grows(kept, eps[s]):
      mark(truncated_at, r, layers, t)
    return np.zeros_like(kept) if truncated_at[r, layers[0]] else kept
  assert guard == "lwet_participant", guard
  kept = np.zeros_like(kept)
  for k in a:
    if grows(terms[k][s], eps[s]) and (r, k, layers[0]) not in dropped:
      dropped.update((r, k, j) for j in layers)
      mark(truncated_at, r, layers, t)
    if (r, k, layers[0]) not in dropped:
      kept += a[k] * terms[k][s]
  return kept


def estimate(
  model, fed, data, w_0, cohorts, removals, seed, curvature, guard, server=None
) -> Estimate:
  r"""Equation (10) for every removal, with one curvature and one guard.

      ε_t^r = Σ_{k∈C_t\r} a_{r,k} P_k ε_{t-1}^r + Σ_k a_{r,k} w_{t,m}^k - w_t

  Args:
    model: a `Model`.
    fed: a `FedAvg`.
    data: a `FederatedData`.
    w_0: the pytree that training starts from.
    cohorts: int [T, B].
    removals: bool [R, K].
    seed: the run's.
    curvature: a `Curvature`.
    guard: "none", "lwet" or "lwet_participant".
    server: data of one client, the server, whose P stands for every P_k; None:
      participants have their own.
  """
  functions = flat(model, w_0)
  n = [int(count) for count in data.num_examples]
  w = fedavg(model, fed, data, w_0, np.asarray(cohorts), seed)
  removals = np.asarray(removals, bool)
  eps = [np.zeros((len(removals), len(w[0])))]
  truncated_at = np.zeros((len(removals), len(functions.layers)), int)
  dropped = set()
  for t, cohort in enumerate(cohorts, 1):
    who = functions.unravel(w[t - 1]), t, seed
    new = np.zeros_like(eps[-1])
    for r, removed in enumerate(removals):
      before = eps[t - 1][r]
      staying = [int(k) for k in cohort if not removed[k]]
      if not staying:
        new[r] = before + w[t - 1] - w[t]
        continue
      total = sum(n[k] for k in staying)
      a = {k: n[k] / total for k in staying}
      terms = {}
      for k in staying:
        where = (data, k) if server is None else (server, 0)
        p_k = propagator(model, fed, *where, *who, curvature)
        terms[k] = p_k @ before
        new[r] += a[k] * local_iterates(model, fed, data, k, *who)[1]
      new[r] -= w[t]
      for block in blocks(curvature, functions.layers):
        new[r][block[1]] += sequential_influence(
          t, r, before, a, terms, block, guard, truncated_at, dropped
        )
    eps.append(new)
  return Estimate(eps, truncated_at, dropped, w)
