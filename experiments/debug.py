r"""Plants bad clients, and asks who finds them.

python -m experiments.debug [--config=NAME_OR_FILE]
    [--workdir=runs/debug] [--kinds=flip_labels,add_noise] [--fraction=0.1]

For each kind of bad client: trains with some planted, scores every client by
influence and by the cheap scores that people use today, on the identical run
and the same validation half of the test set; says how well each finds the bad
ones; then trains again without those it names, and shows what the model gains
on the other half.
"""

import contextlib
import pathlib

from absl import flags
from rich import table as rich_table

from experiments import debugging
from experiments import launch
from fedinf_jax import recipes
from fedinf_jax.running import lock
from fedinf_jax.running import loop
from fedinf_jax.running import progress
from fedinf_jax.running import records
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


def main(argv):
  """Debugs a model for each kind of bad client."""
  del argv
  name = launch.config_name()
  folder = pathlib.Path(_WORKDIR.value)
  config = recipes.scaled(_CONFIG.value)
  config.corrupt.fraction = _FRACTION.value
  recipes.check_kinds(_KINDS.value)
  for kind in _KINDS.value:
    config.corrupt.kind = kind
    recipes.check(config)
    workdir.check(folder / kind)
  screen = progress.console()
  with contextlib.ExitStack() as stack:
    for kind in dict.fromkeys(_KINDS.value):
      stack.enter_context(lock.owned(folder / kind))
    for kind in _KINDS.value:
      config.corrupt.kind = kind
      task = recipes.build(name, config, _DATA_DIR.value, launch.get_problem())
      _debug(task, kind, folder / kind, screen)


def _debug(task, kind, place, screen):
  """Debugs for one kind of bad client, unless that is done; prints it."""
  # Sweeps that are asked for may differ from those of a finished run.
  scored = (place / records.DEBUG).exists() and not _SWEEPS.present
  if scored and loop.is_finished(task, place):
    progress.say(screen, f"{place}: this run is finished")
  else:
    debugging.debug(task, kind, place, screen, _SWEEPS.value)
  screen.print(_table(workdir.read(place).debug))
  progress.say(screen, f"report: {place / records.REPORT}")


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
  return table


if __name__ == "__main__":
  launch.run(main)
