"""A server that holds examples of the clients themselves."""

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from tests import cases

ETA, STEPS = 0.5, 3
FED = fi.FedAvg(rounds=5, cohort_size=3, local_steps=STEPS, learning_rate=ETA)
PLAIN = fi.fisher(num_samples=20, layerwise=False, per="round")


def held_out(data):
  """Examples of clients 1 and 4, and of somebody who is no client."""
  x, y = cases.server_data()
  return fi.FederatedData.from_clients(
    {
      data.ids[1]: (x[:6], y[:6]),
      "nobody": (x[6:13], y[6:13]),
      data.ids[4]: (x[13:], y[13:]),
    }
  )


def literal(model, data, held, removals, params):
  """ε of every removal by explicit matrices, whose own rows are left out."""
  flat, unravel = jax.flatten_util.ravel_pytree(params)
  loss = lambda w, x, y: model.loss(model.apply(unravel(w), x), y).mean()
  gradient = jax.jit(jax.grad(loss))
  rows = jax.jit(
    jax.vmap(lambda w, x, y: gradient(w, x[None], y[None]), (None, 0, 0))
  )
  owner = np.array([held.ids[k] for k in held.owners])
  w, eps = np.asarray(flat), np.zeros((len(removals), flat.size))
  clients = data.clients()
  for cohort in cases.COHORTS:
    local = []
    for k in cohort:
      v = w
      for _ in range(STEPS):
        v = v - ETA * np.asarray(gradient(v, *clients[k]))
      local.append(v)
    n, local = data.num_examples[cohort], np.array(local)
    new = n / n.sum() @ local
    g = np.sqrt(ETA / len(owner)) * np.asarray(rows(w, *held.pooled()))
    x = np.eye(len(g)) - g @ g.T
    core = sum(np.linalg.matrix_power(x, i) for i in range(STEPS))
    for r, removed in enumerate(removals):
      left = n * ~removed[cohort]
      if not left.sum():
        eps[r] += w - new
        continue
      others = ~np.isin(owner, np.array(data.ids)[removed])
      share = max(others.mean(), 0.5)  # Not more than twice what is left.
      matrix = g.T @ (others[:, None] * core * others) @ g / share
      eps[r] = eps[r] - matrix @ eps[r] + left / left.sum() @ local - new
    w = new
  return eps


@pytest.mark.parametrize("groups", [False, True])
def test_a_client_s_own_examples_are_left_out_of_its_removal(groups):
  model, data = cases.mlp()
  held = held_out(data)
  params = cases.in_double(model.init(jax.random.key(1)))
  removals = cases.GROUPS if groups else np.eye(6, dtype=bool)
  served = fi.server_side(PLAIN)
  options = {
    "estimators": {
      "no guard": fi.estimator(served, fi.no_guard()),
      "fine": fi.estimator(served, fi.lwet(per="participant", tolerance=9.0)),
    },
    "removals": removals if groups else None,
    "cohorts": cases.COHORTS,
    "params": params,
  }
  run = fi.simulate(model, data, FED, server_data=held, **options)
  expected = literal(model, data, held, removals, params)
  for name in options["estimators"]:
    np.testing.assert_allclose(
      cases.ravel(run.eps[name]), expected, rtol=0, atol=1e-10, err_msg=name
    )
  alike = fi.simulate(model, data, FED, server_data=held.pooled(), **options)
  moved = np.abs(cases.ravel(alike.eps["no guard"]) - expected).max(1)
  owning = removals[:, [1, 4]].any(1)
  assert (moved[owning] > 1e-4).all() and (moved[~owning] < 1e-10).all()


def test_matched_with_every_term_kept_equals_no_guard():
  model, data = cases.mlp()
  served = fi.server_side(PLAIN, match=True)
  run = fi.simulate(
    model, data, FED, cohorts=cases.COHORTS, server_data=held_out(data),
    estimators={
      "no guard": fi.estimator(served, fi.no_guard()),
      "fine": fi.estimator(served, fi.lwet(per="participant", tolerance=9.0)),
    },
  )  # fmt: skip
  cases.close(run.eps["fine"], run.eps["no guard"], rtol=0, atol=1e-12)


def test_owners_that_are_no_clients_change_nothing():
  model, data = cases.mlp()
  x, y = cases.server_data()
  estimators = {"ours": fi.estimator(fi.server_side(PLAIN), fi.no_guard())}
  options = {"cohorts": cases.COHORTS, "estimators": estimators}
  strangers = fi.FederatedData.from_clients({"a": (x, y)})
  runs = [
    fi.simulate(model, data, FED, server_data=own, **options)
    for own in (strangers, (x, y))
  ]
  cases.close(*(run.eps["ours"] for run in runs), rtol=0, atol=0)


def test_examples_know_their_owners():
  _, data = cases.mlp()
  held = held_out(data)
  assert held.owners.tolist() == [0] * 6 + [1] * 7 + [2] * 7
  some = held.with_examples(np.array([14, 2, 3]))
  assert some.ids == (data.ids[1], data.ids[4])
  np.testing.assert_array_equal(some.x, held.x[[2, 3, 14]])
  assert some.num_examples.tolist() == [2, 1]
