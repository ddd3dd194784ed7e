"""Slow twins of the fast paths, in NumPy float64, read off the paper.

Loops, dictionaries and explicit matrices; no tricks, no packing, no batching.
"""

import functools

import jax
import numpy as np

from fedinf_jax import rng


def softmax_regression_gradient(w, x, y):
  """Mean gradient of the cross entropy of x W + b, by hand."""
  logits = x @ w["kernel"] + w["bias"]
  p = np.exp(logits - logits.max(1, keepdims=True))
  p /= p.sum(1, keepdims=True)
  p[np.arange(len(y)), y] -= 1
  return {"kernel": x.T @ p / len(y), "bias": p.mean(0)}


@functools.cache
def client_batch(seed, client_id, round_, step, count, size):
  """The examples that a client draws for one local step."""
  key = rng.stream_key(seed, rng.Stream.BATCH)
  key = rng.client_key(key, round_, rng.id_words([client_id])[0])
  key = jax.random.fold_in(key, step)
  index, valid = rng.choose(key, count, size=min(size, count), limit=count)
  assert bool(valid.all())
  return np.asarray(index)


def local_update(w, data, k, round_, fed, seed, momentum):
  """Equation (2): m local steps of client k from w; heavy-ball if momentum."""
  x, y = (np.asarray(a) for a in data.client(k))
  w = dict(w)
  velocity = {name: np.zeros_like(a) for name, a in w.items()}
  for i in range(fed.local_steps):
    rows = np.arange(len(x))
    if fed.batch_size is not None:
      rows = client_batch(seed, data.ids[k], round_, i, len(x), fed.batch_size)
    g = softmax_regression_gradient(w, x[rows].astype(np.float64), y[rows])
    for name in w:
      velocity[name] = g[name] + momentum * velocity[name]
      w[name] = w[name] - fed.eta * velocity[name]
  return w


def fedavg(w_0, data, cohorts, fed, seed=0, removed=(), momentum=0.0):
  """Equations (2), (3) with C_t replaced by C_t minus `removed`.

  Returns [w_0, w_1, …, w_T]; a round without participants changes nothing.
  """
  history = [w_0]
  for t, cohort in enumerate(cohorts):
    w = history[-1]
    cohort = [k for k in cohort if k not in removed]
    if not cohort:
      history.append(w)
      continue
    total = sum(int(data.num_examples[k]) for k in cohort)
    new = {name: np.zeros_like(a) for name, a in w.items()}
    for k in cohort:
      local = local_update(w, data, k, t + 1, fed, seed, momentum)
      for name in new:
        new[name] += int(data.num_examples[k]) / total * local[name]
    history.append(new)
  return history


def exact_fip(w_0, data, cohorts, fed, removed, **kwargs):
  """Definition 1: retrain without `removed`, subtract the model with all."""
  with_all = fedavg(w_0, data, cohorts, fed, **kwargs)[-1]
  without = fedavg(w_0, data, cohorts, fed, removed=removed, **kwargs)[-1]
  return {name: without[name] - with_all[name] for name in with_all}
