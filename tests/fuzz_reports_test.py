"""Hostile reports: what one participant may do to the others' ε."""

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

TRIES = 1000  # In full; a tenth of them by default.
FED = fi.FedAvg(rounds=1, cohort_size=3, local_steps=2, learning_rate=2.0)
WHOLE = {"num_samples": 4, "layerwise": False, "labels": "sampled"}
# What promises not to expand, and what does not.
PROMISED = {
  name: fi.estimator(curvature, fi.no_guard())
  for name, curvature in {
    "relu": fi.fisher(**WHOLE, spectrum="relu"),
    "clip": fi.fisher(num_samples=4, spectrum="clip"),
    "rank": fi.fisher(num_samples=4, rank=2, spectrum="exp"),
    "eigenpairs": fi.lowrank_hessian(rank=4, per="round", spectrum="implicit"),
  }.items()
}
OTHERS = {"both": fi.estimator(fi.fisher(num_samples=4), fi.lwet())}
ESTIMATORS = {**PROMISED, **OTHERS}


@functools.cache
def honest():
  """A round in which every ε is some way from zero."""
  model, data = cases.mlp()
  params = cases.in_double(model.init(jax.random.key(1)))
  largest = int(data.num_examples.max())
  setup = federation.setup(model, FED, ESTIMATORS, params, largest)
  curvatures = [e.curvature for e in ESTIMATORS.values()]

  @jax.jit
  def participate(examples, draws):
    local, client = federation.train(setup)(params, examples, draws)
    return federation.Reply(local, federation.report(setup, curvatures, client))

  cohort = np.array([2, 3, 5])
  clients = on_device.put(data)
  replies = [
    participate(
      on_device.take(clients, jnp.int32(k), largest),
      rng.draws(0, 1, data.ids[k]),
    )
    for k in cohort
  ]
  replies = jax.tree.map(lambda *a: jnp.stack(a), *replies)
  draw = np.random.default_rng(0)
  eps = jax.tree.map(lambda a: 0.1 * draw.normal(size=(6, *a.shape)), params)
  states = {
    name: e.init(params, 6)._replace(eps=jax.tree.map(jnp.asarray, eps))
    for name, e in ESTIMATORS.items()
  }
  state = federation.ServerState(params, states)
  counts = jnp.asarray(data.num_examples[cohort])
  return setup, state, replies, (jnp.asarray(cohort), counts)


@jax.jit
def end_round(state, replies, clients, counts):
  setup = honest()[0]
  return federation.end_round(
    ESTIMATORS, setup.descent, state, replies, removals.leave_one_out(6),
    clients, counts, jnp.int32(1),
  )  # fmt: skip


def without(lane):
  _, state, replies, (clients, counts) = honest()
  keep = np.delete(np.arange(3), lane)
  replies = jax.tree.map(lambda a: a[keep], replies)
  return end_round(state, replies, clients[keep], counts[keep])[0]


@pytest.mark.parametrize("name", PROMISED)
def test_an_honest_report_stays_as_it_is(name):
  _, _, replies, _ = honest()
  curvature = PROMISED[name].curvature
  report = replies.reports[curvature.key]
  for dtype in (jnp.float64, jnp.float32):
    sent = jax.tree.map(lambda a, dtype=dtype: a.astype(dtype), report)
    kept, excess = jax.jit(curvature.restrain)(sent)
    assert not excess.any()
    jax.tree.map(np.testing.assert_array_equal, kept, sent)


def spoil(draw, leaf, lane):
  """Overwrites some of one participant's numbers."""
  a = np.array(leaf)
  size = draw.choice([1e-3, 1.0, 1e2, 1e6, 1e30, 1e200])
  part = a[lane].reshape(-1)
  some = draw.random(part.size) < draw.choice([0.02, 0.5, 1.1])
  some[draw.integers(part.size)] = True
  kind = draw.integers(5)
  if kind == 0:
    part[some] = draw.choice([np.nan, np.inf, -np.inf])
  elif kind == 1:
    part[some] = size
  elif kind == 2:
    part[some] *= -size
  elif kind == 3:
    part[some] = size * draw.normal(size=some.sum())
  else:
    part[:] = 0
  return jnp.asarray(a)


def attack(seed):
  """Spoils one field of one reply, and checks what became of the others."""
  _, state, replies, who = honest()
  draw = np.random.default_rng(seed)
  lane, field = int(draw.integers(3)), draw.choice(["local", *ESTIMATORS])
  if field == "local":
    local = jax.tree.map(lambda a: spoil(draw, a, lane), replies.local)
    replies = replies._replace(local=local)
  else:
    key = ESTIMATORS[field].curvature.key
    report = jax.tree.map(lambda a: spoil(draw, a, lane), replies.reports[key])
    replies = replies._replace(reports={**replies.reports, key: report})
  after, screening = end_round(state, replies, *who)
  others = np.delete(np.arange(3), lane)
  assert screening.accepted[others].all()
  for name in ESTIMATORS:
    assert np.isfinite(cases.ravel(after.estimators[name].eps)).all(), name
  lines = federation.refusals(screening, ["a", "b", "c"])
  assert all(repr("abc"[lane]) in line for line in lines)
  if not screening.accepted[lane]:
    assert lines
    expected = without(lane)
    cases.close(after.params, expected.params, rtol=0, atol=1e-13)
    for name in ESTIMATORS:
      cases.close(
        after.estimators[name].eps,
        expected.estimators[name].eps,
        rtol=0,
        atol=1e-12,
      )
  elif field in PROMISED:
    # Whatever it sent, it does not expand: growth is combinatorial alone.
    growth = np.asarray(after.estimators[field].guard.growth)
    assert (growth <= 1 + 2e-3).all(), (field, growth.max())
  return bool(lines)


@pytest.mark.parametrize(
  "tries",
  [TRIES // 10, pytest.param(TRIES, marks=pytest.mark.slow)],
)
def test_hostile_reports_harm_nobody_else(tries):
  noticed = sum(attack(seed) for seed in range(tries))
  assert 0.2 * tries < noticed < tries  # The attacks are attacks.
