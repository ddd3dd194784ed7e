"""Every random draw, keyed by what it is for and never by position.

A draw belongs to (seed, stream, round, client id, step). Dropping a client or
reordering clients that carry ids therefore changes nobody else's draws, which
is what makes a counterfactual run comparable with the actual one.
"""

import enum
import hashlib
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class Stream(enum.IntEnum):
  """What a draw is for. The numbers are part of every result: never reuse."""

  INIT = 0
  COHORT = 1
  BATCH = 2
  EXAMPLES = 3
  LABELS = 4
  SPLIT = 5
  PARTITION = 6
  CORRUPT = 7
  GLYPHS = 8
  LANCZOS = 9
  CHOOSE = 10
  SHAPLEY = 11
  SERVER = 12
  RESAMPLE = 13
  JITTER = 14
  REDRAW = 15
  GROUPS = 16
  HOLD_OUT = 17


def id_words(ids):
  """Hashes client ids stably, across processes and machines.

  Two words, because 32 bits collide among 100,000 clients.

  Args:
    ids: K ids; an id is known by its `str`.

  Returns:
    uint32 [K, 2].
  """
  digests = [
    hashlib.blake2b(str(i).encode(), digest_size=8).digest() for i in ids
  ]
  return (
    np.frombuffer(b"".join(digests), "<u4").reshape(-1, 2).astype(np.uint32)
  )


def stream_key(seed, stream):
  """Returns the key of one stream of one run."""
  return jax.random.fold_in(jax.random.key(seed), int(stream))


def client_key(key, round_, words):
  """Returns the key of (round, client): `words` is a row of `id_words`."""
  key = jax.random.fold_in(key, round_)
  return jax.random.fold_in(jax.random.fold_in(key, words[0]), words[1])


class Draws(NamedTuple):
  """Whose draws these are: one client's, in one round of one run."""

  root: jax.Array  # the run's key, from its seed
  round: jax.Array  # int32 []
  words: jax.Array  # uint32 [2], the hashed id

  def key(self, stream: Stream, step: jax.Array | int) -> jax.Array:
    """Returns the key of one local step's draw."""
    key = jax.random.fold_in(self.root, int(stream))
    return jax.random.fold_in(client_key(key, self.round, self.words), step)


class Redrawn(Draws):
  """The same mini-batches, and everything else drawn once more."""

  def key(self, stream: Stream, step: jax.Array | int) -> jax.Array:
    """Returns the key of one local step's draw."""
    root = self.root
    if stream != Stream.BATCH:
      root = jax.random.fold_in(root, int(Stream.REDRAW))
    return Draws(root, self.round, self.words).key(stream, step)


def server_draws(root: jax.Array, round_: jax.Array) -> Draws:
  """Returns the draws of the server in a round: no client has the same."""
  root = jax.random.fold_in(root, int(Stream.SERVER))
  return Draws(root, round_, jnp.zeros(2, jnp.uint32))


def draws(seed: int, round_: int, client_id) -> Draws:
  """Returns the draws of a client that is not part of a simulation."""
  words = jnp.asarray(id_words([client_id])[0])
  return Draws(jax.random.key(seed), jnp.int32(round_), words)


@jax.jit
def _priorities(key, round_, words):
  draw = lambda w: jax.random.bits(client_key(key, round_, w), (2,), jnp.uint32)
  return jax.vmap(draw)(words)


def cohorts(seed, words, rounds, size):
  """Draws the cohorts C_1 … C_T, uniformly and without replacement.

  Each client draws a 64-bit priority from its own key; the `size` smallest
  take part. The order within a cohort is the order of priorities.

  Args:
    seed: the run's seed.
    words: uint32 [K, 2], from `id_words`.
    rounds: T.
    size: B.

  Returns:
    int32 [T, B] positions of clients.
  """
  drawn = np.empty((rounds, size), np.int32)
  for t in range(rounds):
    drawn[t] = cohort(seed, words, t + 1, size)
  return drawn


def cohort(seed, words, round_, size):
  """Draws the cohort of one round, as `cohorts` does: int [B] positions."""
  key = stream_key(seed, Stream.COHORT)
  high, low = np.asarray(_priorities(key, round_, words), np.uint64).T
  priority = (high << np.uint64(32)) | low
  chosen = np.argpartition(priority, size - 1)[:size]
  return chosen[np.argsort(priority[chosen])]


def choose(key, count, *, size, limit):
  """Draws min(size, count) of `count` indices without replacement.

  Index j's priority has a key of its own, so the draw does not depend on the
  static `limit` that padding asks for.

  Args:
    key: the draw's key.
    count: [] how many indices there are; may be traced.
    size: how many slots the result has.
    limit: a static bound, count <= limit and size <= limit.

  Returns:
    index int32 [size]; valid bool [size], true in the first min(size, count).
  """
  j = jnp.arange(limit, dtype=jnp.int32)
  bits = jax.vmap(
    lambda i: jax.random.bits(jax.random.fold_in(key, i), dtype=jnp.uint32)
  )(j)
  priority = jnp.where(j < count, (bits >> 1).astype(jnp.int32), -1)
  _, index = jax.lax.top_k(priority, size)
  return index, jnp.arange(size) < count


def host_generator(seed, stream, *words):
  """Returns a NumPy generator for draws made once, outside compiled code."""
  entropy = [int(seed), int(stream), *(int(w) for w in np.ravel(words))]
  return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))
