"""Who is left out from now on: hooks that a server calls after evaluations.

A hook is a function (round, table) -> ids. Where it must remember something, it
keeps it in an attribute `memory`, a dictionary that can be written as JSON:
whoever checkpoints the server saves it, and fills it again after a restart.
"""

import math

from fedinf_jax import checks
from fedinf_jax.server import table as tables


class LeaveOutHarmful:
  """A hook that leaves out who harms the model, with confidence.

  Attributes:
    memory: client -> evaluations in a row that it was harmful in, up to now.
  """

  def __init__(self, evaluations: int, errors: float, most: float):
    self.memory: dict[str, int] = {}
    self._evaluations = evaluations
    self._errors = errors
    self._most = most

  def __call__(self, round_: int, table: tables.Table) -> list[str]:
    """Returns the clients to leave out from now on."""
    del round_
    upper = table.fil + self._errors * table.fil_error
    room = math.floor(self._most * len(table.ids)) - len(table.left_out)
    out: list[str] = []
    for k in table.order():
      client = table.ids[k]
      if not upper[k] < 0:
        self.memory.pop(client, None)
        continue
      self.memory[client] = self.memory.get(client, 0) + 1
      due = self.memory[client] >= self._evaluations
      if due and client not in table.left_out and len(out) < room:
        out.append(client)
    return out


def leave_out_harmful(
  *, evaluations: int = 3, errors: float = 2.0, most: float = 0.2
) -> LeaveOutHarmful:
  """Makes a hook that leaves out who harms the model, with confidence.

  A client is harmful where its FIL is below zero by more than `errors` standard
  errors over test examples.

  Args:
    evaluations: in a row, before a client is left out.
    errors: standard errors that FIL must be below zero.
    most: share of all clients ever seen that is left out at most.

  Examples:
    >>> from fedinf_jax import server
    >>> hook = server.leave_out_harmful(evaluations=3, most=0.1)
    >>> hook.memory
    {}
  """
  checks.positive_integer("evaluations", evaluations)
  checks.positive("errors", errors)
  checks.number("most", most, "be from 0 to 1", lambda share: 0 <= share <= 1)
  return LeaveOutHarmful(evaluations, errors, most)
