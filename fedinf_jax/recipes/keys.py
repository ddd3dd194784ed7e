"""The keys of a recipe: which there must be, and what each may hold."""

import math
from typing import NamedTuple

import ml_collections

from fedinf_jax import memory


class Whole(NamedTuple):
  """A whole number."""

  least: int = 1

  def wrong(self, value):
    """Says what a value should be; None if it is right."""
    if not isinstance(value, int) or isinstance(value, bool):
      return "must be a whole number"
    if value >= 2**63:
      return "must be below 2^63"
    return None if value >= self.least else f"must be at least {self.least}"


class Real(NamedTuple):
  """A number that is neither NaN nor infinite."""

  above: float = -math.inf
  below: float = math.inf

  def wrong(self, value):
    """Says what a value should be; None if it is right."""
    if not isinstance(value, int | float) or isinstance(value, bool):
      return "must be a number"
    if self.above < value < self.below:
      return None
    return f"must lie between {self.above} and {self.below}"


class Words(NamedTuple):
  """A text."""

  def wrong(self, value):
    """Says what a value should be; None if it is right."""
    return None if isinstance(value, str) else "must be a text"


class Widths(NamedTuple):
  """The channels of the convolutions."""

  def wrong(self, value):
    """Says what a value should be; None if it is right."""
    whole = Whole()
    if isinstance(value, list | tuple) and len(value) == 2:
      return next((w for w in map(whole.wrong, value) if w), None)
    return "must be two whole numbers"


KEYS = {
  "seed": Whole(0),
  "server_examples": Whole(0),
  "server_from": Words(),
  "scale": Real(),
  "data.kind": Words(),
  "data.num_clients": Whole(),
  "corrupt.kind": Words(),
  "corrupt.fraction": Real(),
  "model.kind": Words(),
  "fed.rounds": Whole(),
  "fed.cohort_size": Whole(),
  "fed.local_steps": Whole(),
  "fed.learning_rate": Real(0, 3e38),  # The largest float32.
  "fed.batch_size": Whole(0),
  "estimators": Words(),
  "exact": Words(),
  "evaluate_every": Whole(),
  "tracked": Whole(0),
  "cleanse_round": Whole(0),
}
# Not in config.json: explain, and adjoint_rounds without a pass backwards. Only
# there, by experiments.debug: measured_on.
OPTIONAL = {
  "adjoint_rounds": Whole(),
  "explain": Whole(-1),
  "measured_on": Words(),
}
OWN = "own"  # the kind of data that the recipe itself brings
_IMAGES = {"data.examples": Whole(), "data.test_examples": Whole()}
# Not in config.json of a run without repeats of the exact replay.
REPEATS = {
  "exact_repeats": Whole(),
  "repeat_clients": Words(),
  "jitter": Real(0, 1),
}
# The kind of the data, or of the model → further keys.
DATA = {
  "synthetic": {"data.train_fraction": Real(0, 1)},
  "femnist_iid": _IMAGES,
  "femnist_by_writer": _IMAGES,
  OWN: {},
}
FREE = ("data.num_clients", "model.kind")  # where the data are the recipe's
IMAGES = ("femnist_iid", "femnist_by_writer")
MODELS = {
  "logreg": {"model.logit_activation": Words()},
  "cnn": {
    "model.widths": Widths(),
    "model.dense": Whole(),
    "model.activation": Words(),
    "model.pool": Words(),
  },
}


def check(config: ml_collections.ConfigDict):
  """Checks that a recipe has all its keys, and values of their kind.

  Raises:
    ValueError: naming the key.
  """
  if not isinstance(config, ml_collections.ConfigDict):
    raise ValueError(
      f"the recipe is a {type(config).__name__}; get_config must return an"
      " ml_collections.ConfigDict"
    )
  free = FREE if is_own(config) else ()
  _check_keys(config, {k: v for k, v in KEYS.items() if k not in free})
  optional = OPTIONAL | REPEATS
  _check_keys(config, {k: v for k, v in optional.items() if k in config})
  for key, table in (("data.kind", DATA), ("model.kind", MODELS)):
    if key in free:
      continue
    kind = _get(config, key)
    if kind not in table:
      raise ValueError(
        f"{key} is {kind!r}; it must be one of {', '.join(table)}"
      )
    _check_keys(config, table[kind])


def is_own(config: ml_collections.ConfigDict) -> bool:
  """Says whether a recipe, which need not be checked, brings its own data."""
  data = config.get("data")
  return isinstance(data, ml_collections.ConfigDict) and data.get("kind") == OWN


def check_memory(config: ml_collections.ConfigDict, model_bytes: int):
  """Refuses sizes that no memory holds, before anything is made.

  What is counted is only a part of what a run needs.

  Args:
    config: the recipe, checked.
    model_bytes: of its model, or of one as large.
  """
  data, fed = config.data, config.fed
  # Synthetic clients have at least five examples of 60 features.
  examples, bytes_ = 5, 60 * 8
  if data.kind != "synthetic":
    examples, bytes_ = data.examples, 28 * 28 * 4
    memory.require(
      f"data.test_examples = {data.test_examples}", data.test_examples * bytes_
    )
  memory.require(
    f"data.num_clients = {data.num_clients} of {examples} examples or more",
    data.num_clients * examples * bytes_,
  )
  evaluations = fed.rounds // config.evaluate_every
  memory.require(f"{evaluations} evaluations", 64 * evaluations)
  memory.require(
    f"fed.local_steps = {fed.local_steps} local models",
    fed.local_steps * model_bytes,
  )


def _check_keys(config, keys):
  for key, kind in keys.items():
    value = _get(config, key)
    if wrong := kind.wrong(value):
      raise ValueError(f"{key} is {value!r}; it {wrong}")


def _get(config, key):
  """Returns what stands under a key with dots."""
  for part in key.split("."):
    if not isinstance(config, ml_collections.ConfigDict) or part not in config:
      raise ValueError(f"the recipe has no key {key}")
    config = config[part]
  return config
