"""From the test examples of a run to its table."""

from collections.abc import Mapping
from collections.abc import Sequence
import types
from typing import Any

import numpy as np

from fedinf_jax import checks
from fedinf_jax.data import federated
from fedinf_jax.data import packing
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import intervals
from fedinf_jax.valuation import owners as owners_

_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def table(
  run: Any,
  x: Any,
  y: Any,
  *,
  of: str | Sequence[str] | None,
  owners: Any,
  seed: int,
  known: Mapping[str, tables.Measured | None] = _NOTHING,
) -> tables.Table:
  """Makes the table of a `run.Run`.

  Args beyond those of `Run.table`:
    known: what was measured elsewhere, by names that stand in `of`.
  """
  wanted = [of] if isinstance(of, str) else run.names if of is None else of
  wanted = packing.listed("of", wanted)
  for name in wanted:
    if not isinstance(name, str) or name not in known:
      run.require(name)
  wanted = list(dict.fromkeys(wanted))
  seed = checks.seed(seed)
  if run.ids is None:
    raise ValueError("the run has no ids; give Run.of the clients (data=)")
  if run.removed is None and run.num_removals != len(run.ids):
    raise ValueError(
      f"the run has {run.num_removals} removals and {len(run.ids)} clients;"
      " give Run.of the same removals= as the simulator"
    )
  if isinstance(x, federated.FederatedData):
    if y is not None or owners is not None:
      raise ValueError("x is a FederatedData: it has y and its owners in it")
    owners, (x, y) = x, x.pooled()
  elif y is None:
    raise ValueError("y is missing; only a FederatedData comes without it")
  x = packing.examples("x", x)
  if not isinstance(owners, owners_.Owners):
    owners = owners_.read(owners, len(x), run.ids)
  metric = owners_.per_group(run.model, owners)
  measured = {name: known.get(name) for name in wanted}
  for name in wanted:
    if name in known:
      continue
    found = run.everyone(run.influence(metric, x, y, of=name), name)
    measured[name] = measure(found, owners, run.removed, seed)
  who = clients(run.ids, run.num_examples, run.cohorts, run.removed)
  return tables.make(who, measured, run.history)


def clients(
  ids: Sequence[Any],
  num_examples: np.ndarray,
  cohorts: np.ndarray | None,
  removed: np.ndarray | None,
) -> dict[str, np.ndarray]:
  """Returns the first columns.

  Args:
    ids: of the K clients.
    num_examples: [K].
    cohorts: int [T, B], who took part, K for nobody; None: unknown.
    removed: bool [R, K], who is taken out; None: one client after another.
  """
  ids, members = list(ids), [np.array([k]) for k in range(len(ids))]
  if removed is not None:
    members = [np.flatnonzero(row) for row in removed]
    joined = lambda some: " + ".join(str(ids[k]) for k in some)
    ids = [joined(some) or "nobody" for some in members]
  times = last = np.full(len(members), np.nan)
  if cohorts is not None:
    drawn = np.zeros((len(num_examples) + 1, len(cohorts)), bool)
    drawn[cohorts, np.arange(len(cohorts))[:, None]] = True
    drawn = np.array([drawn[some].any(0) for some in members])
    times = drawn.sum(1)
    last = (drawn * np.arange(1, len(cohorts) + 1)).max(1, initial=0)
  sizes = np.array([num_examples[some].sum() for some in members])
  named = np.empty(len(ids), object)
  named[:] = ids
  return dict(zip(tables.CLIENT, (named, sizes, times, last), strict=True))


def measure(
  change: np.ndarray,
  owners: owners_.Owners,
  removed: np.ndarray | None,
  seed: int,
) -> tables.Measured:
  """Sums up what changes without each of R removals.

  Args:
    change: [R, 2, G] of `owners.per_group`; NaN: unknown.
    owners: whose the test examples are.
    removed: as of `clients`.
    seed: of the resampling.
  """
  loss, accuracy = np.moveaxis(np.asarray(change, float), 1, 0)
  with np.errstate(invalid="ignore"):  # What overflowed stays so.
    fil, fia = owners_.mean(loss, owners), owners_.mean(accuracy, owners)
    own, others = owners_.own_and_others(loss, owners, removed)
  known = np.isfinite(loss).all(1)
  if np.isnan(accuracy[known]).any():  # No labels; an ε of zero has 0 all the
    fia = np.full_like(fia, np.nan)  # same.
  found = intervals.bootstrap(
    np.where(known[:, None], loss, 0), owners.counts, seed=seed
  )
  low, high, p = (np.where(known, a, np.nan) for a in found)
  return tables.Measured(fil, fia, own, others, low, high, p)
