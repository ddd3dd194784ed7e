r"""Plants bad clients, and asks who finds them.

python -m experiments.debug [--config=NAME_OR_FILE] [--data_dir=FEMNIST]
    [--workdir=runs/debug] [--kinds=flip_labels,add_noise] [--fraction=0.1]
    [--seeds=0,1,2]

For each kind of bad client: trains with some planted, scores every client by
influence and by the simpler scores that people use today, on the identical run
and the same validation half of the test set; says how well each finds the bad
ones, after every evaluated round; then trains again without those it names, and
shows what the model gains on the other half. With several seeds it does so for
each of them, and shows mean and spread.
"""

import contextlib
import pathlib

from absl import flags
from ml_collections import config_flags
from rich import table as rich_table

from experiments import debugging
from experiments import launch
from experiments import seeds
from fedinf_jax import recipes
from fedinf_jax.report import numbers
from fedinf_jax.report import remedies
from fedinf_jax.running import files
from fedinf_jax.running import lock
from fedinf_jax.running import loop
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir

_CONFIG = launch.define_config("quickstart")
_WORKDIR = flags.DEFINE_string("workdir", "runs/debug", "Where to.")
_DATA_DIR = launch.define_data_dir()
_KINDS = flags.DEFINE_list(
  "kinds", list(recipes.CORRUPTIONS), "Kinds of bad clients."
)
_FRACTION = flags.DEFINE_float("fraction", 0.1, "Of the clients to spoil.")
_SWEEPS = flags.DEFINE_integer(
  "shapley_sweeps", 1, "Sweeps of GTG-Shapley per round; 0 leaves it out.",
  lower_bound=0,
)  # fmt: skip
_SEEDS = flags.DEFINE_list(
  "seeds", [], "Repeat with these seeds, for mean and spread."
)
SPREAD = "debug_seeds.json"


def main(argv):
  """Debugs a model for each kind of bad client."""
  del argv
  name = launch.config_name()
  folder = pathlib.Path(_WORKDIR.value)
  config = recipes.scaled(_CONFIG.value)
  _set_defaults(config)
  config.corrupt.fraction = _FRACTION.value
  recipes.check_kinds(_KINDS.value)
  kinds = list(dict.fromkeys(_KINDS.value))
  wanted = seeds.parse(_SEEDS.value)
  places = {
    (kind, seed): folder / kind / (f"seed_{seed}" if wanted else "")
    for kind in kinds
    for seed in wanted or [config.seed]
  }
  for (kind, _), place in places.items():
    config.corrupt.kind = kind
    recipes.check(config)
    workdir.check(place)
  screen = progress.console()
  with contextlib.ExitStack() as stack:
    for place in places.values():
      stack.enter_context(lock.owned(place))
    for (kind, seed), place in places.items():
      config.corrupt.kind, config.seed = kind, seed
      task = recipes.build(name, config, _DATA_DIR.value, launch.get_problem())
      _debug(task, kind, place, screen)
    if wanted:
      _show_spread(places, folder, screen)


def _set_defaults(config):
  """Sets what the command line has not: whose scores are compared."""
  given = config_flags.get_override_values(flags.FLAGS["config"])
  wanted = {
    # The paper's method, ours with and without uploads, and backwards.
    "estimators": "both,relu,server,adjoint"
    if config.server_examples
    else "both,relu,adjoint",
    "adjoint_rounds": 4,  # Each costs a pass.
    "exact_repeats": 1,
  }
  with config.unlocked():
    config.update({k: v for k, v in wanted.items() if k not in given})


def _debug(task, kind, place, screen):
  """Debugs for one kind of bad client, unless that is done; prints it."""
  # Sweeps that are asked for may differ from those of a finished run.
  scored = (place / records.DEBUG).exists() and not _SWEEPS.present
  if scored and loop.is_finished(tasks.on_validation(task), place):
    progress.say(screen, f"{place}: this run is finished")
  else:
    debugging.debug(task, kind, place, screen, _SWEEPS.value)
  contents = workdir.read(place)
  screen.print(_table(contents.debug))
  for line in remedies.debugged(contents):
    progress.say(screen, line)
  progress.say(screen, f"report: {place / records.REPORT}")


def _show_spread(places, folder, screen):
  """Writes and prints mean and spread over the seeds, kind by kind."""
  found: dict[str, list] = {}
  for (kind, _), place in places.items():
    found.setdefault(kind, []).append(workdir.read(place))
  spread = {kind: seeds.debugged(runs) for kind, runs in found.items()}
  files.write_json(folder / SPREAD, spread)
  screen.print(seeds.debug_table(spread))
  for kind, scores in spread.items():
    progress.say(screen, f"{kind}: {scores['verdict']}")
  progress.say(screen, f"mean and spread over the seeds: {folder / SPREAD}")


def _table(found):
  """Returns what debug.json holds as a table."""
  bad, clients = len(found["bad"]), found["clients"]
  titles = ("precision at k", "AUROC", "test loss without", "accuracy without")
  table = rich_table.Table(
    "score",
    *(rich_table.Column(title, justify="right") for title in titles),
    title=f"{found['kind']}: {bad} of {clients} clients are bad; chance finds"
    f" {bad / clients:.0%} of them at an AUROC of 0.5",
    title_justify="left",
  )
  for who, gain in found["gain"].items():
    score = found["scores"].get(who)
    table.add_row(
      who if score else f"({who} removed)",
      numbers.fixed(score["precision_at_k"], 2) if score else "",
      numbers.fixed(score["auroc"], 3) if score else "",
      numbers.fixed(gain["loss"], 4),
      numbers.fixed(gain["accuracy"], 4),
    )
  return table


if __name__ == "__main__":
  launch.run(main)
