"""Curvature from the server's own examples: participants upload nothing.

The server needs examples to turn ε into an influence on the loss anyway. From
others of its own it makes P as if it were one more participant that trains from
w_{t-1}, once per round, and P stands for every participant's P_k:

    Σ_k a_{r,k} P ε_r = P ε_r.
"""

import dataclasses

import jax
import jax.numpy as jnp

from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import guards
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import cores
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device


def server_side(
  curvature: wall.Curvature,
  *,
  num_examples: int | None = None,
  match: bool = False,
) -> wall.Curvature:
  """Makes a curvature that the server evaluates on examples of its own.

  Give the examples as `simulate(..., server_data=(x, y))`. Clients do nothing
  for it and need not know. With mini-batches, clients draw them and the server
  does not: it takes all examples of the round.

  If the server holds examples of the clients themselves, give them as
  `server_data=held_out`, a FederatedData with the same ids: in the removal of a
  client its own are left out. `fisher(..., per="round")` does so; other
  curvatures take all examples alike.

  Args:
    curvature: any, such as `fisher(num_samples=200, labels="sampled",
      layerwise=False, spectrum="relu", per="round")`.
    num_examples: how many of its examples the server draws afresh in each
      round; None: as many as the curvature samples, or all.
    match: a P_k of its own for every participant, as the mixture of the
      server's examples whose gradient reproduces the participant's update.
      Of `num_examples` candidates those that mixtures need most are kept, as
      many as the curvature samples. Needs `fisher(..., per="round")`.

  Examples:
    >>> curvature = fi.server_side(fi.fisher(num_samples=5, per="round"))
    >>> made = fi.estimator(curvature, fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)  # Nothing but models.
    0
  """
  if not isinstance(curvature, wall.Curvature) or curvature.serve is not None:
    raise ValueError(
      f"curvature is {curvature!r}; it must be one of participants, such as"
      " fi.fisher()"
    )
  if num_examples is None:
    num_examples = curvature.num_samples
  if num_examples is not None:
    checks.positive_integer("num_examples", num_examples)
  checks.boolean("match", match)
  if match:
    fields = cores.fields(curvature)
  elif cores.has_cores(curvature):
    fields = cores.shared_fields(curvature)
  else:
    fields = _shared(curvature)
  make = fields.pop("make")

  def serve(setup, server, params, participants, draws):
    own = _setup(setup, server, num_examples)
    held = _drawn(own, server, draws)
    client = _stand_in(own, curvature, held, params, draws)
    if setup.fed.batch_size is not None:
      # An update is the mean over so many examples, not over all.
      most = setup.fed.local_steps * setup.fed.batch_size
      counts = jnp.minimum(participants.counts, most)
      participants = participants._replace(counts=counts)
    return make(own, client, held, participants)

  return curvature._replace(
    name=f"server_side({curvature.name})",
    key=wall.key("server_side", *curvature.key, num_examples, match),
    serve=serve,
    interactive=False,
    sampled=False,
    num_samples=num_examples,
    **wall.NOT_SENT,
    **fields,
  )


def _setup(setup: wall.Setup, server, num_examples) -> wall.Setup:
  """Returns the setup of the server as a participant: no mini-batches."""
  count = len(server.x)
  fed = dataclasses.replace(setup.fed, batch_size=None)
  return setup._replace(
    descent=setup.descent._replace(fed=fed),
    max_examples=min(num_examples or count, count),
  )


def _drawn(
  setup: wall.Setup, server: on_device.Held, draws: rng.Draws
) -> on_device.Held:
  """Draws the examples of a round."""
  count, size = len(server.x), setup.max_examples
  if size == count:
    return server
  key = draws.key(rng.Stream.SERVER, jnp.int32(0))
  return server.take(rng.choose(key, count, size=size, limit=count)[0])


def _stand_in(
  setup: wall.Setup,
  curvature: wall.Curvature,
  held: on_device.Held,
  params: types.Params,
  draws: rng.Draws,
) -> wall.Client:
  """Returns the server as one more participant, on examples it holds."""
  examples = on_device.alone(held.x, held.y)
  if curvature.first_step_only:
    iterates = jax.tree.map(lambda a: a[None], params)
  else:
    train = fedavg.local_training(setup.model, setup.fed)
    _, iterates = train(params, examples, draws)
  return wall.Client(iterates, examples, draws)


def _shared(curvature):
  """Returns the fields of a curvature with one P for all participants."""

  def make(setup, client, held, participants):
    del held, participants
    return curvature.report(setup, client)

  def lost(descent, report, eps):
    if curvature.interactive:
      return curvature.lost(descent, report, eps)
    num_removals = len(jax.tree.leaves(eps)[0])
    ones = jnp.ones((num_removals, 1), tree.dtype_of(eps))
    alone = removals.Attendance(
      shares=ones,
      base=ones[0],
      slots=jnp.zeros(1, jnp.int32),
      hits=jnp.full(1, num_removals),  # Nobody: all share one P.
    )
    report = jax.tree.map(lambda a: a[None], report)
    zero = tree.zeros_like(eps)
    return curvature.absorb(descent, report, eps, zero, alone, None, None)[0]

  def absorb(descent, report, eps, so_far, attendance, examiner, prepared):
    del prepared
    part = lost(descent, report, eps)
    shares = attendance.shares
    num_layers = len(jax.tree.leaves(eps))
    grown = None
    if examiner is None:
      # The shares sum to one, or nobody is left.
      kept = (shares.sum(1, keepdims=True) > 0).astype(shares.dtype)
      kept = jnp.repeat(kept, num_layers, 1)
    else:
      blocks = tree.layer_blocks(num_layers, layerwise=curvature.layerwise)
      sizes = tree.layer_dots(eps, eps), guards.gains(eps, part)
      square, gain = (guards.by_block(a, blocks)[:, None] for a in sizes)
      shares = jnp.repeat(shares[:, :, None], num_layers, 2)  # [R, B, L]
      gain, square = (jnp.broadcast_to(a, shares.shape) for a in (gain, square))
      grown = examiner.grows(gain, square, shares)
      kept = jnp.where(grown | examiner.before, 0, shares).sum(1)
    return tree.add(so_far, tree.scale_layers(kept, part)), grown

  return {"make": make, "lost": lost, "absorb": absorb}
