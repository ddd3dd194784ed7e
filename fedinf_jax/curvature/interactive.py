"""Curvatures that stay with the client: their reports cannot be uploaded."""

import jax
import jax.numpy as jnp

from fedinf_jax import fedavg
from fedinf_jax import memory
from fedinf_jax import tree
from fedinf_jax.curvature import descent as descents
from fedinf_jax.curvature import wall
from fedinf_jax.linalg import hessian_products


def exact_hessian() -> wall.Curvature:
  """Makes the basic estimator's propagator: the derivative of local training.

  Full Hessians, mini-batches and any differentiable optimiser included. Its
  report is the linearised training, which no client could upload: participants
  are interactive. Where R <= m N_s, their answer is no more than the paper
  uploads.

  Examples:
    >>> made = fi.estimator(fi.exact_hessian(), fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)  # An answer: 6 models of 15.
    360
  """

  def report(setup, client):
    train = fedavg.local_training(setup.model, setup.fed)
    move = lambda w: tree.subtract(
      w, train(w, client.examples, client.draws)[0]
    )
    linear = jax.linearize(move, client.start)[1]
    return linear, _tangent_bytes(setup, client)

  def lost(descent, report, eps):
    del descent
    linear, bytes_per_removal = report
    return memory.map_models(linear, eps, bytes_per_removal)

  return _interactive("exact_hessian", report, lost, linear=False)


def exact_difference() -> wall.Curvature:
  """Makes P_k ε = train_k(w + ε) − train_k(w): nothing is linearised.

  The estimate is then the exact replay, done by the participants: each of them
  trains R times.

  Examples:
    >>> made = fi.estimator(fi.exact_difference(), fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)  # An answer: 6 models of 15.
    360
  """

  def report(setup, client):
    train = fedavg.local_training(setup.model, setup.fed)
    end_of = lambda w: train(w, client.examples, client.draws)[0]
    return end_of, client.start, _tangent_bytes(setup, client)

  def lost(descent, report, eps):
    del descent
    end_of, start, bytes_per_removal = report
    end = end_of(start)

    def one(e):
      moved = end_of(tree.add(start, e))
      return jax.tree.map(lambda e, a, b: e - (a - b), e, moved, end)

    made = memory.map_models(one, eps, bytes_per_removal)
    # Two trainings that are compiled apart round apart: of an ε of zero
    # something would be lost, and LWET would take it for growth.
    dots = tree.layer_dots(eps, eps)
    return tree.select((dots != 0).any(1), made, tree.zeros_like(made))

  return _interactive("exact_difference", report, lost, linear=False)


def layerwise_hessian() -> wall.Curvature:
  """Makes Π(I − ηH_(j)) for each layer by Hessian-vector products.

  They need the client's data on the way: participants are interactive.

  Examples:
    >>> made = fi.estimator(fi.layerwise_hessian(), fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)  # An answer: 6 models of 15.
    360
  """

  def report(setup, client):
    return setup, client

  def lost(descent, report, eps):
    setup, client = report
    bytes_per_removal = _tangent_bytes(setup, client)

    def apply(step, sigma):
      i, w = step
      loss = wall.step_loss(setup, client, i)
      products = hessian_products.by_layer(loss, w)

      def diagonal(sigma):
        leaves, treedef = jax.tree.flatten(sigma)
        pairs = zip(products, leaves, strict=True)
        return jax.tree.unflatten(treedef, [h(a) for h, a in pairs])

      product = memory.map_models(diagonal, sigma, bytes_per_removal)
      return descent.scaled(product)

    steps = jnp.arange(setup.fed.local_steps), client.iterates
    return descents.lost(descent, apply, steps, eps)

  return _interactive(
    "layerwise_hessian", report, lost, linear=True, layerwise=True
  )


def _interactive(name, report, lost, *, linear, layerwise=False):
  return wall.Curvature(
    name=name,
    key=wall.key(name),
    layerwise=layerwise,
    report=report,
    lost=lost,
    absorb=wall.one_by_one(lost, layerwise=layerwise),
    interactive=True,
    linear=linear,
  )


def _tangent_bytes(setup, client):
  """Bounds the temporaries of one tangent through one local step."""
  gradient = lambda w: jax.grad(wall.step_loss(setup, client, 0))(w)
  jvp = lambda w: jax.jvp(gradient, (w,), (w,))
  return memory.intermediate_bytes(jvp, client.start)
