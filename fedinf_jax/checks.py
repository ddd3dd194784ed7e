"""Checks of what a user hands in: each error names what is wrong."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import rng
from fedinf_jax import tree


def positive_integer(name: str, value: Any) -> int:
  """Returns an integer >= 1, of Python's or of NumPy's."""
  if not _is_integer(value) or value < 1:
    raise ValueError(f"{name} is {value!r}; it must be an integer >= 1")
  return int(value)


def seed(seed: Any) -> int:
  """Returns a seed."""
  if not _is_integer(seed) or not 0 <= seed < 2**32:
    raise ValueError(f"seed is {seed!r}; it must be an integer in 0 … 2^32 - 1")
  return int(seed)


def one_of(name: str, value: Any, options: Collection):
  """Checks that a value is one of a few."""
  if value not in options:
    *most, last = (repr(option) for option in options)
    allowed = f"{', '.join(most)} or {last}" if most else last
    raise ValueError(f"{name} is {value!r}; it must be {allowed}")


def model(model, params, x, y):
  """Checks that a model's loss is one number per example.

  Args:
    model: init, apply, loss.
    params: its parameters, or their shapes.
    x: [N, ...] inputs.
    y: [N, ...] labels.
  """
  shape = lambda a: jax.ShapeDtypeStruct((2, *a.shape[1:]), a.dtype)
  try:
    outputs = jax.eval_shape(model.apply, params, shape(x))
  except Exception as error:  # Whatever a user's module raises.
    raise ValueError(
      f"model: apply does not accept inputs of shape [N{_dims(x)}]: {error}"
    ) from error
  losses = jax.eval_shape(model.loss, outputs, shape(y))
  if getattr(losses, "shape", None) != (2,):
    found = getattr(losses, "shape", losses)
    raise ValueError(
      f"model: for 2 examples the loss returns shape {list(found)}; it must"
      " return one number per example, [N] (the mean is taken later)"
    )


def params(params, model, seed, data):
  """Returns w_0 in the dtype of the data.

  Args:
    params: the caller's; None: drawn from the seed.
    model: whose parameters they are.
    seed: the run's.
    data: the clients, whose dtype rules the run.
  """
  key = rng.stream_key(seed, rng.Stream.INIT)
  if params is None:
    params = model.init(key)
  else:
    _require_shapes(params, model.param_shapes())
    params = jax.tree.map(jnp.asarray, params)
  if jnp.issubdtype(data.x.dtype, jnp.floating):
    params = tree.cast(params, data.x.dtype)
  return params


def cohorts(cohorts, data, fed, seed) -> np.ndarray:
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


def _require_shapes(params, expected):
  """Refuses parameters that do not fit the model."""
  expected, treedef = jax.tree.flatten_with_path(expected)
  leaves, given = jax.tree.flatten(params)
  if given != treedef:
    raise ValueError(f"params: the model has {treedef}, not {given}")
  for (path, shape), leaf in zip(expected, leaves, strict=True):
    if shape.shape != np.shape(leaf):
      raise ValueError(
        f"params: {tree.name(path)} has shape {list(np.shape(leaf))}; the"
        f" model's is {list(shape.shape)}"
      )


def _is_integer(value):
  return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _dims(array):
  return "".join(f", {d}" for d in array.shape[1:])
