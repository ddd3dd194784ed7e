r"""Measures Table 1 of the paper: what an estimator costs server and clients.

python -m experiments.cost [--workdir=DIR] [--json=FILE] [--scale=0.2]
    [--sweeps=K,B=K,P,m,N_s]

Naive 1 and 2 (explicit Hessian blocks), the paper's method ("both") and ours
("relu") serve the same rounds of the same training through the calls of a real
federation: `curvature.report` on a client, `estimator.update` on the server.
"truncated" keeps no curvature: what it costs, every estimator pays. All stand
beside the paper's formulas at the same sizes; along each size the exponents are
fitted. Writes cost.json and cost.png to the workdir.
"""

from collections.abc import Callable
from concurrent import futures
import functools
import io
import itertools
import os
import pathlib
import time
from typing import Any
from typing import NamedTuple

from absl import flags
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.backends.backend_agg
import matplotlib.figure
import matplotlib.lines
import matplotlib.ticker
import numpy as np
from rich import console as rich_console
from rich import table as rich_table

from experiments import estimators as named
from experiments import figures
from experiments import launch
from experiments import workdir as workdirs
import fedinf_jax as fi
from fedinf_jax import curvature
from fedinf_jax import fedavg
from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import packing
from fedinf_jax import rng

SEED = 0
NUM_CLASSES = 5  # As LEAF's synthetic tasks have.
ROUNDS = 3  # Of the training. Before the first, ε is zero.
# An update is timed at least so often; while the seconds last, up to so often.
REPEATS, MOST_REPEATS, SECONDS = 2, 12, 0.06
WELL_ABOVE = 10  # Within so many empty calls a time says nothing of growth.
FIT_POINTS = 3  # An exponent is that of the largest sizes.
CLOSE = 0.2  # Exponents that differ by less agree.
REFERENCE = "both"  # What ratios are relative to.
STEADY = 1.25  # By how much a machine may slow down during the measurements.
GOOD_FIT = 0.95  # R² of a line to be trusted.
CONVENTIONS = (
  "K² of the paper is K·B, as B of K clients take part; p² is Σ_j p_j², layer"
  " by layer. The paper counts a client's gradients as at hand (0); here it"
  " computes them once more. Times are the least of several."
)
MAX_NAIVE = 1300  # Parameters of a layer: beyond, p³ takes too long.
SAME = "one and the same program at all these sizes"


class Sizes(NamedTuple):
  """The symbols of Table 1, at one point."""

  K: int  # clients; each is a removal
  B: int  # participants of a round
  D: int  # features
  m: int  # local steps
  N_s: int  # gradients a step uploads
  n: int  # examples of a client

  @property
  def layers(self) -> tuple[int, ...]:
    """Returns p_j of kernel and bias."""
    return self.D * NUM_CLASSES, NUM_CLASSES

  @property
  def p(self) -> int:
    """Returns the number of parameters."""
    return sum(self.layers)

  @property
  def p2(self) -> int:
    """Returns Σ_j p_j²: matrices are kept layer by layer."""
    return sum(p**2 for p in self.layers)

  @property
  def p3(self) -> int:
    """Returns Σ_j p_j³."""
    return sum(p**3 for p in self.layers)


# N_s stays below 64: from there on LAPACK's eigh, which relu calls, starts
# threads, and on busy cores they wait for each other.
BASE = Sizes(K=256, B=8, D=127, m=4, N_s=12, n=48)
LEAST = Sizes(K=8, B=2, D=3, m=2, N_s=2, n=8)
SETTING1 = Sizes(K=1000, B=10, D=60, m=5, N_s=50, n=50)


class Formula(NamedTuple):
  """How much of something there is, in symbols and as a number."""

  text: str
  value: Callable[[Sizes], float]


class Method(NamedTuple):
  """A row of Table 1."""

  build: Callable[[Sizes], influence.Estimator]
  paper: dict[str, Formula]  # Table 1, with K·B for K² and Σ_j p_j² for p²
  built: dict[str, Formula]  # operations of this code
  # Sizes that its program depends on; along others it is one and the same.
  sees: dict[str, tuple[str, ...]]


def _naive(upload, sizes):
  del sizes
  return fi.estimator(fi.dense_hessian(upload=upload), fi.lwet())


def _recipe(name, sizes):
  """Builds an estimator that recipes name, with N_s of these sizes."""
  (function, arguments), (guard, options) = named.SPECS[name]
  if function == "fisher":
    arguments = {**arguments, "num_samples": sizes.N_s}
  return fi.estimator(
    getattr(fi, function)(**arguments), getattr(fi, guard)(**options)
  )


