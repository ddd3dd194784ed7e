"""Recipes become tasks: data, a model, its training and what is estimated."""

from collections.abc import Callable
import math
import os
import pathlib
from typing import NamedTuple

import ml_collections
import numpy as np

from experiments import estimators as named
from experiments import recipe_keys
import fedinf_jax as fi
from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import rng
from fedinf_jax import selection
from fedinf_jax.data import partition
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.simulation import devices
from fedinf_jax.valuation import owners

NOBODY = "nobody"  # owns examples that are no client's
GLYPHS = "glyph writers (made here, a stand-in for FEMNIST)"
CORRUPTIONS = {
  "flip_labels": fi.data.corrupt.flip_labels,
  "add_noise": fi.data.corrupt.add_noise,
  "free_rider": fi.data.corrupt.free_rider,
  "duplicate": fi.data.corrupt.duplicate,
}


class Examples(NamedTuple):
  """What a recipe reads or makes."""

  train: fi.FederatedData  # the clients
  held_out: fi.FederatedData
  # Of the same population, but nobody trains on them; None: there are none.
  spare: fi.FederatedData | None
  source: str  # in words


def scaled(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Shrinks rounds, clients and examples together by `config.scale`."""
  recipe_keys.check(config)
  scale = config.scale
  if not 0 < scale <= 1:
    raise ValueError(f"scale is {scale}; it must be above 0 and at most 1")
  config = config.copy_and_resolve_references()
  if scale < 1:
    shrink = lambda n, least: max(least, round(scale * n))
    least = min(config.data.num_clients, 2 * config.fed.cohort_size)
    config.fed.rounds = shrink(config.fed.rounds, 2)
    config.data.num_clients = shrink(config.data.num_clients, least)
    config.evaluate_every = shrink(config.evaluate_every, 1)
    config.cleanse_round = shrink(config.cleanse_round, 1)
    config.server_examples = shrink(
      config.server_examples, min(10, config.server_examples)
    )
    if config.data.kind != "synthetic":
      config.data.examples = shrink(config.data.examples, 5)
      config.data.test_examples = shrink(config.data.test_examples, 20)
  return config


def check(config: ml_collections.ConfigDict):
  """Checks all of a recipe that can be checked before its data are made."""
  recipe_keys.check(config)
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
  if config.data.kind != "synthetic":  # Of those one knows how many there are.
    _explained(config, config.data.test_examples)
  checks.one_of("server_from", config.server_from, tuple(SERVER_FROM))
  checks.seed(config.seed)
  _fed(config)
  model = _MODELS[config.model.kind](config.model, 60, 5)
  recipe_keys.check_memory(config, memory.tree_bytes(model.param_shapes()))
  estimators = named.build(config.estimators)
  passes = named.passes(names(config))
  serving = [n for n, e in estimators.items() if e.curvature.serve is not None]
  serving += [n for n, p in passes.items() if p.curvature is not None]
  if serving and not config.server_examples:
    raise ValueError(
      f"estimators: {serving[0]!r} needs examples of the server's own; set"
      " --config.server_examples to their number"
    )
  repeat_clients(config)
  exact = exact_rows(config.exact, config.data.num_clients, config.seed)
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
  name: str, config: ml_collections.ConfigDict, data_dir: str | None
) -> tasks.Task:
  """Makes or reads the data of a (scaled) recipe, and all that belongs to them.

  Args:
    name: of the recipe.
    config: the recipe.
    data_dir: FEMNIST as LEAF's folder, a prepared TFDS folder, or an .npz of
      writers; None: glyph writers stand in for it.
  """
  check(config)
  mesh = devices.parse(_mesh(config))
  read = _READERS[config.data.kind]
  examples = read(config, data_dir)
  train, bad = _corrupted(examples.train, config.corrupt, config.seed)
  server, measured = _server_part(config, examples)
  pool = len(server.x) if server else None
  estimators = named.build(config.estimators, pool)
  passes = named.passes(names(config), pool)
  exact = exact_rows(config.exact, train.num_clients, config.seed)
  repeats = config.get("exact_repeats", 1) if exact else 1
  unused = {"mesh", "explain"} | (set() if passes else {"adjoint_rounds"})
  if repeats == 1:
    unused.update(recipe_keys.REPEATS)
  recipe = {k: v for k, v in config.to_dict().items() if k not in unused}
  return tasks.Task(
    name=name,
    model=_MODELS[config.model.kind](
      config.model, train.x.shape[1], train.num_classes
    ),
    train=train,
    x=measured.x,
    y=measured.y,
    owners=_owners(measured, train.ids),
    explain=_explained(config, len(measured.x)),
    server_data=server,
    fed=_fed(config),
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
    source=examples.source,
    stand_in=examples.source == GLYPHS,
    bad=bad,
  )


def names(config: ml_collections.ConfigDict) -> str:
  """Returns the estimators of a recipe, the one that screens among them."""
  top = records.read_top(config.exact)
  wanted = named.split(config.estimators)
  if top and top.by == named.ADJOINT and top.by not in wanted:
    wanted.append(top.by)
  return ",".join(wanted)


def exact_rows(exact: str, num_clients: int, seed: int):
  """Reads which clients to replay.

  Args:
    exact: "all", "none", a number of clients, drawn at random, or "top:20" and
      "top:20:NAME", those that a screening calls the extremes.
    num_clients: K.
    seed: of the draw.

  Returns:
    True, False, a list of positions, or records.Top.
  """
  if exact in ("all", "none"):
    return exact == "all"
  top = records.read_top(exact)
  if top is not None and 0 < top.count <= num_clients:
    return top
  if not exact.isdecimal() or not 0 < int(exact) <= num_clients:
    raise ValueError(
      f'exact is {exact!r}; it must be "all", "none" or a number of clients up'
      f" to {num_clients}, or top:NUMBER or top:NUMBER:ESTIMATOR"
    )
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


def _server_part(config, examples):
  """Finds the server's examples for curvature.

  Returns:
    Those of the server; None: it has none. And those that influence is
    measured on: what the server leaves of the held-out examples, at least half.
  """
  held_out, wanted = examples.held_out, config.server_examples
  if not wanted:
    return None, held_out
  order = lambda data: np.random.default_rng([config.seed, 5]).permutation(
    len(data.x)
  )
  if config.server_from == "others":
    spare = examples.spare
    if spare is None:
      raise ValueError(
        'server_from is "others"; the clients train on all examples there are'
      )
    return spare.with_examples(order(spare)[:wanted]), held_out
  count, drawn = min(wanted, len(held_out.x) // 2), order(held_out)
  server = held_out.with_examples(drawn[:count])
  server = SERVER_FROM[config.server_from](config, server)
  return server, held_out.with_examples(drawn[count:])


def _owners(measured, ids):
  """Returns whose examples influence is measured on; None: nobody's."""
  if measured.ids == (NOBODY,):
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


def _as_they_are(config, server):
  del config
  return server


def _skewed(config, server):
  """Keeps the lower half of the classes, of what the server would have."""
  del config
  kept = server.y <= np.median(server.y)
  return server.with_examples(np.flatnonzero(kept))


def _stand_in(config, server):
  """Makes as many examples of another population: public data, say."""
  x, y = server.pooled()
  if config.data.kind == "synthetic":
    count = min(200, config.data.num_clients)
    others = fi.data.synthetic(num_clients=count, seed=config.seed)
  else:
    others = fi.data.glyphs(20, math.ceil(len(x) / 20), seed=config.seed + 1)
  pool, labels = others.pooled()
  some = np.random.default_rng([config.seed, 6]).permutation(len(pool))
  some = some[: len(x)]
  return _nobody_s(pool[some].astype(x.dtype), labels[some].astype(y.dtype))


def _nobody_s(x, y):
  """Returns examples that are no client's own."""
  return fi.FederatedData.from_clients({NOBODY: (x, y)})


def _mesh(config):
  # The recipe in a workdir says nothing about devices.
  return config.get("mesh", "none")


def _fed(config):
  return fi.FedAvg(
    **{**config.fed, "batch_size": config.fed.batch_size or None}
  )


def _logreg(config, num_features, num_classes):
  return fi.models.logreg(
    num_features, num_classes, config.logit_activation or None
  )


def _cnn(config, num_features, num_classes):
  del num_features  # It takes images of one size.
  return fi.models.cnn(
    num_classes,
    widths=tuple(config.widths),
    dense=config.dense,
    activation=config.activation or None,
    pool=config.pool,
  )


def _synthetic(config, data_dir):
  del data_dir  # These data are always made.
  count = config.data.num_clients
  # The first clients are the same, however many follow.
  others = max(1, count // 4) if config.server_from == "others" else 0
  everyone = fi.data.synthetic(num_clients=count + others)
  if config.scale < 1:
    everyone = everyone.split(max(config.scale, 0.1), seed=0)[0]
  clients = everyone.take(range(count))
  train, test = clients.split(config.data.train_fraction, seed=config.seed)
  return Examples(
    train=train,
    held_out=test,
    spare=everyone.take(range(count, count + others)) if others else None,
    source="LEAF synthetic data (made here)",
  )


def _by_writer(config, data_dir):
  """Reads clients that are writers."""
  data, seed = config.data, config.seed
  writers, test, source = _femnist(config, data_dir)
  if writers.num_clients < data.num_clients:
    raise ValueError(
      f"data.num_clients is {data.num_clients}; the data have"
      f" {writers.num_clients} writers"
    )
  # Those with the most images: the others could not fill a round.
  largest = np.argsort(-writers.num_examples, kind="stable")
  clients = np.sort(largest[: data.num_clients])
  used = _at_most(writers, clients, data.examples, seed)
  return Examples(
    train=writers.with_examples(used),
    held_out=test,
    spare=_without(writers, used),
    source=source,
  )


def _iid(config, data_dir):
  """Reads images and mixes them: no client is a writer."""
  data, seed = config.data, config.seed
  writers, test, source = _femnist(config, data_dir)
  wanted = data.num_clients * data.examples
  if len(writers.x) < wanted:
    raise ValueError(
      f"{data.num_clients} clients of {data.examples} examples need {wanted}"
      f" images; the data have {len(writers.x)}"
    )
  some = np.random.default_rng(seed).permutation(len(writers.x))[:wanted]
  train = partition.iid(
    writers.x[some],
    writers.y[some],
    num_clients=data.num_clients,
    seed=seed,
    num_classes=writers.num_classes,
  )
  spare = _without(writers, some)
  return Examples(
    train=train,
    held_out=_nobody_s(*test.pooled()),
    spare=spare and _nobody_s(*spare.pooled()),
    source=source,
  )


def _femnist(config, data_dir):
  """Returns (writers, test, source), the test set cut to size."""
  data, seed = config.data, config.seed
  train, test, source = read_femnist(config, data_dir)
  if len(test.x) > data.test_examples:
    some = np.random.default_rng(seed + 1).permutation(len(test.x))
    test = test.with_examples(some[: data.test_examples])
  return train, test, source


def read_femnist(
  config: ml_collections.ConfigDict | None, data_dir: str | None
) -> tuple[fi.FederatedData, fi.FederatedData, str]:
  """Reads FEMNIST by writer: (train, test, source).

  Args:
    config: says which glyph writers to make where no folder is given.
    data_dir: see `build`.
  """
  if data_dir is None:
    return *_glyphs(config), GLYPHS
  path = pathlib.Path(data_dir)
  for place in (path, *path.rglob("*")):
    # To open a pipe would wait for somebody to write into it.
    if place.exists() and not (place.is_file() or place.is_dir()):
      raise ValueError(f"--data_dir: {place} is neither a file nor a folder")
  if not os.access(path, os.R_OK):
    problem = "cannot be read" if path.exists() else "does not exist"
    raise ValueError(
      f"--data_dir={data_dir} {problem}; it must be LEAF's folder, a prepared"
      " TFDS folder or an .npz of writers"
    )
  femnist = fi.data.femnist
  read: Callable[..., fi.FederatedData] = femnist.from_npz
  if path.is_file():
    source = "FEMNIST from an .npz of writers"
  elif any(path.rglob("*.json")) and not any(path.rglob("*array_record*")):
    read, source = femnist.from_leaf, "FEMNIST from LEAF's JSON"
  else:
    read, source = femnist.from_tfds, "FEMNIST from TFDS"
  train = read(path)
  try:
    test = read(path, split="test")
  except ValueError as error:
    raise ValueError(f"--data_dir={data_dir} has no test part: {error}") from (
      error
    )
  return train, test, source


def _glyphs(config):
  """Makes writers of images enough to train on, to spare and to hold out."""
  data, seed = config.data, config.seed
  each = lambda count: math.ceil(count / data.num_clients)
  known, test = data.examples, each(data.test_examples)
  if config.server_from == "others":
    known += each(config.server_examples)
  writers = fi.data.glyphs(data.num_clients, known + test, seed=seed)
  return writers.split(known / (known + test), seed)


def _at_most(writers, clients, examples, seed):
  """Draws at most `examples` of each of some writers, as rows of all of them.

  Each has a draw of its own.
  """
  words, rows = rng.id_words(writers.ids), []
  for k in clients:
    draw = rng.host_generator(seed, rng.Stream.SPLIT, words[k])
    some = draw.permutation(writers.num_examples[k])[:examples]
    rows.append(writers.offsets[k] + some)
  return np.concatenate(rows)


def _without(data, rows):
  """Returns the examples but those in some rows; None: there are no others."""
  others = np.setdiff1d(np.arange(len(data.x)), rows)
  return data.with_examples(others) if len(others) else None


def _corrupted(train, corrupt, seed):
  """Plants bad clients; returns the data and their ids."""
  if not corrupt.kind:
    return train, ()
  count = max(1, round(corrupt.fraction * train.num_clients))
  return CORRUPTIONS[corrupt.kind](train, count, seed=seed)


# Where the server's examples are from.
SERVER_FROM = {
  "held_out": _as_they_are,
  "others": None,  # Examples.spare: nothing is made of held-out ones.
  "skewed": _skewed,
  "stand_in": _stand_in,
}
_READERS = {
  "synthetic": _synthetic,
  "femnist_iid": _iid,
  "femnist_by_writer": _by_writer,
}
_MODELS = {"logreg": _logreg, "cnn": _cnn}
