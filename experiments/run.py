r"""Trains a federated model and says which clients help and which hurt.

python -m experiments.run [--config=NAME_OR_FILE] [--workdir=DIR]
    [--data_dir=DIR_OR_NPZ] [--seeds=0,1,2] [--config.fed.rounds=50 ...]

Writes everything, report.html included, to the workdir (runs/NAME by default).
With --config.exact=top:20 it scores all clients by one pass backwards, then
retrains without the ten at each end.
Started again on the same workdir it resumes where it stopped.
"""

import contextlib
import pathlib

from absl import flags
import jax

from experiments import launch
from experiments import seeds
from fedinf_jax import recipes
from fedinf_jax.command import plans
from fedinf_jax.command import running
from fedinf_jax.running import files
from fedinf_jax.running import lock
from fedinf_jax.running import loop
from fedinf_jax.running import planning
from fedinf_jax.running import processes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.simulation import devices

_CONFIG = launch.define_config("quickstart")
_WORKDIR = flags.DEFINE_string("workdir", None, "Where to; runs/NAME if none.")
_DATA_DIR = launch.define_data_dir()
_SEEDS = flags.DEFINE_list("seeds", [], "Repeat with these seeds.")
_SAVE_ROUNDS = flags.DEFINE_integer(
  "checkpoint_rounds", 0, "Rounds between checkpoints; 0: by the clock.",
  lower_bound=0,
)  # fmt: skip
_SAVE_MINUTES = flags.DEFINE_float(
  "checkpoint_minutes", 1.0, "Minutes between checkpoints.", lower_bound=0
)
_PLAN = flags.DEFINE_boolean(
  "plan", False, "Print what the run needs on each device, and end. The mesh"
  " may have more devices than there are here.",
)  # fmt: skip
launch.define_processes()
SEEDS = "seeds.csv"


def main(argv):
  """Runs the recipe, once or with several seeds."""
  del argv
  name = launch.config_name()
  folder = pathlib.Path(_WORKDIR.value or f"runs/{name}")
  config = recipes.scaled(_CONFIG.value)
  recipes.check(config)
  if _PLAN.value:
    show_plan(name, config, progress.console())
    return
  own = launch.get_problem()
  saving = loop.Saving(rounds=_SAVE_ROUNDS.value, minutes=_SAVE_MINUTES.value)
  wanted = seeds.parse(_SEEDS.value)
  folders = {seed: folder / f"seed_{seed}" for seed in wanted} or {
    config.seed: folder
  }
  for place in folders.values():
    workdir.check(place)
  launch.join()
  screen = progress.console(quiet=not processes.is_first())
  with contextlib.ExitStack() as stack:
    for place in dict.fromkeys((folder, *folders.values())):
      stack.enter_context(lock.owned(place))
    for seed, place in folders.items():
      config.seed = seed
      task = recipes.build(name, config, _DATA_DIR.value, own)
      running.run(task, place, screen, saving)
    if wanted and processes.is_first():
      found = [workdir.read(place) for place in folders.values()]
      spread = seeds.spread([contents.summary for contents in found])
      files.write_json(folder / "seeds.json", spread)
      files.write(folder / SEEDS, seeds.clients(found))
      table = seeds.table(spread)
      if records.read_top(config.exact):
        table.caption = "over the replayed extremes only"
      screen.print(table)
      progress.say(screen, f"each client over these seeds: {folder / SEEDS}")


def show_plan(name, config, screen):
  """Prints what each device would need and do."""
  shape = devices.parse_shape(config.mesh)
  fits = shape[0] * shape[1] <= jax.device_count()
  if not fits:
    config.mesh = "none"  # There is no such mesh here to make a task for.
  task = recipes.build(name, config, _DATA_DIR.value, launch.get_problem())
  machine = planning.Machine(*shape, plans.peak())
  plans.show(task, machine, screen, fits=fits)


if __name__ == "__main__":
  launch.run(main)
