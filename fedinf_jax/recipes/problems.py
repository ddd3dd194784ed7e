"""What recipes train on: clients and held-out examples, read or made."""

from collections.abc import Callable
import math
import os
import pathlib
from typing import NamedTuple

import ml_collections
import numpy as np

from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.data import femnist
from fedinf_jax.data import glyph_writers
from fedinf_jax.data import leaf_synthetic
from fedinf_jax.data import partition

NOBODY = "nobody"  # owns examples that are no client's
GLYPHS = "glyph writers (made here, a stand-in for FEMNIST)"


class Problem(NamedTuple):
  """What a recipe trains on, and what it measures influence on."""

  train: federated.FederatedData  # the clients
  # Theirs, or `unowned`; influence is measured on these.
  held_out: federated.FederatedData
  source: str  # in words
  # None: the recipe's own keys say which.
  model: types.Model | None = None
  # Of the same population, but nobody trains on them; None: there are none.
  spare: federated.FederatedData | None = None


def check(problem: Problem) -> Problem:
  """Checks what a recipe's own get_problem has returned.

  Raises:
    ValueError: naming the field that is wrong.
  """
  if not isinstance(problem, Problem):
    raise ValueError(
      f"get_problem returned a {type(problem).__name__}; it must return a"
      " recipes.Problem"
    )
  for field in ("train", "held_out", "spare"):
    value = getattr(problem, field)
    if isinstance(value, federated.FederatedData):
      continue
    if field != "spare" or value is not None:
      raise ValueError(
        f"get_problem: {field} is a {type(value).__name__}; it must be a"
        " FederatedData (recipes.unowned(x, y) makes one of nobody's examples)"
      )
  if not isinstance(problem.model, types.Model):
    raise ValueError(
      f"get_problem: model is a {type(problem.model).__name__}; it must be a"
      " fi.Model"
    )
  if not isinstance(problem.source, str):
    raise ValueError(f"get_problem: source is {problem.source!r}; it is a text")
  return problem


def unowned(x: np.ndarray, y: np.ndarray) -> federated.FederatedData:
  """Returns examples [N, ...] that are no client's own."""
  return federated.FederatedData.from_clients({NOBODY: (x, y)})


def _synthetic(config, data_dir):
  del data_dir  # These data are always made.
  count = config.data.num_clients
  # The first clients are the same, however many follow.
  others = max(1, count // 4) if config.server_from == "others" else 0
  everyone = leaf_synthetic.synthetic(num_clients=count + others)
  if config.scale < 1:
    everyone = everyone.split(max(config.scale, 0.1), seed=0)[0]
  clients = everyone.take(range(count))
  train, test = clients.split(config.data.train_fraction, seed=config.seed)
  return Problem(
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
  return Problem(
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
  return Problem(
    train=train,
    held_out=unowned(*test.pooled()),
    spare=spare and unowned(*spare.pooled()),
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
) -> tuple[federated.FederatedData, federated.FederatedData, str]:
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
  read: Callable[..., federated.FederatedData] = femnist.from_npz
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
  writers = glyph_writers.glyphs(data.num_clients, known + test, seed=seed)
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


READERS = {
  "synthetic": _synthetic,
  "femnist_iid": _iid,
  "femnist_by_writer": _by_writer,
}
