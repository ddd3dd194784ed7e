r"""Trains a federated model and says which clients help and which hurt.

python -m experiments.run [--config=experiments/configs/NAME.py]
    [--workdir=DIR] [--data_dir=DIR_OR_NPZ] [--seeds=0,1,2]
    [--config.fed.rounds=50 ...]

Writes everything, report.html included, to the workdir (runs/NAME unless told
otherwise). Started again on the same workdir it goes on where it stopped.
"""

import pathlib
import time

from absl import flags
import jax
import numpy as np
from rich import console as rich_console
from rich import table as rich_table

from experiments import bench_measure
from experiments import devices
from experiments import estimators as named
from experiments import finishing
from experiments import launch
from experiments import planning
from experiments import problem as problems
from experiments import processes
from experiments import report
from experiments import training
from experiments import workdir as workdirs
import fedinf_jax as fi

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
EXTREMES = 5  # Clients to name on the screen, at each end.


def main(argv):
  """Runs the recipe, once or for several seeds."""
  del argv
  name = launch.config_name()
  folder = pathlib.Path(_WORKDIR.value or f"runs/{name}")
  config = problems.scaled(_CONFIG.value)
  if _PLAN.value:
    show_plan(config, rich_console.Console())
    return
  processes.join()
  screen = rich_console.Console(quiet=not processes.is_first())
  if not _SEEDS.value:
    run(name, config, folder, screen)
    return
  summaries = []
  for seed in _SEEDS.value:
    if not seed.isdecimal():
      raise ValueError(f"--seeds: {seed!r} is not a non-negative integer")
    config.seed = int(seed)
    summaries.append(run(name, config, folder / f"seed_{seed}", screen))
  if not processes.is_first():
    return
  spread = over_seeds(summaries)
  workdirs.write_json(folder / "seeds.json", spread)
  _print_spread(screen, spread)


def run(name, config, folder, screen):
  """Runs one recipe with one seed; returns its summary, on process 0."""
  trained = training.train(
    name,
    config,
    folder,
    _DATA_DIR.value,
    screen,
    save_rounds=_SAVE_ROUNDS.value,
    save_minutes=_SAVE_MINUTES.value,
  )
  if not processes.is_first():
    return None
  started = time.perf_counter()
  summary = finishing.finish(name, config, folder, trained)
  report.write(folder)
  line = {"stage": "report", "round": config.fed.rounds, "rounds": 0}
  line["seconds"] = round(time.perf_counter() - started, 4)
  workdirs.append_json(folder / "timing.jsonl", line)
  _print_verdict(screen, folder, summary, trained)
  return summary


def show_plan(config, screen):
  """Prints what each device would need and do."""
  problem = problems.build(config, _DATA_DIR.value)
  train = problem.train
  estimators = named.build(config.estimators)
  exact = problems.exact_rows(config.exact, train.num_clients, config.seed)
  replayed = train.num_clients if exact is True else len(exact or ())
  drawn = training.selected(problem, config.seed) > 0
  sizes = planning.sizes_of(problem, estimators, replayed, drawn)
  flops = 1e9 * bench_measure.gemm_peak()
  machine = planning.Machine(*devices.shape(config.mesh), flops)
  compiled = None
  if machine.devices <= jax.device_count():
    _, step = fi.simulator(
      problem.model,
      train,
      problem.fed,
      estimators=estimators,
      exact=exact,
      seed=config.seed,
      mesh=devices.mesh(config.mesh),
    )
    compiled = planning.compiled_bytes(step)
  screen.print(training.describe(launch.config_name(), problem))
  screen.print(planning.table(sizes, machine, problem.fed.rounds, compiled))


def over_seeds(summaries: list[dict]) -> dict:
  """Returns mean and spread of the numbers of several runs."""

  def spread(values):
    if any(v is None for v in values):
      return {"values": values}
    return {
      "mean": float(np.mean(values)),
      "std": float(np.std(values, ddof=1)) if len(values) > 1 else None,
      "min": min(values),
      "max": max(values),
      "values": values,
    }

  def gather(pick):
    return spread([pick(s) for s in summaries])

  first = summaries[0]
  keys = ("fil_pearson", "fil_spearman", "fia_pearson", "fip_relative_error")
  keys += ("truncated_fraction",)
  return {
    "name": first["name"],
    "source": first["source"],
    "seeds": [s["seed"] for s in summaries],
    "loss": gather(lambda s: s["loss"]),
    "accuracy": gather(lambda s: s["accuracy"]),
    "estimators": {
      name: {
        **{k: gather(lambda s, k=k, name=name: s["estimators"][name][k])
           for k in keys},
        "last_quarter_fil_pearson": gather(
          lambda s, name=name: s["estimators"][name]["last_quarter"][
            "fil_pearson"
          ]
        ),
      }
      for name in first["estimators"]
    },
  }  # fmt: skip


def _print_verdict(screen, folder, summary, trained):
  """Names the clients that matter and says how far to trust it."""
  fil = trained.evaluation.fil
  of = next(iter(fil), None)
  screen.print(
    f"after {summary['rounds']} rounds: test loss {summary['loss']:.4f},"
    f" accuracy {summary['accuracy']:.4f}",
    highlight=False,
  )
  if of is not None:
    order = fi.valuation.ranking(np.nan_to_num(fil[of]))
    ids = trained.problem.train.ids
    for sign, verb, move in ((1, "help", "rise"), (-1, "hurt", "fall")):
      clients = order[::sign][:EXTREMES]
      words = f"{verb} most; without them the test loss would {move} by"
      named_ = [
        f"{ids[k]} ({sign * fil[of][k]:.2e})"
        for k in clients
        if sign * fil[of][k] > 0
      ]
      if named_:
        screen.print(f"{words}: {', '.join(named_)}", highlight=False)
    screen.print(f"(FIL {of}: loss without − loss with)", highlight=False)
  table = rich_table.Table()
  for title in ("estimator", "upload", "Pearson", "Spearman", "FIP error",
                "truncated", "growth"):  # fmt: skip
    table.add_column(title, justify="left" if title == "estimator" else "right")
  for name, e in summary["estimators"].items():
    table.add_row(
      name,
      f"{e['upload_models']:.0f} models" + (" each way" if e["asked"] else ""),
      *(_short(e[k]) for k in ("fil_pearson", "fil_spearman")),
      _short(e["fip_relative_error"]),
      f"{e['truncated_fraction']:.0%}",
      _short(e["largest_growth"]),
    )
  if summary["estimators"]:
    screen.print(table)
  screen.print(f"report: {folder / 'report.html'}", highlight=False)


def _print_spread(screen, spread):
  table = rich_table.Table(title=f"seeds {spread['seeds']}")
  for title in ("estimator", "Pearson", "last quarter", "Spearman"):
    table.add_column(title)
  show = lambda s: (
    f"{s['mean']:.4f} ± {s['std'] or 0:.4f}" if "mean" in s else "–"
  )
  for name, e in spread["estimators"].items():
    table.add_row(
      name,
      show(e["fil_pearson"]),
      show(e["last_quarter_fil_pearson"]),
      show(e["fil_spearman"]),
    )
  screen.print(table)


def _short(value):
  return "–" if value is None else f"{value:.4g}"


if __name__ == "__main__":
  launch.run(main)
