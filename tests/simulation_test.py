"""Laws of a run: order, precision, programs, errors."""

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.simulation import scores
from tests import jaxprs

FED = fi.FedAvg(
  rounds=6, cohort_size=4, local_steps=3, learning_rate=0.2, batch_size=8
)
MODEL = fi.models.logreg(5, 3)


def make_data(num_clients=9, seed=0):
  draw = np.random.default_rng(seed)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 5)), draw.integers(0, 3, n))
      for n in draw.integers(1, 50, num_clients)
    ],
    ids=[f"id{k}" for k in range(num_clients)],
    num_classes=3,
  )


def close(a, b, atol):
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), a, b)


def test_reordering_clients_with_ids_permutes_the_result():
  data = make_data()
  order = np.random.default_rng(3).permutation(9)
  run = fi.simulate(MODEL, data, FED, exact=True)
  moved = fi.simulate(MODEL, data.take(order), FED, exact=True)
  close(moved.params, run.params, 1e-13)
  close(moved.exact_eps, jax.tree.map(lambda e: e[order], run.exact_eps), 1e-13)


def test_a_removed_client_s_data_and_draws_have_no_say():
  # Whatever client 2 holds, the run without it is the same.
  data = make_data()
  clients = data.clients()
  clients[2] = (clients[2][0] + 3.0, clients[2][1])
  other = fi.FederatedData.from_clients(clients, data.ids, data.num_classes)
  run, changed = (fi.simulate(MODEL, d, FED, exact=[2]) for d in (data, other))
  without = lambda r: jax.tree.map(lambda w, e: w + e[0], r.params, r.exact_eps)
  close(without(run), without(changed), 1e-13)
  assert np.abs(run.params["dense"]["kernel"]
                - changed.params["dense"]["kernel"]).max() > 1e-3  # fmt: skip


def test_steps_one_by_one_equal_the_whole_run():
  data = make_data()
  run = fi.simulate(MODEL, data, FED, exact=True)
  init, step = fi.simulator(MODEL, data, FED, exact=True)
  state = init()
  for rounds in (1, 1, 3, 1):
    state = step(state, rounds)
  assert int(state.round) == FED.rounds
  close(fi.Run.of(MODEL, state).exact_eps, run.exact_eps, 0)
  with pytest.raises(ValueError, match="rounds is 1; 0 of 6 rounds are left"):
    step(state)
  close(fi.Run.of(MODEL, state).params, run.params, 0)  # Nothing was lost.


def test_a_step_can_be_traced_by_its_user():
  data = make_data()
  init, step = fi.simulator(MODEL, data, FED, exact=True)
  state = jax.jit(lambda s: step(step(s, 2), 4))(init())
  close(state.params, fi.simulate(MODEL, data, FED).params, 1e-14)


def test_the_caller_s_parameters_survive_donation():
  params = MODEL.init(jax.random.key(0))
  for _ in range(2):
    fi.simulate(MODEL, make_data(), FED, params=params)
  assert np.isfinite(params["dense"]["kernel"]).all()


def test_the_dtype_of_the_data_is_kept():
  data = make_data()
  single = fi.FederatedData.from_clients(
    [(x.astype(np.float32), y) for x, y in data.clients()], data.ids, 3
  )
  runs = [fi.simulate(MODEL, d, FED, exact=True) for d in (data, single)]
  for run, dtype in zip(runs, (jnp.float64, jnp.float32), strict=True):
    assert run.params["dense"]["kernel"].dtype == dtype
    assert (
      run.influence(fi.metrics.loss, *data.pooled(), of="exact").dtype
      == jnp.float64
    )
  close(runs[0].exact_eps, runs[1].exact_eps, 1e-6)


def traced_run(chunk=None):
  """The jaxpr of a whole run with every client removed in turn."""
  init, step = fi.simulator(
    MODEL, make_data(), FED, exact=True, replay_chunk=chunk
  )
  return jax.make_jaxpr(lambda s: step(s, FED.rounds))(init())


def test_the_replay_is_one_batched_computation():
  count = lambda jaxpr: len(list(jaxprs.equations(jaxpr.jaxpr)))
  at_once, in_threes = traced_run(), traced_run(chunk=3)
  assert count(in_threes) - count(at_once) < 20  # A lax.map, not a loop.
  # The products of the program have all nine removals in them.
  dots = [
    e
    for e in jaxprs.equations(at_once.jaxpr)
    if e.primitive is lax.dot_general_p
  ]
  assert max(d.outvars[0].aval.size for d in dots) >= 9 * FED.batch_size * 3


def test_every_product_asks_for_full_precision():
  dots = [
    e
    for e in jaxprs.equations(traced_run().jaxpr)
    if e.primitive in (lax.dot_general_p, lax.conv_general_dilated_p)
  ]
  assert len(dots) > 4
  run = fi.simulate(MODEL, make_data(), FED, exact=True)
  x, y = make_data().pooled()
  influence = jax.make_jaxpr(
    lambda p, e: scores.scores(
      p, e, None, x, y, model=MODEL, metric=fi.metrics.loss, chunk=4, mesh=None
    )
  )(run.params, run.exact_eps)
  dots += [
    e
    for e in jaxprs.equations(influence.jaxpr)
    if e.primitive is lax.dot_general_p
  ]
  highest = lax.Precision.HIGHEST
  for dot in dots:
    assert dot.params["precision"] in (highest, (highest, highest))


def test_one_program_serves_the_whole_run(compilations):
  data = make_data()
  init, step = fi.simulator(MODEL, data, FED, exact=True)
  state = step(init())
  before = len(compilations)
  state = step(step(state), 4)
  jax.block_until_ready(state)
  assert len(compilations) == before


def test_a_diverging_client_is_named_with_its_round():
  data = make_data()
  clients = data.clients()
  clients[4] = (clients[4][0] * 1e200, clients[4][1])
  data = fi.FederatedData.from_clients(clients, data.ids, data.num_classes)
  cohorts = np.array([[0, 1, 2, 3]] * 3 + [[8, 5, 4, 1]] * 3)
  with pytest.raises(
    ValueError, match="round 4: the upload of client 'id4' is not finite"
  ):
    fi.simulate(MODEL, data, FED, cohorts=cohorts)
