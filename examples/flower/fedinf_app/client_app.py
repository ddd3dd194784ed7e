"""Clients. In silent mode they know nothing of influence."""

from flwr.app import Array
from flwr.app import ArrayRecord
from flwr.app import ConfigRecord
from flwr.app import Context
from flwr.app import Message
from flwr.app import MetricRecord
from flwr.app import RecordDict
from flwr.clientapp import ClientApp

from fedinf_app import task

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
  """Trains on the client's examples, as any client of FedAvg does."""
  if context.run_config["mode"] != "silent":
    return _with_curvature(message, context)
  x, y = task.load(_partition(context), int(context.run_config["seed"]))
  arrays = {k: a.numpy() for k, a in message.content["arrays"].items()}
  local = task.train(arrays, x, y)
  content = {
    "arrays": ArrayRecord({k: Array(a) for k, a in local.items()}),
    "metrics": MetricRecord({"num-examples": len(x)}),
  }
  return Message(RecordDict(content), reply_to=message)


@app.query("identity")
def identity(message: Message, context: Context) -> Message:
  """Says who this is; an operator's list of nodes would do instead."""
  client = task.client_id(_partition(context))
  stated = ConfigRecord({"client-id": client})
  return Message(RecordDict({"fedinf": stated}), reply_to=message)


@app.train("influence")
def answer(message: Message, context: Context) -> Message:
  """Answers every ε, in interactive mode."""
  return _with_curvature(message, context)


def _partition(context):
  return int(context.node_config["partition-id"])


def _with_curvature(message, context):
  """Trains in JAX, with reports or answers; only these modes need it."""
  from fedinf_app import curvature

  client = task.client_id(_partition(context))
  context.node_config["client-id"] = client
  return curvature.client_app(context)(message, context)
