"""Clients on the device: all of them back to back, and one client's slice."""

from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import rng
from fedinf_jax.data import federated


class Examples(NamedTuple):
  """A slice of examples that holds one client's."""

  x: jax.Array  # [N, ...]
  y: jax.Array  # [N, ...]
  first: jax.Array  # [] where the client's own examples begin in the slice
  # [] how many they are, n_k
  count: jax.Array  # type: ignore[assignment]  # hides a method of tuples


class Held(NamedTuple):
  """Examples that the server holds, some of which may be clients' own."""

  x: jax.Array  # [N, ...]
  y: jax.Array  # [N, ...]
  owner: jax.Array | None  # int32 [N], whose; K: no client's. None: all of them
  # int32 [N, Q], the removals that take the owner out, padded with others.
  removed_in: jax.Array | None

  def take(self, index: jax.Array) -> "Held":
    """Returns some of them."""
    return jax.tree.map(lambda a: a[index], self)


class Clients(NamedTuple):
  """All clients. Position K is nobody: it has no examples."""

  x: jax.Array  # [N, ...]
  y: jax.Array  # [N, ...]
  offset: jax.Array  # int32 [K + 1]
  # int32 [K + 1]
  count: jax.Array  # type: ignore[assignment]  # hides a method of tuples
  words: jax.Array  # uint32 [K + 1, 2], hashed ids


def alone(x, y) -> Examples:
  """Returns one client's own examples, with nobody else's around them."""
  x, y = jnp.asarray(x), jnp.asarray(y)
  return Examples(x, y, jnp.int32(0), jnp.int32(len(x)))


def put(data: federated.FederatedData) -> Clients:
  """Puts all clients on the default device."""
  return jax.tree.map(jnp.asarray, on_host(data))


def on_host(data: federated.FederatedData) -> Clients:
  """Returns the clients as they will lie on the device, in NumPy arrays."""
  clients: Any = Clients  # Of arrays that are not JAX's yet.
  return clients(
    x=data.x,
    y=data.y,
    offset=np.append(data.offsets[:-1], 0).astype(np.int32),
    count=np.append(data.num_examples, 0).astype(np.int32),
    words=rng.id_words([*data.ids, "nobody"]),
  )


def take(clients: Clients, client: jax.Array, size: int) -> Examples:
  """Reads one client's examples as a slice of `size`.

  Examples around the client's own belong to its neighbours. They are real, so
  no model meets an input that its user did not supply; their weight is zero.
  """
  start = jnp.minimum(clients.offset[client], clients.x.shape[0] - size)
  read = lambda a: lax.dynamic_slice_in_dim(a, start, size)
  return Examples(
    x=read(clients.x),
    y=read(clients.y),
    first=clients.offset[client] - start,
    count=clients.count[client],
  )


def excerpt(clients: Clients, some: np.ndarray, num_examples: int):
  """Returns x, y and offset of some clients only.

  Args:
    clients: all clients, on the host.
    some: which.
    num_examples: how many to return; those left over repeat the first.
  """
  begin, count = np.asarray(clients.offset), np.asarray(clients.count)
  own = [np.arange(begin[k], begin[k] + count[k]) for k in some]
  index = np.resize(np.concatenate([*own, [0]]).astype(int), num_examples)
  offset = np.zeros_like(begin)
  offset[some] = np.cumsum(count[some]) - count[some]
  return clients.x[index], clients.y[index], offset
