"""What a reader asks about one client, beside its influence."""

from collections.abc import Sequence
import functools
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import tree
from fedinf_jax.data import federated
from fedinf_jax.linalg import spectra
from fedinf_jax.simulation import devices

NEAREST = 3  # removals that change the model most alike
MAX_CLASSES = 200  # A histogram of more is no picture.
ROWS = 256  # of ε that are compared with the others at once
# Multiplications that comparing all with all may take, half a minute of a core.
# Beyond it, only removals with the largest ε are candidates.
MOST_WORK = 2e11


class Eps(NamedTuple):
  """What an estimator, or "exact", says of R removals; null where unknown."""

  norm: list[list[float]]  # [R, L], ‖ε_(j)‖
  # Positions of removals with the most similar ε, the nearest first, and the
  # cosines: up to NEAREST of those whose cosine is positive.
  nearest: list[list[int]]  # R of them
  cosine: list[list[float]]  # R of them


class Portraits(NamedTuple):
  """clients.json: of R removals, each a client unless groups are removed."""

  layers: list[str]  # names of the L layers
  drawn: list[list[int]] | None  # R times the rounds in which it took part
  labels: list[list[int]] | None  # [R, C] examples of each class
  eps: dict[str, Eps]


def portraits(run: Any, of: Sequence[str] | None = None) -> Portraits:
  """Returns what is known about each removal of a run, to a few digits.

  Args:
    run: a `run.Run` that knows its clients.
    of: names of estimators, "exact" among them; None: all there are.
  """
  if run.ids is None:
    raise ValueError("the run has no ids; give Run.of the clients (data=)")
  members = [[k] for k in range(len(run.ids))]
  if run.removed is not None:
    members = [np.flatnonzero(row).tolist() for row in run.removed]
  names = run.names if of is None else of
  return Portraits(
    layers=list(tree.names(run.params)),
    drawn=_drawn(run.cohorts, members),
    labels=None
    if run.labels is None
    else [run.labels[some].sum(0).tolist() for some in members],
    eps={name: _eps(run, name) for name in names},
  )


def _drawn(cohorts, members):
  """Returns the rounds, from 1, in which any of the members took part."""
  if cohorts is None:
    return None
  rounds: dict[int, list[int]] = {}
  for round_, cohort in enumerate(np.asarray(cohorts).tolist(), 1):
    for k in cohort:
      rounds.setdefault(k, []).append(round_)
  return [
    sorted({t for k in some for t in rounds.get(k, [])}) for some in members
  ]


def labels(data: federated.FederatedData) -> np.ndarray | None:
  """Counts each client's labels, int [K, C]; None where they are no classes."""
  y = data.y
  if not np.issubdtype(y.dtype, np.integer) or y.ndim != 1 or y.min() < 0:
    return None
  num_classes = data.num_classes or int(y.max()) + 1
  if num_classes > MAX_CLASSES:
    return None
  places = data.owners * num_classes + y
  size = data.num_clients * num_classes
  return np.bincount(places, minlength=size).reshape(-1, num_classes)


def _eps(run, name):
  """Returns the sizes of ε, layer by layer, and whose is like whose."""
  rows = np.arange(run.num_removals)
  if name == "exact":
    rows = np.asarray(run.exact_rows)
  leaves = jax.tree.leaves(run.require(name))
  read = lambda a: np.asarray(devices.replicate(a), float)
  norms = read(_norms(leaves))[: len(rows)]
  cosines, places = _nearest(leaves, norms, read)
  known = [cosines[i] > 0 for i in range(len(rows))]
  everyone = np.full((run.num_removals, norms.shape[1]), np.nan)
  everyone[rows] = norms
  nearest: list[list[int]] = [[] for _ in range(run.num_removals)]
  cosine: list[list[float]] = [[] for _ in range(run.num_removals)]
  for i, row in enumerate(rows):
    nearest[row] = rows[places[i][known[i]]].tolist()
    cosine[row] = [round(c, 3) for c in cosines[i][known[i]].tolist()]
  short = [[float(f"{v:.3e}") for v in row] for row in everyone.tolist()]
  return Eps(short, nearest, cosine)


def _nearest(leaves, norms, read):
  """Returns (cosines, positions), each [E, NEAREST], by blocks of rows.

  Args:
    leaves: of ε, [E or more, ...].
    norms: [E, L].
    read: brings an array to this host.
  """
  sizes = np.sqrt((norms**2).sum(1))
  sizes[~np.isfinite(sizes)] = 0
  count, num_params = len(sizes), sum(a[0].size for a in leaves)
  affordable = int(MOST_WORK / max(1, count * num_params))
  candidates = np.argsort(-sizes, kind="stable")
  candidates = np.sort(candidates[: max(NEAREST + 1, affordable)])
  inverse = np.divide(1, sizes, where=sizes > 0, out=np.zeros_like(sizes))
  cosines = np.full((count, NEAREST), -1.0)
  places = np.zeros((count, NEAREST), int)
  width = min(NEAREST, len(candidates))
  for start in range(0, count, ROWS):
    # The last block repeats itself: one shape, one program.
    rows = np.arange(start, min(start + ROWS, count))
    block = np.resize(rows, min(ROWS, count))
    scale = inverse[block, None] * inverse[None, candidates]
    found, at = map(read, _most_alike(leaves, block, candidates, scale, width))
    cosines[rows, :width] = found[: len(rows)]
    places[rows, :width] = candidates[at[: len(rows)].astype(int)]
  return cosines, places


@jax.jit
def _norms(leaves):
  square = lambda a: jnp.square(a).reshape(len(a), -1).sum(1)
  return jnp.sqrt(jnp.stack([square(a) for a in leaves], axis=1))


@functools.partial(jax.jit, static_argnames="width")
def _most_alike(leaves, rows, candidates, scale, width):
  """Returns the largest cosines of some rows, and whose they are.

  Args:
    leaves: of ε, [R, ...].
    rows: [b].
    candidates: [c].
    scale: [b, c], one over the sizes of both; 0 where there is no direction.
    width: how many.
  """
  flat = [jnp.where(jnp.isfinite(a), a, 0).reshape(len(a), -1) for a in leaves]
  cosine = sum(spectra.matmul(a[rows], a[candidates].T) for a in flat) * scale
  same = rows[:, None] == candidates[None, :]
  return jax.lax.top_k(jnp.where(same | (scale == 0), -1.0, cosine), width)
