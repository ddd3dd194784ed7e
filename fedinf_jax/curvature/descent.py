"""How a local optimiser carries a small change of its starting point.

A step w ← w + update(∇L(w)) moves a change σ of w by update(Hσ), exactly so if
the optimiser is linear: plain gradient descent, momentum, weight decay.
"""

from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np
import optax

from fedinf_jax import fedavg
from fedinf_jax import tree


class Descent(NamedTuple):
  """What client and server both know of local training; static."""

  fed: fedavg.FedAvg
  eta: float | None  # of plain gradient descent; None: another optimiser

  def require_plain(self, name: str, value):
    """Refuses an option that only plain gradient descent has."""
    if value is not None and self.eta is None:
      raise ValueError(
        f"{name}={value!r} is defined for plain gradient descent only; the"
        " client_optimizer is another"
      )

  def scaled(self, curvatures):
    """Multiplies by η where the steps are plain gradient descent."""
    eta = 1.0 if self.eta is None else self.eta
    return jax.tree.map(lambda a: eta * a, curvatures)


def plain_rate(fed: fedavg.FedAvg, params) -> float | None:
  """Returns η if the local optimiser is gradient descent, w ← w − ηg.

  Returns None for any other linear optimiser.

  Args:
    fed: how participants train.
    params: the model's parameters, or their shapes.

  Raises:
    ValueError: if the optimiser is not linear, found by feeding it numbers.
  """
  if fed.learning_rate is not None:
    return fed.learning_rate
  draw = np.random.default_rng(0)
  start = jax.tree.map(lambda a: draw.normal(size=a.shape), params)
  first, second = (
    jax.tree.map(
      lambda a: draw.normal(size=(fed.local_steps, *a.shape)), params
    )
    for _ in range(2)
  )
  first, second = (_cast(params, (start, g)) for g in (first, second))
  rollout = jax.jit(lambda inputs: _rollout(fed.optimizer, *inputs))
  scaled = lambda scale: jax.tree.map(lambda a: scale * a, first)
  total = jax.tree.map(jnp.add, first, second)
  moved = rollout(first)
  linear = [
    (total, jax.tree.map(jnp.add, moved, rollout(second))),
    *(
      (scaled(s), jax.tree.map(lambda a, s=s: s * a, moved))
      for s in (1e6, -1e-3)
    ),
  ]
  if not all(_close(rollout(inputs), expected) for inputs, expected in linear):
    raise ValueError(
      "client_optimizer is not linear in the gradients, so a change of the"
      " model cannot be carried through it; use exact_hessian, or an optimiser"
      " such as optax.sgd (momentum and weight decay included)"
    )
  w, g = (jax.tree.leaves(a)[0] for a in first)
  eta = float(((w - jax.tree.leaves(moved)[0]) / g.sum(0)).mean())
  still = jax.tree.map(lambda w, g: w - eta * g.sum(0), *first)
  return eta if _close(moved, still) else None


def _rollout(optimizer, w, gradients):
  """Runs the optimiser on given gradients, leaves [M, ...]."""

  def step(carry, g):
    w, state = carry
    update, state = optimizer.update(g, state, w)
    return (optax.apply_updates(w, update), state), None

  return lax.scan(step, (w, optimizer.init(w)), gradients)[0][0]


def _cast(params, inputs):
  dtypes = jax.tree.map(lambda a: jnp.dtype(a.dtype), params)
  return tuple(
    jax.tree.map(lambda a, d: jnp.asarray(a, d), part, dtypes)
    for part in inputs
  )


def _close(a, b):
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return all(
    np.abs(x - y).max(initial=0) <= 1e-3 * np.abs(y).max(initial=0)
    for x, y in pairs
  )


def lost(descent: Descent, apply, steps, eps):
  """Carries ε through the local steps and returns what is lost, ε − Pε.

      σ ← σ − ηHσ,   i = 0 … m−1,   from σ = ε

  Kept as the difference from ε: where H does nothing, nothing is lost, to the
  last digit, and a growth check sees more digits than two norms would show.

  Args:
    descent: how participants train.
    apply: (a step's curvature, σ) -> ηHσ, or Hσ where η is None.
    steps: the curvatures, leaves [M, ...].
    eps: leaves [R, ...].
  """
  if descent.eta is not None:

    def descend(d, step):
      return tree.add(d, apply(step, tree.subtract(eps, d))), None

    return lax.scan(descend, tree.zeros_like(eps), steps)[0]

  optimizer = descent.fed.optimizer

  def update(carry, step):
    sigma, state = carry
    change, state = optimizer.update(apply(step, sigma), state, sigma)
    return (optax.apply_updates(sigma, change), state), None

  sigma = lax.scan(update, (eps, optimizer.init(eps)), steps)[0][0]
  return tree.subtract(eps, sigma)
