r"""Who is left out, and what that does to the weights of a round.

A removal r is a set of clients taken out together. In it, a round runs on what
is left of the cohort, with weights

    a_{r,k} = n_k [k ∉ r] / N(C_t \ r).

There are R removals. The default is leave-one-out: removal r is client r.
"""

from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg


class Removals(NamedTuple):
  """Some removals, E of them."""

  number: jax.Array  # int32 [E], which of the R; R itself removes nobody
  mask: jax.Array | None  # bool [E, K + 1]; None: removal r is client r alone
  first: jax.Array  # int32 [E], the first round (1-based) that misses a client


class Attendance(NamedTuple):
  """The participants of a round (or some of them), as the server counts."""

  shares: jax.Array  # a_{r,k}, [R, B]
  base: jax.Array  # a_k = n_k / N(C_t), [B]
  # int32 [B], where a guard remembers each of them; beyond its end: nowhere.
  slots: jax.Array
  # int32 [H], the removals that the cohort touches, padded with R; None: any.
  hits: jax.Array | None = None


def select(
  mask: np.ndarray | None,
  number: np.ndarray,
  cohorts: np.ndarray,
  num_clients: int,
) -> Removals:
  """Prepares some of the removals, on the host.

  Args:
    mask: bool [R, K]; None: leave-one-out.
    number: int [E], which of them; R is the removal of nobody.
    cohorts: int [T, B].
    num_clients: K.
  """
  rounds = len(cohorts)
  # The first round of each client, and of nobody.
  met = np.full(num_clients + 1, rounds + 1)
  np.minimum.at(met, cohorts, np.arange(1, rounds + 1)[:, None])
  if mask is None:
    first = met[number]
  else:
    mask = np.pad(mask, ((0, 1), (0, 1)))[number]
    first = np.where(mask, met, rounds + 1).min(1)
  made: Any = Removals  # Of arrays that are not JAX's yet.
  return made(number.astype(np.int32), mask, first.astype(np.int32))


def leave_one_out(num_clients: int) -> Removals:
  """Returns the removals of each client alone, for a server by itself.

  When each was first drawn only a replay needs to know, which a server by
  itself does not do.
  """
  everyone = np.arange(num_clients)
  return select(None, everyone, np.zeros((0, 0), int), num_clients)


def hits(
  mask: np.ndarray | None, cohorts: np.ndarray, nobody: int
) -> np.ndarray:
  """Returns which removals touch each cohort, int [T, H], padded."""
  if mask is None:
    return cohorts
  mask = np.pad(mask, ((0, 0), (0, 1)))  # A last column, for no client.
  touched = [np.flatnonzero(mask[:, cohort].any(1)) for cohort in cohorts]
  most = max(1, max(len(found) for found in touched))
  pad = lambda found: np.pad(
    found, (0, most - len(found)), constant_values=nobody
  )
  return np.stack([pad(found) for found in touched]).astype(np.int32)


def counts_left(
  removals: Removals, clients: jax.Array, counts: jax.Array
) -> jax.Array:
  """Returns n_k [k ∉ r] for every removal: [...] -> [E, ...]."""
  if removals.mask is None:
    removed = jax.vmap(lambda number: number == clients)(removals.number)
  else:
    removed = removals.mask[:, clients]
  return jnp.where(removed, 0, counts[None])


def check_attendance(attendance: Attendance, num_removals: int):
  """Refuses weights that are none; what is traced is checked by shape only."""
  shares, base, slots, _ = attendance
  shape = num_removals, len(base)
  if shares.shape != shape or base.ndim != 1 or slots.shape != base.shape:
    raise ValueError(
      f"attendance: shares {list(shares.shape)}, base {list(base.shape)} and"
      f" slots {list(slots.shape)} must be [R, B], [B] and [B] with R ="
      f" {num_removals}"
    )
  if isinstance(shares, jax.core.Tracer) or isinstance(base, jax.core.Tracer):
    return
  for name, weights in (("shares", shares), ("base", base[None])):
    total = np.asarray(weights).sum(1)
    # A removal that nobody is left of has no weights.
    sums = np.isclose(total, 1, atol=1e-3) | (total == 0)
    if not (np.asarray(weights) >= 0).all() or not sums.all():
      raise ValueError(
        f"attendance: {name} must be >= 0 and sum to 1, or all be 0"
      )


def attendance(
  removals: Removals,
  clients: jax.Array,
  counts: jax.Array,
  dtype,
  *,
  slots: jax.Array | None = None,
  hits: jax.Array | None = None,
) -> Attendance:
  """Works out the weights of a round.

  A removal that no participant is in has their own shares a_k, to the last
  digit: its combinatorial influence must be zero, not a rounding error.

  Args:
    removals: all R of them.
    clients: int32 [B], the participants as positions.
    counts: int [B], their n_k.
    dtype: of the weights.
    slots: see `Attendance`; None: a participant's place is its position.
    hits: see `Attendance`.
  """
  base = fedavg.weights(counts, dtype)
  left = counts_left(removals, clients, counts)
  touched = (left != counts[None]).any(1)
  own = fedavg.weights(left, dtype)
  return Attendance(
    shares=jax.vmap(jnp.where, (0, 0, None))(touched, own, base),
    base=base,
    slots=clients if slots is None else slots,
    hits=hits,
  )
