"""What each defence costs: agreement with retraining, with and without it."""

from typing import Any
from typing import NamedTuple

import numpy as np

from experiments import privacy_defences as defences
from experiments import privacy_models
import fedinf_jax as fi
from fedinf_jax.curvature import wall

SAMPLES = 20


class Federation(NamedTuple):
  """A small federation, all of whose clients are retrained without."""

  name: str
  model: fi.Model
  fed: fi.FedAvg
  train: fi.FederatedData
  server: fi.FederatedData  # the server's own examples, nobody's
  test: tuple[np.ndarray, np.ndarray]
  seed: int


def images(writers: fi.FederatedData, seed: int, scale: float) -> Federation:
  """A small setting 2: mixed images, the CNN without activations."""
  num_clients, each = max(6, round(12 * scale)), max(10, round(40 * scale))
  x, y = writers.pooled()
  order = np.random.default_rng([seed, 1]).permutation(len(x))
  count = num_clients * each
  held = min(200 if scale == 1 else 40, (len(x) - count) // 3)
  mine, own, test = np.split(
    order[: count + 3 * held], [count, count + held]
  )  # fmt: skip
  return Federation(
    "images", privacy_models.setting2().model,
    fi.FedAvg(
      rounds=max(4, round(30 * scale)), cohort_size=3, local_steps=2,
      learning_rate=0.03,
    ),
    fi.data.partition.iid(
      x[mine], y[mine], num_clients=num_clients, seed=seed,
      num_classes=privacy_models.CLASSES,
    ),
    fi.FederatedData.from_clients({"nobody": (x[own], y[own])}),
    (x[test], y[test]), seed=seed,
  )  # fmt: skip


def logreg(seed: int, scale: float) -> Federation:
  """A small quickstart: convex logistic regression on synthetic clients."""
  num_clients = max(6, round(50 * scale))
  everyone = fi.data.synthetic(num_clients=num_clients + 20)
  clients, test = everyone.take(range(num_clients)).split(0.8, seed=seed)
  others = everyone.take(range(num_clients, num_clients + 20))
  return Federation(
    "logreg", fi.models.logreg(60, 5),
    fi.FedAvg(
      rounds=max(4, round(60 * scale)), cohort_size=5, local_steps=5,
      learning_rate=0.03,
    ),
    clients, others, test.pooled(), seed=seed,
  )  # fmt: skip


def curvatures(
  clip: float, multipliers: list[float], num_samples: int = SAMPLES
) -> dict[str, wall.Curvature]:
  """Returns what is compared, by the names of the table."""
  whole: dict[str, Any] = {
    "num_samples": num_samples,
    "labels": "sampled",
    "layerwise": False,
  }
  relu = {**whole, "spectrum": "relu"}
  private = lambda clip, z: defences.private_fisher(
    defences.Mechanism(clip, z), num_samples=num_samples, labels="sampled",
    spectrum="relu",
  )  # fmt: skip
  own = {**relu, "num_samples": 100, "label_draws": 16, "per": "round"}
  return {
    "uploaded as they are": fi.fisher(**whole),
    "rotated": fi.fisher(**relu),
    "rank 4": fi.fisher(**relu, rank=4),
    "clipped": private(clip, 0.0),
    **{f"clipped, noise {z:g}": private(clip, z) for z in multipliers},
    "nothing uploaded, server's examples": fi.server_side(fi.fisher(**own)),
    "nothing uploaded, no curvature": private(0.0, 0.0),
    "nothing uploaded, truncated": fi.truncated(),
  }


def agreement(
  federation: Federation, compared: dict[str, wall.Curvature]
) -> tuple[dict[str, tuple[float | None, float | None]], int]:
  """Retrains without each client, and correlates every estimate with that.

  Returns:
    Pearson and Spearman of FIL by name; and in how many rounds a client took
    part at most.
  """
  run = fi.simulate(
    federation.model, federation.train, federation.fed,
    estimators={
      name: fi.estimator(c, fi.no_guard()) for name, c in compared.items()
    },
    exact=True, server_data=federation.server, seed=federation.seed,
  )  # fmt: skip
  found = run.agreement(*federation.test)
  rounds = np.bincount(np.asarray(run.cohorts).ravel()).max()
  return {n: (a.pearson, a.spearman) for n, a in found.items()}, int(rounds)
