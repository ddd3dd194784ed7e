"""What a client sent, and why it is refused.

Nothing that a client states is believed before it is examined here. A refusal
is a ValueError whose message begins with the field.
"""

import hashlib
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from fedinf_jax import checks
from fedinf_jax import tree
from fedinf_jax import types

LONGEST_ID = 128


class Limits(NamedTuple):
  """What a server takes from a client at most; see `check_limits`."""

  most_examples: int | None = None  # n_k; None: what integers can add up
  largest_share: float | None = None  # n_k / N of a round; None: any
  largest_update: float = 1e9  # ‖w_{t,m}^k − w_{t-1}‖
  largest_number: float = 1e9  # of a report or an answer
  largest_growth: float | None = None  # ‖P_kε‖ / ‖ε‖ of an answer; None: any
  most_clients: int = 100_000  # rows of ε


class Sent(NamedTuple):
  """A reply as it came. Only `client` is known, by the server's account."""

  client: str
  arrays: Any  # name -> array, the local model
  num_examples: Any
  claimed: Any = None  # the id that the reply states; None: it states none
  round: Any = None  # the round that the reply states; None: it states none
  report: Any = ()  # the arrays of all reports, in the order of the tree


class Accepted(NamedTuple):
  """A reply that was examined."""

  client: str
  local: types.Params  # w_{t,m}^k
  num_examples: int
  reports: dict[Any, Any]  # by `Curvature.key`


def check_limits(limits: Limits, cohort_size: int) -> Limits:
  """Returns the limits with the largest n_k filled in."""
  most = (2**31 - 1) // cohort_size  # Their sum is a 32-bit integer.
  if limits.most_examples is not None:
    given = checks.positive_integer("most_examples", limits.most_examples)
    if given > most:
      raise ValueError(
        f"most_examples is {given}; it must be at most {most} with cohort_size"
        f" {cohort_size}"
      )
    most = given
  if limits.largest_share is not None:
    least = 1 / cohort_size
    checks.number(
      "largest_share",
      limits.largest_share,
      f"be above 1 / cohort_size = {least:.4g} and at most 1",
      lambda share: least < share <= 1,
    )
  checks.positive("largest_update", limits.largest_update)
  checks.positive("largest_number", limits.largest_number)
  if limits.largest_growth is not None:
    checks.positive("largest_growth", limits.largest_growth)
  checks.positive_integer("most_clients", limits.most_clients)
  return limits._replace(most_examples=most)


def check_id(name: str, client: Any) -> str:
  """Returns an id that can be written in one line."""
  fits = isinstance(client, str) and 0 < len(client) <= LONGEST_ID
  if not fits or not client.isprintable() or client.strip() != client:
    raise ValueError(
      f"{name}: an id must be one line of 1 to {LONGEST_ID} printable"
      " characters"
    )
  return client


def check_statement(sent: Sent, round_: int):
  """Refuses a reply that is somebody else's or of another round."""
  if sent.claimed is not None and sent.claimed != sent.client:
    raise ValueError("client-id: the reply states another than this node's")
  stated = sent.round
  if stated is not None and (type(stated) is not int or stated != round_):
    raise ValueError(f"server-round: the reply is not of round {round_}")


def check_count(value: Any, most: int) -> int:
  """Returns n_k."""
  name = "num-examples"
  if isinstance(value, bool) or not isinstance(value, int | np.integer):
    kind = type(value).__name__
    raise ValueError(f"{name}: it is a {kind}; it must be an integer")
  if not 1 <= value <= most:
    raise ValueError(f"{name}: it must be from 1 to {most}")
  return int(value)


