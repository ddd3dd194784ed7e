"""FedAvg and every removal against a literal retraining, to 1e-9."""

import jax
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import rng
from tests import reference

NUM_CLIENTS, FEATURES, CLASSES = 7, 4, 3
ETA = 0.3


class Fed(fi.FedAvg):
  eta = ETA


def make_data(num_clients=NUM_CLIENTS, dtype=np.float64):
  """Ragged clients, from 1 example to 41."""
  draw = np.random.default_rng(5)
  sizes = [1, 2, 9, 41, 5, 17, 3][:num_clients]
  clients = [
    (
      draw.normal(size=(n, FEATURES)).astype(dtype),
      draw.integers(0, CLASSES, n),
    )
    for n in sizes
  ]
  ids = [f"client-{k}" for k in range(num_clients)]
  return fi.FederatedData.from_clients(clients, ids, CLASSES)


def start():
  draw = np.random.default_rng(6)
  return {
    "kernel": draw.normal(size=(FEATURES, CLASSES)),
    "bias": draw.normal(size=CLASSES),
  }


GROUPS = np.zeros((4, NUM_CLIENTS), bool)
GROUPS[0, [1, 3]] = True
GROUPS[1, :] = True  # Every round is skipped.
GROUPS[2, 5] = True
# Row 3 removes nobody.

# Round 2's cohort is client 2 and 6; a removal of both empties it.
COHORTS = np.array([[3, 1, 0], [2, 6, 4], [5, 3, 2], [6, 4, 2], [1, 5, 3]])
EMPTYING = np.zeros((2, NUM_CLIENTS), bool)
EMPTYING[0, [2, 4, 6]] = True  # Empties rounds 2 and 4.
EMPTYING[1, [0, 1, 3]] = True  # Empties round 1, when nothing has happened.

CASES = {
  "full_batch": {},
  "mini_batch": {"batch_size": 4},
  "momentum": {"momentum": 0.9},
  "mini_batch_momentum": {"batch_size": 6, "momentum": 0.5},
  "groups": {"removals": GROUPS},
  "groups_mini_batch": {"removals": GROUPS, "batch_size": 4},
  "emptied_cohort": {"removals": EMPTYING, "cohorts": COHORTS},
  "emptied_momentum": {
    "removals": EMPTYING,
    "cohorts": COHORTS,
    "momentum": 0.9,
    "batch_size": 3,
  },
  "alone": {"cohort_size": 1, "rounds": 9},
  "everyone": {"cohort_size": NUM_CLIENTS},
}


@pytest.mark.parametrize(
  ("name", "chunk"),
  [*((name, None) for name in CASES), ("full_batch", 1), ("groups", 3)],
)
def test_equals_retraining(name, chunk):
  case = dict(CASES[name])
  momentum = case.pop("momentum", 0.0)
  removals = case.pop("removals", None)
  cohorts = case.pop("cohorts", None)
  settings = {"rounds": 5, "cohort_size": 3, "local_steps": 3, **case}
  optimizer = optax.sgd(ETA, momentum=momentum or None)
  fed = Fed(client_optimizer=optimizer, **settings)
  data, w_0, seed = make_data(), start(), 11
  model = fi.models.logreg(FEATURES, CLASSES)

  run = fi.simulate(
    model,
    data,
    fed,
    params={"dense": w_0},
    removals=removals,
    cohorts=cohorts,
    exact=True,
    seed=seed,
    replay_chunk=chunk,
  )

  if cohorts is None:
    cohorts = rng.cohorts(
      seed, rng.id_words(data.ids), fed.rounds, fed.cohort_size
    )
  rows = np.eye(NUM_CLIENTS, dtype=bool) if removals is None else removals
  history = reference.fedavg(
    w_0, data, cohorts, fed, seed=seed, momentum=momentum
  )
  for leaf, expected in history[-1].items():
    np.testing.assert_allclose(
      run.params["dense"][leaf], expected, rtol=0, atol=1e-9
    )
  np.testing.assert_array_equal(run.exact_rows, np.arange(len(rows)))
  for r, row in enumerate(rows):
    expected = reference.exact_fip(
      w_0, data, cohorts, fed, np.flatnonzero(row), seed=seed,
      momentum=momentum,
    )  # fmt: skip
    for leaf in expected:
      np.testing.assert_allclose(
        run.exact_eps["dense"][leaf][r], expected[leaf], rtol=0, atol=1e-9
      )
    if name not in ("everyone", "alone"):
      drawn = np.isin(cohorts, np.flatnonzero(row)).any()
      moved = any(np.abs(e).max() > 1e-6 for e in expected.values())
      assert moved == drawn  # The comparison above is not of zeros.


def test_a_client_never_drawn_has_exactly_no_influence():
  data = make_data(dtype=np.float32)
  fed = fi.FedAvg(rounds=4, cohort_size=2, local_steps=2, learning_rate=ETA)
  cohorts = np.array([[0, 1], [2, 3], [1, 3], [0, 3]])
  run = fi.simulate(
    fi.models.logreg(FEATURES, CLASSES), data, fed, exact=True, cohorts=cohorts
  )
  size = np.max([np.abs(e).max(tuple(range(1, e.ndim))) for e in
                 jax.tree.leaves(run.exact_eps)], axis=0)  # fmt: skip
  assert (size[4:] == 0).all() and (size[:4] > 0).all()


def test_rows_choose_what_is_replayed():
  data, fed = make_data(), fi.FedAvg(
    rounds=3, cohort_size=3, local_steps=2, learning_rate=ETA
  )  # fmt: skip
  model = fi.models.logreg(FEATURES, CLASSES)
  everything = fi.simulate(model, data, fed, exact=True)
  some = fi.simulate(model, data, fed, exact=[5, 0, 3], replay_chunk=2)
  np.testing.assert_array_equal(some.exact_rows, [5, 0, 3])
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(
      a, b[np.array([5, 0, 3])], atol=1e-14
    ),
    some.exact_eps,
    everything.exact_eps,
  )
  nothing = fi.simulate(model, data, fed)
  assert nothing.exact_eps is None and nothing.exact_rows is None
  with pytest.raises(ValueError, match="this run has nothing"):
    nothing.influence(fi.metrics.accuracy, *data.pooled(), of="exact")
