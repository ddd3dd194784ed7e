"""What others measure clients by, on the very training that `simulate` runs.

None of these needs curvature or a second training: a server that sees local
models and holds validation data can compute them round by round.
"""

from collections.abc import Iterator
import functools
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.data import on_device
from fedinf_jax.valuation import shapley as shapleys

SCORES = "update_norm", "cosine", "cosine_others", "dig_fl", "gtg_shapley"
DEFAULT_SHAPLEY = shapleys.GTGShapley()


class Round(NamedTuple):
  """One round of FedAvg as its server sees it."""

  participants: np.ndarray  # int32 [B], C_t as positions
  counts: np.ndarray  # int64 [B], the n_k
  before: types.Params  # w_{t-1}
  updates: types.Params  # Δ_k = w_{t,m}^k − w_{t-1}, leaves [B, ...]
  after: types.Params  # w_t


class Validation(NamedTuple):
  """Validation data in blocks, to bound memory."""

  x: jax.Array  # [C, Q, ...]
  y: jax.Array  # [C, Q, ...]
  weight: jax.Array  # [C, Q], 1 / N; 0 for those that pad the last block


def baselines(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  x: Any,
  y: Any,
  *,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
  shapley: shapleys.GTGShapley | None = DEFAULT_SHAPLEY,
  at: Any = None,
) -> dict[str, np.ndarray]:
  """Scores every client by what its updates look like; higher is more helpful.

  With Δ_k = w_{t,m}^k − w_{t-1}, a_k = n_k / N(C_t) and L the mean loss on
  (x, y), a participant k of round t gets

      update_norm      mean_{j∈C_t} ‖Δ_j‖ − ‖Δ_k‖
      cosine           cos(Δ_k, Σ_j a_j Δ_j)
      cosine_others    cos(Δ_k, Σ_{j≠k} a_j Δ_j)
      dig_fl           −a_k ⟨∇L(w_{t-1}), Δ_k⟩
      gtg_shapley      its Shapley value in the game
                       U(S) = −L(w_{t-1} + Σ_{k∈S} n_k Δ_k / N(S))

  and a client's score is the sum over its rounds; one never drawn has 0.

  The first three look at updates alone. A norm above its cohort's is
  suspicious: below zero. (A plain sum of −‖Δ_k‖ would above all count how often
  a client was drawn.) A client with a large update turns the aggregate its own
  way, so the cosine to what the others sent is the better judge.

  The last two share out how much each round lowers L: DIG-FL (Wang et al., ICDE
  2022) to first order, GTG-Shapley (Liu et al., ACM TIST 2022) by models put
  together from the local updates.

  Args:
    model: what to train.
    data: the K clients.
    fed: how.
    x: [N, ...] validation inputs.
    y: [N, ...] validation labels.
    cohorts: int [T, B] positions of clients; None: drawn from the seed.
    params: w_0; None: drawn from the seed.
    seed: of every draw. The training is that of `simulate` with this seed.
    shapley: settings of GTG-Shapley, by far the dearest; None leaves it out.
    at: rounds, in order, after which scores are wanted; None: after the last.

  Returns:
    name -> float64 [K]; with `at`, of E rounds, [E, K].

  Raises:
    ValueError: naming the argument, client or round at fault.

  Examples:
    >>> scores = fi.valuation.baselines(model, data, fed, *test, shapley=None)
    >>> sorted(scores), scores["cosine"].shape
    (['cosine', 'cosine_others', 'dig_fl', 'update_norm'], (6,))
  """
  if not isinstance(shapley, shapleys.GTGShapley | None):
    raise ValueError(
      f"shapley is {shapley!r}; it must be GTGShapley(...), or None to leave it"
      " out"
    )
  shapes = agreement.training(model, data, fed)
  like = agreement.example_of(data)
  x, y = agreement.evaluation(model, shapes, metrics.loss, (x, y), like)
  cohorts = checks.cohorts(cohorts, data, fed, checks.seed(seed))
  validation = _validation(model, x, y, fed.cohort_size)
  if shapley is not None:
    shapleys.require_memory(shapley, fed.cohort_size)
  wanted = [len(cohorts)] if at is None else _wanted(at, len(cohorts))
  happened = rounds(model, data, fed, cohorts=cohorts, params=params, seed=seed)
  totals = {name: np.zeros(data.num_clients) for name in SCORES}
  if shapley is None:
    del totals["gtg_shapley"]
  kept: dict[str, list] = {name: [] for name in totals}
  for t, round_ in enumerate(happened, 1):
    shares = _shares(round_.counts, np.ones((1, fed.cohort_size), bool))[0]
    scores = dict(
      _scores(round_.before, round_.updates, shares, validation, model=model)
    )
    _require_finite(scores["dig_fl"], t)
    if shapley is not None:
      draw = rng.host_generator(seed, rng.Stream.SHAPLEY, t)
      scores["gtg_shapley"] = shapleys.values(
        _utility(model, round_, validation, t), fed.cohort_size, shapley, draw
      )
    for name, total in totals.items():
      total[round_.participants] += np.asarray(scores[name], np.float64)
      if t in wanted:
        kept[name].append(total.copy())
  return {n: np.stack(a) if at is not None else a[0] for n, a in kept.items()}


