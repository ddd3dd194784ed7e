"""A federation by hand gets what the simulation measures."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from tests import cases

FED = fi.FedAvg(rounds=3, cohort_size=3, local_steps=2, learning_rate=2.0)
ESTIMATORS = {
  "both": fi.estimator(fi.fisher(num_samples=4), fi.lwet()),
  "fine": fi.estimator(fi.fisher(num_samples=4), fi.lwet(per="participant")),
  "interactive": fi.estimator(fi.exact_hessian(), fi.lwet(per="participant")),
  "difference": fi.estimator(fi.exact_difference(), fi.no_guard()),
}
OURS = fi.fisher(
  num_samples=8, labels="sampled", label_draws=3, layerwise=False, per="round"
)
ESTIMATORS |= {
  "server": fi.estimator(fi.server_side(OURS), fi.lwet()),
  "matched": fi.estimator(
    fi.server_side(OURS, match=True, num_examples=15),
    fi.lwet(per="participant"),
  ),
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


def held_out():
  """Examples that the server holds, some of them clients' own."""
  _, data = cases.mlp()
  x, y = cases.server_data()
  return fi.FederatedData.from_clients(
    {data.ids[2]: (x[:7], y[:7]), "nobody": (x[7:], y[7:])}
  )


@functools.partial(jax.jit, static_argnums=0)
def end_round(setup, state, replies, who, clients, counts, t, hits=None):
  held = held_out()
  owner = jnp.where(held.owners == 0, 2, 6)
  return federation.end_round(
    ESTIMATORS, setup.descent, state, replies, who, clients, counts, t, hits,
    serving=federation.Serving(
      setup=setup,
      held=jax.tree.map(
        jnp.asarray, on_device.Held(*held.pooled(), owner, owner[:, None])
      ),
      draws=rng.server_draws(jax.random.key(0), t),
    ),
  )  # fmt: skip


class Played(NamedTuple):
  """A federation after three rounds."""

  params: dict  # w_0
  setup: wall.Setup
  before: federation.ServerState  # the last round
  replies: federation.Reply  # of the last round
  who: tuple  # removals, cohort, counts and number of the last round
  state: federation.ServerState


@pytest.fixture(scope="module")
def played():
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
    for reply in replies:
      federation.check_reply(ESTIMATORS, setup.descent, state, reply)
    replies = jax.tree.map(lambda *a: jnp.stack(a), *replies)
    counts = jnp.asarray(data.num_examples[cohort])
    who = everyone, jnp.asarray(cohort), counts, jnp.int32(t)
    # Told whom the round misses, the server does less for the same.
    hits = jnp.asarray([*cohort, 6]) if t == 3 else None  # 6 is padding.
    before = state
    state, screening = end_round(setup, state, replies, *who, hits)
    assert screening.accepted.all()
    assert federation.refusals(screening, data.ids) == []
  return Played(params, setup, before, replies, who, state)


def test_a_federation_gets_what_the_simulation_measures(played):
  model, data = cases.mlp()
  run = fi.simulate(
    model, data, FED, estimators=ESTIMATORS, params=played.params,
    server_data=held_out(),
  )  # fmt: skip
  cases.close(played.state.params, run.params, rtol=0, atol=1e-12)
  for name, found in played.state.estimators.items():
    cases.close(found.eps, run.eps[name], rtol=0, atol=1e-12)
    cases.close(found.guard.truncated_at, run.health[name].truncated_at)
  assert any(np.asarray(h.truncated_at).any() for h in run.health.values())


def test_the_server_is_told_neither_model_nor_data(played):
  assert set(played.setup.descent._fields) == {"fed", "eta"}
  _, data = cases.mlp()
  shapes = {a.shape for a in jax.tree.leaves(played.replies)}
  assert not any(s[-len(data.x.shape) :] == data.x.shape for s in shapes)


def attendance_of(played, counts=None):
  everyone, cohort, own, _ = played.who
  counts = own if counts is None else counts
  return removals.attendance(everyone, cohort, counts, jnp.float64)


def test_a_server_without_examples_is_told_so(played):
  with pytest.raises(ValueError, match="'server' is server_side; give serving"):
    federation.end_round(
      {"server": ESTIMATORS["server"]},
      played.setup.descent,
      played.before,
      played.replies,
      *played.who,
    )


