"""Recipes become tasks: data, a model, its training and what is estimated."""

from collections.abc import Callable
import math

import ml_collections
import optax

from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import memory
from fedinf_jax import selection
from fedinf_jax.data import corrupt
from fedinf_jax.recipes import estimators as named
from fedinf_jax.recipes import keys
from fedinf_jax.recipes import models
from fedinf_jax.recipes import problems
from fedinf_jax.recipes import server as servers
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.simulation import devices
from fedinf_jax.valuation import owners

# Standard deviations of the inputs. Little noise does no harm: with 0.4 of
# them, quickstart was better with the noisy clients than without.
NOISE = 6.0


def _add_noise(data, count, *, seed):
  """Adds noise that is strong enough to harm."""
  scale = NOISE * float(data.x.std())
  return corrupt.add_noise(data, count, scale=scale, seed=seed)


CORRUPTIONS: dict[str, Callable] = {
  "flip_labels": corrupt.flip_labels,
  "add_noise": _add_noise,
  "free_rider": corrupt.free_rider,
  "duplicate": corrupt.duplicate,
}
# Of the clients, from a learning rate; None: plain gradient descent.
OPTIMIZERS = {
  "sgd": None,
  "momentum": lambda rate: optax.sgd(rate, momentum=0.9),
  "adam": optax.adam,
}


