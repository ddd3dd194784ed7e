"""Who a node is: Flower's node ids change when a client comes back.

A server must know before a round who is there, to draw a cohort from ids. It
asks each node that is new (`asked`), or the operator says (`mapped`).
"""

from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any
import uuid

from flwr import app
from flwr import serverapp

from fedinf_jax.flower import records
from fedinf_jax.server import reply as replies

QUERY = "query.identity"
LONGEST_REST = 16  # rounds, at most, before a mute node is asked again
# (grid, nodes, timeout) -> (node -> id, lines about nodes without one)
Resolve = Callable[
  [serverapp.Grid, list[int], float], tuple[dict[int, str], list[str]]
]


def client_id(context: app.Context) -> str:
  """Returns the id of the client that runs, on the client's side.

  The operator's, `--node-config 'client-id="hospital-3"'`, which also survives
  a restart of the SuperNode. Else one that is drawn once and kept in the
  context's state.

  Examples:
    >>> from flwr import app
    >>> config = {"client-id": "hospital-3"}
    >>> context = app.Context(1, 2, config, app.RecordDict(), {})
    >>> flower.client_id(context)
    'hospital-3'
  """
  given = context.node_config.get(records.CLIENT_ID)
  if given is not None:
    return replies.check_id(records.CLIENT_ID, str(given))
  kept = context.state.config_records.get(records.STATEMENT)
  if kept is None:
    kept = app.ConfigRecord({records.CLIENT_ID: uuid.uuid4().hex})
    context.state[records.STATEMENT] = kept
  return str(kept[records.CLIENT_ID])


def by_node() -> Resolve:
  """Takes Flower's node ids as they are: who comes back is somebody new.

  Examples:
    >>> flower.by_node()(None, [7, 8], 1.0)
    ({7: '7', 8: '8'}, [])
  """
  return mapped(str)


def mapped(ids: Mapping[int, str] | Callable[[int], str | None]) -> Resolve:
  """Takes the operator's word.

  Args:
    ids: of node ids, a mapping or a function; None: the node takes no part.

  Examples:
    >>> flower.mapped({7: "hospital-3"})(None, [7], 1.0)
    ({7: 'hospital-3'}, [])
  """
  of = ids if callable(ids) else ids.get

  def resolve(grid, nodes, timeout):
    del grid, timeout
    return _checked({node: of(node) for node in nodes})

  return resolve


def asked() -> Resolve:
  """Asks each node once, by a message `query.identity`.

  Clients made by `flower.client_app` answer it. Others need these lines:

      @app.query("identity")
      def identity(message, context):
        return flower.identity.reply(message, context)

  Examples:
    >>> flower.asked()(None, [], 1.0)  # Of a grid, its nodes and a timeout.
    ({}, [])
  """

  def resolve(grid, nodes, timeout):
    if not nodes:
      return {}, []
    messages = [app.Message(app.RecordDict(), n, QUERY) for n in nodes]
    found: dict[int, Any] = dict.fromkeys(nodes)
    for answer in grid.send_and_receive(messages, timeout=timeout):
      node = answer.metadata.src_node_id
      if node in found and answer.has_content():
        stated = answer.content.config_records.get(records.STATEMENT, {})
        found[node] = stated.get(records.CLIENT_ID)
    return _checked(found)

  return resolve


def reply(message: app.Message, context: app.Context) -> app.Message:
  """Answers `query.identity`."""
  stated = app.ConfigRecord({records.CLIENT_ID: client_id(context)})
  content = app.RecordDict({records.STATEMENT: stated})
  return app.Message(content, reply_to=message)


class Nodes:
  """Which node is which client, as long as the server runs."""

  def __init__(self, resolve: Resolve):
    self._resolve = resolve
    self._ids: dict[int, str] = {}
    # node -> (times that it gave no id, updates until it is asked again)
    self._mute: dict[int, tuple[int, int]] = {}

  def update(
    self, grid: serverapp.Grid, timeout: float
  ) -> tuple[dict[str, int], list[str]]:
    """Returns the node of every client that is there, and lines.

    An id belongs to the node that had it first for as long as that node is
    there. Two new nodes that state the same id get none: nobody can tell which
    of them is right.
    """
    there = sorted(grid.get_node_ids())
    self._ids = {n: i for n, i in self._ids.items() if n in set(there)}
    new = self._due([n for n in there if n not in self._ids])
    found, lines = self._resolve(grid, new, timeout)
    for node in new:
      if node not in found:
        times = self._mute.get(node, (0, 0))[0] + 1
        self._mute[node] = times, min(2 ** (times - 1), LONGEST_REST) - 1
    taken = {i: n for n, i in self._ids.items()}
    for client, nodes in _grouped(found).items():
      if client in taken:
        lines += [
          f"node {n}: client-id: {client!r} is node {taken[client]}; it takes"
          " no part"
          for n in nodes
        ]
      elif len(nodes) > 1:
        lines.append(
          f"nodes {', '.join(map(str, nodes))}: client-id: all say"
          f" {client!r}; none takes part"
        )
      else:
        self._ids[nodes[0]] = client
    return {i: n for n, i in self._ids.items()}, lines

  def _due(self, new):
    """Returns whom to ask now: each wait for a mute node costs a timeout."""
    self._mute = {n: self._mute[n] for n in new if n in self._mute}
    due = [n for n in new if not self._mute.get(n, (0, 0))[1]]
    for node, (times, rest) in self._mute.items():
      self._mute[node] = times, max(0, rest - 1)
    return due


def _grouped(found: Mapping[int, str]) -> dict[str, list[int]]:
  made: dict[str, list[int]] = {}
  for node, client in found.items():
    made.setdefault(client, []).append(node)
  return made


def _checked(
  found: Iterable[tuple[int, Any]] | Mapping[int, Any],
) -> tuple[dict[int, str], list[str]]:
  """Returns the ids that can be used, and a line for each of the others."""
  good, lines = {}, []
  for node, client in dict(found).items():
    try:
      if client is None:
        raise ValueError(f"{records.CLIENT_ID}: there is none")
      good[node] = replies.check_id(records.CLIENT_ID, client)
    except ValueError as error:
      lines.append(f"node {node}: {error}; it takes no part")
  return good, lines
