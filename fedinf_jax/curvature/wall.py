"""The wall between client and server.

    P_k ≈ ∂w_{t,m}^k / ∂w_{t,0}^k = Π_i (I − ηH_{t,i}^k)

carries influence through participant k's local training. A curvature is a way
to approximate P_k, with two sides. `report` runs on the client and sees its
data; `lost` runs on the server and sees the report only. What crosses the wall
is what a participant uploads. Some reports cannot cross it. Their participants
are interactive: the server sends every ε, and the participant sends back an
`Answer` of R models.
"""

from collections.abc import Callable
from collections.abc import Hashable
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import fedavg
from fedinf_jax import guards
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import descent as descents
from fedinf_jax.data import on_device


class Setup(NamedTuple):
  """What every client knows before the first round; static."""

  model: types.Model
  descent: descents.Descent  # The server knows this part, too.
  max_examples: int  # the most that any local step of any client has

  @property
  def fed(self) -> fedavg.FedAvg:
    """How participants train."""
    return self.descent.fed


class Client(NamedTuple):
  """What a participant has at hand after its local training."""

  iterates: types.Params  # w_{t,i}^k, i = 0 … m-1: leaves [M, ...]
  examples: on_device.Examples
  draws: rng.Draws

  @property
  def start(self) -> types.Params:
    """w_{t-1}, which all participants start from."""
    return jax.tree.map(lambda a: a[0], self.iterates)


class Participants(NamedTuple):
  """What any server has of the participants of a round."""

  updates: types.Params  # w_{t,m}^k − w_{t-1}, leaves [B, ...]
  counts: jax.Array  # n_k, int [B]


class Answer(NamedTuple):
  """What an interactive participant, sent every ε, sends back."""

  lost: types.Params  # ε − P_k ε, leaves [R, ...]


def key(name: str, *options) -> tuple[str, ...]:
  """Returns the key of a curvature: sortable, as JAX wants a dictionary's."""
  return (name, *map(repr, options))


def require_shape(name: str, array, shape: tuple[int | None, ...]):
  """Refuses an array of another shape; None stands for any length."""
  found = np.shape(array)
  fits = len(found) == len(shape) and all(
    want is None or have == want
    for have, want in zip(found, shape, strict=False)
  )
  if not fits:
    right = ", ".join("any" if n is None else str(n) for n in shape)
    raise ValueError(
      f"report: {name} has shape {list(found)}; it must be [{right}]"
    )


def require_leaves(name: str, tree_, eps: types.Params, shape_of: Callable):
  """Refuses a tree that has not one array per layer, shape_of(layer) each."""
  leaves = jax.tree.leaves(eps)
  found = jax.tree.leaves(tree_)
  structure: Any = jax.tree.structure(eps)
  if jax.tree.structure(tree_) != structure:
    raise ValueError(
      f"report: {name} has {len(found)} arrays; it must have one for each of"
      f" the {len(leaves)} layers of the model, in the same tree"
    )
  for layer, a, e in zip(tree.names(eps), found, leaves, strict=True):
    require_shape(layer, a, shape_of(e))


def _accept(setup):
  del setup


def _accept_report(descent, report, num_participants, eps):
  del descent, report, num_participants, eps


def _leave_as_it_is(report):
  return report, None


def _prepare_nothing(descent, report, num_removals, *, fine, hits):
  del descent, report, num_removals, fine, hits


class Curvature(NamedTuple):
  """A local propagator P_k, as a client side and a server side."""

  name: str
  key: tuple[str, ...]  # curvatures with one key share one report
  layerwise: bool  # no flow between layers: a guard may examine each
  # report(setup, client) -> what the participant uploads.
  report: Callable[[Setup, Client], Any]
  # lost(descent, report, eps) -> ε − P_k ε, leaves [R, ...].
  lost: Callable[[descents.Descent, Any, types.Params], types.Params]
  # absorb(descent, reports of b participants, eps, lost, attendance, examiner,
  # prepared) -> (lost + Σ_k a_{r,k} (ε_r − P_k ε_r), which terms grew or None).
  absorb: Callable[..., tuple[types.Params, Any]]
  # prepare(descent, reports, R, fine=, hits=) -> what whoever holds the reports
  # can make ready for `absorb`; None where it would not pay.
  prepare: Callable[..., Any] = _prepare_nothing
  check: Callable[[Setup], None] = _accept  # raises ValueError
  # check_report(descent, reports, number of participants, eps): of shapes.
  check_report: Callable[..., None] = _accept_report
  # restrain(reports) -> the reports, scaled down where they expand more
  # than was promised, and bool [b], whose were; None: nothing is promised.
  restrain: Callable[..., tuple[Any, jax.Array | None]] = _leave_as_it_is
  interactive: bool = False  # the report cannot leave the client
  linear: bool = True  # needs a local optimiser that is linear
  sampled: bool = False  # reads a few examples, however many the client has
  first_step_only: bool = False  # reads the first iterate, w_{t-1}, alone
  num_samples: int | None = None  # examples that it reads; None: all
  # serve(setup, server, params, participants, draws) -> a report by the server,
  # from examples of its own; None: participants report.
  serve: Callable[..., Any] | None = None
  matched: bool = False  # its reports say how well updates were reproduced
  # P_k is symmetric, and made by the server alone: it also acts from the right.
  symmetric: bool = False
  options: Hashable = None  # what it was made with, where others ask for it

  @property
  def uploads(self) -> bool:
    """Whether participants upload a report."""
    return not self.interactive and self.serve is None


