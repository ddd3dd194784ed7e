"""The files of a workdir: names, fields in the order written, and writers.

FIL and FIA are a client's influence on the test loss and on the accuracy, FIP
its influence on the parameters, ε. `workdir.read` reads the files.
"""

import pathlib
from typing import Any
from typing import NamedTuple

import numpy as np

from fedinf_jax import text
from fedinf_jax.running import files
from fedinf_jax.simulation import portraits as portraits_
from fedinf_jax.simulation import table as tables
from fedinf_jax.valuation import trust as trusts

CONFIG = "config.json"
METRICS = "metrics.jsonl"
HISTORY = "history.jsonl"
LAYERS = "layers.csv"
INFLUENCE = "influence.csv"
CLIENTS = "clients.json"
SUMMARY = "summary.json"
TIMING = "timing.jsonl"
CLEANSE = "cleanse.json"
DEBUG = "debug.json"
REPEATS = "repeats.json"
REPEATING = "repeats"  # a folder, there until REPEATS is whole
SCREENING = "screening.json"
SCREENS = "screening"  # a folder, there until SCREENING is whole
CHECKPOINTS = "checkpoints"  # a folder, see `checkpoint`
REPORT = "report.html"
COMPARISON = "comparison.html"  # of this run with another
COMPARISON_CSV = "comparison.csv"
LOCK = ".lock"  # there while a process owns the workdir, see `lock`
COMMAND = "fedinf run"  # stands in config.json of what this wrote
LOGS = (METRICS, HISTORY, LAYERS)  # cut back when a run is resumed
FILES = (
  *LOGS, CONFIG, SCREENING, REPEATS, INFLUENCE, CLIENTS, SUMMARY, TIMING,
  CLEANSE, DEBUG, REPORT, COMPARISON, COMPARISON_CSV,
)  # fmt: skip


class About(NamedTuple):
  """config.json: all that the numbers of a run depend on."""

  name: str  # of the recipe
  config: dict[str, Any]  # the recipe, without the devices
  data: dict[str, Any]  # source, stand_in, digest, bad
  versions: dict[str, str]


class Agreement(NamedTuple):
  """How near an estimator is to the ground truth; None where it is unknown."""

  fil_pearson: float | None
  fil_spearman: float | None
  fia_pearson: float | None
  fip_error: float | None  # mean ‖ε − ε*‖
  fip_relative_error: float | None  # divided by mean ‖ε*‖
  truncated_fraction: float | None  # of all clients' layers


UNKNOWN = Agreement(*[None] * len(Agreement._fields))


class WithMean(NamedTuple):
  """How near an estimator is to the mean of all exact FILs."""

  fil_pearson: float | None
  fil_spearman: float | None


class Reliability(NamedTuple):
  """How near exact FILs of the same clients are to one another."""

  repeats: int  # exact replays, that of the run itself among them
  clients: int  # that all of them have
  pearson: float | None
  spearman: float | None
  ceiling: float | None  # √pearson, beside agreement with one of them
  ceiling_mean: float | None  # beside agreement with their mean
  estimators: dict[str, WithMean]


class Metrics(NamedTuple):
  """A line of metrics.jsonl: an evaluated round.

  What has a default, here and elsewhere, is left out where it is None.
  """

  round: int
  loss: float
  accuracy: float
  estimators: dict[str, Agreement]
  reliability: Reliability | None = None


class History(NamedTuple):
  """A line of history.jsonl."""

  round: int
  fil: dict[str, np.ndarray]  # [R], "exact" among the names where it is known


class Layer(NamedTuple):
  """A row of layers.csv: one layer of a tracked client at a round."""

  round: int
  client: Any
  layer: str
  estimator: str  # or "exact"
  error: float | None  # ‖ε − ε*‖
  norm: float  # ‖ε‖


LAYERS_HEADER = ",".join(Layer._fields) + "\n"


# explain_INDEX.csv: how the probability of the label that the model gives, and
# of the true one, changes without the client; of each estimator, _NAME follows.
EXPLAINED = ("predicted", "true")