def scaled(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Shrinks rounds, clients and examples together by `config.scale`."""
  keys.check(config)
  scale = config.scale
  if not 0 < scale <= 1:
    raise ValueError(f"scale is {scale}; it must be above 0 and at most 1")
  config = config.copy_and_resolve_references()
  if scale < 1:
    shrink = lambda n, least: max(least, round(scale * n))
    config.fed.rounds = shrink(config.fed.rounds, 2)
    config.evaluate_every = shrink(config.evaluate_every, 1)
    config.cleanse_round = shrink(config.cleanse_round, 1)
    config.server_examples = shrink(
      config.server_examples, min(10, config.server_examples)
    )
    if not keys.is_own(config):
      least = min(config.data.num_clients, 2 * config.fed.cohort_size)
      config.data.num_clients = shrink(config.data.num_clients, least)
    if config.data.kind in keys.IMAGES:
      config.data.examples = shrink(config.data.examples, 5)
      config.data.test_examples = shrink(config.data.test_examples, 20)
  return config


def check(config: ml_collections.ConfigDict):
  """Checks all of a recipe that can be checked before its data are made."""
  keys.check(config)
  if config.corrupt.kind:
    if config.corrupt.kind not in CORRUPTIONS:
      raise ValueError(
        f"corrupt.kind is {config.corrupt.kind!r}; it must be one of"
        f" {', '.join(CORRUPTIONS)}"
      )
    if not 0 < config.corrupt.fraction < 1:
      raise ValueError(
        f"corrupt.fraction is {config.corrupt.fraction}; it must lie between 0"
        " and 1"
      )
  if config.data.kind in keys.IMAGES:  # One knows how many there are.
    _explained(config, config.data.test_examples)
  checks.one_of("server_from", config.server_from, tuple(servers.SOURCES))
  if keys.is_own(config) and config.server_from == "stand_in":
    raise ValueError('server_from is "stand_in"; there is none for own data')
  checks.seed(config.seed)
  fed(config)
  own = keys.is_own(config)
  if not own:
    model = models.KINDS[config.model.kind](config.model, 60, 5)
    keys.check_memory(config, memory.tree_bytes(model.param_shapes()))
  estimators = named.build(config.estimators)
  passes = named.passes(names(config))
  serving = named.serving(names(config))
  if serving and not config.server_examples:
    raise ValueError(
      f"estimators: {serving[0]!r} needs examples of the server's own; set"
      " --config.server_examples to their number"
    )
  repeat_clients(config)
  most = None if own else config.data.num_clients
  exact = exact_rows(config.exact, most, config.seed)
  there = [*estimators, *passes]
  if isinstance(exact, records.Top) and exact.by not in there:
    raise ValueError(
      f"exact is {config.exact!r}; the run has the estimators"
      f" {', '.join(there)}"
    )
  if _mesh(config) != "auto":
    # To count the devices would start JAX before other processes can join.
    devices.parse_shape(_mesh(config))


def check_kinds(kinds: list[str]):
  """Checks the kinds of bad clients of a command line."""
  if not kinds:
    raise ValueError(f"--kinds is empty; there are {', '.join(CORRUPTIONS)}")
  for kind in kinds:
    if kind not in CORRUPTIONS:
      raise ValueError(
        f"--kinds: {kind!r} is unknown; there are {', '.join(CORRUPTIONS)}"
      )


def build(
  name: str,
  config: ml_collections.ConfigDict,
  data_dir: str | None = None,
  get_problem: Callable | None = None,
) -> tasks.Task:
  """Makes or reads the data of a (scaled) recipe, and all that belongs to them.

  Args:
    name: of the recipe.
    config: the recipe.
    data_dir: FEMNIST as LEAF's folder, a prepared TFDS folder, or an .npz of
      writers; None: glyph writers stand in for it.
    get_problem: config -> Problem, for a recipe whose data are its own.
  """
  check(config)
  mesh = devices.parse(_mesh(config))
  problem = _problem(config, data_dir, get_problem)
  train, bad = _corrupted(problem.train, config.corrupt, config.seed)
  server, measured = servers.part(config, problem)
  pool = len(server.x) if server else None
  estimators = named.build(config.estimators, pool)
  passes = named.passes(names(config), pool)
  exact = exact_rows(config.exact, train.num_clients, config.seed)
  repeats = config.get("exact_repeats", 1) if exact else 1
  unused = {"mesh", "explain"} | (set() if passes else {"adjoint_rounds"})
  if repeats == 1:
    unused.update(keys.REPEATS)
  recipe = {k: v for k, v in config.to_dict().items() if k not in unused}
  return tasks.Task(
    name=name,
    model=problem.model
    or models.KINDS[config.model.kind](
      config.model, train.x.shape[1], train.num_classes
    ),
    train=train,
    x=measured.x,
    y=measured.y,
    owners=_owners(measured, train.ids),
    explain=_explained(config, len(measured.x)),
    server_data=server,
    fed=fed(config),
    recipe=recipe,
    estimators=estimators,
    passes=passes,
    pass_rounds=config.get("adjoint_rounds", 1),
    descriptions={
      n: named.describe(n, pool) for n in named.split(names(config))
    },
    exact=exact,
    exact_repeats=repeats,
    repeat_clients=repeat_clients(config),
    jitter=config.get("jitter", 1e-5),
    seed=config.seed,
    mesh=mesh,
    evaluate_every=config.evaluate_every,
    tracked=config.tracked,
    keep_rounds=frozenset({config.cleanse_round} - {0}),
    source=problem.source,
    stand_in=problem.source == problems.GLYPHS,
    bad=bad,
  )


def _problem(config, data_dir, get_problem):
  """Returns what a recipe trains on; its own function may say what that is."""
  if not keys.is_own(config):
    if get_problem is not None:
      raise ValueError(
        f"data.kind is {config.data.kind!r}, and the recipe has get_problem; to"
        f" use that, set data.kind to {keys.OWN!r}"
      )
    return problems.READERS[config.data.kind](config, data_dir)
  if get_problem is None:
    raise ValueError(
      f"data.kind is {keys.OWN!r}: only the recipe that brings these data, with"
      " its get_problem(config), can make them"
    )
  return problems.check(
    checks.call("get_problem(config) fails", get_problem, config)
  )


def names(config: ml_collections.ConfigDict) -> str:
  """Returns the estimators of a recipe, the one that screens among them."""
  top = records.read_top(config.exact)
  wanted = named.split(config.estimators)
  if top and top.by == named.ADJOINT and top.by not in wanted:
    wanted.append(top.by)
  return ",".join(wanted)


def exact_rows(exact: str, num_clients: int | None, seed: int):
  """Reads which clients to replay.

  Args:
    exact: "all", "none", a number of clients, drawn at random, or "top:20" and
      "top:20:NAME", those that a screening calls the extremes.
    num_clients: K; None: not known yet, and only the text is checked.
    seed: of the draw.

  Returns:
    True, False, a list of positions, or records.Top.
  """
  if exact in ("all", "none"):
    return exact == "all"
  top = records.read_top(exact)
  most = math.inf if num_clients is None else num_clients
  if top is not None and 0 < top.count <= most:
    return top
  if not exact.isdecimal() or not 0 < int(exact) <= most:
    up_to = "" if num_clients is None else f" up to {num_clients}"
    raise ValueError(
      f'exact is {exact!r}; it must be "all", "none" or a number of clients'
      f"{up_to}, or top:NUMBER or top:NUMBER:ESTIMATOR"
    )
  if num_clients is None:
    return True
  return selection.draw(int(exact), num_clients, seed).tolist()


def repeat_clients(config: ml_collections.ConfigDict) -> int | None:
  """Reads of how many clients the exact replay is repeated; None: all."""
  count = config.get("repeat_clients", "all")
  if count == "all":
    return None
  # Fewer than three have no correlation.
  if not count.isdecimal() or int(count) < 3:
    raise ValueError(
      f'repeat_clients is {count!r}; it must be "all" or a number of clients,'
      " at least 3"
    )
  return int(count)


def _owners(measured, ids):
  """Returns whose examples influence is measured on; None: nobody's."""
  if measured.ids == (problems.NOBODY,):
    return None
  return owners.read(measured, len(measured.x), ids)


def _explained(config, num_examples):
  """Returns the example to explain; None: none."""
  index = config.get("explain", -1)
  if index >= num_examples:
    raise ValueError(
      f"explain is {index}; the test examples are numbered 0 to"
      f" {num_examples - 1} (-1: explain none)"
    )
  return None if index < 0 else index


def _mesh(config):
  # The recipe in a workdir says nothing about devices.
  return config.get("mesh", "none")


def fed(config: ml_collections.ConfigDict) -> fedavg.FedAvg:
  """Returns how a recipe trains."""
  checks.one_of(
    "fed.optimizer", config.fed.get("optimizer", "sgd"), tuple(OPTIMIZERS)
  )
  given = {**config.fed, "batch_size": config.fed.batch_size or None}
  optimizer = OPTIMIZERS[given.pop("optimizer", "sgd")]
  if optimizer is not None:
    given["client_optimizer"] = optimizer(given.pop("learning_rate"))
  return fedavg.FedAvg(**given)


def _corrupted(train, corrupt, seed):
  """Plants bad clients; returns the data and their ids."""
  if not corrupt.kind:
    return train, ()
  count = max(1, round(corrupt.fraction * train.num_clients))
  return CORRUPTIONS[corrupt.kind](train, count, seed=seed)
