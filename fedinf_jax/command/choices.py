"""What is not said on the command line is chosen by looking at the data."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np

from fedinf_jax import choice
from fedinf_jax import types
from fedinf_jax.data import federated
from fedinf_jax.linalg import lanczos
from fedinf_jax.recipes import building

TRAIN = 0.8  # of each client's rows; the others are held out
LARGE = 256  # examples of a client; above, steps draw mini-batches
BATCH = 64
EXAMPLES = 512  # by which the learning rate is chosen
LANCZOS_STEPS = 16
# An optimiser's learning rate, as a multiple of plain gradient descent's.
OF_PLAIN = {"sgd": 0.3, "momentum": 0.03}
ADAM = 0.003
# The most that it may be, by model: networks grow more curved as they train.
MOST = {"logreg": 0.3, "cnn": 0.1}
MOST_OF_OTHERS = 0.1
AFFORDABLE = 1e12  # operations of retraining without everybody: a minute or so


def model(data: federated.FederatedData, task: str) -> str:
  """Returns the kind of model for a task and the shape of the examples."""
  is_cnn = task == "classification" and is_images(data)
  return "cnn" if is_cnn else "logreg"


def is_images(data: federated.FederatedData) -> bool:
  """Says whether examples are images [H, W, C] that a network can halve."""
  shape = data.x.shape[1:]
  return len(shape) == 3 and min(shape[:2]) >= 8


def training(
  values: dict[str, Any], data: federated.FederatedData
) -> dict[str, Any]:
  """Returns cohort, rounds and so on: as they are given, or chosen.

  Args:
    values: flags by name, None where not given.
    data: the clients.
  """
  clients = data.num_clients
  cohort = values["cohort"] or min(10, max(2, math.ceil(clients / 2)), clients)
  if cohort > clients:
    raise ValueError(f"--cohort={cohort}: there are {clients} clients")
  # Everybody takes part some twenty times.
  rounds = min(300, max(50, math.ceil(20 * clients / cohort)))
  batch = values["batch_size"]
  if batch is None:
    batch = BATCH if data.num_examples.max() > LARGE else 0
  return {
    "rounds": values["rounds"] or rounds,
    "cohort_size": cohort,
    "local_steps": values["local_steps"] or 5,
    "batch_size": batch,
  }


def learning_rate(
  kind: str,
  model: types.Model,
  data: federated.FederatedData,
  optimizer: str,
  seed: int,
) -> float:
  """Returns a rate at which training is stable: a third of 1 / λ.

  λ is the Hessian's largest eigenvalue at the start, on some examples.

  Args:
    kind: of the model.
    model: that trains.
    data: the clients.
    optimizer: of the clients.
    seed: of the run.
  """
  if optimizer == "adam":
    return ADAM
  some = np.random.default_rng([seed, 8]).permutation(len(data.x))[:EXAMPLES]
  params = model.init(jax.random.key(seed))
  largest = float(_largest(model, params, data.x[some], data.y[some]))
  if not 0 < largest < math.inf:
    return 0.01
  part = OF_PLAIN[optimizer]
  most = part / OF_PLAIN["sgd"] * MOST.get(kind, MOST_OF_OTHERS)
  return float(f"{min(most, part / largest):.1g}")


def _largest(model, params, x, y):
  """Returns the Hessian's largest eigenvalue, [].

  Compiled as one program: one by one, its operations take seconds.
  """
  flat, unflatten = jax.flatten_util.ravel_pytree(params)

  @jax.jit
  def find(flat, x, y):
    loss = lambda w: model.loss(model.apply(unflatten(w), x), y).mean()
    matvec = jax.linearize(jax.grad(loss), flat)[1]
    start = jax.random.normal(jax.random.key(0), flat.shape, flat.dtype)
    steps = min(LANCZOS_STEPS, flat.size)
    return lanczos.extreme_eigenvalues(matvec, start, steps)[1]

  return find(flat, jnp.asarray(x), jnp.asarray(y))


def exact(operations: float) -> str:
  """Returns whom to retrain without: all, if that is affordable.

  Args:
    operations: of retraining without everybody, in all rounds.
  """
  return "all" if operations <= AFFORDABLE else "none"


def estimator(config: ml_collections.ConfigDict, model: types.Model) -> str:
  """Returns the name of the estimator that fits training and model."""
  return choice.default_estimator(building.fed(config), model=model).name