def rounds(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  *,
  cohorts: Any = None,
  params: types.Params | None = None,
  seed: int = 0,
) -> Iterator[Round]:
  """Trains as `simulate` does, and shows every round's local updates.

  Arguments are those of `baselines`, which checks what is to be trained.
  """
  cohorts = checks.cohorts(cohorts, data, fed, seed)
  params = checks.params(params, model, seed, data)
  clients, root = on_device.put(data), jax.random.key(seed)
  for t, cohort in enumerate(cohorts, start=1):
    after, updates, finite = _train(
      params,
      clients,
      root,
      jnp.int32(t),
      cohort,
      model=model,
      fed=fed,
      size=int(data.num_examples.max()),
    )
    if not finite.all():
      culprit = data.ids[cohort[np.argmin(finite)]]
      raise ValueError(
        f"round {t}: the upload of client {culprit!r} is not finite; a smaller"
        " learning rate may help"
      )
    yield Round(
      participants=cohort,
      counts=data.num_examples[cohort],
      before=params,
      updates=updates,
      after=after,
    )
    params = after


@functools.partial(jax.jit, static_argnames=("model", "fed", "size"))
def _train(params, clients, root, round_, cohort, *, model, fed, size):
  """Runs one round: w_t, the updates Δ_k and which of them are finite."""
  train = fedavg.local_training(model, fed)

  def train_one(k):
    draws = rng.Draws(root, round_, clients.words[k])
    return train(params, on_device.take(clients, k, size), draws)[0]

  with jax.default_matmul_precision("highest"):
    local = lax.map(train_one, cohort)
    shares = fedavg.weights(clients.count[cohort], tree.dtype_of(local))
    after = fedavg.aggregate(local, shares)
  updates = jax.tree.map(lambda a, w: a - w[None], local, params)
  return after, updates, tree.finite_rows(local)


@functools.partial(jax.jit, static_argnames="model")
def _scores(params, updates, shares, validation, *, model):
  """Returns the scores that need no subsets, each [B]."""
  shares = shares.astype(tree.dtype_of(params))
  block_gradient = jax.grad(functools.partial(_block_loss, model))

  def add_block(total, block):
    return jax.tree.map(jnp.add, total, block_gradient(params, block)), None

  with jax.default_matmul_precision("highest"):
    zero = jax.tree.map(jnp.zeros_like, params)
    gradient, _ = lax.scan(add_block, zero, validation)
    average = tree.weighted_sum(shares, updates)
    without_one = jnp.where(jnp.eye(len(shares), dtype=bool), 0, shares[None])
    others = tree.weighted_sum(without_one, updates)
    norm = jax.vmap(_norm)(updates)
    return {
      "update_norm": norm.mean() - norm,
      "cosine": jax.vmap(_cosine, (0, None))(updates, average),
      "cosine_others": jax.vmap(_cosine)(updates, others),
      "dig_fl": -shares * jax.vmap(_dot, (0, None))(updates, gradient),
    }


