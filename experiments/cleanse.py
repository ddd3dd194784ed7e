r"""Fig. 4: leaves the clients with the lowest influence out and trains on.

python -m experiments.cleanse --workdir=DIR [--estimator=relu]
    [--fractions=0.05,0.1,0.2] [--repeats=3]

From a run's checkpoint: removes the most harmful, the most helpful or random
clients by FIL or FIA, continues with cohorts drawn from those who remain, and
writes loss and accuracy to cleanse.json and to the report. Clients are chosen
on one half of the test set and scored on the other, which had no say; the
paper's way, one set for both, stands beside it.
"""

import pathlib

from absl import flags
import ml_collections
import numpy as np
from rich import progress as rich_progress
from rich import table as rich_table

from experiments import cleansing
from experiments import launch
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax.recipes import estimators as named
from fedinf_jax.running import lock
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks

_WORKDIR = flags.DEFINE_string("workdir", "runs/quickstart", "A finished run.")
_DATA_DIR = launch.define_data_dir()
_ESTIMATOR = flags.DEFINE_string(
  "estimator", "relu", 'Whose influence to go by; "exact" is the ground truth.'
)
_FRACTIONS = flags.DEFINE_list(
  "fractions", ["0.05", "0.1", "0.2", "0.3", "0.4"], "Of the clients."
)
_REPEATS = flags.DEFINE_integer("repeats", 3, "Random choices.", lower_bound=1)
_ROUND = flags.DEFINE_integer(
  "round", None, "Checkpoint to start from; the recipe's cleanse_round if none."
)


def main(argv):
  """Cleanses the run in the workdir."""
  del argv
  folder = pathlib.Path(_WORKDIR.value)
  with lock.owned(folder):
    cleanse(folder)


def cleanse(folder: pathlib.Path):
  """Trains on without some clients, writes what comes of it and prints it."""
  fractions = [_fraction(text) for text in _FRACTIONS.value]
  of = _ESTIMATOR.value
  recipe = cleansing.read_about(folder)["config"]
  _check_estimator(of, recipe)
  round_ = _ROUND.value or recipe["cleanse_round"]
  task = cleansing.load(folder, _DATA_DIR.value)
  state = cleansing.state_at(folder, task, round_)
  half = tasks.halves(task)
  ways = {
    "held_out": cleansing.scores(state, task, half.validation, of),
    "one_set": cleansing.scores(state, task, slice(None), of),
  }
  screen = progress.console()
  proceed = cleansing.trainer(task, half, task.seed)
  content = records.Cleanse(
    round=round_,
    estimator=of,
    validation_examples=len(half.validation),
    test_examples=len(half.test),
    curves=_curves(
      list(_plans(ways, fractions)),
      lambda removed: proceed(removed, state.params, round_),
      screen,
    ),
  )
  records.write_cleanse(folder, content)
  report.write(folder)
  _print_table(screen, content)
  progress.say(screen, f"report: {folder / records.REPORT}")


def _curves(plans, proceed, screen):
  """Trains by every plan, once for those who remove the same clients."""
  done, curves = {}, []
  bar = rich_progress.track(
    plans, "training on", console=screen, disable=not screen.is_terminal,
    transient=True,
  )  # fmt: skip
  for plan, removed in bar:
    key = tuple(sorted(removed.tolist()))
    if key not in done:
      done[key] = proceed(removed)
    curve = done[key]
    values = curve.held_out if plan["way"] == "held_out" else curve.one_set
    curves.append(
      records.Curve(
        **plan,
        removed=len(removed),
        rounds=curve.rounds,
        loss=values[:, 0],
        accuracy=values[:, 1],
      )
    )
  return curves


def _plans(ways, fractions):
  """Yields what to remove: (description, positions)."""
  for way, scores in ways.items():
    nobody = {"way": way, "score": "none", "end": "none", "fraction": 0.0}
    yield {**nobody, "repeat": 0}, np.array([], int)
    for fraction in fractions:
      for score, values in scores.items():
        for end in ("harmful", "helpful"):
          plan = {"way": way, "score": score, "end": end, "fraction": fraction}
          removed = fi.valuation.choose(values, fraction, end=end)
          yield {**plan, "repeat": 0}, removed
      for repeat in range(_REPEATS.value):
        plan = {"way": way, "score": "random", "end": "random"}
        removed = fi.valuation.choose(
          scores["fil"], fraction, end="random", seed=repeat
        )
        yield {**plan, "fraction": fraction, "repeat": repeat}, removed


def _print_table(screen, content):
  """Prints the last point of every curve, random ones averaged."""
  table = rich_table.Table(
    *("chosen and scored on", "removed", "fraction", "by", "loss", "accuracy"),
    title=f"Trained on from round {content.round} without some clients"
    f" (by {content.estimator})",
    title_justify="left",
  )
  words = {"held_out": "two halves", "one_set": "one set (the paper's way)"}
  groups: dict[tuple, list] = {}
  for curve in content.curves:
    key = curve.way, curve.end, curve.fraction, curve.score
    groups.setdefault(key, []).append((curve.loss[-1], curve.accuracy[-1]))
  for (way, end, fraction, score), values in groups.items():
    loss, accuracy = np.mean(values, axis=0)
    table.add_row(
      words[way],
      end,
      f"{fraction:.2f}",
      score,
      f"{loss:.4f}",
      f"{accuracy:.4f}",
    )
  screen.print(table)


def _check_estimator(of, recipe):
  known = named.split(recipes.names(ml_collections.ConfigDict(recipe)))
  if recipe["exact"] != "none":
    known.append("exact")
  if of not in known:
    raise ValueError(
      f"--estimator={of}: the run has {', '.join(known) or 'none'}"
    )


def _fraction(text):
  try:
    value = float(text)
  except ValueError:
    value = -1
  if not 0 < value < 1:
    raise ValueError(
      f"--fractions: {text!r} is not a number between 0 and 1"
    ) from None
  return value


if __name__ == "__main__":
  launch.run(main)
