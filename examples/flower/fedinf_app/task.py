"""What clients have and do, in NumPy only: any framework would do."""

import numpy as np

DIMENSION = 10
CLASSES = 4
LOCAL_STEPS = 3
LEARNING_RATE = 0.3
MAX_EXAMPLES = 60
BAD = 0  # this client's labels are wrong


def client_id(partition: int) -> str:
  """Returns the id of a client, the same after every restart."""
  return f"hospital-{partition}"


def load(partition: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
  """Makes a client's examples: inputs of its own, labels by one rule.

  Args:
    partition: which client; the server's own and test examples have numbers
      that no client has, -1 and -2.
    seed: of the federation.
  """
  draw = np.random.default_rng([seed, partition + 2])
  count = int(draw.integers(25, MAX_EXAMPLES)) if partition >= 0 else 200
  own = draw.normal(size=DIMENSION) * (0.5 if partition >= 0 else 0)
  x = draw.normal(size=(count, DIMENSION)) + own
  rule = np.random.default_rng(seed).normal(size=(DIMENSION, CLASSES))
  y = (x @ rule + 0.5 * draw.gumbel(size=(count, CLASSES))).argmax(1)
  if partition == BAD:
    y = (y + 1) % CLASSES
  return x.astype(np.float32), y.astype(np.int32)


def train(arrays: dict, x: np.ndarray, y: np.ndarray) -> dict:
  """Trains a softmax regression by gradient descent."""
  kernel, bias = arrays["dense/kernel"], arrays["dense/bias"]
  for _ in range(LOCAL_STEPS):
    logits = x @ kernel + bias
    p = np.exp(logits - logits.max(1, keepdims=True))
    residual = p / p.sum(1, keepdims=True) - np.eye(CLASSES)[y]
    kernel = kernel - LEARNING_RATE * x.T @ residual / len(x)
    bias = bias - LEARNING_RATE * residual.mean(0)
  made = {"dense/kernel": kernel, "dense/bias": bias}
  return {name: a.astype(np.float32) for name, a in made.items()}