def explained(index: int) -> str:
  """Returns the name of the file that explains a test example."""
  return f"explain_{index}.csv"


class Timing(NamedTuple):
  """A line of timing.jsonl, the only file that depends on the clock."""

  # backwards, repeat, compile, rounds, evaluate, checkpoint or report
  stage: str
  round: int  # after which it was written
  rounds: int  # that it took
  seconds: float


class Scores(NamedTuple):
  """Influence of all K clients that was found before the run proper."""

  estimator: str
  round: int
  fil: np.ndarray  # [K]
  fia: np.ndarray  # [K]
  # As of `table.Measured`, of a pass at the last round; else None.
  own: np.ndarray | None = None  # [K]
  others: np.ndarray | None = None  # [K]
  low: np.ndarray | None = None  # [K]
  high: np.ndarray | None = None  # [K]
  p: np.ndarray | None = None  # [K]


class Screening(NamedTuple):
  """screening.json."""

  scores: list[Scores]


class Repeat(NamedTuple):
  """Exact FIL by a replay from another starting point."""

  repeat: int  # from 1
  round: int
  fil: np.ndarray  # [K], NaN where a client was not replayed


class Repeats(NamedTuple):
  """repeats.json."""

  repeats: list[Repeat]


class Top(NamedTuple):
  """Clients to replay, yet to be chosen: those at both ends."""

  count: int  # type: ignore[assignment]  # hides a method of tuples
  by: str  # an estimator


class LayerTrust(NamedTuple):
  """What became of a layer's influence over a run."""

  truncated_fraction: float  # of all clients
  first_truncated_round: int | None
  largest_growth: float


class Estimator(NamedTuple):
  """An estimator of summary.json; its last Agreement stands among the rest.

  One without ε, a pass backwards, has no layers.
  """

  description: str
  upload_bytes_per_participant: int | None  # None: not known
  upload_models: float | None
  interactive: bool  # participants answer the server instead of uploading
  simulated: bool  # goes back through trainings that a server cannot see
  fil_pearson: float | None
  fil_spearman: float | None
  fia_pearson: float | None
  fip_error: float | None
  fip_relative_error: float | None
  truncated_fraction: float | None
  last_quarter: dict[str, float | None]  # means of the fields LAST_QUARTER
  largest_growth: float | None
  nonfinite_fraction: float
  layers: dict[str, LayerTrust]
  # What agreement to expect, where nobody was replayed.
  trust: trusts.Trust | None = None


LAST_QUARTER = ("fil_pearson", "fil_spearman", "fip_relative_error")


class Repeated(NamedTuple):
  """How reproducible the ground truth of a run is."""

  jitter: float  # between starting points, in units of a layer's spread
  last: Reliability  # at the last round
  last_quarter: Reliability  # means over the last quarter of the rounds


class Summary(NamedTuple):
  """summary.json; that it exists says that the run is finished."""

  name: str
  source: str  # where the data are from, in words
  stand_in: bool  # the data stand in for those of the paper
  clients: int
  rounds: int
  num_params: int
  train_examples: int
  test_examples: int
  seed: int | None
  loss: float
  accuracy: float
  layer_names: list[str]
  estimators: dict[str, Estimator]
  # "exact" and estimators → helps, hurts, cannot tell → clients
  effects: dict[str, dict[str, int]]
  data_digest: str
  versions: dict[str, str]
  git_revision: str | None
  reliability: Repeated | None = None
  verdict: list[str] | None = None  # in words, once there is a report
  # Of groups that are removed together, whose number `clients` is then, the
  # clients in them; None: each client alone.
  members: list[list[str]] | None = None
  notes: list[str] | None = None  # what a reader of the numbers must know


class Curve(NamedTuple):
  """A training without some clients, of cleanse.json: N points."""

  way: str  # held_out or one_set
  score: str  # fil, fia, random or none
  end: str  # harmful, helpful, random or none
  fraction: float
  repeat: int
  removed: int  # clients
  rounds: list[int]  # [N]
  loss: np.ndarray  # [N]
  accuracy: np.ndarray  # [N]


