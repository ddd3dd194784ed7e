r"""Plants bad clients, and asks who finds them.

python -m experiments.debug [--config=experiments/configs/NAME.py]
    [--workdir=runs/debug] [--kinds=flip_labels,add_noise] [--fraction=0.1]

For each kind of bad client: trains with some planted, scores every client by
influence and by the cheap scores that people use today, on the identical run
and the same validation half of the test set; says how well each finds the bad
ones; then trains again without those it names, and shows what the model gains
on the other half.
"""

import pathlib

from absl import flags
import numpy as np
from rich import console as rich_console
from rich import table as rich_table

from experiments import cleansing
from experiments import finishing
from experiments import launch
from experiments import problem as problems
from experiments import report
from experiments import training
from experiments import workdir as workdirs
import fedinf_jax as fi

KINDS = ("flip_labels", "add_noise", "free_rider", "duplicate")

_CONFIG = launch.define_config("quickstart")
_WORKDIR = flags.DEFINE_string("workdir", "runs/debug", "Where to.")
_DATA_DIR = launch.define_data_dir()
_KINDS = flags.DEFINE_list("kinds", list(KINDS), "Which kinds of bad clients.")
_FRACTION = flags.DEFINE_float("fraction", 0.1, "Of the clients to spoil.")
_SWEEPS = flags.DEFINE_integer(
  "shapley_sweeps", 1, "Sweeps of GTG-Shapley a round; 0 leaves it out.",
  lower_bound=0,
)  # fmt: skip


def main(argv):
  """Debugs one model for each kind of bad client."""
  del argv
  name = launch.config_name()
  folder = pathlib.Path(_WORKDIR.value)
  config = problems.scaled(_CONFIG.value)
  config.corrupt.fraction = _FRACTION.value
  screen = rich_console.Console()
  for kind in _KINDS.value:
    config.corrupt.kind = kind
    found = debug(name, config, folder / kind, screen)
    _print_table(screen, found)
    screen.print(f"report: {folder / kind / 'report.html'}", highlight=False)


def debug(name, config, folder, screen) -> dict:
  """Trains with bad clients and scores everyone; writes debug.json."""
  trained = training.train(name, config, folder, _DATA_DIR.value, screen)
  finishing.finish(name, config, folder, trained)
  problem, seed = trained.problem, config.seed
  half = cleansing.halves(problem, seed)
  x, y = problem.x[half.validation], problem.y[half.validation]
  run = fi.Run.of(problem.model, trained.state)
  scores = {
    f"fil_{of}": cleansing.scores(run, problem, half.validation, of)["fil"]
    for of in trained.evaluation.fil
  }
  shapley = None
  if _SWEEPS.value:
    shapley = fi.valuation.GTGShapley(max_sweeps=_SWEEPS.value)
  scores |= fi.valuation.baselines(
    problem.model, problem.train, problem.fed, x, y, seed=seed, shapley=shapley
  )
  bad = np.isin(np.arange(problem.train.num_clients), _positions(problem))
  retrain = cleansing.trainer(problem, half, seed)
  final = lambda removed: retrain(removed).held_out[-1]
  with_all, without_bad = final([]), final(np.flatnonzero(bad))
  content = {
    "kind": config.corrupt.kind,
    "bad": [str(i) for i in problem.bad],
    "clients": problem.train.num_clients,
    "scores": {},
    "gain": {
      "nobody": _point(with_all),
      "the bad ones": _point(without_bad),
    },
  }
  for score, values in scores.items():
    content["scores"][score] = {
      "precision_at_k": fi.valuation.precision_at_k(values, bad),
      "auroc": fi.valuation.auroc(values, bad),
      "values": values,
    }
    # As many as are bad: what one would remove going by this score.
    named = fi.valuation.ranking(values)[::-1][: bad.sum()]
    content["gain"][score] = _point(final(named))
  workdirs.write_json(folder / "debug.json", content)
  report.write(folder)
  return content


def _positions(problem):
  return problem.train.positions(problem.bad)


def _point(values):
  return {"loss": values[0], "accuracy": values[1]}


def _print_table(screen, found):
  bad, clients = len(found["bad"]), found["clients"]
  table = rich_table.Table(
    title=f"{found['kind']}: {bad} of {clients} clients are bad; chance finds"
    f" {bad / clients:.0%} of them at an AUROC of 0.5",
    title_justify="left",
  )
  for title in ("score", "precision at k", "AUROC", "test loss without",
                "accuracy without"):  # fmt: skip
    table.add_column(title, justify="left" if title == "score" else "right")
  for who in ("nobody", "the bad ones"):
    gain = found["gain"][who]
    table.add_row(
      f"({who} removed)", "", "", f"{gain['loss']:.4f}",
      f"{gain['accuracy']:.4f}",
    )  # fmt: skip
  for score, values in found["scores"].items():
    gain = found["gain"][score]
    table.add_row(
      score,
      f"{values['precision_at_k']:.2f}",
      f"{values['auroc']:.3f}",
      f"{gain['loss']:.4f}",
      f"{gain['accuracy']:.4f}",
    )
  screen.print(table)


if __name__ == "__main__":
  launch.run(main)
