"""The messages of a round: replies are examined, every ε is answered."""

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from flwr import app
from flwr import serverapp

from fedinf_jax.flower import records
from fedinf_jax.server import answers
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds

INFLUENCE = "train.influence"


def examine(
  server: rounds.Server,
  ledger: ledgers.Ledger,
  cohort: Mapping[int, str],
  received: Iterable[app.Message],
  weighted_by: str,
) -> tuple[list[replies.Accepted], dict[str, app.Message], list[str]]:
  """Reads and examines the replies to `train`.

  Args:
    server: what is known of the federation.
    ledger: before the round.
    cohort: node -> client, in the order drawn.
    received: replies in any order.
    weighted_by: the metric that holds n_k.

  Returns:
    The replies that take part, in the order of the cohort; their messages, by
    client; and a line for everybody else.
  """
  sent, messages, lines = {}, {}, []
  missing = dict.fromkeys(cohort.values())
  for message in received:
    node = message.metadata.src_node_id
    client = cohort.get(node)
    if client is None:
      lines.append(f"node {node}: it was not asked; its reply is left out")
      continue
    missing.pop(client, None)
    try:
      if client in sent:
        raise ValueError("client-id: a second reply in one round")
      if not message.has_content():
        raise ValueError(f"error: {first_line(message.error.reason)}")
      sent[client] = records.read_reply(message.content, client, weighted_by)
      messages[client] = message
    except ValueError as error:
      lines.append(rounds.refusal(client, error))
  lines += [f"client {i!r}: no reply; it takes no part" for i in missing]
  in_order = [sent[i] for i in cohort.values() if i in sent]
  accepted, refused = server.examine(ledger, in_order)
  return accepted, messages, lines + refused


def ask(
  server: rounds.Server,
  ledger: ledgers.Ledger,
  cohort: Mapping[int, str],
  accepted: list[replies.Accepted],
  grid: serverapp.Grid,
  timeout: float,
) -> tuple[list[replies.Accepted], list[str]]:
  """Sends every ε to who is accepted so far, and adds their answers."""
  asked = server.questions(ledger)
  given, lines = {}, []
  if asked and accepted:
    content = _question(ledger, asked)
    node_of = {client: node for node, client in cohort.items()}
    messages = [
      app.Message(content, node_of[a.client], INFLUENCE) for a in accepted
    ]
    for message in grid.send_and_receive(messages, timeout=timeout):
      client = cohort.get(message.metadata.src_node_id)
      if client is None or not message.has_content() or client in given:
        continue
      try:
        given[client] = records.read_answer(message.content, client)
      except ValueError as error:
        lines.append(rounds.refusal(client, error))
        accepted = [a for a in accepted if a.client != client]
  complete, refused = answers.add(server, ledger, accepted, given)
  return complete, lines + refused


def first_line(error: Any) -> str:
  """Returns the first line of what went wrong."""
  return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _question(ledger, asked):
  """Returns what interactive participants are sent."""
  config = app.ConfigRecord({records.ROUND: ledger.round + 1})
  arrays = records.to_record(ledger.state.params)
  eps = {records.EPS + name: records.numbered(e) for name, e in asked.items()}
  return app.RecordDict({"arrays": arrays, "config": config, **eps})
