r"""Trains a federated model and says which clients help and which hurt.

python -m experiments.run [--config=experiments/configs/NAME.py]
    [--config.fed.rounds=50 ...]
"""

import jax
import numpy as np
from rich import console as rich_console
from rich import progress as rich_progress
from rich import table as rich_table
from scipy import stats

from experiments import launch
import fedinf_jax as fi
from fedinf_jax import packing
from fedinf_jax import rng

_CONFIG = launch.define_config("quickstart")
# The paper's estimator, and one of ours at the same upload.
ESTIMATORS = {
  "both": fi.estimator(fi.fisher(), fi.lwet()),
  "relu": fi.estimator(
    fi.fisher(labels="sampled", layerwise=False, spectrum="relu"), fi.no_guard()
  ),
}
BLOCK = 10  # Rounds between two updates of the progress bar.


def main(argv):
  """Runs the recipe."""
  del argv
  config = _CONFIG.value
  screen = rich_console.Console()
  data = fi.data.synthetic(num_clients=config.data.num_clients)
  train, test = data.split(config.data.train_fraction, seed=config.seed)
  model = fi.models.logreg(
    data.x.shape[1], data.num_classes, config.logit_activation or None
  )
  fed = fi.FedAvg(**config.fed)
  init, step = fi.simulator(
    model,
    train,
    fed,
    estimators=ESTIMATORS,
    exact=config.exact,
    seed=config.seed,
  )
  cohorts = rng.cohorts(
    config.seed, rng.id_words(train.ids), fed.rounds, fed.cohort_size
  )
  schedule = packing.schedule(cohorts, train.num_examples, fed.batch_size)
  screen.print(
    f"LEAF synthetic data: {train.num_clients} clients, {len(train.x):,}"
    f" training examples, {len(test.x):,} test examples;"
    f" {jax.devices()[0].platform}, {jax.device_count()} device(s)"
  )
  screen.print(
    f"{schedule.padding:.0%} of the rows computed on are padding, in"
    f" {len(schedule.sizes)} size classes of one compiled program"
  )
  state = init()
  with _progress_bar(screen) as bar:
    task = bar.add_task("round", total=fed.rounds)
    while (done := int(state.round)) < fed.rounds:
      state = step(state, min(BLOCK, fed.rounds - done))
      bar.update(task, completed=int(state.round))
  run = fi.Run.of(model, state)
  x, y = test.pooled()
  outputs = model.apply(run.params, x)
  screen.print(
    f"after {fed.rounds} rounds: test loss"
    f" {float(fi.metrics.cross_entropy(outputs, y)):.4f}, accuracy"
    f" {float(fi.metrics.accuracy(outputs, y)):.4f}"
  )
  selected = np.bincount(cohorts.ravel(), minlength=train.num_clients)
  scores = {
    of: np.asarray(run.influence(fi.metrics.loss, x, y, of=of))
    for of in [*(["exact"] if config.exact else []), *ESTIMATORS]
  }
  _print_extremes(screen, train, selected, scores)
  _print_agreement(screen, run, scores)


def _print_extremes(screen, train, selected, scores):
  """Prints the clients that help and hurt most, by the first of the scores."""
  fil = next(iter(scores.values()))
  order = np.argsort(-fil)
  helpful = [k for k in order[:10] if fil[k] > 0]
  harmful = [k for k in order[::-1][:10] if fil[k] < 0]
  for title, clients, words in (
    ("Most helpful: without them the test loss would rise", helpful, "rises"),
    ("Most harmful: without them the test loss would fall", harmful, "falls"),
  ):
    table = rich_table.Table(title=title, title_justify="left")
    table.add_column("client")
    for name in ("examples", "rounds in", *(f"FIL {of}" for of in scores)):
      table.add_column(name, justify="right")
    table.add_column("loss then")
    for k in clients:
      table.add_row(
        str(train.ids[k]),
        str(train.num_examples[k]),
        str(selected[k]),
        *(f"{values[k]:+.2e}" for values in scores.values()),
        words,
      )
    screen.print(table)
  screen.print(
    "FIL = loss(without) − loss(with) on the test examples: positive is helpful"
    f" (the loss would rise). {int((selected == 0).sum())} of {len(fil)}"
    " clients were never drawn."
  )


def _print_agreement(screen, run, scores):
  """Prints how far each estimate can be trusted."""
  for of in ESTIMATORS:
    truncated = float((run.health[of].truncated_at > 0).mean())
    growth = float(run.health[of].growth.max())
    line = f"{of}: {truncated:.0%} of layers truncated, largest growth of a"
    line += f" round {growth:.3f}"
    if "exact" in scores:
      pearson = stats.pearsonr(scores[of], scores["exact"])[0]
      spearman = stats.spearmanr(scores[of], scores["exact"])[0]
      line += f"; against exact FIL Pearson {pearson:.4f}, Spearman"
      line += f" {spearman:.4f}"
    screen.print(line)


def _progress_bar(screen):
  return rich_progress.Progress(
    *rich_progress.Progress.get_default_columns(),
    rich_progress.MofNCompleteColumn(),
    console=screen,
    disable=not screen.is_terminal,
    transient=True,
  )


if __name__ == "__main__":
  launch.run(main)
