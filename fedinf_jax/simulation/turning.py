"""A pass backwards: what is checked, where it starts, where it turns."""

from collections.abc import Callable
import functools
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import flatten_util
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import backwards
from fedinf_jax import checks
from fedinf_jax import memory
from fedinf_jax import metrics
from fedinf_jax import rng
from fedinf_jax.curvature import wall
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import plan as plans
from fedinf_jax.simulation import reverse
from fedinf_jax.simulation import round as rounds_
from fedinf_jax.simulation import simulator

EIGENVECTORS = 16  # Carried back where nobody says how many.
JITTER = 1e-2  # How far from w_0 a metric must have a gradient.


class Parts(NamedTuple):
  """What the functions of a pass close over."""

  plan: plans.Plan
  asked: plans.Request
  # Eigenvectors beside the gradient.
  count: int  # type: ignore[assignment]  # hides a method of tuples
  every: int  # rounds between snapshots
  score: Callable  # F, (params, x, y) -> []
  examples: tuple[Any, Any]
  curvature: wall.Curvature | None  # the server's; None: trainings themselves
  window: int  # rounds to go back through, at most

  @property
  def mesh(self):
    """The devices."""
    return self.plan.choices.layout.mesh


def check_examples(model, data, params, metric, examples):
  """Checks the test examples and that the metric is one number, a float."""
  like = agreement.example_of(data)
  x, y = agreement.evaluation(model, params, metric, examples, like)
  if metric is not metrics.loss:
    outputs = jax.eval_shape(model.apply, params, x)
    value = jax.eval_shape(metric, outputs, y)
    if value.shape or not jnp.issubdtype(value.dtype, jnp.floating):
      raise ValueError(
        f"metric: returns {value.dtype} of shape {list(value.shape)}; going"
        " backwards needs one number that can be differentiated. Others can be"
        " read off the result, by found.on(metric, x, y)"
      )
  return x, y


def num_eigenvectors(count, params):
  """Returns how many to carry; refuses more than the model has parameters."""
  size = sum(a.size for a in jax.tree.leaves(params))
  if count is None:
    return min(EIGENVECTORS, size)
  if count > size:
    raise ValueError(
      f"directions is {count}; the model has {size} parameters, and no more"
      " directions"
    )
  return count


def snapshot_distance(snapshot_every, last):
  """Returns the rounds between snapshots."""
  if snapshot_every is None:
    return math.isqrt(last - 1) + 1
  return min(checks.positive_integer("snapshot_every", snapshot_every), last)


@functools.lru_cache(maxsize=8)
def score(model, metric):
  """Returns F, the same function for the same model and metric."""
  metric = metrics.of_model(metric, model)
  return lambda params, x, y: metric(model.apply(params, x), y)


def require_gradient(score, params, examples, seed):
  """Refuses a metric that has no gradient near the start, or none finite."""
  flat, unravel = flatten_util.ravel_pytree(params)
  key = rng.stream_key(seed, rng.Stream.LANCZOS)
  # Not at w_0 itself, which may be a point of symmetry.
  moved = flat + JITTER * jax.random.normal(key, flat.shape, flat.dtype)
  gradient = jax.jit(jax.grad(score))(unravel(moved), *examples)
  gradient = np.asarray(flatten_util.ravel_pytree(gradient)[0])
  if not np.isfinite(gradient).all():
    raise ValueError(
      "metric: its gradient is not finite at the start; the model may give NaN"
      " or infinity"
    )
  if not gradient.any():
    raise ValueError(
      "metric: its gradient is zero everywhere, so nothing can be carried"
      " backwards. Take fi.metrics.loss, and read this one off the result, by"
      " found.on(metric, x, y)"
    )


def require_memory(parts):
  """Refuses a state that could never fit, before any of it is made."""
  state = jax.eval_shape(lambda w: start(parts, w), parts.plan.params)
  memory.require(
    f"{parts.count} directions and snapshots every {parts.every} rounds",
    memory.tree_bytes([a for a in jax.tree.leaves(state) if a.ndim]),
  )


def directions_at_once(parts):
  """Returns how many directions a wave of participants carries together."""
  asked = parts.asked
  lanes = parts.plan.inputs.waves.shape[-1]
  each = lanes * plans.gradient_bytes(asked)
  count = backwards.num_directions(parts.count, asked.params)
  return memory.models_at_once(count, each)


