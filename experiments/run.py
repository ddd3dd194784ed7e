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
import time

from absl import flags
import jax
from rich import table as rich_table

from experiments import bench_measure
from experiments import launch
from experiments import seeds
from experiments import showing
from fedinf_jax import memory
from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax.report import numbers
from fedinf_jax.running import explaining
from fedinf_jax.running import files
from fedinf_jax.running import finishing
from fedinf_jax.running import lock
from fedinf_jax.running import loop
from fedinf_jax.running import passes
from fedinf_jax.running import planning
from fedinf_jax.running import processes
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import repeats as repeat_runs
from fedinf_jax.running import task as tasks
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
      run(recipes.build(name, config, _DATA_DIR.value), place, screen)
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


def run(task: tasks.Task, folder: pathlib.Path, screen):
  """Runs a task, unless it is finished, and prints its verdict."""
  finished = loop.is_finished(task, folder)
  if finished:
    progress.say(screen, f"{folder}: this run is finished")
  explanation = None
  if not finished or task.explain is not None:
    saving = loop.Saving(rounds=_SAVE_ROUNDS.value, minutes=_SAVE_MINUTES.value)
    trained = loop.train(task, folder, screen, saving)
    if task.explain is not None:
      explanation = explaining.explain(task, folder, trained.state)
    if not finished:
      if tasks.is_checked(task):
        progress.say(
          screen,
          "no ground truth: retraining without a few groups of clients, to say"
          " what agreement to expect",
        )
      _finish(task, folder, trained)
  if processes.is_first():
    showing.print_verdict(folder, screen)
    if explanation:
      progress.say(screen, explanation)


def _finish(task, folder, trained):
  """Writes the last files and the report."""
  started = time.perf_counter()
  finishing.finish(task, folder, trained)
  if processes.is_first():
    report.write(folder)
    took = time.perf_counter() - started
    records.append_timing(folder, "report", task.fed.rounds, took)


def show_plan(name, config, screen):
  """Prints what each device would need and do."""
  shape = devices.parse_shape(config.mesh)
  fits = shape[0] * shape[1] <= jax.device_count()
  if not fits:
    config.mesh = "none"  # There is no such mesh here to make a task for.
  task = recipes.build(name, config, _DATA_DIR.value)
  replayed = len(tasks.examined(task)) if task.exact else 0
  sizes = planning.sizes_of(
    task, task.estimators, replayed, tasks.selected(task) > 0
  )
  machine = planning.Machine(*shape, 1e9 * bench_measure.gemm_peak())
  compiled = None
  if fits:
    compiled = memory.compiled_bytes(tasks.lower(task).compile())
  progress.say(screen, tasks.describe(task))
  table = _plan_table(sizes, machine, task.fed.rounds, compiled)
  if repeats := repeat_runs.asked(task):
    again = tasks.repeated(task, 1)
    replayed = len(tasks.examined(again))
    sizes = planning.sizes_of(again, {}, replayed, tasks.selected(task) > 0)
    seconds = planning.plan(sizes, machine).seconds
    table.add_row(
      f"{len(repeats)} repeat(s) of {replayed} exact replays, before the run",
      numbers.duration(len(repeats) * task.fed.rounds * seconds),
    )
  for name in task.passes:
    program = passes.prepare(task, name).lower().back.compile()
    table.add_row(
      f"{name}, before the run: memory by the compiler's account",
      numbers.amount(memory.compiled_bytes(program), "B"),
    )
  screen.print(table)


def _plan_table(sizes, machine, rounds, compiled):
  """Returns the plan of a run; `compiled`: bytes of its program, or None."""
  found = planning.plan(sizes, machine)
  table = rich_table.Table(
    "per device", "", title=f"{machine.removals} × {machine.params} device(s)"
  )
  for title, value, unit in (
    ("ε, flags, replayed models", found.state, "B"),
    ("examples", found.inputs, "B"),
    ("working memory", found.working, "B"),
    ("memory in all", found.memory, "B"),
    ("… by the compiler's account", compiled, "B"),
    ("training, per round", found.training, "op"),
    ("propagation, per round", found.propagation, "op"),
    ("replay, per round", found.replay, "op"),
    ("received, per round", found.traffic, "B"),
    ("measured peak", machine.flops, "op/s"),
  ):
    table.add_row(title, numbers.amount(value, unit))
  seconds = found.seconds
  table.add_row("a round, at that peak", numbers.duration(seconds))
  table.add_row(f"{rounds} rounds", numbers.duration(rounds * seconds))
  table.add_row("most of it", planning.bottleneck(sizes, machine))
  return table


if __name__ == "__main__":
  launch.run(main)
