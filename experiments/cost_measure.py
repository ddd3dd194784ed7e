"""Times the programs of Table 1 in a federation made by hand."""

import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments import cost_methods
import fedinf_jax as fi
from fedinf_jax import federation
from fedinf_jax import memory
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax.data import on_device

SEED = 0
ROUNDS = 3  # Of the training. Before the first, ε is zero.
# An update is timed at least REPEATS times; while the seconds last, more often.
REPEATS, MOST_REPEATS, SECONDS = 2, 12, 0.06


class Program(NamedTuple):
  """A compiled program and what it takes."""

  call: jax.stages.Compiled
  peak_bytes: int
  output_bytes: int
  seconds: list[float]  # of every call; it grows


class Measured(NamedTuple):
  """What was measured."""

  programs: dict[tuple, Program]  # by `key`
  empty: float  # seconds of a call that does nothing
  paces: list[float]  # seconds of one and the same product, over time


def measure(points: list[cost_methods.Sizes], say) -> Measured:
  """Times every program.

  All points have their first round before any has its second: if other work
  slows the machine down for a while, it does so at all points.

  Args:
    points: sizes.
    say: is called with words about the progress.
  """
  points = list(dict.fromkeys(points))
  programs: dict[tuple, Program] = {}
  paces = []
  states = {sizes: _start(sizes) for sizes in points}  # w, and those of methods
  zero, ones = jnp.float32(0), jnp.asarray(np.ones((512, 512), np.float32))
  product = _compile(jnp.matmul, ones, ones)
  empty = _least(_compile(jnp.negative, zero), 100, zero)
  for t in range(1, ROUNDS + 1):
    for i, sizes in enumerate(points, start=1):
      say(f"round {t} of {ROUNDS}, point {i} of {len(points)}")
      paces.append(_least(product, 5, ones, ones))
      states[sizes] = _round(programs, sizes, t, *states[sizes])
  for program in programs.values():
    del program.seconds[0]  # The first call warms up.
  return Measured(programs, empty, paces)


def key(side: str, name: str | None, sizes: cost_methods.Sizes) -> tuple:
  """Identifies a program by all that it depends on, so that points share it."""
  if name is None or side == "training":
    return side, None, (sizes.D, sizes.m, sizes.n)
  method = cost_methods.METHODS[name]
  seen = method.client_sizes if side == "client" else method.server_sizes
  return side, name, seen(sizes)


def _start(sizes):
  """Returns w_0 = 0, made on the host, and the methods' first states."""
  shapes = _setup(sizes).model.param_shapes()
  zeros = lambda a: jnp.asarray(np.zeros(a.shape, a.dtype))
  params = jax.tree.map(zeros, shapes)
  build = lambda name: cost_methods.METHODS[name].build(sizes)
  names = cost_methods.methods_at(sizes)
  return params, {name: build(name).init(params, sizes.K) for name in names}


def _round(programs, sizes, t, params, states):
  """Runs a round: training, then each method's reports and update."""

  def program(side, name, function, *args, **options):
    wanted = key(side, name, sizes)
    if wanted not in programs:
      programs[wanted] = _compile(function, *args, **options)
    return programs[wanted]

  setup = _setup(sizes)
  draw = np.random.default_rng([SEED, t])
  cohort = draw.choice(sizes.K, sizes.B, replace=False).astype(np.int32)
  clients, local = [], []
  for k in cohort:
    own = _own(sizes, t, k)
    train = program("training", None, federation.train(setup), params, *own)
    w, client = _timed(train, params, *own)
    clients.append(client)
    local.append(w)
  attendance = _attendance(sizes, cohort)
  params, change = _aggregate(params, _stack(local), attendance.base)
  new_states = {}
  for name, state in states.items():
    estimator = cost_methods.METHODS[name].build(sizes)
    report = functools.partial(federation.report, setup, [estimator.curvature])
    client = program("client", name, report, clients[0])
    reports = _stack([_timed(client, own) for own in clients])
    inputs = reports[estimator.curvature.key], attendance, jnp.int32(t), change
    update = functools.partial(estimator.update, setup.descent)
    server = program("server", name, update, state, *inputs, donate_argnums=0)
    new_states[name] = _time_update(server, state, inputs)
  return params, new_states


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
  methods = cost_methods.METHODS.items()
  estimators = {name: method.build(sizes) for name, method in methods}
  shapes = model.param_shapes()
  return federation.setup(model, fed, estimators, shapes, sizes.n)


def _own(sizes, t, client):
  """Returns a client's examples, like LEAF's synthetic ones, and its draws."""
  classes = cost_methods.NUM_CLASSES
  q = np.random.default_rng(SEED).normal(size=(sizes.D, classes))
  draw = np.random.default_rng([SEED, int(client)])
  centre = draw.normal(draw.normal(), 1.0, sizes.D)
  spread = np.arange(1, sizes.D + 1) ** -0.6
  x = draw.normal(centre, spread, (sizes.n, sizes.D))
  y = np.argmax(x @ q + draw.normal(0, 0.1, (sizes.n, classes)), axis=1)
  examples = on_device.alone(x.astype(np.float32), y.astype(np.int32))
  return examples, rng.draws(SEED, t, client)


@functools.partial(jax.jit, static_argnums=0)
def _attendance(sizes, cohort):
  everyone = removals.leave_one_out(sizes.K)
  counts = jnp.full(sizes.B, sizes.n, jnp.int32)
  return removals.attendance(everyone, cohort, counts, jnp.float32)


_aggregate = jax.jit(federation.aggregate)


def _stack(trees):
  """Stacks on the host: not worth a program for each shape."""
  return jax.tree.map(lambda *a: jnp.asarray(np.stack(a)), *trees)


def _compile(function, *args, **options):
  compiled = jax.jit(function, **options).lower(*args).compile()
  return Program(
    call=compiled,
    peak_bytes=memory.compiled_bytes(compiled),
    output_bytes=memory.tree_bytes(compiled.out_info),
    seconds=[],
  )


# One program for a whole state: eager copies compile for each shape.
_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def _time_update(server, state, inputs):
  """Times a round's update, several times over; returns the new state."""
  before = len(server.seconds)
  for repeat in range(MOST_REPEATS):
    if repeat >= REPEATS and sum(server.seconds[before:]) > SECONDS:
      break
    # What is donated is used up: a copy stands in for it.
    new = _timed(server, _copy(state), *inputs)
  return new


def _least(program, calls, *args):
  for _ in range(calls):
    _timed(program, *args)
  return min(program.seconds[-calls:])


def _timed(program, *args):
  jax.block_until_ready(args)
  started = time.perf_counter()
  out = jax.block_until_ready(program.call(*args))
  program.seconds.append(time.perf_counter() - started)
  return out