def _utility(model, round_, validation, t):
  """Builds U of round t: bool [Q, B] -> float64 [Q].

  There are two programs: for the pair (∅, all), which is all that a skipped
  round asks for, and for B subsets, a place of every permutation of a sweep.
  """

  def utility(subsets):
    shares = _shares(round_.counts, subsets)
    width = 2 if len(shares) <= 2 else len(round_.counts)
    filled = np.pad(shares, ((0, -len(shares) % width), (0, 0)), mode="edge")
    parts = [
      _subset_losses(
        round_.before, round_.updates, part, validation, model=model
      )
      for part in np.split(filled, len(filled) // width)
    ]
    losses = np.concatenate(parts)[: len(subsets)].astype(np.float64)
    _require_finite(losses, t)
    return -losses

  return utility


@functools.partial(jax.jit, static_argnames="model")
def _subset_losses(params, updates, shares, validation, *, model):
  """Returns L(w_{t-1} + Σ_k shares[q, k] Δ_k) of every row q."""
  shares = shares.astype(tree.dtype_of(params))
  with jax.default_matmul_precision("highest"):
    moved = tree.weighted_sum(shares, updates)
    models = jax.tree.map(lambda w, d: w[None] + d, params, moved)
    # Models side by side, block after block: what depends on the examples
    # alone (a first layer's patches) is shared and stays in the cache.
    losses = jax.vmap(functools.partial(_block_loss, model), (0, None))
    return lax.map(lambda block: losses(models, block), validation).sum(0)


def _shares(counts, subsets):
  """Returns n_k [k ∈ S] / N(S) of every subset, [Q, B]; zeros for S = ∅."""
  left = subsets * counts
  return left / np.maximum(left.sum(1, keepdims=True), 1)


def _block_loss(model, params, block):
  """Returns what one block adds to L."""
  x, y, weight = block
  per_example = model.loss(model.apply(params, x), y)
  return jnp.vdot(weight.astype(per_example.dtype), per_example)


def _dot(a, b):
  return sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b)))


def _norm(a):
  return jnp.sqrt(_dot(a, a))


def _cosine(a, b):
  """Returns cos(a, b); 0 where either is zero."""
  lengths = _norm(a) * _norm(b)
  return _dot(a, b) / jnp.where(lengths > 0, lengths, 1)


def _validation(model, x, y, num_models):
  """Returns validation data in blocks that `num_models` can see at once."""
  x, y = np.asarray(x), np.asarray(y)
  one = jax.tree.map(lambda a: jnp.asarray(a[:1]), (x, y, np.ones(1)))
  params = model.param_shapes()
  loss = functools.partial(_block_loss, model)
  per_example = num_models * memory.intermediate_bytes(loss, params, one)
  size = memory.chunk_size(len(x), per_example)
  pad = -len(x) % size

  def blocks(a, mode):
    fill = ((0, pad),) + ((0, 0),) * (a.ndim - 1)
    return jnp.asarray(np.pad(a, fill, mode).reshape(-1, size, *a.shape[1:]))

  # Filled up with real examples: no model meets an input that nobody supplied.
  weight = np.full(len(x), 1 / len(x))
  return Validation(blocks(x, "edge"), blocks(y, "edge"),
                    blocks(weight, "constant"))  # fmt: skip


def _wanted(at, last):
  """Returns the rounds after which scores are wanted, checked."""
  wanted = [checks.positive_integer("at", t) for t in np.ravel(at).tolist()]
  if not wanted or wanted != sorted(set(wanted)) or wanted[-1] > last:
    raise ValueError(
      f"at is {wanted}; it must be rounds from 1 to {last}, in order"
    )
  return wanted


def _require_finite(values, t):
  if not np.isfinite(values).all():
    raise ValueError(
      f"round {t}: the loss on the validation data (x, y) is not finite; a"
      " smaller learning rate may help, unless the data are at fault"
    )
