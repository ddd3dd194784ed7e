"""Checks of what a user hands in: each error names what is wrong."""

from collections.abc import Callable
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import memory
from fedinf_jax import rng
from fedinf_jax import tree


def positive_integer(name: str, value: Any) -> int:
  """Returns an integer >= 1, of Python's or of NumPy's."""
  return integer(name, value, least=1)


def integer(name: str, value: Any, *, least: int = 0) -> int:
  """Returns an integer >= `least`, of Python's or of NumPy's."""
  if not _is_integer(value) or value < least:
    raise ValueError(f"{name} is {value!r}; it must be an integer >= {least}")
  return int(value)


def at_least(name: str, values: np.ndarray, least: float):
  """Refuses numbers below `least`, infinity and NaN."""
  if not ((values >= least) & (values < np.inf)).all():
    raise ValueError(f"{name} must be >= {least} and finite, everywhere")


def seed(seed: Any) -> int:
  """Returns a seed."""
  if not _is_integer(seed) or not 0 <= seed < 2**32:
    raise ValueError(f"seed is {seed!r}; it must be an integer in 0 … 2^32 - 1")
  return int(seed)


def number(
  name: str, value: Any, must: str, holds: Callable[[float], bool]
) -> float:
  """Returns a real number within its range.

  Args:
    name: what it is, to begin a message with.
    value: whatever the user gave.
    must: the range in words, to end a message with.
    holds: whether a number lies in it; NaN should not.
  """
  fits = _is_integer(value) and abs(value) < 2**1000
  # NumPy holds a large integer as an object.
  found = _as_array(float(value) if fits else value)
  if found is None or found.ndim or found.dtype.kind not in "iuf":
    raise ValueError(f"{name} is {value!r}; it must be a number")
  if not holds(float(found)):
    raise ValueError(f"{name} is {float(found)}; it must {must}")
  return float(found)


def positive(name: str, value: Any) -> float:
  """Returns a positive number."""
  holds = lambda number: 0 < number < np.inf
  return number(name, value, "be positive and finite", holds)


def not_negative(name: str, value: Any) -> float:
  """Returns a number that is positive or zero."""
  holds = lambda number: 0 <= number < np.inf
  return number(name, value, "be >= 0 and finite", holds)


def boolean(name: str, value: Any) -> bool:
  """Returns True or False; nothing else is as good."""
  if not isinstance(value, bool | np.bool_):
    raise ValueError(f"{name} is {value!r}; it must be True or False")
  return bool(value)


def one_of(name: str, value: Any, options: Collection):
  """Checks that a value is one of a few, which are strings or None."""
  known = value is None or isinstance(value, str)
  if not known or value not in options:
    *most, last = (repr(option) for option in options)
    allowed = f"{', '.join(most)} or {last}" if most else last
    raise ValueError(f"{name} is {value!r}; it must be {allowed}")


def identifier(name: str, value: Any):
  """Returns an id: an integer, or text that a file and a hash can hold."""
  if isinstance(value, str):
    # Half a surrogate pair: Python and JSON can spell it, UTF-8 cannot.
    if any("\ud800" <= character <= "\udfff" for character in value):
      raise ValueError(
        f"{name}: {value!r} is not a string of Unicode characters (it has half"
        " of a surrogate pair)"
      )
  elif not _is_integer(value):
    raise ValueError(f"{name}: {value!r} is neither a string nor an integer")
  return value


def array(name: str, value: Any) -> np.ndarray:
  """Returns an array of real numbers, in a dtype that JAX keeps.

  Floats of less than 32 bits become float32. What is wider than JAX's own types
  becomes one of them, unless that would change an integer.

  Args:
    name: what it is, to begin a message with.
    value: whatever the user gave.
  """
  given = _as_array(value)
  floating = given is not None and jnp.issubdtype(given.dtype, jnp.floating)
  if given is None or not (floating or given.dtype.kind in "iub"):
    raise ValueError(f"{name} is not a rectangular array of real numbers")
  _refuse_mask(name, value)
  narrow = np.promote_types(given.dtype, np.float32) if floating else None
  if floating and narrow not in (np.float32, np.float64):
    narrow = np.dtype(np.float64)
  dtype = jax.dtypes.canonicalize_dtype(narrow or given.dtype)
  # A view of few numbers can claim any shape; whoever reads it copies it.
  memory.require(name, given.size * dtype.itemsize)
  if given.dtype == dtype:
    return given
  with np.errstate(over="ignore"):  # An overflow is reported as not finite.
    found = given.astype(dtype)
  if not floating and not (found == given).all():
    raise ValueError(f"{name} has an integer beyond {dtype}")
  return found


def call(problem: str, function: Callable, *args) -> Any:
  """Calls a user's function; whatever it raises is named by `problem`."""
  try:
    return function(*args)
  except Exception as error:
    raise ValueError(f"{problem}: {error}") from error


def readable(value: Any) -> bool:
  """Returns whether values can be looked at: not traced, not elsewhere."""
  if isinstance(value, jax.core.Tracer):
    return False
  return not isinstance(value, jax.Array) or value.is_fully_addressable