@pytest.mark.parametrize("name", ["both", "fine", "interactive", "difference"])
def test_what_does_not_fit_is_refused(played, name):
  e, descent = ESTIMATORS[name], played.setup.descent
  report = played.replies.reports[e.curvature.key]
  attendance = attendance_of(played)
  _, change = federation.aggregate(
    played.before.params, played.replies.local, attendance.base
  )

  def update(report=report, attendance=attendance, change=change):
    before = played.before.estimators[name]
    e.update(descent, before, report, attendance, 3, change)

  fewer = jax.tree.map(lambda a: a[..., 1:], report)
  with pytest.raises(ValueError, match="report: Dense_0/bias has shape"):
    update(report=fewer)
  with pytest.raises(ValueError, match=r"attendance: shares \[6, 2\]"):
    update(attendance=attendance._replace(shares=attendance.shares[:, :2]))
  for wrong in (-1.0, np.nan, 0.3):
    shares = attendance.shares.at[2, 1].add(wrong)
    with pytest.raises(ValueError, match="attendance: shares must be >= 0"):
      update(attendance=attendance._replace(shares=shares))
  flat = change._replace(updates=jnp.zeros((3, 1)))
  with pytest.raises(ValueError, match="report: updates has 1 arrays"):
    update(change=flat)
  nan = jax.tree.map(lambda a: a.at[1].set(np.nan), report)
  with pytest.raises(ValueError, match="report: that of participant 1 is not"):
    update(report=nan)
  steps = jax.tree.map(lambda a: jnp.concatenate([a, a], 1), report)
  with pytest.raises(ValueError, match="report: Dense_0/bias has shape"):
    update(report=steps)


def test_a_reply_that_does_not_fit_names_its_field(played):
  one = jax.tree.map(lambda a: a[0], played.replies)
  check = lambda reply: federation.check_reply(
    ESTIMATORS, played.setup.descent, played.before, reply
  )
  check(one)
  with pytest.raises(ValueError, match="report: local has 1 arrays"):
    check(one._replace(local={"w": jnp.zeros(3)}))
  both, hessian = (ESTIMATORS[n].curvature for n in ("both", "interactive"))
  less = {k: v for k, v in one.reports.items() if k != both.key}
  with pytest.raises(ValueError, match="report: there is none of fisher"):
    check(one._replace(reports=less))
  other = {**one.reports, both.key: one.reports[hessian.key]}
  with pytest.raises(ValueError, match=r"it must be low_rank\.Rows"):
    check(one._replace(reports=other))
  other = {**one.reports, hessian.key: one.reports[both.key]}
  with pytest.raises(ValueError, match="that of exact_hessian is not an"):
    check(one._replace(reports=other))


def test_an_interactive_curvature_has_nothing_to_upload(played):
  e = ESTIMATORS["interactive"]
  state = played.before.estimators["interactive"]
  with pytest.raises(ValueError, match="exact_hessian has nothing that a"):
    e.update(played.setup.descent, state, (), attendance_of(played), 4, None)


def without(played, lane):
  """The round without one participant's reply."""
  everyone, cohort, counts, t = played.who
  keep = np.delete(np.arange(3), lane)
  replies = jax.tree.map(lambda a: a[keep], played.replies)
  who = everyone, cohort[keep], counts[keep], t
  return end_round(played.setup, played.before, replies, *who)[0]


@pytest.mark.parametrize("field", ["local", "both", "interactive"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
def test_what_is_not_finite_leaves_only_its_sender_out(played, field, value):
  _, data = cases.mlp()
  spoil = lambda sent: jax.tree.map(lambda a: a.at[1].set(value), sent)
  replies = played.replies
  if field == "local":
    replies = replies._replace(local=spoil(replies.local))
  else:
    key = ESTIMATORS[field].curvature.key
    reports = {**replies.reports, key: spoil(replies.reports[key])}
    replies = replies._replace(reports=reports)
  state, screening = end_round(
    played.setup, played.before, replies, *played.who
  )
  np.testing.assert_array_equal(screening.accepted, [True, False, True])
  cohort = np.asarray(played.who[1])
  lines = federation.refusals(screening, [data.ids[k] for k in cohort])
  assert lines and all(data.ids[cohort[1]] in line for line in lines)
  expected = without(played, 1)
  cases.close(state.params, expected.params, rtol=0, atol=1e-15)
  for name in ESTIMATORS:
    cases.close(
      state.estimators[name], expected.estimators[name], rtol=0, atol=1e-13
    )


def test_nobody_left_changes_nothing(played):
  nan = jax.tree.map(lambda a: a * np.nan, played.replies)
  state, screening = end_round(played.setup, played.before, nan, *played.who)
  assert not screening.accepted.any()
  cases.close(state.params, played.before.params)
  for name in ESTIMATORS:
    before = played.before.estimators[name].eps
    cases.close(state.estimators[name].eps, before)