def places(plan, cohorts, mesh):
  """Returns where in the cohort every lane of every wave is, int [T, W, G]."""
  waves = np.asarray(plan.inputs.waves)
  num_rounds, cohort_size = cohorts.shape
  flat = waves.reshape(num_rounds, -1)
  order = np.argsort(cohorts, axis=1)
  ordered = np.take_along_axis(cohorts, order, axis=1)
  found = [np.searchsorted(*pair) for pair in zip(ordered, flat, strict=True)]
  order = np.pad(order, ((0, 0), (0, 1)), constant_values=cohort_size)
  places = np.take_along_axis(order, np.stack(found), axis=1)
  places = places.reshape(waves.shape).astype(np.int32)
  return devices.put(mesh, places, devices.REPLICATED)


def start(parts, params):
  """Returns the state before the first round."""
  fed = parts.asked.setup.fed
  count = backwards.num_directions(parts.count, params)
  flat = flatten_util.ravel_pytree(params)[0]
  size, dtype = flat.size, flat.dtype
  rows = jnp.zeros((count, size), dtype)
  each = jnp.zeros((fed.rounds, fed.cohort_size, count), dtype)
  num_kept = -(-fed.rounds // parts.every)
  return reverse.State(
    trained=simulator.start(parts.plan, params),
    kept=jax.tree.map(
      lambda a: jnp.zeros((num_kept, *a.shape), a.dtype), params
    ),
    end=jnp.int32(0),
    left=jnp.int32(0),
    final=jax.tree.map(jnp.zeros_like, params),
    params=jax.tree.map(jnp.zeros_like, params),
    directions=backwards.Directions(
      rows, jnp.zeros(count, dtype), jnp.zeros((), dtype)
    ),
    rows=rows,
    passed=backwards.Passed(
      each, each, each, jnp.zeros((fed.rounds, count, count), dtype)
    ),
    finite=jnp.bool_(True),
  )


def place(parts, state):
  """Puts a state on the devices, every array a buffer of its own."""
  if parts.mesh is None:  # What is donated must not be there twice.
    return jax.tree.map(jnp.copy, state)
  return devices.put(parts.mesh, state, devices.REPLICATED)


def turn(parts, state, at):
  """Finds the directions after round `at`, and starts to go back from it."""
  done = int(state.trained.round)
  at = done if at is None else checks.positive_integer("at", at)
  if not 1 <= at <= done:
    raise ValueError(f"at is {at}; {done} rounds are trained")
  final = jax.tree.map(np.asarray, _model_after(parts, state, at))
  key = rng.stream_key(parts.asked.seed, rng.Stream.LANCZOS)
  found = _directions(
    final, *parts.examples, key, score=parts.score, count=parts.count
  )
  if not all(bool(jnp.isfinite(a).all()) for a in found):
    raise ValueError(
      f"metric: its gradient or curvature after round {at} is not finite"
    )
  begun = state._replace(
    trained=None,
    kept=None,
    end=jnp.int32(at),
    left=jnp.int32(at),
    final=final,
    params=final,
    directions=found,
    rows=found.basis,
    passed=jax.tree.map(jnp.zeros_like, state.passed),
    finite=jnp.bool_(True),
  )
  placed = place(parts, begun)
  return placed._replace(trained=state.trained, kept=state.kept)


def _model_after(parts, state, at):
  """Returns w_at, trained again from the snapshot before it."""
  if at == int(state.trained.round):
    return state.trained.params
  i = at // parts.every
  begun = jax.tree.map(jnp.copy, state.trained)._replace(
    round=jnp.full_like(state.trained.round, i * parts.every),
    params=jax.tree.map(lambda a: a[i], state.kept),
  )
  more = at - i * parts.every
  return rounds_.loop(parts.plan.choices)(begun, more, parts.plan.inputs).params


@functools.partial(jax.jit, static_argnames=("score", "count"))
def _directions(params, x, y, key, *, score, count):
  with jax.default_matmul_precision("highest"):
    return backwards.directions(lambda w: score(w, x, y), params, count, key)
