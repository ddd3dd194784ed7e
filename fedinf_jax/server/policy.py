"""Who is left out from now on: hooks that a server calls after evaluations."""

from collections.abc import Callable
import math

from fedinf_jax import checks
from fedinf_jax.server import table as tables


def leave_out_harmful(
  *, evaluations: int = 3, errors: float = 2.0, most: float = 0.2
) -> Callable[[int, tables.Table], list[str]]:
  """Makes a hook that leaves out who harms the model, with confidence.

  A client is harmful where its FIL is below zero by more than `errors` standard
  errors over test examples. The hook counts evaluations in a row; a server that
  resumes counts afresh.

  Args:
    evaluations: in a row, before a client is left out.
    errors: standard errors that FIL must be below zero.
    most: share of all clients ever seen that is left out at most.
  """
  checks.positive_integer("evaluations", evaluations)
  checks.positive("errors", errors)
  checks.number("most", most, "be from 0 to 1", lambda share: 0 <= share <= 1)
  streak: dict[str, int] = {}

  def on_round(round_: int, table: tables.Table) -> list[str]:
    del round_
    upper = table.fil + errors * table.fil_error
    room = math.floor(most * len(table.ids)) - len(table.left_out)
    out: list[str] = []
    for k in table.order():
      client = table.ids[k]
      streak[client] = streak.get(client, 0) + 1 if upper[k] < 0 else 0
      due = streak[client] >= evaluations and client not in table.left_out
      if due and len(out) < room:
        out.append(client)
    return out

  return on_round
