"""Times the programs of Table 1 in a federation made by hand."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import cost_methods
import fedinf_jax as fi
from fedinf_jax import curvature
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import packing
from fedinf_jax import rng

SEED = 0
ROUNDS = 3  # Of the training. Before the first, ε is zero.
# An update is timed at least so often; while the seconds last, up to so often.
REPEATS, MOST_REPEATS, SECONDS = 2, 12, 0.06


class Program(NamedTuple):
  """A compiled program and what it was seen to take."""

  call: jax.stages.Compiled
  took: dict  # peak_bytes, output_bytes; seconds of every call


def measure(points: list[cost_methods.Sizes], say):
  """Times every program; returns them, an empty call, and the pace over time.

  A round at every point before the next round at any: while other work slows
  the machine down, it is not one point alone that suffers.
  """
  points = list(dict.fromkeys(points))
  programs, paces = {}, []
  standing = {sizes: _start(sizes) for sizes in points}  # w and states
  zero, ones = jnp.float32(0), jnp.asarray(np.ones((512, 512), np.float32))
  product = _compile(jnp.matmul, ones, ones)
  empty = _least(_compile(jnp.negative, zero), 100, zero)
  for t in range(1, ROUNDS + 1):
    for i, sizes in enumerate(points, start=1):
      say(f"round {t} of {ROUNDS}, point {i} of {len(points)}")
      paces.append(_least(product, 5, ones, ones))
      standing[sizes] = _play(programs, sizes, t, *standing[sizes])
  for program in programs.values():
    del program.took["seconds"][0]  # The first call warms up.
  return programs, empty, paces


def key(side: str, name: str, sizes: cost_methods.Sizes) -> tuple:
  """Names a program by all that it depends on, so that points share it."""
  if side == "training":
    return side, None, (("D", sizes.D), ("m", sizes.m), ("n", sizes.n))
  symbols = getattr(cost_methods.METHODS[name], f"{side}_sees")
  return side, name, tuple((s, getattr(sizes, s)) for s in symbols)


def _start(sizes):
  """Returns w_0 = 0, made on the host, and the methods' first states."""
  shapes = jax.eval_shape(_setup(sizes).model.init, jax.random.key(SEED))
  zeros = lambda a: jnp.asarray(np.zeros(a.shape, a.dtype))
  params = jax.tree.map(zeros, shapes)
  build = lambda name: cost_methods.METHODS[name].build(sizes)
  names = cost_methods.methods_at(sizes)
  return params, {name: build(name).init(params, sizes.K) for name in names}


def _play(programs, sizes, t, params, states):
  """Plays a round: training, then each method's reports and update."""

  def program(side, name, function, *args, **options):
    wanted = key(side, name, sizes)
    if wanted not in programs:
      programs[wanted] = _compile(function, *args, **options)
    return programs[wanted]

  setup = _setup(sizes)
  train = fedavg.local_training(setup.model, setup.fed)
  draw = np.random.default_rng([SEED, t])
  cohort = draw.choice(sizes.K, sizes.B, replace=False).astype(np.int32)
  clients, local = [], []
  for k in cohort:
    own = _own(sizes, t, k)
    training = program("training", None, train, params, *own)
    w, iterates = _timed(training, params, *own)
    clients.append(curvature.Client(iterates, *own))
    local.append(w)
  participants, *moves, params = _close(sizes, params, cohort, _stack(local))
  new = {}
  for name, state in states.items():
    estimator = cost_methods.METHODS[name].build(sizes)
    report = functools.partial(estimator.curvature.report, setup)
    client = program("client", name, report, clients[0])
    reports = _stack([_timed(client, own) for own in clients])
    inputs = participants._replace(report=reports), jnp.int32(t), *moves
    update = functools.partial(estimator.update, setup)
    server = program("server", name, update, state, *inputs, donate_argnums=0)
    new[name] = _time_update(server, state, inputs)
  return params, new


def _setup(sizes):
  """Returns the model and how it is trained."""
  fed = fi.FedAvg(
    rounds=ROUNDS,
    cohort_size=sizes.B,
    local_steps=sizes.m,
    # η of setting 1 at its 60 features: curvature must not grow with D.
    learning_rate=0.003 * 60 / sizes.D,
  )
  model = fi.models.logreg(sizes.D, cost_methods.NUM_CLASSES)
  return curvature.Setup(model, fed, fed.learning_rate, sizes.n)


def _own(sizes, t, client):
  """Returns a client's examples, like LEAF's synthetic ones, and its draws."""
  classes = cost_methods.NUM_CLASSES
  q = np.random.default_rng(SEED).normal(size=(sizes.D, classes))
  draw = np.random.default_rng([SEED, int(client)])
  centre = draw.normal(draw.normal(), 1.0, sizes.D)
  spread = np.arange(1, sizes.D + 1) ** -0.6
  x = draw.normal(centre, spread, (sizes.n, sizes.D))
  y = np.argmax(x @ q + draw.normal(0, 0.1, (sizes.n, classes)), axis=1)
  x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.int32)
  examples = packing.Examples(x, y, jnp.int32(0), jnp.int32(sizes.n))
  words = jnp.asarray(rng.id_words([client])[0])
  return examples, rng.Draws(jax.random.key(SEED), jnp.int32(t), words)


@functools.partial(jax.jit, static_argnums=0)
def _close(sizes, params, cohort, local):
  """Returns participants without reports, updates, the change of w, and w_t."""
  counts = jnp.full(sizes.B, sizes.n, jnp.int32)
  base = fedavg.weights(counts, jnp.float32)
  away = jnp.arange(sizes.K)[:, None] == cohort[None]
  shares = influence.shares_of(jnp.where(away, 0, sizes.n), counts, base)
  new = fedavg.aggregate(local, counts)
  updates = jax.tree.map(lambda a, w: a - w[None], local, params)
  change = jax.tree.map(jnp.subtract, params, new)
  participants = influence.Participants(None, shares, base, cohort)
  return participants, updates, change, new


def _stack(trees):
  """Stacks on the host: not worth a program for each shape."""
  return jax.tree.map(lambda *a: jnp.asarray(np.stack(a)), *trees)


def _compile(function, *args, **options):
  compiled = jax.jit(function, **options).lower(*args).compile()
  needs = compiled.memory_analysis()
  # The CPU's own peak leaves temporaries out. What is donated counts once.
  peak = (
    needs.argument_size_in_bytes
    + needs.output_size_in_bytes
    - needs.alias_size_in_bytes
    + needs.temp_size_in_bytes
  )
  output = memory.tree_bytes(compiled.out_info)
  took = {"peak_bytes": peak, "output_bytes": output, "seconds": []}
  return Program(compiled, took)


# One program for a whole state: eager copies compile for each shape.
_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def _time_update(server, state, inputs):
  """Times a round's update, several times over; returns the new state."""
  before = len(server.took["seconds"])
  for repeat in range(MOST_REPEATS):
    if repeat >= REPEATS and sum(server.took["seconds"][before:]) > SECONDS:
      break
    # What is donated is used up: a copy stands in for it.
    new = _timed(server, _copy(state), *inputs)
  return new


def _least(program, calls, *args):
  for _ in range(calls):
    _timed(program, *args)
  return min(program.took["seconds"][-calls:])


def _timed(program, *args):
  jax.block_until_ready(args)
  started = time.perf_counter()
  out = jax.block_until_ready(program.call(*args))
  program.took["seconds"].append(time.perf_counter() - started)
  return out
