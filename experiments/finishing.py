"""The last files of a run: influence.csv and summary.json."""

import jax
import numpy as np

from experiments import estimators as named
from experiments import evaluation as evaluations
from experiments import problem as problems
from experiments import training
from experiments import workdir as workdirs
import fedinf_jax as fi
from fedinf_jax import memory
from fedinf_jax import tree


def finish(name, config, folder, trained) -> dict:
  """Writes influence.csv and summary.json; returns the latter."""
  state, found, problem, = trained  # fmt: skip
  train = problem.train
  times = training.selected(problem, config.seed)
  columns = ["exact", *found.health]
  header = ["client_id", "num_examples", "times_selected"]
  header += [f"{m}_{n}" for n in columns for m in ("fil", "fia")]
  lines = [workdirs.csv_line(header)]
  for k, client in enumerate(train.ids):
    cells = [client, int(train.num_examples[k]), int(times[k])]
    for n in columns:
      for values in (found.fil, found.fia):
        missing = n == "exact" and (n not in values or np.isnan(values[n][k]))
        cells.append(None if missing else float(values[n][k]))
    lines.append(workdirs.csv_line(cells))
  workdirs.write(folder / "influence.csv", "\n".join(lines) + "\n")

  built = named.build(config.estimators)
  model_bytes = memory.tree_bytes(state.params)
  last_quarter = _last_quarter(folder, problem.fed.rounds)
  estimators = {}
  for n, estimator in built.items():
    upload = fi.upload_bytes(problem.model, train, problem.fed, estimator)
    estimators[n] = {
      "description": named.describe(n),
      "upload_bytes_per_participant": upload,
      "upload_models": upload / model_bytes,
      "asked": not estimator.curvature.uploads,
      **evaluations.agreement(found, n),
      "last_quarter": last_quarter[n],
      **evaluations.trust(found.health[n]),
    }
  summary = {
    "name": name,
    "source": problem.source,
    "stand_in": problem.stand_in,
    "clients": train.num_clients,
    "rounds": problem.fed.rounds,
    "num_params": sum(a.size for a in jax.tree.leaves(state.params)),
    "train_examples": len(train.x),
    "test_examples": len(problem.x),
    "seed": config.seed,
    "loss": found.loss,
    "accuracy": found.accuracy,
    "layer_names": list(tree.names(state.params)),
    "estimators": estimators,
    "data_digest": problems.digest(problem),
    "versions": workdirs.versions(),
    "git_revision": workdirs.git_revision(),
  }
  workdirs.write_json(folder / "summary.json", summary)
  return workdirs.read_json(folder / "summary.json")


def _last_quarter(folder, rounds):
  """Means over the evaluated rounds of the last quarter, per estimator."""
  lines = workdirs.read_lines(folder / "metrics.jsonl")
  late = [line["estimators"] for line in lines if line["round"] > 0.75 * rounds]
  means = {}
  for name in late[0]:
    means[name] = {}
    for key in ("fil_pearson", "fil_spearman", "fip_relative_error"):
      values = [line[name][key] for line in late]
      known = [v for v in values if v is not None]
      means[name][key] = float(np.mean(known)) if known else None
  return means