def finite(name: str, values: np.ndarray, what: str = "example"):
  """Refuses NaN and infinity; names the first row that has one."""
  if values.size and np.issubdtype(values.dtype, np.floating):
    good = np.isfinite(values).reshape(len(values), -1).all(1)
    if not good.all():
      raise ValueError(
        f"{name} has a value that is not finite ({what} {good.argmin()})"
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
    params = _own_params(params, model.param_shapes())
  if jnp.issubdtype(data.x.dtype, jnp.floating):
    params = tree.cast(params, data.x.dtype)
  return params


def cohorts(cohorts, data, fed, seed, *, ragged: bool = False) -> np.ndarray:
  """Returns the cohorts [T, B]: drawn from the seed, or the caller's.

  Args:
    cohorts: the caller's, or None.
    data: the K clients.
    fed: how they train.
    seed: of the draws.
    ragged: whether rows may be shorter; K, nobody, fills them up.
  """
  if fed.cohort_size > data.num_clients:
    raise ValueError(
      f"cohort_size is {fed.cohort_size} but there are only"
      f" {data.num_clients} clients"
    )
  if cohorts is None:
    words = rng.id_words(data.ids)
    return rng.cohorts(seed, words, fed.rounds, fed.cohort_size)
  nobody = data.num_clients
  lengths = _lengths(cohorts) if ragged else None
  if lengths is not None:
    most = max(lengths, default=0)
    if most > fed.cohort_size:
      raise ValueError(
        f"cohorts: round {lengths.index(most) + 1} has {most} clients;"
        f" cohort_size is {fed.cohort_size}"
      )
    fill = lambda row: [*row, *[nobody] * (fed.cohort_size - len(row))]
    cohorts = [fill(row) for row in cohorts]
  cohorts = array("cohorts", cohorts)
  if cohorts.shape != (fed.rounds, fed.cohort_size):
    raise ValueError(
      f"cohorts has shape {list(cohorts.shape)}; rounds and cohort_size ask"
      f" for {[fed.rounds, fed.cohort_size]}"
    )
  if not np.issubdtype(cohorts.dtype, np.integer):
    raise ValueError(f"cohorts is {cohorts.dtype}; it must hold integers")
  present = np.ones(cohorts.shape, bool)
  if lengths is not None:
    present = np.arange(fed.cohort_size) < np.array(lengths)[:, None]
  found = cohorts[present]
  if found.min(initial=0) < 0 or found.max(initial=0) >= nobody:
    raise ValueError(f"cohorts: clients run from 0 to {nobody - 1}")
  ordered = np.sort(cohorts, axis=1)
  twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] < nobody)
  twice = twice.any(1)
  if twice.any():
    raise ValueError(
      f"cohorts: round {twice.argmax() + 1} names a client twice"
    )
  return cohorts.astype(np.int32)


def _lengths(cohorts):
  """Returns the lengths of rows that are lists; None: it is no such list."""
  if not isinstance(cohorts, list | tuple):
    return None
  flat = lambda row: (
    isinstance(row, list | tuple | np.ndarray)
    and all(np.ndim(k) == 0 for k in row)
  )
  return [len(r) for r in cohorts] if all(map(flat, cohorts)) else None


def _own_params(params, expected):
  """Returns the caller's parameters; refuses those that do not fit the model.

  Args:
    params: the caller's.
    expected: the shapes of the model's.
  """
  expected, treedef = jax.tree.flatten_with_path(expected)
  leaves = jax.tree.leaves(params)
  given: Any = jax.tree.structure(params)
  if given != treedef:
    raise ValueError(f"params: the model has {treedef}, not {given}")
  found = []
  for (path, wanted), leaf in zip(expected, leaves, strict=True):
    name = f"params: {tree.name(path)}"
    values = array(name, leaf) if readable(leaf) else leaf
    if values.shape != wanted.shape:
      raise ValueError(
        f"{name} has shape {list(values.shape)}; the model's is"
        f" {list(wanted.shape)}"
      )
    if readable(leaf):
      finite(name, np.atleast_1d(values), "row")
    floating = jnp.issubdtype(values.dtype, jnp.floating)
    found.append(jnp.asarray(values, None if floating else wanted.dtype))
  return jax.tree.unflatten(treedef, found)


def _as_array(value):
  """Returns a NumPy array of whatever it is; None if it cannot be one."""
  try:
    return np.asarray(value)
  except Exception:  # Ragged rows, or what a foreign `__array__` raises.
    return None


def _refuse_mask(name, value):
  """Refuses masked entries, which NumPy would turn into plain numbers."""
  parts = value if isinstance(value, list | tuple) else [value]
  if any(np.ma.is_masked(a) for a in parts if isinstance(a, np.ma.MaskedArray)):
    raise ValueError(
      f"{name} has masked entries; leave these examples out, or fill them in"
    )


def _is_integer(value):
  return isinstance(value, int | np.integer) and not isinstance(value, bool)
