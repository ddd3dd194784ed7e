"""A round of a server by itself: examine what was sent, carry every ε on."""

from collections.abc import Callable
from collections.abc import Sequence
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import checks
from fedinf_jax import fedavg
from fedinf_jax import federation
from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import removals
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import reply as replies


class Server(NamedTuple):
  """A server's side of a federation, as functions of its ledger.

  Examples:
    >>> from fedinf_jax import server
    >>> one = x[0, :1], y[0, :1]
    >>> made = server.server(
    ...   model, fed, ours, run.params, max_examples=20, example=one
    ... )
    >>> from fedinf_jax.server import ledger
    >>> start = ledger.init(ours, run.params)
    >>> made.uploads, made.interactive, made.questions(start)
    (True, {}, {})
    >>> made.upload_bytes("ours", start), len(made.cohort(1, list(data.ids)))
    (600, 3)
  """

  setup: wall.Setup
  estimators: dict[str, influence.Estimator]
  limits: replies.Limits
  seed: int
  report: Any  # the shapes of what a participant uploads, by key
  # (ledger, sent) -> (accepted, lines that name who was refused and why)
  examine: Callable[..., tuple[list[replies.Accepted], list[str]]]
  # (ledger, accepted) -> (the ledger after the round, lines)
  end: Callable[..., tuple[ledgers.Ledger, list[str]]]

  @property
  def uploads(self) -> bool:
    """Whether participants upload more than their model."""
    return bool(jax.tree.leaves(self.report))

  @property
  def interactive(self) -> dict[str, influence.Estimator]:
    """The estimators whose participants are sent every ε."""
    found = self.estimators.items()
    return {n: e for n, e in found if e.curvature.interactive}

  def upload_bytes(self, name: str, ledger: ledgers.Ledger) -> int:
    """Returns the bytes that a participant sends for an estimator."""
    curvature = self.estimators[name].curvature
    if curvature.interactive:  # An answer to every ε.
      return len(ledger.ids) * memory.tree_bytes(ledger.state.params)
    return memory.tree_bytes(self.report.get(curvature.key, ()))

  def cohort(self, round_: int, ids: Sequence[str]) -> list[str]:
    """Draws who takes part, from the seed and the ids alone."""
    ids = sorted(ids)  # Whoever is asked in another order draws the same.
    size = min(self.setup.fed.cohort_size, len(ids))
    if not size:
      return []
    drawn = rng.cohort(self.seed, rng.id_words(ids), round_, size)
    return [ids[k] for k in drawn]

  def questions(self, ledger: ledgers.Ledger) -> dict[str, types.Params]:
    """Returns the ε that interactive participants are sent, leaves [K, ...].

    A client without a row yet has an ε of zero, of which nothing is lost.
    """
    if not ledger.ids:
      return {}
    return {name: ledger.eps(name) for name in self.interactive}


