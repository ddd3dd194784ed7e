r"""Compares estimators with the exact influence on settings 2 and 3.

python -m experiments.compare --setting=2 --npz=FEMNIST.npz --rounds=500

Prints, at some rounds, Pearson and Spearman correlation of estimated with exact
FIL over all clients, the relative error of FIP, and the truncated layers.
Without --npz (x_train [N, 784] uint8, y_train, u_train and the same for test,
u being writers) the glyph writers stand in for FEMNIST.
"""

import time

from absl import flags
import jax
import numpy as np
from scipy import stats

from experiments import launch
import fedinf_jax as fi
from fedinf_jax.data import partition

_SETTING = flags.DEFINE_enum("setting", "2", ["2", "3"], "Which setting.")
_NPZ = flags.DEFINE_string("npz", None, "Writers' images; none: glyphs.")
_ROUNDS = flags.DEFINE_integer("rounds", 500, "T.")
_AT = flags.DEFINE_list("at", ["50", "100", "150", "300", "500"], "Rounds.")
_SEED = flags.DEFINE_integer("seed", 0, "Seed.")
_IMAGES = flags.DEFINE_integer("images", 60, "Training images a client.")
_ONLY = flags.DEFINE_list("only", None, "Names of estimators; none: all.")

_WHOLE = {"labels": "sampled", "layerwise": False}
ESTIMATORS = {
  "fisher + lwet (paper)": (fi.fisher(), fi.lwet()),
  "fisher + lwet per participant": (fi.fisher(), fi.lwet(per="participant")),
  "fisher": (fi.fisher(), fi.no_guard()),
  "fisher sampled + lwet": (fi.fisher(labels="sampled"), fi.lwet()),
  "whole sampled": (fi.fisher(**_WHOLE), fi.no_guard()),
  **{
    f"whole sampled {s}": (fi.fisher(**_WHOLE, spectrum=s), fi.no_guard())
    for s in ("relu", "exp", "implicit", "clip")
  },
  "whole sampled relu rank 10": (
    fi.fisher(**_WHOLE, spectrum="relu", rank=10),
    fi.no_guard(),
  ),
  "whole observed relu": (
    fi.fisher(layerwise=False, spectrum="relu"),
    fi.no_guard(),
  ),
  "lowrank 50 per round relu": (
    fi.lowrank_hessian(rank=50, per="round", spectrum="relu"),
    fi.no_guard(),
  ),
  "exact Hessian (basic)": (fi.exact_hessian(), fi.no_guard()),
  "layerwise Hessian + lwet": (fi.layerwise_hessian(), fi.lwet()),
  "truncated": (fi.truncated(), fi.no_guard()),
}


def load(setting, path, images, seed):
  """Returns (train, test x, test y, where the data are from)."""
  num_clients = 50 if setting == "2" else 100
  if path is None:
    writers = fi.data.glyphs(num_clients, images + 10, seed=seed)
    train, test = writers.split(images / (images + 10), seed=seed)
    source = "glyph writers (a stand-in for FEMNIST)"
  else:
    arrays = np.load(path)
    grey = lambda a: (a / np.float32(255)).reshape(-1, 28, 28, 1)
    everyone = partition.by_writer(
      grey(arrays["x_train"]),
      arrays["y_train"].astype(np.int32),
      writers=arrays["users"][arrays["u_train"]].tolist(),
      num_classes=62,
    )
    largest = np.argsort(-everyone.num_examples, kind="stable")[:num_clients]
    if setting == "3":
      everyone = everyone.take(np.sort(largest).tolist())
    draw = np.random.default_rng(seed)
    pick = lambda n: draw.permutation(n)[:images]
    train = fi.FederatedData.from_clients(
      [(x[i], y[i]) for x, y in everyone.clients() for i in [pick(len(x))]],
      everyone.ids,
      62,
    )
    if setting == "2":
      x, y = everyone.pooled()
      some = draw.permutation(len(x))[: num_clients * images]
      train = partition.iid(
        x[some], y[some], num_clients=num_clients, seed=seed, num_classes=62
      )
    x, y = grey(arrays["x_test"]), arrays["y_test"].astype(np.int32)
    return train, x, y, "LEAF FEMNIST"
  if setting == "2":
    x, y = train.pooled()
    train = partition.iid(
      x, y, num_clients=num_clients, seed=seed, num_classes=62
    )
  return train, *test.pooled(), source


def main(argv):
  """Runs the comparison."""
  del argv
  train, x, y, source = load(
    _SETTING.value, _NPZ.value, _IMAGES.value, _SEED.value
  )
  if _SETTING.value == "2":
    model = fi.models.cnn(
      widths=(4, 8), dense=32, activation=None, pool="stride"
    )
    settings = {"cohort_size": 5, "learning_rate": 0.03}
  else:
    model = fi.models.cnn()
    settings = {"cohort_size": 10, "learning_rate": 0.02}
  fed = fi.FedAvg(rounds=_ROUNDS.value, local_steps=2, **settings)
  chosen = {
    name: fi.estimator(*pair)
    for name, pair in ESTIMATORS.items()
    if _ONLY.value is None or name in _ONLY.value
  }
  init, step = fi.simulator(
    model, train, fed, estimators=chosen, exact=True, seed=_SEED.value
  )
  print(f"{source}: {train.num_clients} clients, {len(x)} test images")
  state, started = init(), time.time()
  for t in sorted(int(t) for t in _AT.value if int(t) <= fed.rounds):
    state = step(state, t - int(state.round))
    run = fi.Run.of(model, state)
    outputs = model.apply(run.params, x)
    print(
      f"round {t}: loss {float(fi.metrics.cross_entropy(outputs, y)):.4f},"
      f" accuracy {float(fi.metrics.accuracy(outputs, y)):.4f}"
      f" ({time.time() - started:.0f} s)",
      flush=True,
    )
    exact = np.asarray(run.influence(fi.metrics.loss, x, y, of="exact"))
    for name in chosen:
      fil = np.asarray(run.influence(fi.metrics.loss, x, y, of=name))
      error = np.mean(_distance(run.eps[name], run.exact_eps))
      size = np.mean(_distance(run.exact_eps, None))
      truncated = float((run.health[name].truncated_at > 0).mean())
      print(
        f"  {name:36s} {stats.pearsonr(fil, exact)[0]:6.3f} /"
        f" {stats.spearmanr(fil, exact)[0]:6.3f}   FIP error"
        f" {error / size:9.3g}   truncated {truncated:.0%}",
        flush=True,
      )


def _distance(a, b):
  """Returns ‖a_r − b_r‖ of every removal, [R]."""
  leaves = jax.tree.leaves(
    a if b is None else jax.tree.map(lambda p, q: p - q, a, b)
  )
  return np.sqrt(
    sum(
      np.square(np.asarray(e, float)).reshape(len(e), -1).sum(1) for e in leaves
    )
  )


if __name__ == "__main__":
  launch.run(main)