def _rows_on_server(blocks, s):
  """Counts the operations of `propagation.rows_lost`, or of the recursion."""
  rows = s.m * s.N_s
  products = 4 * rows * s.p * s.K
  if rows <= s.K:  # As `propagation.is_compact` says.
    products += 2 * rows**2 * (s.p + blocks * s.K)
  return s.B * products


def _rows(name, blocks, client):
  """A method whose participants upload gradients."""
  return Method(
    functools.partial(_recipe, name),
    {
      "server": Formula("K² m N_s p", lambda s: s.K * s.B * s.m * s.N_s * s.p),
      "client": Formula("0", lambda s: 0),
      "upload": Formula("m N_s p", lambda s: s.m * s.N_s * s.p / s.p),
    },
    {
      "server": Formula(
        f"B(4 K m N_s p + 2 (m N_s)² (p + {'' if blocks == 1 else blocks}K))",
        functools.partial(_rows_on_server, blocks),
      ),
      "client": client,
    },
    {
      "server": ("K", "B", "D", "m", "N_s"),
      "client": ("D", "m", "N_s", "n"),
    },
  )


METHODS = {
  "naive 1": Method(
    functools.partial(_naive, "product"),
    {
      "server": Formula("K² p²", lambda s: s.K * s.B * s.p2),
      "client": Formula("m(n p² + p³)", lambda s: s.m * (s.n * s.p2 + s.p3)),
      "upload": Formula("p²", lambda s: s.p2 / s.p),
    },
    {
      "server": Formula("2 K B p²", lambda s: 2 * s.K * s.B * s.p2),
      "client": Formula(
        "m(4 n p² + 2 p³)", lambda s: s.m * (4 * s.n * s.p2 + 2 * s.p3)
      ),
    },
    {"server": ("K", "B", "D"), "client": ("D", "m", "n")},
  ),
  "naive 2": Method(
    functools.partial(_naive, "steps"),
    {
      "server": Formula("K² m p²", lambda s: s.K * s.B * s.m * s.p2),
      "client": Formula("m n p²", lambda s: s.m * s.n * s.p2),
      "upload": Formula("m p²", lambda s: s.m * s.p2 / s.p),
    },
    {
      "server": Formula("2 K B m p²", lambda s: 2 * s.K * s.B * s.m * s.p2),
      "client": Formula("4 m n p²", lambda s: 4 * s.m * s.n * s.p2),
    },
    {"server": ("K", "B", "D", "m"), "client": ("D", "m", "n")},
  ),
  "both": _rows(
    "both", 2, Formula("4 m N_s p", lambda s: 4 * s.m * s.N_s * s.p)
  ),
  "relu": _rows(
    "relu",
    1,
    Formula(
      "m(4 N_s p + 4 N_s² p + 9 N_s³)",
      lambda s: s.m * (4 * s.N_s * s.p * (1 + s.N_s) + 9 * s.N_s**3),
    ),
  ),
  "truncated": Method(
    functools.partial(_recipe, "truncated"),
    {q: Formula("0", lambda s: 0) for q in ("server", "client", "upload")},
    {
      "server": Formula("2 K B p", lambda s: 2 * s.K * s.B * s.p),
      "client": Formula("0", lambda s: 0),
    },
    {"server": ("K", "B", "D"), "client": ("D", "m", "n")},
  ),
}
# What is measured: whose formula it is compared with, and its title.
QUANTITIES = {
  "server_seconds": ("server", "server, a round"),
  "client_seconds": ("client", "a client, beside training"),
  "upload_models": ("upload", "upload, in models"),
  "server_peak_bytes": (None, "peak memory of the server's update"),
  "client_peak_bytes": (None, "peak memory of a client's report"),
}


def methods_at(sizes: Sizes) -> dict[str, Method]:
  """Returns the methods that are measured at such sizes."""
  large = max(sizes.layers) > MAX_NAIVE
  return {
    name: method
    for name, method in METHODS.items()
    if not (large and name.startswith("naive"))
  }


class Sweep(NamedTuple):
  """One size that grows while the others stay."""

  value: Callable[[Sizes], int]
  at: Callable[[Sizes, float], Sizes]  # (base, factor)
  factors: tuple[float, ...]


def _times(symbol):
  return lambda base, factor: base._replace(
    **{symbol: max(1, round(factor * getattr(base, symbol)))}
  )