class Cleanse(NamedTuple):
  """cleanse.json."""

  round: int  # of the checkpoint that the trainings start from
  estimator: str
  validation_examples: int
  test_examples: int
  curves: list[Curve]


class Detection(NamedTuple):
  """How well a score finds the bad clients."""

  precision_at_k: float
  auroc: float
  values: np.ndarray  # [K]
  over_time: np.ndarray  # [E] AUROC, NaN where the score is not known


class Gain(NamedTuple):
  """The model trained without some clients, on the test half."""

  loss: float
  accuracy: float


class Debug(NamedTuple):
  """debug.json."""

  kind: str  # of the bad clients
  bad: list[str]
  clients: int
  validation_examples: int  # that clients are scored on
  test_examples: int  # that gains are measured on
  rounds: list[int]  # [E], the evaluated ones
  scores: dict[str, Detection]
  gain: dict[str, Gain]  # by who was left out; "nobody", "the bad ones" first


def append_round(
  folder: pathlib.Path,
  metrics: Metrics,
  history: History,
  layers: list[Layer],
):
  """Adds an evaluated round to the logs; FIL is written to six digits."""
  files.append_json(folder / METRICS, metrics)
  short = lambda values: [float(f"{v:.5e}") for v in values]
  fil: Any = {name: short(values) for name, values in history.fil.items()}
  files.append_json(folder / HISTORY, history._replace(fil=fil))
  if not (folder / LAYERS).exists():
    files.write(folder / LAYERS, LAYERS_HEADER)
  rows = [row._replace(client=str(row.client)) for row in layers]
  files.append(folder / LAYERS, *map(files.csv_line, rows))


def read_top(exact: str) -> Top | None:
  """Reads "top:20" or "top:20:NAME"; None if it is something else."""
  first, *others = exact.split(":", 2)
  if first != "top" or not others or not others[0].isdecimal():
    return None
  return Top(int(others[0]), others[1] if len(others) > 1 else "adjoint")


def append_timing(
  folder: pathlib.Path, stage: str, round_: int, seconds: float, rounds: int = 0
):
  """Adds a line to timing.jsonl; see `Timing`."""
  timing = Timing(
    stage=stage, round=round_, rounds=rounds, seconds=round(seconds, 4)
  )
  files.append_json(folder / TIMING, timing)


def influence_titles(names: list[str]) -> list[str]:
  """Returns the titles of influence.csv, for "exact" and these estimators."""
  estimates = [f"{t}_{name}" for name in names for t in tables.ESTIMATE]
  return [*tables.CLIENT, *estimates]


def write_influence(folder: pathlib.Path, table: tables.Table):
  """Writes influence.csv, a row per client."""
  files.write(folder / INFLUENCE, table.to_csv())


def write_clients(folder: pathlib.Path, portraits: portraits_.Portraits):
  """Writes clients.json, in one line."""
  files.write_json(folder / CLIENTS, portraits, indent=None)


def write_summary(folder: pathlib.Path, summary: Summary):
  """Writes summary.json."""
  files.write_json(folder / SUMMARY, summary)


def write_screening(folder: pathlib.Path, scores: list[Scores]):
  """Writes screening.json."""
  files.write_json(folder / SCREENING, Screening(scores))


def write_repeats(folder: pathlib.Path, repeats: list[Repeat]):
  """Writes repeats.json."""
  files.write_json(folder / REPEATS, Repeats(repeats))


def write_cleanse(folder: pathlib.Path, content: Cleanse):
  """Writes cleanse.json."""
  files.write_json(folder / CLEANSE, content)


def write_debug(folder: pathlib.Path, content: Debug):
  """Writes debug.json."""
  bad = [text.escaped(name) for name in content.bad]
  files.write_json(folder / DEBUG, content._replace(bad=bad))
