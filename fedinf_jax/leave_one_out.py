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
  """Sets of clients to take out."""

  rows: jax.Array  # int32 [E], numbers of the removals
  mask: jax.Array | None  # bool [E, K + 1]; None: removal r is client r alone
  first: jax.Array  # int32 [E], the first round (1-based) that misses a client


def removals(
  mask: np.ndarray | None,
  rows: np.ndarray,
  cohorts: np.ndarray,
  num_clients: int,
) -> Removals:
  """Prepares some of the removals, on the host.

  Args:
    mask: bool [R, K]; None: leave-one-out, for which no matrix is ever built.
    rows: int [E] rows of it; R is the removal of nobody.
    cohorts: int [T, B].
    num_clients: K.
  """
  rounds = len(cohorts)
  # The first round of each client, and of nobody.
  met = np.full(num_clients + 1, rounds + 1)
  np.minimum.at(met, cohorts, np.arange(1, rounds + 1)[:, None])
  if mask is None:
    first = met[rows]
  else:
    mask = np.pad(mask, ((0, 1), (0, 1)))[rows]
    first = np.where(mask, met, rounds + 1).min(1)
  return Removals(rows.astype(np.int32), mask, first.astype(np.int32))


def counts_left(
  who: Removals, clients: jax.Array, counts: jax.Array
) -> jax.Array:
  """Returns n_k [k ∉ r] for every removal: [...] -> [E, ...]."""
  if who.mask is None:
    removed = jax.vmap(lambda row: row == clients)(who.rows)
  else:
    removed = who.mask[:, clients]
  return jnp.where(removed, 0, counts[None])


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

  def step(models, params, who, round_, waves, size_class, counts):
    def one_removal(row):
      model, counts = row
      shares = fedavg.weights(counts.reshape(-1), tree.dtype_of(model))

      def add_wave(total, inputs):
        wave, size_class, share = inputs
        part = tree.weighted_sum(share, train(model, wave, size_class))
        return jax.tree.map(jnp.add, total, part), None

      zero = jax.tree.map(jnp.zeros_like, model)
      inputs = waves, size_class, shares.reshape(counts.shape)
      return lax.scan(add_wave, zero, inputs)[0]

    left = counts_left(who, waves, counts)  # [E, W, G]
    trained = tree.map_rows(one_removal, (models, left), chunk)
    models = tree.select(left.sum((1, 2)) == 0, models, trained)
    # Until its first client is drawn a removal changes nothing: no rounding
    # may say otherwise.
    everyone = tree.repeat(params, len(who.rows))
    return tree.select(round_ >= who.first, models, everyone)

  return step