def server(
  model: types.Model,
  fed: fedavg.FedAvg,
  estimators: dict[str, influence.Estimator],
  params: types.Params,
  *,
  max_examples: int,
  seed: int = 0,
  server_data: Any = None,
  example: tuple[Any, Any] | None = None,
  limits: replies.Limits | None = None,
) -> Server:
  """Builds a server for clients that come and go.

  Args:
    model: what is trained.
    fed: how; `cohort_size` is the most that take part in a round.
    estimators: by name. What clients are asked for follows from them: nothing
      beyond FedAvg for `fi.server_side` curvatures, an upload for `fi.fisher`,
      answers for `fi.exact_hessian`.
    params: w_0.
    max_examples: of the largest client.
    seed: of cohorts and of draws.
    server_data: (x [N, ...], y [N, ...]) or a FederatedData, examples of the
      server's own for `server_side` curvatures.
    example: (x [1, ...], y [1, ...]), what a client's look like, where clients
      upload and there is no `server_data`.
    limits: of what is taken from a client.

  Examples:
    >>> from fedinf_jax import server
    >>> one = x[0, :1], y[0, :1]
    >>> made = server.server(
    ...   model, fed, ours, run.params, max_examples=20, example=one
    ... )
    >>> made.cohort(1, list(data.ids))  # Who takes part in round 1.
    ['hospital 2', 'hospital 3', 'hospital 0']
  """
  if not estimators:
    raise ValueError("estimators: give at least one, by name")
  checks.positive_integer("max_examples", max_examples)
  seed = checks.seed(seed)
  limits = replies.check_limits(limits or replies.Limits(), fed.cohort_size)
  setup = federation.setup(model, fed, estimators, params, max_examples)
  owners, held = _held(model, params, estimators, server_data)
  if example is None and held is not None:
    example = held.x[:1], held.y[:1]
  report = report_shapes(setup, estimators, params, example)
  hold = lambda ledger: _of_ledger(owners, held, ledger)
  return Server(
    setup=setup,
    estimators=estimators,
    limits=limits,
    seed=seed,
    report=report,
    examine=_examine(limits, report),
    end=_end(setup, estimators, seed, hold),
  )


def report_shapes(
  setup: wall.Setup,
  estimators: dict[str, influence.Estimator],
  params: types.Params,
  example: tuple[Any, Any] | None,
) -> dict[Any, Any]:
  """Returns the shapes of a participant's reports, by key."""
  curvatures = [e.curvature for e in estimators.values()]
  if not any(c.uploads for c in curvatures):
    return {}
  if example is None:
    if all(c.name == "truncated" for c in curvatures if c.uploads):
      return {c.key: () for c in curvatures if c.uploads}
    raise ValueError(
      "example: clients upload; give (x [1, ...], y [1, ...]) that look like"
      " theirs"
    )

  def report(params, x, y, draws):
    examples = on_device.Examples(x, y, jnp.int32(0), jnp.int32(1))
    _, client = federation.train(setup)(params, examples, draws)
    return federation.report(setup, curvatures, client)

  x, y = (padded(np.asarray(a), setup.max_examples) for a in example)
  return jax.eval_shape(report, params, x, y, rng.draws(0, 1, "nobody"))


def padded(array: np.ndarray, least: int) -> np.ndarray:
  """Repeats examples until there are at least so many; they weigh nothing."""
  return (
    array
    if len(array) >= least
    else np.resize(array, (least, *array.shape[1:]))
  )


def _held(model, params, estimators, server_data):
  """Returns the ids of owners or None, and the server's examples or None."""
  serving = influence.serving(estimators)
  found = agreement.server_examples(model, params, serving, server_data)
  if found is None:
    return None, None
  x, y, owners = found
  if np.issubdtype(x.dtype, np.floating):
    x = np.asarray(x, tree.dtype_of(params))
  return owners, on_device.Held(jnp.asarray(x), jnp.asarray(y), None, None)


def _of_ledger(owners, held, ledger):
  """Returns the server's examples, with the rows of those who own them."""
  if owners is None:
    return held
  place = {client: k for k, client in enumerate(ledger.ids)}
  places = [place.get(client, ledger.num_rows) for client in owners]
  rows = jnp.asarray(places, jnp.int32)
  return held._replace(owner=rows, removed_in=rows[:, None])


