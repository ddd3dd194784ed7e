"""A Flower federation in one process: real apps and messages, no network."""

from collections.abc import Callable

from flwr import app
from flwr import clientapp
from flwr import serverapp
from flwr.serverapp import strategy as strategies
import numpy as np

from fedinf_jax import flower
from tests import federations


class InProcess(serverapp.Grid):
  """Nodes that answer at once, in the order of their ids."""

  def __init__(self, client: clientapp.ClientApp, clients: dict[int, str]):
    """Makes a grid.

    Args:
      client: the app of every node.
      clients: node -> id, what an operator writes into the node's config.
    """
    self._app = client
    self._contexts = {}
    self.sent = []  # message types, to see what was asked for
    self.spoil: dict[int, Callable] = {}  # node -> reply -> replies instead
    for node, client_id in clients.items():
      self.join(node, client_id)

  def join(self, node: int, client_id: str | None):
    config = {} if client_id is None else {"client-id": client_id}
    self._contexts[node] = app.Context(1, node, config, app.RecordDict(), {})

  def leave(self, node: int):
    del self._contexts[node]

  def send_and_receive(self, messages, *, timeout=None):
    answers = []
    for message in messages:
      node = message.metadata.dst_node_id
      self.sent.append(message.metadata.message_type)

      found = [self._app(message, self._contexts[node])]
      if node in self.spoil:
        found = self.spoil[node](found[0])
      answers += found
    return answers

  def get_node_ids(self):
    return list(self._contexts)

  def set_run(self, run):
    raise NotImplementedError

  @property
  def run(self):
    raise NotImplementedError

  def create_message(self, *args, **kwargs):
    raise NotImplementedError

  def push_messages(self, messages):
    raise NotImplementedError

  def pull_messages(self, message_ids):
    raise NotImplementedError


def nodes(first=100):
  """Six nodes; their order is not that of the clients."""
  ids = federations.data().ids
  return {first + 10 * (len(ids) - k): i for k, i in enumerate(ids)}


def client_of(context):
  """Returns a client's id; Flower's simulation knows partitions only."""
  config = context.node_config
  return config.get("client-id") or f"client-{config['partition-id']}"


def load(context):
  ids = federations.data().ids
  return federations.data().client(ids.index(client_of(context)))


def numpy_client() -> clientapp.ClientApp:
  """A client that knows nothing of us: softmax regression in NumPy."""
  made = clientapp.ClientApp()

  @made.train()
  def train(message, context):
    arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
    w, b = arrays["dense/kernel"], arrays["dense/bias"]
    x, y = load(context)
    for _ in range(federations.FED.local_steps):
      logits = x @ w + b
      p = np.exp(logits - logits.max(1, keepdims=True))
      residual = p / p.sum(1, keepdims=True) - np.eye(3)[y]
      rate = federations.FED.learning_rate
      w = w - rate * x.T @ residual / len(x)
      b = b - rate * residual.mean(0)
    arrays = {"dense/kernel": w, "dense/bias": b}
    arrays = {k: app.Array(a.astype(np.float32)) for k, a in arrays.items()}
    content = {
      "model": app.ArrayRecord(arrays),
      "metrics": app.MetricRecord({"num-examples": len(x), "seen": 1.5}),
    }
    return app.Message(app.RecordDict(content), reply_to=message)

  return made


def jax_client(mode: str) -> clientapp.ClientApp:
  return flower.client_app(
    federations.MODEL, federations.FED, federations.MODES[mode],
    federations.params(), load, max_examples=14, seed=federations.SEED,
  )  # fmt: skip


def strategy(mode="silent", **options):
  """The strategy of the small federation."""
  data = {"server_data": federations.server_data()} if mode == "silent" else {}
  inner = strategies.FedAvg(fraction_evaluate=0.0, min_available_nodes=3)
  options = {"seed": federations.SEED} | options
  return flower.InfluenceStrategy(
    inner, federations.MODEL, federations.FED, federations.MODES[mode],
    federations.params(), test=federations.server_data(seed=9),
    max_examples=14, **data, **options,
  )  # fmt: skip
