"""A small federation for tests: its data, and what honest clients send."""

import functools

import jax
import numpy as np

import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import models
from fedinf_jax import rng
from fedinf_jax import server as servers
from fedinf_jax import tree
from fedinf_jax.server import answers
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import participant
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds

SEED = 7
FED = fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=0.3)
OURS = fi.fisher(num_samples=8, labels="sampled", layerwise=False, per="round")
MODES = {
  "silent": {"ours": fi.estimator(fi.server_side(OURS), fi.lwet())},
  "upload": {
    "paper": fi.estimator(fi.fisher(num_samples=4), fi.lwet(per="participant")),
    "none": fi.estimator(fi.truncated(), fi.no_guard()),
  },
  "interactive": {
    "hessian": fi.estimator(fi.exact_hessian(), fi.no_guard()),
    "difference": fi.estimator(fi.exact_difference(), fi.lwet()),
  },
}


@functools.cache
def data():
  """Six clients in single precision."""
  draw = np.random.default_rng(3)
  sizes = (3, 5, 9, 14, 5, 12)
  return fi.FederatedData.from_clients(
    [
      (draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n))
      for n in sizes
    ],
    ids=[f"client-{k}" for k in range(len(sizes))],
    num_classes=3,
  )


MODEL = models.logreg(4, 3)


def server_data(seed=8, count=20):
  draw = np.random.default_rng(seed)
  x = draw.normal(size=(count, 4)).astype(np.float32)
  return x, draw.integers(0, 3, count)


@functools.cache
def params():
  """w_0; a model that is not at a saddle."""
  return tree.cast(MODEL.init(jax.random.key(1)), np.float32)


def options(mode):
  """What a server is given beside model, fed and estimators."""
  if mode == "silent":
    return {"server_data": server_data()}
  x, y = server_data()
  return {"example": (x[:1], y[:1])}


@functools.cache
def server(mode="silent", **limits):
  return rounds.server(
    MODEL, FED, MODES[mode], params(), max_examples=14, seed=SEED,
    limits=servers.Limits(**limits), **options(mode),
  )  # fmt: skip


@functools.cache
def participate(mode):
  """Returns a participant's training and reports, compiled."""
  made = server(mode)
  curvatures = [e.curvature for e in made.estimators.values()]

  @jax.jit
  def run(params, examples, draws):
    local, client = federation.train(made.setup)(params, examples, draws)
    return local, client, federation.report(made.setup, curvatures, client)

  return run


@functools.cache
def answering(mode, name):
  made = server(mode)
  curvature = made.estimators[name].curvature
  return jax.jit(
    lambda client, eps: federation.answer(curvature, made.setup, client, eps)
  )


def own_examples(client_id):
  own = data().client(data().ids.index(client_id))
  return participant.examples(server().setup, *own)


def sent(mode, ledger, client_id):
  """What an honest client sends in the next round; and itself, afterwards."""
  examples = own_examples(client_id)
  draws = rng.draws(SEED, ledger.round + 1, client_id)
  local, client, report = participate(mode)(
    ledger.state.params, examples, draws
  )
  names = tree.names(local)
  arrays = dict(
    zip(names, map(np.asarray, jax.tree.leaves(local)), strict=True)
  )
  report = [np.asarray(a) for a in jax.tree.leaves(report)]
  count = int(examples.count)
  return replies.Sent(client_id, arrays, count, report=report), client


def answered(mode, ledger, client_id, client):
  """What an honest interactive client answers."""
  asked = server(mode).questions(ledger)
  arrays = {
    name: [
      np.asarray(a) for a in jax.tree.leaves(answering(mode, name)(client, eps))
    ]
    for name, eps in asked.items()
  }
  return answers.Answered(client_id, replies.digest(asked), arrays)


@functools.cache
def side(mode):
  made = server(mode)
  return participant.participant(made.setup, made.estimators)


def play(mode, attendance=None, num_rounds=5):
  """Plays a federation by hand; attendance(round, cohort) -> who replies."""
  made = server(mode)
  ledger = ledgers.init(made.estimators, params())
  for t in range(1, num_rounds + 1):
    cohort = made.cohort(t, data().ids)
    if attendance is not None:
      cohort = attendance(t, cohort)
    present = {c: data().client(data().ids.index(c)) for c in cohort}
    ledger = participant.play_round(made, side(mode), ledger, present)
  return ledger


@functools.cache
def simulated(mode):
  """The same federation, simulated."""
  return simulate(mode)


def simulate(mode, **options):
  """The same federation, simulated with further options."""
  extra = {"server_data": server_data()} if mode == "silent" else {}
  return fi.simulate(
    MODEL, data(), FED, estimators=MODES[mode], params=params(), seed=SEED,
    **extra, **options,
  )  # fmt: skip


def assert_same(ledger, run, atol=1e-5):
  """Asserts that the ledger has the run's ε, client by client."""
  rows = np.array([data().ids.index(i) for i in ledger.ids])
  close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=atol)
  jax.tree.map(close, ledger.state.params, run.params)
  for name, eps in run.eps.items():
    jax.tree.map(lambda a, b: close(a, b[rows]), ledger.eps(name), eps)
