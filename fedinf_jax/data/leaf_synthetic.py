"""LEAF's synthetic classification tasks, number for number."""

import numpy as np

from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax.data import federated


def synthetic(
  num_clients: int = 1000,
  num_classes: int = 5,
  num_features: int = 60,
  seed: int = 931231,
) -> federated.FederatedData:
  """Makes the data of LEAF's `synthetic` benchmark (Caldas et al., 2018).

  Client k holds n_k = min(int(lognormal(3, 2)) + 5, 1000) examples x around a
  centre of its own, labelled by argmax softmax(x Q u_k + noise), where u_k
  scatters around one cluster mean. With the defaults: 107,553 examples.

  The order of the draws, from NumPy's legacy generator, is LEAF's: it is what
  makes the numbers agree, odd as it looks (the seed is set twice).

  Args:
    num_clients: K, LEAF's "tasks".
    num_classes: C.
    num_features: D.
    seed: LEAF's own is 931231.

  Examples:
    >>> fi.data.synthetic(num_clients=5, num_features=4).num_examples
    array([86, 33, 52,  6, 11])
  """
  checks.positive_integer("num_clients", num_clients)
  checks.positive_integer("num_classes", num_classes)
  checks.positive_integer("num_features", num_features)
  checks.seed(seed)
  what = f"num_clients is {num_clients} and num_features {num_features}: they"
  # A client has five examples or more; the covariance has three copies.
  per_example = 8 * (num_features + num_classes + 1)
  fixed = 8 * num_features * (3 * num_features + num_classes)
  memory.require(what, fixed + num_clients * (8 + 5 * per_example))
  draw = np.random.RandomState(seed)
  sizes = np.minimum(draw.lognormal(3, 2, num_clients).astype(int) + 5, 1000)
  memory.require(what, fixed + int(sizes.sum()) * per_example)

  draw = np.random.RandomState(seed)
  clusters = 1
  q = draw.normal(0.0, 1.0, (num_features + 1, num_classes, clusters))
  # As `multivariate_normal` does it, but factored once and not per client.
  covariance = np.diag(np.arange(1, num_features + 1, dtype=float) ** -1.2)
  _, variance, axes = np.linalg.svd(covariance)
  factor = np.sqrt(variance)[:, None] * axes
  means = [
    draw.normal(draw.normal(0, 1.0), 1.0, clusters) for _ in range(clusters)
  ]
  clients = []
  for n in sizes:
    cluster = draw.choice(clusters, p=[1.0])
    centre = draw.normal(draw.normal(0.0, 1.0), 1.0, num_features)
    x = np.ones((n, num_features + 1))
    x[:, 1:] = draw.standard_normal((n, num_features)) @ factor + centre
    u = draw.normal(means[cluster], 0.1, clusters)
    logits = x @ (q @ u)
    noise = draw.normal(0.0, 0.1, logits.shape)
    y = np.argmax(logits + noise, axis=1)  # softmax keeps the order
    clients.append((x[:, 1:], y))
  return federated.FederatedData.from_clients(clients, num_classes=num_classes)
