"""Interactive participants: what they are sent, and what they send back."""

from collections.abc import Mapping
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from fedinf_jax.curvature import wall
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds


class Answered(NamedTuple):
  """A participant's answers as they came."""

  client: str  # by the server's account
  digest: Any  # of the ε that it says it answers
  arrays: Any  # name of an estimator -> list of arrays
  claimed: Any = None  # the id that it states; None: it states none
  round: Any = None  # the round that it states; None: it states none


def add(
  server: rounds.Server,
  ledger: ledgers.Ledger,
  accepted: list[replies.Accepted],
  answered: Mapping[str, Answered],
) -> tuple[list[replies.Accepted], list[str]]:
  """Adds the answers to replies; who gave none takes no part in the round.

  Args:
    server: with interactive estimators.
    ledger: before the round.
    accepted: replies to `train`.
    answered: by client; empty where nothing was asked, in the first round.
  """
  asked = server.questions(ledger)
  digest = replies.digest(asked)
  complete, lines = [], []
  for one in accepted:
    reports = dict(one.reports)
    try:
      if asked:
        found = _checked(server, ledger, asked, digest, one, answered)
      else:
        found = {name: _nothing(ledger) for name in server.interactive}
    except ValueError as error:
      lines.append(rounds.refusal(one.client, error))
      continue
    for name, lost in found.items():
      key = server.estimators[name].curvature.key
      reports[key] = wall.Answer(lost)
    complete.append(one._replace(reports=reports))
  return complete, lines


def _checked(server, ledger, asked, digest, one, answered):
  """Returns the answers of one participant, by estimator."""
  given = answered.get(one.client)
  if given is None:
    raise ValueError("answer: there is none")
  sent = replies.Sent(one.client, None, None, given.claimed, given.round)
  replies.check_statement(sent, ledger.round + 1)
  if given.digest != digest:
    raise ValueError("answer: it is for other ε than were sent")
  if not isinstance(given.arrays, dict) or set(given.arrays) != set(asked):
    raise ValueError(f"answer: there must be one for each of {sorted(asked)}")
  limits, found = server.limits, {}
  for name, eps in asked.items():
    field, arrays = f"answer {name}", given.arrays[name]
    lost = replies.check_arrays(field, arrays, eps, limits.largest_number)
    if limits.largest_growth is not None:
      params = ledger.state.params
      replies.check_growth(field, lost, eps, params, limits.largest_growth)
    found[name] = lost
  return found


def _nothing(ledger):
  """Returns what is lost of no ε at all, leaves [0, ...]."""
  empty = lambda w: np.zeros((0, *w.shape), w.dtype)
  return jax.tree.map(empty, ledger.state.params)
