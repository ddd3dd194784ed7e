"""What server and JAX clients agree on: the model and the estimators."""

import functools

from flwr.app import Context
import jax

from fedinf_app import task
import fedinf_jax as fi
from fedinf_jax import flower

MODEL = fi.models.logreg(task.DIMENSION, task.CLASSES)
OURS = fi.fisher(
  num_samples=100, labels="sampled", layerwise=False, spectrum="relu",
  per="round",
)  # fmt: skip
ESTIMATORS = {
  "silent": {"ours": fi.estimator(fi.server_side(OURS), fi.lwet())},
  "upload": {"ours": fi.estimator(fi.fisher(num_samples=20), fi.lwet())},
  "interactive": {"ours": fi.estimator(fi.exact_hessian(), fi.lwet())},
}


def fed(config) -> fi.FedAvg:
  """Returns how clients train, from the app's configuration."""
  return fi.FedAvg(
    rounds=int(config["num-rounds"]),
    cohort_size=int(config["cohort-size"]),
    local_steps=task.LOCAL_STEPS,
    learning_rate=task.LEARNING_RATE,
  )


def params(seed: int):
  """Returns w_0."""
  return MODEL.init(jax.random.key(seed))


def client_app(context: Context):
  """Returns the ClientApp of a client that reports or answers."""
  config = context.run_config
  keys = ("mode", "num-rounds", "cohort-size", "seed")
  return _client_app(tuple(config[k] for k in keys))


@functools.cache
def _client_app(values):
  mode, rounds, cohort, seed = values
  config = {"num-rounds": rounds, "cohort-size": cohort}
  return flower.client_app(
    MODEL, fed(config), ESTIMATORS[mode], params(int(seed)),
    lambda context: task.load(
      int(context.node_config["partition-id"]), int(seed)
    ),
    max_examples=task.MAX_EXAMPLES,
    seed=int(seed),
  )  # fmt: skip
