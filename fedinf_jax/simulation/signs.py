"""Signs of how far an estimate can be trusted, where nobody is replayed.

A spot check draws two groups of clients, A and B, and does the training again
without A, without B and without both: three trainings, however many clients
there are. The estimators estimate the same removals, each of them also with
everything but mini-batches drawn once more. Signs are means over SPOTS spot
checks.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.simulation import plan as plans
from fedinf_jax.simulation import run as runs
from fedinf_jax.simulation import simulator
from fedinf_jax.valuation import trust as trusts

SPOTS = 3
GROUP = 3  # The most clients of A, and of B.


def trust(
  model: types.Model,
  data: federated.FederatedData,
  fed: fedavg.FedAvg,
  x: Any,
  y: Any,
  *,
  estimators: Mapping[str, influence.Estimator],
  cohorts: Any = None,
  seed: int = 0,
  **options,
) -> dict[str, trusts.Trust]:
  """Says what agreement with retraining to expect of each estimator.

  A guess, calibrated on other federations, from spot checks of nine removals
  of up to six clients; about single clients it knows nothing. It costs nine
  retrainings, and each estimator twice with nine removals.

  Args:
    model: what to train.
    data: the K clients, two of which at least must be drawn.
    fed: how.
    x: [N, ...] test inputs.
    y: [N, ...] test labels.
    estimators: as of `simulate`.
    cohorts: as of `simulate`.
    seed: as of `simulate`; of the groups, too.
    **options: others of `simulate`, but for `exact` and `removals`.

  Returns:
    Name of an estimator -> its `valuation.trust.Trust`.

  Raises:
    ValueError: naming the argument at fault.

  Examples:
    >>> found = fi.trust(model, data, fed, *test, estimators=ours)["ours"]
    >>> found.low <= found.pearson <= found.high
    True
  """
  for name in ("exact", "removals"):
    if name in options:
      raise ValueError(f"{name} is for simulate; trust draws its own groups")
  agreement.training(model, data, fed)
  estimators = plans.check_estimators(estimators)
  if not estimators:
    raise ValueError("estimators is empty; it must name at least one")
  drawn = checks.cohorts(cohorts, data, fed, seed, ragged=True)
  run = simulator.simulate(
    model,
    data,
    fed,
    estimators=with_redrawn(estimators),
    exact=True,
    removals=np.concatenate(
      [groups(drawn, data.num_clients, SPOTS * seed + i) for i in range(SPOTS)]
    ),
    cohorts=cohorts,
    seed=seed,
    **options,
  )
  found = changes(run, x, y)
  return {name: trusts.expected(read(run, found, name)) for name in estimators}


def groups(cohorts: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
  """Draws A and B among the clients that take part.

  Args:
    cohorts: int [T, B], K for nobody.
    num_clients: K.
    seed: of the draw.

  Returns:
    bool [3, K]: A, B, and both.
  """
  drawn = np.setdiff1d(cohorts, [num_clients])
  if len(drawn) < 2:
    raise ValueError("cohorts: trust needs at least two clients that take part")
  order = rng.host_generator(seed, rng.Stream.GROUPS).permutation(drawn)
  size = min(GROUP, len(drawn) // 2)
  rows = np.zeros((3, num_clients), bool)
  rows[0, order[:size]] = True
  rows[1, order[size : 2 * size]] = True
  rows[2] = rows[0] | rows[1]
  return rows


def changes(run: runs.Run, x: Any, y: Any) -> dict[str, np.ndarray]:
  """Returns how the loss of each test example changes: name -> d, [R, N].

  Args:
    run: with estimators by `with_redrawn` and all removals replayed.
    x: [N, ...] test inputs.
    y: [N, ...] test labels.
  """
  each = lambda outputs, y: run.model.loss(outputs, y)
  return {
    name: np.asarray(run.influence(each, x, y, of=name), float)
    for name in run.names
  }


def read(
  run: runs.Run,
  found: Mapping[str, np.ndarray],
  name: str,
  first: int = 0,
) -> trusts.Signs:
  """Reads the signs of an estimator.

  Args:
    run: with the estimator.
    found: `changes` of that run.
    name: of the estimator.
    first: of the removals by `groups`; they come last.
  """
  exact, estimated, again = (
    found[of][first:].reshape(-1, 3, found[of].shape[1])
    for of in ("exact", name, _again(name))
  )
  health = run.health[name]
  mean = lambda of, *arrays: trusts.mean(list(map(of, *arrays)))
  residual = 0.0
  if health.residual is not None:
    residual = float(np.nanmean(np.asarray(health.residual)))
  return trusts.Signs(
    check=mean(trusts.cosine, estimated, exact),
    smoothness=mean(trusts.smoothness, exact),
    redrawn=mean(trusts.cosine, estimated, again),
    growth=float(np.asarray(health.growth)[first:].max()),
    truncated=float((np.asarray(health.truncated_at)[first:] > 0).mean()),
    residual=residual,
  )


def with_redrawn(
  estimators: Mapping[str, influence.Estimator],
) -> dict[str, influence.Estimator]:
  """Returns the estimators, and each of them with draws of its own."""
  again = {_again(name): _redrawn(e) for name, e in estimators.items()}
  return {**estimators, **again}


def _again(name):
  return f"{name}, redrawn"


def _redrawn(estimator):
  """Returns an estimator that draws everything but mini-batches anew."""
  curvature = estimator.curvature
  key = *curvature.key, "redrawn"

  def report(setup, client):
    draws = rng.Redrawn(*client.draws)
    return curvature.report(setup, client._replace(draws=draws))

  def serve(setup, server, params, participants, draws):
    draws = rng.Redrawn(*draws)
    return curvature.serve(setup, server, params, participants, draws)

  if curvature.serve is None:
    changed = curvature._replace(report=report, key=key)
  else:
    changed = curvature._replace(serve=serve, key=key)
  return influence.estimator(changed, estimator.guard)