def _examine(limits, report):
  """Builds `Server.examine`."""

  def one(ledger, sent, seen):
    replies.check_id("client-id", sent.client)
    if sent.client in seen:
      raise ValueError("client-id: a second reply in one round")
    if len({*ledger.ids, *seen, sent.client}) > limits.most_clients:
      raise ValueError(
        f"client-id: there are {limits.most_clients} clients already"
      )
    replies.check_statement(sent, ledger.round + 1)
    count = replies.check_count(sent.num_examples, limits.most_examples)
    local = replies.check_local(
      sent.arrays, ledger.state.params, limits.largest_update
    )
    reports = replies.check_arrays(
      "report", sent.report, report, limits.largest_number
    )
    return replies.Accepted(sent.client, local, count, reports)

  def examine(ledger, sent):
    seen: dict[str, replies.Accepted] = {}
    lines = []
    for s in sent:
      try:
        seen[s.client] = one(ledger, s, seen)
      except ValueError as error:
        lines.append(refusal(s.client, error))
    accepted = list(seen.values())
    if limits.largest_share is not None:
      counts = [a.num_examples for a in accepted]
      out = replies.over_share(counts, limits.largest_share)
      for k in out:
        reason = f"num-examples: above {limits.largest_share:g} of the round"
        lines.append(refusal(accepted[k].client, reason))
      accepted = [a for k, a in enumerate(accepted) if k not in out]
    return accepted, lines

  return examine


def refusal(client: Any, reason: Any) -> str:
  """Says in one line who is left out of a round, and why."""
  shown = repr(client)[: replies.LONGEST_ID + 2]
  return f"client {shown}: {reason}; its reply is left out"


def _end(setup, estimators, seed, hold):
  """Builds `Server.end`."""
  size = setup.fed.cohort_size

  @jax.jit
  def compiled(state, reply, who, clients, counts, round_, held):
    serving = None
    if held is not None:
      draws = rng.server_draws(jax.random.key(seed), round_)
      serving = federation.Serving(setup, held, draws)
    return federation.end_round(
      estimators, setup.descent, state, reply, who, clients, counts, round_,
      hits=clients, serving=serving,
    )  # fmt: skip

  def end(ledger, accepted):
    round_ = ledger.round + 1
    if not accepted:  # Nobody replied: nothing changes.
      return ledger._replace(round=round_), []
    ids = [a.client for a in accepted]
    ledger = ledgers.admit(estimators, ledger, ids)
    rows = ledgers.positions(ledger, ids)
    reply, clients, counts = _stacked(ledger, accepted, rows, size)
    state, screening = compiled(
      ledger.state,
      reply,
      jax.tree.map(jnp.asarray, removals.leave_one_out(ledger.num_rows)),
      clients,
      counts,
      jnp.int32(round_),
      hold(ledger),
    )
    lines = federation.refusals(screening, [*ids, *["nobody"] * size])
    stated, times = ledger.num_examples.copy(), ledger.times.copy()
    stated[rows] = [a.num_examples for a in accepted]
    times[rows] += 1
    return ledger._replace(
      round=round_, num_examples=stated, times=times, state=state
    ), lines

  return end


def _stacked(ledger, accepted, rows, size):
  """Stacks replies, with nobody in place of whoever did not reply.

  Returns:
    Leaves [B, ...]; int32 [B] rows, R for nobody; int32 [B] n_k, 0 for nobody.
  """
  missing = size - len(accepted)
  if missing < 0:
    raise ValueError(f"accepted: {len(accepted)} replies for {size} places")
  whole = [federation.Reply(a.local, _answers(ledger, a)) for a in accepted]

  def stack(*leaves):
    made = np.zeros((size, *leaves[0].shape), leaves[0].dtype)
    for k, leaf in enumerate(leaves):
      made[k] = leaf
    return jnp.asarray(made)

  reply = jax.tree.map(stack, *whole)
  nobody = [ledger.num_rows] * missing
  clients = jnp.asarray([*rows, *nobody], jnp.int32)
  counts = [a.num_examples for a in accepted] + [0] * missing
  return reply, clients, jnp.asarray(counts, jnp.int32)


def _answers(ledger, accepted):
  """Returns the reports, answers with a row of zeros for who is new."""
  num_rows = ledger.num_rows

  def pad(a):
    return np.pad(a, ((0, num_rows - len(a)), *[(0, 0)] * (a.ndim - 1)))

  return {
    key: jax.tree.map(pad, r) if isinstance(r, wall.Answer) else r
    for key, r in accepted.reports.items()
  }
