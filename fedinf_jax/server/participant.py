"""An honest participant, compiled: what a client of such a server does."""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import federation
from fedinf_jax import influence
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax.curvature import wall
from fedinf_jax.data import on_device
from fedinf_jax.server import answers
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds


class Participant(NamedTuple):
  """Both things that a participant may be asked for."""

  # (w_{t-1}, examples, draws) -> (local model, reports by key)
  train: Callable[..., tuple[Any, dict]]
  # (w_{t-1}, examples, draws, {name: ε}) -> {name: Answer}; trains again.
  answer: Callable[..., dict[str, wall.Answer]]


def participant(
  setup: wall.Setup, estimators: dict[str, influence.Estimator]
) -> Participant:
  """Builds a participant's side, compiled once."""
  curvatures = [e.curvature for e in estimators.values()]

  def local_training(start, examples, draws):
    start = jax.tree.map(jnp.asarray, start)
    return federation.train(setup)(start, examples, draws)

  @jax.jit
  def train(start, examples, draws):
    local, client = local_training(start, examples, draws)
    return local, federation.report(setup, curvatures, client)

  @jax.jit
  def answer(start, examples, draws, eps):
    _, client = local_training(start, examples, draws)
    return {
      name: federation.answer(estimators[name].curvature, setup, client, e)
      for name, e in eps.items()
    }

  return Participant(train, answer)


def examples(setup: wall.Setup, x: Any, y: Any) -> on_device.Examples:
  """Returns a client's own examples, of a size that reports can have."""
  x, y = np.asarray(x), np.asarray(y)
  count = len(x)
  x, y = (rounds.padded(a, setup.max_examples) for a in (x, y))
  own: Any = on_device.Examples  # Of arrays that are not JAX's yet.
  return own(x, y, np.int32(0), np.int32(count))


def play_round(
  server: rounds.Server,
  made: Participant,
  ledger: ledgers.Ledger,
  present: dict[str, tuple[Any, Any]],
) -> ledgers.Ledger:
  """Plays a round by hand, in which everybody is honest.

  Args:
    server: the server's side.
    made: the participants' side.
    ledger: before the round.
    present: (x, y) of each participant by id, in the order of the cohort.
  """
  sent, answered = [], {}
  asked = server.questions(ledger)
  for client, (x, y) in present.items():
    own = examples(server.setup, x, y)
    draws = rng.draws(server.seed, ledger.round + 1, client)
    start = ledger.state.params
    local, report = made.train(start, own, draws)
    leaves = [np.asarray(a) for a in jax.tree.leaves(local)]
    arrays = dict(zip(tree.names(local), leaves, strict=True))
    reports = [np.asarray(a) for a in jax.tree.leaves(report)]
    sent.append(replies.Sent(client, arrays, len(x), report=reports))
    if asked:
      given = {
        name: [np.asarray(a) for a in jax.tree.leaves(answer)]
        for name, answer in made.answer(start, own, draws, asked).items()
      }
      digest = replies.digest(asked)
      answered[client] = answers.Answered(client, digest, given)
  accepted, lines = server.examine(ledger, sent)
  if server.interactive:
    accepted, more = answers.add(server, ledger, accepted, answered)
    lines += more
  ledger, more = server.end(ledger, accepted)
  if lines + more:
    raise ValueError((lines + more)[0])
  return ledger