def step_loss(setup: Setup, client: Client, step: jax.Array | int):
  """Returns w -> the client's loss in one of its local steps."""
  return fedavg.step_loss(
    setup.model, setup.fed, client.examples, client.draws, step
  )


# Fields of a curvature whose reports do not come from participants.
NOT_SENT: dict[str, Any] = {
  "prepare": _prepare_nothing,
  "check_report": _accept_report,
  "restrain": _leave_as_it_is,
}


def propagate(curvature: Curvature, descent: descents.Descent, report, eps):
  """Returns P_k ε for leaves [R, ...]."""
  return tree.subtract(eps, curvature.lost(descent, report, eps))


def answer(curvature: Curvature, setup: Setup, client: Client, eps) -> Answer:
  """Makes an interactive participant's answer to every ε (leaves [R, ...]).

  Examples:
    >>> from fedinf_jax import federation, rng
    >>> from fedinf_jax.data import on_device
    >>> hessian = fi.exact_hessian()
    >>> basic = {"basic": fi.estimator(hessian, fi.no_guard())}
    >>> setup = federation.setup(model, fed, basic, run.params, max_examples=20)
    >>> draws = rng.draws(0, 1, "hospital 3")
    >>> examples = on_device.alone(*data.client(3))
    >>> _, client = federation.train(setup)(run.params, examples, draws)
    >>> jax.tree.map(np.shape, fi.answer(hessian, setup, client, run.exact_eps))
    Answer(lost={'dense': {'bias': (6, 3), 'kernel': (6, 4, 3)}})
  """
  report = curvature.report(setup, client)
  return Answer(curvature.lost(setup.descent, report, eps))


def truncated() -> Curvature:
  """Makes P_k = 0: combinatorial influence alone, nothing uploaded.

  Examples:
    >>> made = fi.estimator(fi.truncated(), fi.no_guard())
    >>> fi.upload_bytes(model, data, fed, made)
    0
  """
  lost = lambda descent, report, eps: eps
  return Curvature(
    name="truncated",
    key=key("truncated"),
    layerwise=True,
    report=lambda setup, client: (),
    lost=lost,
    absorb=one_by_one(lost, layerwise=True),
    linear=False,
  )


def one_by_one(lost_of: Callable, *, layerwise: bool) -> Callable:
  """Builds `Curvature.absorb` for any report, one participant at a time.

  Args:
    lost_of: (descent, report, eps) -> ε − P_k ε.
    layerwise: as in `Curvature`.
  """

  def absorb(descent, report, eps, lost, attendance, examiner, prepared):
    del prepared
    num_layers = len(jax.tree.leaves(eps))
    blocks = tree.layer_blocks(num_layers, layerwise=layerwise)
    square = guards.by_block(tree.layer_dots(eps, eps), blocks)

    def add(total, participant):
      report, share, before = participant
      part = lost_of(descent, report, eps)
      share = jnp.repeat(share[:, None], num_layers, 1)  # [R, L]
      grown = None
      if examiner is not None:
        gain = guards.by_block(guards.gains(eps, part), blocks)
        grown = examiner.grows(gain, square, share)
        share = jnp.where(grown | before, 0, share)
      return tree.add(total, tree.scale_layers(share, part)), grown

    before = None
    if examiner is not None:
      before = jnp.moveaxis(examiner.before, 1, 0)
    inputs = report, attendance.shares.T, before
    lost, grown = lax.scan(add, lost, inputs)
    return lost, None if grown is None else jnp.moveaxis(grown, 0, 1)

  return absorb


def absorb_answers(*, layerwise: bool) -> Callable:
  """Builds `Curvature.absorb` for the answers of interactive participants."""
  lost = lambda descent, report, eps: report.lost
  return one_by_one(lost, layerwise=layerwise)


def check_answer(answer: Answer, num_participants: int, eps: types.Params):
  """Refuses answers that do not fit the model."""
  shape_of = lambda e: (num_participants, *e.shape)
  require_leaves("lost", answer.lost, eps, shape_of)
