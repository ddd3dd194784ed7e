"""The commands of fedinf and their flags, each read from text."""

from collections.abc import Callable
import pathlib
from typing import Any
from typing import NamedTuple

from fedinf_jax import recipes
from fedinf_jax.recipes import estimators


class Flag(NamedTuple):
  """A flag, without its dashes."""

  name: str
  value: str  # what stands for its value in the help; "": it takes none
  help: str
  read: Callable[[str], Any] = str  # raises ValueError: what it must be
  default: Any = None
  needed: bool = False


class Command(NamedTuple):
  """A command."""

  usage: str
  help: str  # one line
  flags: tuple[Flag, ...] = ()
  places: tuple[str, ...] = ()  # arguments without a name
  more: str = ""  # below the flags


def _whole(least: int) -> Callable[[str], int]:
  def read(text):
    if not text.isdecimal() or int(text) < least:
      raise ValueError(f"must be a whole number of at least {least}")
    return int(text)

  return read


def _positive(text):
  try:
    value = float(text)
  except ValueError:
    value = 0.0
  if not 0 < value < 3e38:  # The largest float32; NaN is refused, too.
    raise ValueError("must be a number above 0")
  return value


def _sizes(text):
  """Reads "1e4,1e5"."""
  try:
    found = [int(float(part)) for part in text.split(",")]
  except (ValueError, OverflowError):
    found = []
  if not found or min(found) < 1:
    raise ValueError("must be numbers of at least 1, such as 1e4,1e5")
  return found


def _one_of(*words) -> Callable[[str], str]:
  def read(text):
    if text not in words:
      raise ValueError(f"must be one of {', '.join(words)}")
    return text

  return read


def _path(text):
  if not text or "\0" in text:
    raise ValueError("must be a path")
  return pathlib.Path(text)


def _exact(text):
  try:
    recipes.exact_rows(text, None, 0)
  except ValueError as error:
    raise ValueError(
      "must be none, all, a number of clients, top:NUMBER or"
      " top:NUMBER:ESTIMATOR"
    ) from error
  return text


def _estimators(text):
  try:
    estimators.build(text)
    estimators.passes(text)
  except ValueError as error:
    problem = str(error).removeprefix("estimators: ")
    raise ValueError(f"cannot be: {problem}") from error
  return text


def _model(text):
  """Reads the name of a model of ours, or FILE.py:NAME."""
  if text in MODELS:
    return text
  file, colon, name = text.rpartition(":")
  if not (colon and file.endswith(".py") and name.isidentifier()):
    raise ValueError(f"must be {', '.join(MODELS)} or FILE.py:NAME")
  return text


MODELS = ("logreg", "mlp", "cnn")
TASKS = ("auto", "classification", "regression")
_CLIENTS = (
  Flag("clients", "PATH", "a CSV, Parquet or .npz file, or a folder", _path),
  Flag("client", "COLUMN", "the column of clients (guessed)"),
  Flag("label", "COLUMN", "the column of labels (guessed)"),
  Flag("task", "TASK", "classification or regression (auto)",
       _one_of(*TASKS), "auto"),
  Flag("test", "PATH", "test data (a fifth of each client's rows)", _path),
  Flag("model", "MODEL", "logreg, mlp, cnn or FILE.py:NAME", _model),
  Flag("rounds", "N", "rounds of training", _whole(1)),
  Flag("cohort", "N", "clients in each round", _whole(1)),
  Flag("local-steps", "N", "steps of a client in a round", _whole(1)),
  Flag("learning-rate", "RATE", "of the clients", _positive),
  Flag("batch-size", "N", "examples of a step; 0: all of a client's",
       _whole(0)),
  Flag("optimizer", "NAME", "of the clients: sgd, momentum or adam",
       _one_of(*recipes.OPTIMIZERS), "sgd"),
  Flag("estimators", "NAME,NAME", "how influence is estimated", _estimators),
  Flag("exact", "WHO", "retrain without: none, all, a number, top:20", _exact),
  Flag("seed", "N", "of every random draw (0)", _whole(0), 0),
)  # fmt: skip
_CACHE = Flag("no-cache", "", "keep no compiled programs")
COMMANDS = {
  "run": Command(
    "--clients=PATH --out=DIR [flags]",
    "Trains on your clients and says which help and which hurt",
    (
      _CLIENTS[0]._replace(needed=True),
      Flag("out", "DIR", "where to; the same command resumes", _path,
           needed=True),
      *_CLIENTS[1:],
      _CACHE,
    ),
    more="What is not given is chosen by looking at the data, and printed.",
  ),
  "plan": Command(
    "--clients=PATH [flags of run] | [--num-clients=1e4 --params=1e6]",
    "Says what memory and time such a run takes, before anything starts",
    (
      *_CLIENTS,
      Flag("num-clients", "N,N", "of a federation made up (1e4,1e5,1e6)",
           _sizes),
      Flag("params", "N,N", "and parameters of its model (1e4,1e6,1e8)",
           _sizes),
      Flag("memory-gb", "GB", "of one device of its (80)", _positive, 80.0),
      Flag("tflops", "N", "of one device of its (60)", _positive, 60.0),
    ),
  ),
  "demo": Command(
    "[--out=runs/quickstart]",
    "Makes 200 clients, trains, retrains without each: a first look",
    (
      Flag("out", "DIR", "where to; the same command resumes", _path,
           pathlib.Path("runs/quickstart")),
      _CACHE,
    ),
  ),
  "report": Command(
    "DIR",
    "Draws the report of a finished run again, from its files",
    places=("DIR",),
  ),
}  # fmt: skip
