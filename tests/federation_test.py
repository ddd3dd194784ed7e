"""A federation by hand gets what the simulation measures."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax.data import on_device
from tests import cases

FED = fi.FedAvg(rounds=3, cohort_size=3, local_steps=2, learning_rate=2.0)
ESTIMATORS = {
  "both": fi.estimator(fi.fisher(num_samples=4), fi.lwet()),
  "fine": fi.estimator(fi.fisher(num_samples=4), fi.lwet(per="participant")),
  "interactive": fi.estimator(fi.exact_hessian(), fi.lwet(per="participant")),
  "difference": fi.estimator(fi.exact_difference(), fi.no_guard()),
}
CURVATURES = [e.curvature for e in ESTIMATORS.values()]


@functools.partial(jax.jit, static_argnums=0)
def participate(setup, params, eps, examples, draws):
  """What one participant sends: model, reports, answers."""
  local, client = federation.train(setup)(params, examples, draws)
  reports = federation.report(setup, CURVATURES, client)
  for name, e in ESTIMATORS.items():
    if e.curvature.interactive:
      answer = fi.answer(e.curvature, setup, client, eps[name])
      reports[e.curvature.key] = answer
  return federation.Reply(local, reports)


@functools.partial(jax.jit, static_argnums=0)
def end_round(descent, state, replies, attendance, round_):
  return federation.end_round(
    ESTIMATORS, descent, state, replies, attendance, round_
  )


@pytest.fixture(scope="module")
def rounds():
  """A federation, round by round: (setup, states, what was sent last)."""
  model, data = cases.mlp()
  params = cases.in_double(model.init(jax.random.key(1)))
  largest = int(data.num_examples.max())
  setup = federation.setup(model, FED, ESTIMATORS, params, largest)
  clients = on_device.put(data)
  everyone = removals.leave_one_out(6)
  states = {n: e.init(params, 6, num_slots=6) for n, e in ESTIMATORS.items()}
  state = federation.ServerState(params, states)
  cohorts = rng.cohorts(0, rng.id_words(data.ids), FED.rounds, 3)
  for t, cohort in enumerate(cohorts, start=1):
    eps = {name: s.eps for name, s in state.estimators.items()}
    replies = [
      participate(
        setup,
        state.params,
        eps,
        on_device.take(clients, jnp.int32(k), largest),
        rng.draws(0, t, data.ids[k]),
      )
      for k in cohort
    ]
    replies = jax.tree.map(lambda *a: jnp.stack(a), *replies)
    # Told whom the round misses, the server does less for the same.
    hits = jnp.asarray([*cohort, 6]) if t == 3 else None  # 6 is padding.
    attendance = removals.attendance(
      everyone,
      jnp.asarray(cohort),
      jnp.asarray(data.num_examples[cohort]),
      jnp.float64,
      hits=hits,
    )
    state = end_round(setup.descent, state, replies, attendance, jnp.int32(t))
  return params, setup, state, (replies, attendance)


def test_a_federation_gets_what_the_simulation_measures(rounds):
  params, _, state, _ = rounds
  model, data = cases.mlp()
  run = fi.simulate(model, data, FED, estimators=ESTIMATORS, params=params)
  cases.close(state.params, run.params, rtol=0, atol=1e-12)
  for name, found in state.estimators.items():
    cases.close(found.eps, run.eps[name], rtol=0, atol=1e-12)
    cases.close(found.guard.truncated_at, run.health[name].truncated_at)
  assert any(np.asarray(h.truncated_at).any() for h in run.health.values())


def test_the_server_is_told_neither_model_nor_data(rounds):
  _, setup, _, (replies, _) = rounds
  assert set(setup.descent._fields) == {"fed", "eta"}
  model, data = cases.mlp()
  functions = {id(f) for f in model if f is not None}
  assert not functions & {id(f) for f in jax.tree.leaves(setup.descent)}
  shapes = {a.shape for a in jax.tree.leaves(replies)}
  assert not any(s[-len(data.x.shape[1:]) :] == data.x.shape for s in shapes)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_report_of_the_wrong_shape_is_refused(rounds, name):
  _, setup, state, (replies, attendance) = rounds
  e = ESTIMATORS[name]
  report = replies.reports[e.curvature.key]
  update = lambda report, attendance: e.update(
    setup.descent, state.estimators[name], report, attendance, 4, None
  )
  fewer = jax.tree.map(lambda a: a[..., 1:], report)
  with pytest.raises(ValueError, match=r"report: Dense_0/bias has shape"):
    update(fewer, attendance)
  two = attendance._replace(shares=attendance.shares[:, :2])
  with pytest.raises(ValueError, match="report: 3 participants for 2 shares"):
    update(report, two)


def test_an_interactive_curvature_has_nothing_to_upload(rounds):
  _, setup, state, (_, attendance) = rounds
  e = ESTIMATORS["interactive"]
  with pytest.raises(ValueError, match="exact_hessian has nothing that a"):
    e.update(
      setup.descent, state.estimators["interactive"], (), attendance, 4, None
    )
