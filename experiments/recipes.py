"""What a recipe describes: clients, a test set, a model and its training."""

import hashlib
import math
import os
import pathlib
from typing import NamedTuple

import ml_collections
import numpy as np

import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax.data import partition

GLYPHS = "glyph writers (made here, a stand-in for FEMNIST)"


class Problem(NamedTuple):
  """Everything that a recipe says about the task."""

  train: fi.FederatedData
  x: np.ndarray  # [N, ...] test inputs
  y: np.ndarray  # [N] test labels
  model: fi.Model
  fed: fi.FedAvg
  source: str  # where the data are from, in words
  stand_in: bool  # the data stand in for those of the paper
  bad: tuple  # ids of clients that were corrupted on purpose


def scaled(config: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Shrinks rounds, clients and examples together by `config.scale`."""
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
    if config.data.kind != "synthetic":
      config.data.examples = shrink(config.data.examples, 5)
      config.data.test_examples = shrink(config.data.test_examples, 20)
  return config


def build(config: ml_collections.ConfigDict, data_dir: str | None) -> Problem:
  """Makes or reads the data of a (scaled) recipe, and its model.

  Args:
    config: the recipe.
    data_dir: FEMNIST as LEAF's folder, a prepared TFDS folder, or an .npz of
      writers; None: glyph writers stand in for it.
  """
  data, seed = config.data, config.seed
  if data.kind == "synthetic":
    source = "LEAF synthetic data (made here)"
    everyone = fi.data.synthetic(num_clients=data.num_clients)
    if config.scale < 1:
      everyone = everyone.split(max(config.scale, 0.1), seed=0)[0]
    train, test = everyone.split(data.train_fraction, seed=seed)
    x, y = test.pooled()
  elif data.kind in ("femnist_iid", "femnist_by_writer"):
    train, x, y, source = _femnist(data, data_dir, seed)
  else:
    raise ValueError(
      f"data.kind is {data.kind!r}; it must be synthetic, femnist_iid or"
      " femnist_by_writer"
    )
  train, bad = _corrupted(train, config.corrupt, seed)
  fed = {**config.fed, "batch_size": config.fed.batch_size or None}
  return Problem(
    train,
    x,
    y,
    _model(config.model, train),
    fi.FedAvg(**fed),
    source,
    source == GLYPHS,
    bad,
  )


def digest(problem: Problem) -> str:
  """Returns a fingerprint of the data."""
  made = hashlib.blake2b(digest_size=16)
  train = problem.train
  for a in (train.x, train.y, train.num_examples, problem.x, problem.y):
    made.update(f"{a.dtype} {a.shape}".encode())
    made.update(np.ascontiguousarray(a))
  made.update("\n".join(map(str, train.ids)).encode())
  return made.hexdigest()


def exact_rows(exact: str, num_clients: int, seed: int):
  """Reads "all", "none" or a number of clients to replay, drawn at random."""
  if exact in ("all", "none"):
    return exact == "all"
  if not exact.isdecimal() or not 0 < int(exact) <= num_clients:
    raise ValueError(
      f'exact is {exact!r}; it must be "all", "none" or a number of clients up'
      f" to {num_clients}"
    )
  draw = np.random.default_rng(seed)
  return sorted(draw.permutation(num_clients)[: int(exact)].tolist())


def _model(config, train):
  if config.kind == "logreg":
    return fi.models.logreg(
      train.x.shape[1], train.num_classes, config.logit_activation or None
    )
  if config.kind == "cnn":
    return fi.models.cnn(
      train.num_classes,
      widths=tuple(config.widths),
      dense=config.dense,
      activation=config.activation or None,
      pool=config.pool,
    )
  raise ValueError(f"model.kind is {config.kind!r}; it must be logreg or cnn")


def _femnist(data, data_dir, seed):
  """Returns (train, test x, test y, source) at the size of the recipe."""
  train, x, y, source = _read_femnist(data, data_dir, seed)
  if data.kind == "femnist_by_writer":
    if train.num_clients < data.num_clients:
      raise ValueError(
        f"data.num_clients is {data.num_clients}; the data have"
        f" {train.num_clients} writers"
      )
    # Those with the most images: the others could not fill a round.
    largest = np.argsort(-train.num_examples, kind="stable")
    train = train.take(np.sort(largest[: data.num_clients]).tolist())
    train = _at_most(train, data.examples, seed)
  else:
    wanted = data.num_clients * data.examples
    if len(train.x) < wanted:
      raise ValueError(
        f"{data.num_clients} clients of {data.examples} examples need {wanted}"
        f" images; the data have {len(train.x)}"
      )
    some = np.random.default_rng(seed).permutation(len(train.x))[:wanted]
    train = partition.iid(
      train.x[some],
      train.y[some],
      num_clients=data.num_clients,
      seed=seed,
      num_classes=train.num_classes,
    )
  if len(x) > data.test_examples:
    some = np.random.default_rng(seed + 1).permutation(len(x))
    some = np.sort(some[: data.test_examples])
    x, y = x[some], y[some]
  return train, x, y, source


def _read_femnist(data, data_dir, seed):
  if data_dir is None:
    each = math.ceil(data.test_examples / data.num_clients)
    writers = fi.data.glyphs(data.num_clients, data.examples + each, seed=seed)
    train, test = writers.split(data.examples / (data.examples + each), seed)
    return train, *test.pooled(), GLYPHS
  path = pathlib.Path(data_dir)
  if not os.access(path, os.R_OK):
    problem = "cannot be read" if path.exists() else "does not exist"
    raise ValueError(
      f"--data_dir={data_dir} {problem}; it must be LEAF's folder, a prepared"
      " TFDS folder or an .npz of writers"
    )
  femnist = fi.data.femnist
  if path.is_file():
    read, source = femnist.from_npz, "FEMNIST from an .npz of writers"
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
  return train, *test.pooled(), source


def _at_most(train, examples, seed):
  """Keeps at most so many examples of each client, by a draw of its own."""
  words = rng.id_words(train.ids)
  kept = []
  for k, (x, y) in enumerate(train.clients()):
    draw = rng.host_generator(seed, rng.Stream.SPLIT, words[k])
    some = np.sort(draw.permutation(len(x))[:examples])
    kept.append((x[some], y[some]))
  return fi.FederatedData.from_clients(kept, train.ids, train.num_classes)


def _corrupted(train, corrupt, seed):
  """Plants bad clients; returns the data and their ids."""
  if not corrupt.kind:
    return train, ()
  if not 0 < corrupt.fraction < 1:
    raise ValueError(
      f"corrupt.fraction is {corrupt.fraction}; it must lie between 0 and 1"
    )
  plant = getattr(fi.data.corrupt, corrupt.kind, None)
  if plant is None:
    raise ValueError(
      f"corrupt.kind is {corrupt.kind!r}; it must be flip_labels, add_noise,"
      " free_rider or duplicate"
    )
  count = max(1, round(corrupt.fraction * train.num_clients))
  return plant(train, count, seed=seed)
