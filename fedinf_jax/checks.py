"""Checks of what a user hands to a run: each error names what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import influence
from fedinf_jax import rng


def seed(seed):
  """Checks a seed."""
  if (
    isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32
  ):
    raise ValueError(f"seed is {seed!r}; it must be an integer in 0 … 2^32 - 1")


def chunk(name, value):
  """Checks a chunk size; None is as good."""
  if value is not None and (isinstance(value, bool) or value < 1):
    raise ValueError(f"{name} is {value}; it must be >= 1")


def estimators(estimators):
  """Returns the estimators as a dictionary."""
  for name, e in (estimators or {}).items():
    if name == "exact":
      raise ValueError('estimators: "exact" is the name of the ground truth')
    if not isinstance(e, influence.Estimator):
      raise ValueError(
        f"estimators: {name!r} is not an estimator(curvature, guard)"
      )
  return dict(estimators or {})


def params(params, model, seed):
  """Returns w_0: drawn from the seed, or the caller's if it fits the model."""
  key = rng.stream_key(seed, rng.Stream.INIT)
  if params is None:
    return model.init(key)
  expected, treedef = jax.tree.flatten_with_path(
    jax.eval_shape(model.init, key)
  )
  leaves, given = jax.tree.flatten(params)
  if given != treedef:
    raise ValueError(f"params: the model has {treedef}, not {given}")
  for (path, shape), leaf in zip(expected, leaves, strict=True):
    if shape.shape != np.shape(leaf):
      name = jax.tree_util.keystr(path, simple=True, separator="/")
      raise ValueError(
        f"params: {name} has shape {list(np.shape(leaf))}; the model's is"
        f" {list(shape.shape)}"
      )
  return jax.tree.map(jnp.asarray, params)


def cohorts(cohorts, data, fed, seed):
  """Returns the cohorts [T, B]: drawn from the seed, or the caller's."""
  if fed.cohort_size > data.num_clients:
    raise ValueError(
      f"cohort_size is {fed.cohort_size} but there are only"
      f" {data.num_clients} clients"
    )
  if cohorts is None:
    words = rng.id_words(data.ids)
    return rng.cohorts(seed, words, fed.rounds, fed.cohort_size)
  cohorts = np.asarray(cohorts)
  if cohorts.shape != (fed.rounds, fed.cohort_size):
    raise ValueError(
      f"cohorts has shape {list(cohorts.shape)}; rounds and cohort_size ask"
      f" for {[fed.rounds, fed.cohort_size]}"
    )
  if not np.issubdtype(cohorts.dtype, np.integer):
    raise ValueError(f"cohorts is {cohorts.dtype}; it must hold integers")
  if cohorts.min() < 0 or cohorts.max() >= data.num_clients:
    raise ValueError(f"cohorts: clients run from 0 to {data.num_clients - 1}")
  ordered = np.sort(cohorts, axis=1)
  twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
  if twice.any():
    raise ValueError(
      f"cohorts: round {twice.argmax() + 1} names a client twice"
    )
  return cohorts.astype(np.int32)


def removals(removals, exact, num_clients):
  """Returns the mask [R, K] (None: leave-one-out) and the rows to replay."""
  num_removals = num_clients
  if removals is not None:
    removals = np.asarray(removals)
    if removals.dtype != bool or removals.ndim != 2 or not len(removals):
      raise ValueError(
        f"removals is {removals.dtype} of shape {list(removals.shape)};"
        f" it must be bool [R, {num_clients}]"
      )
    if removals.shape[1] != num_clients:
      raise ValueError(
        f"removals has {removals.shape[1]} columns for {num_clients} clients"
      )
    num_removals = len(removals)
  if isinstance(exact, bool):
    return removals, np.arange(num_removals if exact else 0)
  rows = np.asarray(exact)
  if rows.ndim != 1 or (
    len(rows) and not np.issubdtype(rows.dtype, np.integer)
  ):
    raise ValueError("exact must be True, False or a list of rows of removals")
  if len(rows) and not (rows.min() >= 0 and rows.max() < num_removals):
    raise ValueError(f"exact: rows run from 0 to {num_removals - 1}")
  return removals, rows.astype(int)
