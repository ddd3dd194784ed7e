"""The backward pass written out: loops over rounds and clients, whole J_k."""

import functools
from typing import NamedTuple

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg
from fedinf_jax import rng
from fedinf_jax.data import on_device
from tests import cases


class Round(NamedTuple):
  """What happened in one round, as flat vectors."""

  before: np.ndarray  # w_{t−1}, [P]
  after: np.ndarray  # w_t, [P]
  local: dict  # by client, w_{t,m}^k [P]
  jacobian: dict  # by client, [P, P]
  share: dict  # by client, a_k


def flatten(params):
  return np.asarray(flatten_util.ravel_pytree(params)[0])


def history(model, data, fed, cohorts, params, seed, *, scaled=None):
  """Trains one client after the other.

  Args:
    model: what to train.
    data: the clients.
    fed: how.
    cohorts: T lists of clients.
    params: w_0.
    seed: of the draws.
    scaled: (client, factor): whose n_k is scaled; None: nobody's. Jacobians
      are made for nobody then.
  """
  w = flatten_util.ravel_pytree(params)[0]
  one = _client(model, fed, int(data.num_examples.max()), scaled is None)
  clients = on_device.put(data)
  rounds = []
  for t, cohort in enumerate(cohorts, start=1):
    sizes = {int(k): float(data.num_examples[k]) for k in cohort}
    if scaled is not None and scaled[0] in sizes:
      sizes[scaled[0]] *= scaled[1]
    total = sum(sizes.values())
    found = {
      k: one(w, clients, k, rng.draws(seed, t, data.ids[k])) for k in sizes
    }
    share = {k: n / total for k, n in sizes.items()}
    after = sum(share[k] * found[k][0] for k in sizes) if sizes else w
    local = {k: f[0] for k, f in found.items()}
    jacobian = {k: f[1] for k, f in found.items()}
    rounds.append(Round(w, after, local, jacobian, share))
    w = after
  return rounds


@functools.cache
def _client(model, fed, size, with_jacobian):
  """Returns one client's training, and its Jacobian."""
  train = fedavg.local_training(model, fed)
  shapes = model.init(jax.random.key(0))
  unravel = flatten_util.ravel_pytree(cases.in_double(shapes))[1]

  @jax.jit
  def one(w, clients, k, draws):
    def run(w):
      examples = on_device.take(clients, k, size)
      local, _ = train(unravel(w), examples, draws)
      return flatten_util.ravel_pytree(local)[0]

    return run(w), jax.jacrev(run)(w) if with_jacobian else None

  return one


def propagated(rounds, num_clients):
  """Returns ε_T of every client, carried forward by M, [K, P]."""
  eps = np.zeros((num_clients, len(rounds[0].before)))
  for r in rounds:
    eps = eps @ _propagator(r).T
    for k, a in r.share.items():
      eps[k] += r.before - r.after if a == 1 else _pushed(r, k)
  return eps


def _propagator(r):
  """Returns M_t; a round without participants changes nothing."""
  if not r.share:
    return np.eye(len(r.before))
  return np.asarray(sum(a * r.jacobian[k] for k, a in r.share.items()))


def _pushed(r, k):
  return r.share[k] / (1 - r.share[k]) * (r.after - r.local[k])


def derivative(rounds, gradient, num_clients):
  """Returns dF/dθ_c of every client, [K], from ∇F(w_T)."""
  found, row = np.zeros(num_clients), np.asarray(gradient)
  for r in reversed(rounds):
    for k, a in r.share.items():
      found[k] += a * row @ (r.after - r.local[k])
    row = row @ _propagator(r)
  return found


def corrected(rounds, basis, num_clients):
  """Returns z with every client's own part, [K, D], written out."""
  rows = [np.asarray(basis)]
  for r in reversed(rounds):
    rows.append(rows[-1] @ _propagator(r))
  rows = rows[::-1]  # Λ_0 … Λ_T
  z, gains = np.zeros((num_clients, len(basis))), np.zeros(num_clients)
  for t, r in enumerate(rounds):
    earlier, later = rows[t], rows[t + 1]
    for k, a in r.share.items():
      alone = a == 1
      d = r.before - r.after if alone else r.after - r.local[k]
      pulled = later if alone else later @ np.asarray(r.jacobian[k])
      sign, gain = (-1, 1) if alone else (1, a / (1 - a))
      alpha = np.clip(_multiple(z[k], earlier, earlier @ d), 0, gains[k])
      own = sign * alpha * (earlier - pulled) @ d
      z[k] = z[k] + gain * (later @ d + own)
      gains[k] += gain
  return z


def _multiple(z, rows, seen):
  """Returns James and Stein's estimate of α in z = α Λd + noise."""
  inverse = np.linalg.pinv(rows @ rows.T, rcond=1e-8, hermitian=True)
  if not z.any() or not seen.any():
    return 0.0
  explained = (seen @ inverse @ z) ** 2 / (seen @ inverse @ seen)
  noise = z @ inverse @ z - explained
  f = explained / (noise / (len(z) - 1)) if len(z) > 1 else 0
  shrink = max(0.0, 1 - 1 / f) if f > 0 else 0.0
  return shrink * (seen @ inverse @ z) / (seen @ inverse @ seen)


def loss_of(model, x, y, params):
  """Returns F of flat parameters."""
  unravel = flatten_util.ravel_pytree(params)[1]
  return lambda w: model.loss(model.apply(unravel(jnp.asarray(w)), x), y).mean()
