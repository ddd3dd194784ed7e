"""What a pass backwards leaves behind."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import backwards
from fedinf_jax import types
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import scores


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
  """Every client's influence, along the directions that a metric sees.

  Attributes:
    influence: [K], F(w + Vᵀz_c) − F(w) for the metric and examples of the pass;
      without eigenvectors its first order, ∇F Vᵀz_c. For a loss, > 0 means that
      the loss rises without the client: it helps.
    derivative: [K], dF/dθ_c where n_c is scaled by 1 − θ_c in every round.
    params: w, after the round where the pass began.
    carried: the share of the squared curvature ‖∇²F(w)‖² (Frobenius) that the
      directions carry; what lies outside is estimated by random probes. Well
      below 1: take more directions.
    basis: V, [D, P], orthonormal rows: the gradient first.
    coordinates: z, [K, D]. A client that was never drawn has zeros.
    model: the model that was trained.
    example: what the training data look like.
    rows: the clients that were drawn, and padding.

  Examples:
    >>> found = fi.adjoint(model, data, fed, *test, directions=2)
    >>> data.ids[found.influence.argmin()], found.derivative.shape
    ('hospital 0', (6,))
    >>> found.on(fi.metrics.accuracy, *test).shape
    (6,)
  """

  influence: jax.Array
  derivative: jax.Array
  params: types.Params
  carried: float
  basis: jax.Array
  coordinates: jax.Array
  model: types.Model
  example: agreement.Example
  rows: np.ndarray

  def on(self, metric, x, y) -> jax.Array:
    """Returns F(w + Vᵀz_c) − F(w) for any metric.

    Args:
      metric: (outputs, y) -> array, which need not be differentiable.
      x: [N, ...] test inputs.
      y: [N, ...] test labels.

    Returns:
      [K, ...].
    """
    arrays = agreement.evaluation(
      self.model,
      self.params,
      metric,
      (x, y),
      like=self.example,
      num_models=len(self.coordinates),
    )
    # Who was never drawn has no influence: only the others are evaluated.
    mesh = devices.mesh_of(self.basis)
    rows = np.asarray(self.coordinates)[self.rows]
    rows = devices.put(mesh, rows, devices.SPLIT)
    found = scores.influence(
      self.model, self.params, rows, metric, arrays, basis=self.basis
    )
    shape = len(self.coordinates), *found.shape[1:]
    everyone = np.zeros(shape, found.dtype)
    everyone[self.rows] = found  # Padding repeats clients.
    return jnp.asarray(everyone)


def read(
  state, asked, model, metric, examples, *, linear: bool, own_part: bool
) -> Found:
  """Reads the influence off a pass that is through.

  Args:
    state: of the pass, `reverse.State`.
    asked: `plan.Request`.
    model: what was trained.
    metric: of the pass.
    examples: its x and y.
    linear: whether influence is the metric's first order only.
    own_part: see `backwards.coordinates`.
  """
  data, cohorts = asked.data, asked.cohorts
  dtype = state.rows.dtype
  weights = backwards.weigh(data.num_examples, cohorts)
  weights = jax.tree.map(lambda a: jnp.asarray(a, dtype), weights)
  # `back` donates its state; what is read must outlive it.
  passed, (basis, gradient, carried), params = jax.tree.map(
    jnp.copy,
    (devices.replicate(state.passed), state.directions, state.final),
  )
  coordinates, derivative = _sums(
    *jax.tree.map(np.asarray, (passed, weights, gradient)),
    cohorts,
    num_clients=data.num_clients,
    own_part=own_part,
  )
  drawn = np.setdiff1d(cohorts[: int(state.end)], [data.num_clients])
  if not len(drawn):  # Then anybody will do: z is 0.
    drawn = np.zeros(1, int)
  size = devices.padded(len(drawn), devices.mesh_of(basis))
  found = Found(
    influence=coordinates @ jnp.asarray(np.asarray(gradient)),
    derivative=derivative,
    params=params,
    carried=float(carried),
    basis=basis,
    coordinates=coordinates,
    model=model,
    example=agreement.example_of(data),
    rows=np.resize(drawn, size),
  )
  if linear:
    return found
  return dataclasses.replace(found, influence=found.on(metric, *examples))


@functools.partial(jax.jit, static_argnames=("num_clients", "own_part"))
def _sums(passed, weights, gradient, cohorts, *, num_clients, own_part):
  """Returns z [K, D] and the derivative [K]."""
  with jax.default_matmul_precision("highest"):
    z = backwards.coordinates(
      passed, weights, cohorts, num_clients, own_part=own_part
    )
    return z, backwards.derivative(
      passed, weights, gradient, cohorts, num_clients
    )