def check_local(
  arrays: Any, params: types.Params, largest: float
) -> types.Params:
  """Returns the local model as a tree like `params`.

  Args:
    arrays: name -> array.
    params: w_{t-1}.
    largest: norm of an update.
  """
  names = tree.names(params)
  if not isinstance(arrays, dict) or set(arrays) != set(names):
    raise ValueError(f"arrays: there must be {len(names)}, named as was sent")
  leaves, treedef = jax.tree.flatten(params)
  found = [
    _like(f"arrays: {name}", arrays[name], leaf)
    for name, leaf in zip(names, leaves, strict=True)
  ]
  square = 0.0
  for new, old in zip(found, leaves, strict=True):
    # In double precision, so that a large norm is not an infinite one.
    change = np.asarray(new, np.float64) - np.asarray(old, np.float64)
    square += float(np.vdot(change, change))
  if not square <= largest**2:
    raise ValueError(f"arrays: the update's norm is above {largest:g}")
  return jax.tree.unflatten(treedef, found)


def check_arrays(field: str, arrays: Any, expected: Any, largest: float) -> Any:
  """Returns a tree like `expected` from its arrays in order.

  Args:
    field: what they are.
    arrays: a list of them.
    expected: a tree of shapes.
    largest: magnitude of a number.
  """
  leaves, treedef = jax.tree.flatten(expected)
  if not isinstance(arrays, list | tuple) or len(arrays) != len(leaves):
    raise ValueError(f"{field}: there must be {len(leaves)} arrays")
  names = tree.names(expected)
  found = []
  for name, array, like in zip(names, arrays, leaves, strict=True):
    found.append(_like(f"{field}: {name}", array, like))
    if found[-1].size and not np.abs(found[-1]).max() <= largest:
      raise ValueError(f"{field}: {name} has a number above {largest:g}")
  return jax.tree.unflatten(treedef, found)


def check_growth(
  field: str, lost: types.Params, eps: types.Params, params: types.Params,
  largest: float,
):  # fmt: skip
  """Refuses an answer that makes some ε much larger.

  Args:
    field: what it is.
    lost: ε − P_kε as answered, leaves [K, ...].
    eps: what was sent, leaves [K, ...].
    params: w_{t-1}; rounding in models of its size is no growth.
    largest: ‖P_kε‖ / ‖ε‖.
  """

  def norm(leaves):
    flat = [np.asarray(a, np.float64).reshape(len(a), -1) for a in leaves]
    return np.sqrt(sum((a**2).sum(1) for a in flat))

  leaves, lost = jax.tree.leaves(eps), jax.tree.leaves(lost)
  before = norm(leaves)
  after = norm([e - d for e, d in zip(leaves, lost, strict=True)])
  rounding = 1e-5 * norm([w[None] for w in jax.tree.leaves(params)])
  if (after > largest * (before + rounding)).any():
    raise ValueError(
      f"{field}: it makes an ε more than {largest:g} times as long"
    )


def over_share(counts: list[int], largest: float) -> list[int]:
  """Returns whose n_k is too large a part of the round, as positions.

  The largest is taken out first, and the rest are judged without it: who is
  refused for this leaves the others as if it had not replied.
  """
  left, out = dict(enumerate(counts)), []
  while left:
    most = max(left, key=left.__getitem__)
    if left[most] <= largest * sum(left.values()):
      break
    out.append(most)
    del left[most]
  return out


def digest(arrays: Any) -> str:
  """Returns a fingerprint of a tree of arrays."""
  made = hashlib.blake2b(digest_size=16)
  for leaf in jax.tree.leaves(arrays):
    leaf = np.ascontiguousarray(leaf)
    made.update(f"{leaf.dtype}{leaf.shape}".encode())
    made.update(leaf.tobytes())
  return made.hexdigest()


def _like(name, array, like):
  """Returns an array of the same shape and dtype that is finite."""
  if not isinstance(array, np.ndarray):
    raise ValueError(f"{name} is not an array")
  if array.dtype != like.dtype:
    raise ValueError(f"{name} is {array.dtype}; it must be {like.dtype}")
  if array.shape != like.shape:
    raise ValueError(
      f"{name} has shape {list(array.shape)}; it must be {list(like.shape)}"
    )
  if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
    raise ValueError(f"{name} is not finite")
  return array