def _everyone(base, factor):
  """B = K, with so few gradients that the server's algorithm never changes."""
  clients = max(2, round(factor * base.K / 8))
  return base._replace(
    K=clients, B=clients, D=max(2, base.D // 2), N_s=max(1, base.N_s // 4)
  )


SWEEPS = {
  "K": Sweep(lambda s: s.K, _times("K"), (0.5, 1, 2, 4)),
  "B=K": Sweep(lambda s: s.K, _everyone, (0.5, 1, 2, 4)),
  "P": Sweep(lambda s: s.p, _times("D"), (0.5, 1, 2, 4, 8)),
  "m": Sweep(lambda s: s.m, _times("m"), (0.5, 1, 2, 4)),
  "N_s": Sweep(lambda s: s.N_s, _times("N_s"), (0.5, 1, 2, 4)),
}
FEW = (1, 2)  # The factors below half the scale, where compiling dominates.

_WORKDIR = flags.DEFINE_string("workdir", "runs/cost", "Where to.")
_JSON = flags.DEFINE_string("json", None, "WORKDIR/cost.json if none.")
_SCALE = flags.DEFINE_float("scale", 1.0, "Shrinks all sizes; at most 1.")
_SWEEPS = flags.DEFINE_list(
  "sweeps", None, f"Sizes to vary, of {', '.join(SWEEPS)}; all if none."
)


class Program(NamedTuple):
  """A compiled program and what it was seen to take."""

  call: Callable[..., Any]
  peak_bytes: int
  output_bytes: int
  seconds: list[float]  # of every timed call


class Round(NamedTuple):
  """A round of plain training: what reports and an update start from."""

  clients: list[curvature.Client]
  cohort: jax.Array  # int32 [B]
  shares: jax.Array  # [K, B]
  base: jax.Array  # [B]
  updates: Any  # leaves [B, ...]
  change: Any
  params: Any  # w_t


class Standing(NamedTuple):
  """Where a point stands between rounds."""

  params: Any
  states: dict[str, influence.EstimatorState]


def main(argv):
  """Measures, writes and prints."""
  del argv
  base = scaled(_SCALE.value)
  sweeps = _chosen(_SWEEPS.value, _SCALE.value)
  folder = pathlib.Path(_WORKDIR.value)
  numbers = pathlib.Path(_JSON.value or folder / "cost.json")
  for place in (folder, numbers.parent):
    place.mkdir(parents=True, exist_ok=True)
    if not os.access(place, os.W_OK | os.X_OK):
      raise ValueError(f"{place} cannot be written to")
  if numbers.is_dir():
    raise ValueError(f"--json={numbers} is a folder; it must be a file")
  screen = rich_console.Console()
  content = run(base, sweeps, _SCALE.value, screen)
  workdirs.write_json(numbers, content)
  with matplotlib.rc_context(figures.STYLE):
    workdirs.write(folder / "cost.png", draw(content["rows"], sweeps))
  for axis in ("base", "setting 1"):
    at = [row for row in content["rows"] if row["axis"] == axis]
    if at:
      print_costs(screen, axis, at)
  print_slopes(screen, content["slopes"], sweeps)
  say = functools.partial(screen.print, highlight=False)
  drift = max(content["pace_seconds"]) / min(content["pace_seconds"])
  if drift > STEADY:
    say(
      "Other work was in the way: one and the same product took up to"
      f" {drift:.1f} times as long in between. Exponents are uncertain."
    )
  say(f"{numbers} and {folder / 'cost.png'} ({content['seconds']} s)")


def run(base: Sizes, sweeps: list[str], scale: float, screen) -> dict:
  """Measures everything; returns the content of cost.json."""
  started = time.perf_counter()
  points = points_of(base, sweeps, scale)
  with screen.status("compiling") as status:
    programs = compile_all([sizes for _, sizes in points], status.update)
    compiled = time.perf_counter()
    paces = measure(programs, [sizes for _, sizes in points], status.update)
  rows = [row for point in points for row in rows_of(programs, *point)]
  empty = empty_call()
  slopes = [
    slope(rows, axis, method, quantity, empty)
    for quantity, method, axis in itertools.product(QUANTITIES, METHODS, sweeps)
  ]
  return {
    "scale": scale,
    "sizes": about(base),
    "sweeps": sweeps,
    "reference": REFERENCE,
    "formulas": {name: texts(method) for name, method in METHODS.items()},
    "conventions": CONVENTIONS,
    "rows": rows,
    "slopes": slopes,
    "programs": [raw(key, program) for key, program in programs.items()],
    "empty_call_seconds": empty,
    "pace_seconds": paces,
    "compile_seconds": round(compiled - started, 1),
    "seconds": round(time.perf_counter() - started, 1),
    "device": jax.devices()[0].device_kind,
    "cores": os.cpu_count(),
    "versions": workdirs.versions(),
    "git_revision": workdirs.git_revision(),
  }


def scaled(scale: float) -> Sizes:
  """Returns the base sizes, shrunk."""
  if not 0 < scale <= 1:
    raise ValueError(f"--scale={scale} must be above 0 and at most 1")
  shrink = lambda size, least: max(least, round(scale * size))
  base = Sizes(*map(shrink, BASE, LEAST))
  # The longest sweep of N_s must find its examples.
  return base._replace(n=max(SWEEPS["N_s"].factors) * base.N_s)


def _chosen(names, scale):
  """Returns the sweeps to do."""
  if names is None:
    # B=K shares no program with the others: too slow for a quick look.
    return [name for name in SWEEPS if scale >= 0.5 or name != "B=K"]
  names = list(dict.fromkeys(name.strip() for name in names)) or [""]
  for name in names:
    if name not in SWEEPS:
      raise ValueError(
        f"--sweeps: {name!r} is unknown; there are {', '.join(SWEEPS)}"
      )
  return names


def points_of(base: Sizes, sweeps: list[str], scale: float):
  """Returns (axis, sizes) of everything to measure."""
  points = [("base", base)]
  if scale == 1:
    points.append(("setting 1", SETTING1))
  for name in sweeps:
    factors = SWEEPS[name].factors if scale >= 0.5 else FEW
    points += [(name, SWEEPS[name].at(base, factor)) for factor in factors]
  return points


def compile_all(points: list[Sizes], say) -> dict[tuple, Program]:
  """Compiles what all points need, before anything is timed.

  Args:
    points: the sizes.
    say: is told how far it is.

  Returns:
    (side, method, the sizes it sees) -> program.
  """
  compiling = {}
  with futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for sizes in dict.fromkeys(points):
      for name in methods_at(sizes):
        for side, lower in _lowerings(name, sizes).items():
          key = _key(side, name, sizes)
          if key not in compiling:
            compiling[key] = pool.submit(lower().compile)
    made = {}
    for key, future in compiling.items():
      say(f"compiling: {len(made)} of {len(compiling)} programs")
      made[key] = _program(future.result())
  return made


def _lowerings(name, sizes):
  """Returns side -> how to lower its program, from shapes alone."""
  setup, estimator = setup_of(sizes), METHODS[name].build(sizes)
  of = jax.ShapeDtypeStruct
  several = lambda count, tree: jax.tree.map(
    lambda a: of((count, *a.shape), a.dtype), tree
  )
  number = of((), jnp.int32)
  key = jax.eval_shape(lambda: jax.random.key(SEED))
  params = jax.eval_shape(setup.model.init, key)
  examples = packing.Examples(
    of((sizes.n, sizes.D), jnp.float32), of((sizes.n,), jnp.int32), number,
    number,
  )  # fmt: skip
  draws = rng.Draws(key, number, of((2,), jnp.uint32))
  client = curvature.Client(several(sizes.m, params), examples, draws)
  report = functools.partial(estimator.curvature.report, setup)
  update = functools.partial(estimator.update, setup)

  def lower_update():
    participants = influence.Participants(
      several(sizes.B, jax.eval_shape(report, client)),
      of((sizes.K, sizes.B), jnp.float32),
      of((sizes.B,), jnp.float32),
      of((sizes.B,), jnp.int32),
    )
    state = jax.eval_shape(lambda w: estimator.init(w, sizes.K), params)
    return jax.jit(update, donate_argnums=0).lower(
      state, participants, number, several(sizes.B, params), params
    )

  train = fedavg.local_training(setup.model, setup.fed)
  return {
    "training": lambda: jax.jit(train).lower(params, examples, draws),
    "client": lambda: jax.jit(report).lower(client),
    "server": lower_update,
  }


def _key(side, name, sizes):
  """Names a program by all that it depends on."""
  if side == "training":
    return side, None, sizes.D, sizes.m, sizes.n
  return side, name, *(getattr(sizes, s) for s in METHODS[name].sees[side])


def _program(compiled):
  needs = compiled.memory_analysis()
  # The CPU's own peak leaves temporaries out. What is donated counts once.
  peak = (
    needs.argument_size_in_bytes
    + needs.output_size_in_bytes
    - needs.alias_size_in_bytes
    + needs.temp_size_in_bytes
  )
  return Program(compiled, peak, memory.tree_bytes(compiled.out_info), [])


def setup_of(sizes: Sizes) -> curvature.Setup:
  """Returns the model and how it is trained."""
  fed = fi.FedAvg(
    rounds=ROUNDS,
    cohort_size=sizes.B,
    local_steps=sizes.m,
    # η of setting 1 at its 60 features: curvature must not grow with D.
    learning_rate=0.003 * 60 / sizes.D,
  )
  model = fi.models.logreg(sizes.D, NUM_CLASSES)
  return curvature.Setup(model, fed, fed.learning_rate, sizes.n)


def measure(programs: dict[tuple, Program], points: list[Sizes], say):
  """Runs the rounds at all points, and times every program there.

  A round at every point before the next round at any: while other work slows
  the machine down, it is not one point alone that suffers.

  Returns:
    The seconds of one and the same product, before each.
  """
  todo = _owners(points)
  standing = {sizes: _start(sizes, owned) for sizes, owned in todo.items()}
  ones = jnp.asarray(np.ones((512, 512), np.float32))
  product = _alone(jnp.matmul, ones, ones)
  paces = []
  for t, (i, sizes) in itertools.product(
    range(1, ROUNDS + 1), enumerate(todo, start=1)
  ):
    say(f"round {t} of {ROUNDS}, point {i} of {len(todo)}")
    paces.append(_least(product, 5, ones, ones))
    standing[sizes] = play(programs, sizes, todo[sizes], t, standing[sizes])
  return paces


def _owners(points):
  """Returns sizes -> method -> the sides that no earlier point has timed."""
  todo, known = {}, set()
  for sizes in dict.fromkeys(points):
    todo[sizes] = {}
    for name in methods_at(sizes):
      keys = {side: _key(side, name, sizes) for side in ("client", "server")}
      fresh = {side for side, key in keys.items() if key not in known}
      known |= set(keys.values())
      if fresh:
        todo[sizes][name] = fresh
  return {sizes: owned for sizes, owned in todo.items() if owned}


def _start(sizes, owned):
  key = jax.random.key(SEED)
  params = jax.tree.map(
    lambda a: jnp.asarray(np.zeros(a.shape, a.dtype)),
    jax.eval_shape(setup_of(sizes).model.init, key),
  )
  build = lambda name: METHODS[name].build(sizes).init(params, sizes.K)
  return Standing(params, {n: build(n) for n in owned if "server" in owned[n]})


def play(programs, sizes, owned, t, standing) -> Standing:
  """Plays one round: training, then each method's reports and update."""
  training = programs[_key("training", None, sizes)]
  round_ = train(training, sizes, t, standing.params)
  states = {}
  for name in owned:
    client, server = (
      programs[_key(side, name, sizes)] for side in ("client", "server")
    )
    reports = [_timed(client, own) for own in round_.clients]
    if name in standing.states:
      state = standing.states[name]
      states[name] = time_update(server, state, t, round_, _stack(reports))
  return Standing(round_.params, states)


def train(program: Program, sizes: Sizes, t: int, params) -> Round:
  """Runs a round of plain FedAvg; keeps what its participants have at hand."""
  words = rng.id_words(range(sizes.K))
  root = jax.random.key(SEED)
  draw = np.random.default_rng([SEED, t])
  cohort = draw.choice(sizes.K, sizes.B, replace=False).astype(np.int32)
  clients, local = [], []
  for k in cohort:
    draws = rng.Draws(root, jnp.int32(t), jnp.asarray(words[k]))
    examples = make_examples(sizes, k)
    w, iterates = _timed(program, params, examples, draws)
    clients.append(curvature.Client(iterates, examples, draws))
    local.append(w)
  cohort = jnp.asarray(cohort)
  return Round(clients, cohort, *_close(sizes, params, cohort, _stack(local)))


@functools.partial(jax.jit, static_argnums=0)
def _close(sizes, params, cohort, local):
  """Returns shares, their base, updates, the change of w, and w_t."""
  counts = jnp.full(sizes.B, sizes.n, jnp.int32)
  base = fedavg.weights(counts, jnp.float32)
  away = jnp.arange(sizes.K)[:, None] == cohort[None]
  shares = influence.shares_of(jnp.where(away, 0, sizes.n), counts, base)
  new = fedavg.aggregate(local, counts)
  updates = jax.tree.map(lambda a, w: a - w[None], local, params)
  return shares, base, updates, jax.tree.map(jnp.subtract, params, new), new


def time_update(server: Program, state, t: int, round_: Round, report):
  """Times a round's update, several times over; returns the new state."""
  participants = influence.Participants(
    report, round_.shares, round_.base, round_.cohort
  )
  inputs = participants, jnp.int32(t), round_.updates, round_.change
  before = len(server.seconds)
  for repeat in range(MOST_REPEATS):
    if repeat >= REPEATS and sum(server.seconds[before:]) > SECONDS:
      break
    new = _timed(server, state, *inputs, donates=True)
  return new


def make_examples(sizes: Sizes, client: int) -> packing.Examples:
  """Draws a client's data in the manner of LEAF's synthetic tasks."""
  q = np.random.default_rng(SEED).normal(size=(sizes.D, NUM_CLASSES))
  draw = np.random.default_rng([SEED, int(client)])
  centre = draw.normal(draw.normal(), 1.0, sizes.D)
  spread = np.arange(1, sizes.D + 1) ** -0.6
  x = draw.normal(centre, spread, (sizes.n, sizes.D))
  y = np.argmax(x @ q + draw.normal(0, 0.1, (sizes.n, NUM_CLASSES)), axis=1)
  return packing.Examples(
    jnp.asarray(x, jnp.float32),
    jnp.asarray(y, jnp.int32),
    jnp.int32(0),
    jnp.int32(sizes.n),
  )


# One program for a whole state: eager copies compile for each shape.
_copy = jax.jit(lambda tree: jax.tree.map(jnp.copy, tree))


def _timed(program, *args, donates=False):
  """Calls a program and notes the time; its first call is not counted."""
  for _ in range(1 if program.seconds else 2):
    # What is donated is used up: a copy stands in for it.
    given = (_copy(args[0]), *args[1:]) if donates else args
    jax.block_until_ready(given)
    started = time.perf_counter()
    out = jax.block_until_ready(program.call(*given))
    took = time.perf_counter() - started
  program.seconds.append(took)
  return out


def _stack(trees):
  """Stacks on the host: not worth a program for each shape."""
  return jax.tree.map(lambda *a: jnp.asarray(np.stack(a)), *trees)


def _alone(function, *args):
  """A program that belongs to no method."""
  return Program(jax.jit(function).lower(*args).compile(), 0, 0, [])


def _least(program, calls, *args):
  for _ in range(calls):
    _timed(program, *args)
  return min(program.seconds[-calls:])


def empty_call() -> float:
  """Returns the seconds that a call of any program takes."""
  zero = jnp.float32(0)
  return _least(_alone(lambda a: a + 1, zero), 100, zero)


def about(sizes: Sizes) -> dict:
  """Returns the sizes by the paper's symbols."""
  return {**sizes._asdict(), "p": sizes.p, "layers": sizes.layers}


def texts(method: Method) -> dict:
  """Returns a method's formulas in symbols."""
  both = {"paper": method.paper, "built": method.built}
  return {k: {q: f.text for q, f in v.items()} for k, v in both.items()}


def raw(key: tuple, program: Program) -> dict:
  """Returns everything that was measured of one program."""
  side, name, *values = key
  symbols = METHODS[name].sees[side] if name else ("D", "m", "n")
  return {
    "side": side,
    "method": name,
    "sizes": dict(zip(symbols, values, strict=True)),
    "peak_bytes": program.peak_bytes,
    "output_bytes": program.output_bytes,
    "seconds": program.seconds,
  }


def rows_of(programs, axis: str, sizes: Sizes) -> list[dict]:
  """Returns a row for each method at one point."""
  rows = []
  for name, method in methods_at(sizes).items():
    training, client, server = (
      programs[_key(side, name, sizes)]
      for side in ("training", "client", "server")
    )
    values = lambda formulas: {q: f.value(sizes) for q, f in formulas.items()}
    row = {
      "axis": axis,
      "at": SWEEPS[axis].value(sizes) if axis in SWEEPS else None,
      "method": name,
      "sizes": about(sizes),
      # Other work on the machine only ever adds: the least is the cost.
      "server_seconds": min(server.seconds),
      "client_seconds": min(client.seconds),
      "training_seconds": min(training.seconds),
      "server_seconds_median": float(np.median(server.seconds)),
      "client_seconds_median": float(np.median(client.seconds)),
      "upload_bytes": client.output_bytes,
      "upload_models": client.output_bytes / (4 * sizes.p),
      "server_peak_bytes": server.peak_bytes,
      "client_peak_bytes": client.peak_bytes,
      "paper": values(method.paper),
      "built": values(method.built),
    }
    rows.append(row)
  ours = next(row for row in rows if row["method"] == REFERENCE)
  over = lambda a, b: a / b if b else None
  for row in rows:
    row["ratios"] = {q: over(row[q], ours[q]) for q in QUANTITIES}
    for source in ("paper", "built"):
      row[f"{source}_ratios"] = {
        q: over(row[source][q], ours[source][q]) for q in row[source]
      }
  return rows


def slope(rows, axis, method, quantity, empty) -> dict:
  """Fits the exponent with which a quantity grows along an axis."""
  formula, _ = QUANTITIES[quantity]
  is_time = quantity.endswith("seconds")
  least = WELL_ABOVE * empty if is_time else 0
  at = [r for r in rows if r["axis"] == axis and r["method"] == method]
  if len({r[quantity] for r in at}) > 1:
    at = [r for r in at if r[quantity] > least]
  at = at[-FIT_POINTS:]
  x = [r["at"] for r in at]
  measured, r2 = _exponent(x, [r[quantity] for r in at])
  of = lambda source: _exponent(x, [r[source].get(formula, 0) for r in at])[0]
  found = {
    "quantity": quantity,
    "method": method,
    "axis": axis,
    "fitted_at": x,
    "measured": measured,
    "r2": r2,
    "paper": of("paper"),
    "built": of("built"),
  }
  note = ""
  if is_time:
    floor = {
      r["at"]: r[quantity]
      for r in rows
      if r["axis"] == axis and r["method"] == "truncated"
    }
    note = why(found, at, floor, empty)
  return {**found, "note": note}


def _exponent(x, y):
  """Returns the slope of log y over log x and its R², None where undefined."""
  if len(x) < 2 or min(y) <= 0:
    return None, None
  x, y = np.log(x), np.log(y)
  exponent, offset = np.polyfit(x, y, 1)
  spread = np.square(y - y.mean()).sum()
  if spread < 1e-12:
    return 0.0, None  # No growth at all, and nothing to explain.
  if len(x) < 3:
    return float(exponent), None
  rest = np.square(y - exponent * x - offset).sum()
  return float(exponent), float(1 - rest / spread)


def why(found: dict, at: list[dict], floor: dict, empty: float) -> str:
  """Says why a measured exponent is not the formula's, as far as is known."""
  quantity, method = found["quantity"], METHODS[found["method"]]
  formula, _ = QUANTITIES[quantity]
  measured = found["measured"]
  if measured is None:
    return (
      f"within {WELL_ABOVE} empty calls of {1e6 * empty:.0f} µs: not fitted"
    )
  if len({r[quantity] for r in at}) == 1:
    return SAME
  near = lambda a, b: a is not None and b is not None and abs(a - b) <= CLOSE
  targets = [found["paper"], found["built"]]
  if near(measured, targets[0]):
    return ""
  if near(measured, targets[1]):
    return f"as built: {method.built[formula].text}"
  if formula == "server" and found["method"] != "truncated":
    own, _ = _exponent(
      found["fitted_at"], [r[quantity] - floor[r["at"]] for r in at]
    )
    if any(near(own, target) for target in targets):
      return f"{own:.2f} less what truncated takes, as every estimator does"
  rates = [r["built"][formula] / r[quantity] / 1e9 for r in (at[0], at[-1])]
  if not rates[0]:
    return "nothing is computed"
  cause = "fixed costs and small products still weigh"
  if rates[1] < rates[0]:
    cause = "the rate falls, cause not found"
  return f"{rates[0]:.2g} to {rates[1]:.2g} operations a nanosecond: {cause}"


def print_costs(screen, axis, rows):
  """Prints Table 1, measured."""
  sizes = rows[0]["sizes"]
  symbols = ", ".join(
    f"{s} = {sizes[s]}" for s in ("K", "B", "p", "m", "N_s", "n")
  )
  training = 1e3 * rows[0]["training_seconds"]
  table = rich_table.Table(
    title=f"{axis}: {symbols}",
    caption=f"{CONVENTIONS} Local training itself takes {training:.2g} ms."
    f" {REFERENCE} is the paper's method.",
  )
  times = f"× {REFERENCE}"
  for title in ("", "method", "formula"):
    table.add_column(title)
  for title in ("value", times, f"as built {times}", "measured", times):
    table.add_column(title, justify="right")
  for quantity, (formula, title) in QUANTITIES.items():
    for i, row in enumerate(rows):
      cells = [""] * 4
      if formula:
        cells = [
          METHODS[row["method"]].paper[formula].text,
          _short(row["paper"][formula]),
          _short(row["paper_ratios"][formula]),
          _short(row["built_ratios"].get(formula)),
        ]
      table.add_row(
        "" if i else title,
        row["method"],
        *cells,
        _unit(quantity, row[quantity]),
        _short(row["ratios"][quantity]),
        end_section=row is rows[-1],
      )
  screen.print(table)


def print_slopes(screen, slopes, sweeps):
  """Prints fitted exponents, and why they differ from the formulas."""
  table = rich_table.Table(
    title="exponents: measured (the formula's at the same sizes)",
    caption=f"Fitted to the {FIT_POINTS} largest sizes; ? is R² < {GOOD_FIT}.",
  )
  for title in ("", "method", *sweeps):
    table.add_column(title)
  for (quantity, method), cells in itertools.groupby(
    slopes, lambda s: (s["quantity"], s["method"])
  ):
    shown = []
    for s in cells:
      unsure = s["r2"] is not None and s["r2"] < GOOD_FIT
      cell = _fixed(s["measured"]) + ("?" if unsure else "")
      if QUANTITIES[quantity][0]:
        cell += f" ({_fixed(s['paper'])})"
      shown.append(cell)
    first = method == next(iter(METHODS))
    table.add_row(QUANTITIES[quantity][1] if first else "", method, *shown)
  screen.print(table)
  notes = {}
  for s in slopes:
    if s["note"] not in ("", SAME) and s["method"] != "truncated":
      about_it = QUANTITIES[s["quantity"]][1], s["method"], s["note"]
      notes.setdefault(about_it, []).append(s["axis"])
  for (quantity, method, note), at in notes.items():
    screen.print(f"{quantity}, {method}, {', '.join(at)}: {note}",
                 highlight=False)  # fmt: skip


def _fixed(value):
  return "–" if value is None else f"{value:.2f}"


def _short(value):
  return "–" if value is None else f"{value:.3g}"


def _unit(quantity, value):
  if quantity.endswith("seconds"):
    return f"{1e3 * value:.3g} ms"
  return f"{value / 1e6:.3g} MB" if "bytes" in quantity else f"{value:.5g}"


def draw(rows, sweeps) -> bytes:
  """Draws what grows how: a row of panels a quantity, a column a size."""
  shown = ("server_seconds", "client_seconds", "upload_models")
  figure = matplotlib.figure.Figure(
    (2.6 * max(2, len(sweeps)), 7.6), layout="constrained"
  )
  axes = figure.subplots(
    len(shown), max(1, len(sweeps)), squeeze=False, sharex="col", sharey="row"
  )
  for (i, quantity), (j, axis) in itertools.product(
    enumerate(shown), enumerate(sweeps)
  ):
    ax = axes[i, j]
    for name, colour in zip(METHODS, figures.COLOURS, strict=False):
      at = [r for r in rows if r["axis"] == axis and r["method"] == name]
      _line(ax, at, quantity, name, colour)
    ax.set(xscale="log", yscale="log")
    ticks = sorted({r["at"] for r in rows if r["axis"] == axis})
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
  titles = {"B=K": "K, all take part", "K": "K, B take part"}
  for j, axis in enumerate(sweeps):
    axes[-1, j].set_xlabel(titles.get(axis, axis))
  for i, quantity in enumerate(shown):
    unit = ", s" if "seconds" in quantity else ""
    axes[i, 0].set_ylabel(QUANTITIES[quantity][1] + unit)
  _legend(figure, axes[0, 0])
  matplotlib.backends.backend_agg.FigureCanvasAgg(figure)
  made = io.BytesIO()
  figure.savefig(made, dpi=figures.DPI)
  return made.getvalue()


def _line(ax, at, quantity, name, colour):
  """A method's measurements, and its formula through the last of them."""
  formula, _ = QUANTITIES[quantity]
  x, y = [r["at"] for r in at], np.array([r[quantity] for r in at])
  if not y.all():
    return
  # relu lies on both where they upload the same.
  style = "o--" if name == "relu" else "o-"
  ax.plot(x, y, style, ms=3.5, color=colour, label=name)
  predicted = np.array([r["paper"][formula] for r in at], float)
  if predicted.all() and "seconds" in quantity:
    predicted *= y[-1] / predicted[-1]
    ax.plot(x, predicted, ":", lw=1.1, color=colour)


def _legend(figure, ax):
  handles, labels = ax.get_legend_handles_labels()
  dotted = matplotlib.lines.Line2D([], [], ls=":", lw=1.1, color=figures.MUTED)
  figure.legend(
    [*handles, dotted],
    [*labels, "the paper's formula, through the last point"],
    loc="outside lower center",
    ncols=len(METHODS) + 1,
  )


if __name__ == "__main__":
  launch.run(main)
