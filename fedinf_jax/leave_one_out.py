r"""Exact FIP (Definition 1): replay the training without the removed clients.

    ε_t^{r,*} = w_t(C → C \ r) − w_t

All removals run as one batched computation beside the actual training.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg
from fedinf_jax import tree


class Removals(NamedTuple):
  """The removals to replay, padded to whole chunks with rows of nobody."""

  rows: jax.Array  # int32 [E]; the row's number, or -1 for padding
  mask: jax.Array | None  # bool [E, K + 1]; None: row r removes client r
  first: jax.Array  # int32 [E], the first round (1-based) that misses a client


def removals(
  mask: np.ndarray | None,
  rows: np.ndarray,
  cohorts: np.ndarray,
  num_clients: int,
  chunk: int,
) -> Removals:
  """Prepares `rows` of the removals for replay.

  Args:
    mask: bool [R, K]; None: leave-one-out, for which no matrix is ever built.
    rows: int [E] rows of it.
    cohorts: int [T, B].
    num_clients: K.
    chunk: removals a chunk.
  """
  rounds = len(cohorts)
  met = np.full(num_clients, rounds + 1)  # The first round of each client.
  np.minimum.at(met, cohorts, np.arange(1, rounds + 1)[:, None])
  padding = -len(rows) % chunk
  if mask is None:
    first = met[rows]
  else:
    mask = np.pad(mask[rows], ((0, padding), (0, 1)))
    first = np.where(mask[: len(rows), :-1], met, rounds + 1).min(1)
  pad = lambda a, value: jnp.asarray(
    np.pad(a, (0, padding), constant_values=value), jnp.int32
  )
  return Removals(
    pad(rows, -1),
    None if mask is None else jnp.asarray(mask),
    pad(first, rounds + 1),
  )


def removed(who: Removals, clients: jax.Array) -> jax.Array:
  """Returns whether each removal takes each client out: [...] -> [E, ...]."""
  if who.mask is None:
    return jax.vmap(lambda row: row == clients)(who.rows)
  return who.mask[:, clients]


def replay_round(train, *, chunk: int):
  r"""Builds one round of the replay for all removals at once.

      w_t^(r) = Σ_{k ∈ C_t \ r} n_k / N(C_t \ r) · w_{t,m}^k(w_{t-1}^(r))

  A removal whose cohort is empty sits the round out: w_t^(r) = w_{t-1}^(r).

  Args:
    train: (params, wave, size_class) -> local models, leaves [G, ...].
    chunk: removals that are replayed together; the others wait, to bound
      memory.

  Returns:
    step(models, params, who, round_, waves, size_class, counts) -> models,
    where `models` has leaves [E, ...], `params` is w_t of the actual run,
    `waves` is int [W, G], `size_class` [W] and `counts` [W, G].
  """

  def one_removal(model, counts, waves, size_class):
    shares = fedavg.weights(counts.reshape(-1), _dtype(model))

    def wave(total, inputs):
      wave, size_class, share = inputs
      local = train(model, wave, size_class)
      return jax.tree.map(jnp.add, total, tree.weighted_sum(share, local)), None

    zero = jax.tree.map(jnp.zeros_like, model)
    inputs = waves, size_class, shares.reshape(counts.shape)
    return lax.scan(wave, zero, inputs)[0]

  def step(models, params, who, round_, waves, size_class, counts):
    kept = jnp.where(removed(who, waves), 0, counts[None])  # [E, W, G]
    together = jax.vmap(one_removal, (0, 0, None, None))
    trained = _map_chunks(
      lambda args: together(*args, waves, size_class),
      (models, kept),
      chunk,
    )
    empty = kept.sum((1, 2)) == 0
    models = tree.select(empty, models, trained)
    # Until its first client is drawn a removal changes nothing: no rounding
    # may say otherwise.
    everyone = tree.repeat(params, len(who.rows))
    return tree.select(round_ >= who.first, models, everyone)

  return step


def _map_chunks(function, rows, chunk):
  """Applies `function` to `rows` (leaves [E, ...]), `chunk` rows at a time."""
  num_rows = jax.tree.leaves(rows)[0].shape[0]
  if num_rows == chunk:
    return function(rows)
  split = lambda a: a.reshape(num_rows // chunk, chunk, *a.shape[1:])
  mapped = lax.map(function, jax.tree.map(split, rows))
  return jax.tree.map(lambda a: a.reshape(num_rows, *a.shape[2:]), mapped)


def _dtype(params):
  return jax.tree.leaves(params)[0].dtype
