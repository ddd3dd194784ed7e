"""A ClientApp that trains in JAX, reports its curvature and answers.

Clients of a server that makes its own curvature need nothing of this.
"""

from collections.abc import Callable
import functools
from typing import Any

from flwr import app
from flwr import clientapp
import jax

from fedinf_jax import fedavg
from fedinf_jax import federation
from fedinf_jax import influence
from fedinf_jax import rng
from fedinf_jax import types
from fedinf_jax.flower import identity
from fedinf_jax.flower import records
from fedinf_jax.server import participant as participants
from fedinf_jax.server import reply as replies


def client_app(
  model: types.Model,
  fed: fedavg.FedAvg,
  estimators: dict[str, influence.Estimator],
  params: types.Params,
  load: Callable[[app.Context], tuple[Any, Any]],
  *,
  max_examples: int,
  seed: int = 0,
) -> clientapp.ClientApp:
  """Makes the app of a client; give what the server's strategy was given.

  It answers `train` with the local model and, where estimators ask for them,
  its reports; `train.influence` with its answers to every ε; and
  `query.identity` with its id.

  Args:
    model: what is trained.
    fed: how.
    estimators: the server's.
    params: w_0, or its shapes.
    load: context -> (x [n_k, ...], y [n_k, ...]), the client's own examples.
    max_examples: of the largest client.
    seed: of draws.

  Examples:
    >>> load = lambda context: data.client(context.node_config["partition-id"])
    >>> made = flower.client_app(
    ...   model, fed, ours, run.params, load, max_examples=20
    ... )
    >>> type(made).__name__
    'ClientApp'
  """
  setup = federation.setup(model, fed, estimators, params, max_examples)
  like = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), params)
  made = clientapp.ClientApp()
  read = functools.partial(_read, setup, like, load, seed)
  side = participants.participant(setup, estimators)

  @made.query("identity")
  def identify(message: app.Message, context: app.Context) -> app.Message:
    return identity.reply(message, context)

  @made.train()
  def train(message: app.Message, context: app.Context) -> app.Message:
    client, round_, start, examples, draws = read(message, context)
    local, report = side.train(start, examples, draws)
    content = {
      "arrays": records.to_record(local),
      "metrics": app.MetricRecord({"num-examples": int(examples.count)}),
      records.STATEMENT: records.statement(client, round_),
    }
    if jax.tree.leaves(report):
      content[records.REPORT] = records.numbered(report)
    return app.Message(app.RecordDict(content), reply_to=message)

  @made.train("influence")
  def answer(message: app.Message, context: app.Context) -> app.Message:
    client, round_, start, examples, draws = read(message, context)
    eps = _read_eps(message.content, like)
    answers = side.answer(start, examples, draws, eps)
    # Of what was received, not what it was said to be.
    digest = replies.digest(eps)
    content = {
      records.EPS + name: records.numbered(a) for name, a in answers.items()
    }
    content[records.STATEMENT] = records.statement(
      client, round_, **{records.DIGEST: digest}
    )
    return app.Message(app.RecordDict(content), reply_to=message)

  return made


def _read(setup, like, load, seed, message, context):
  """Returns who the client is, the round, w_{t-1}, its examples and draws."""
  client = identity.client_id(context)
  content = message.content
  round_ = int(content["config"][records.ROUND])
  start = records.from_record(content["arrays"], like)
  examples = participants.examples(setup, *load(context))
  return client, round_, start, examples, rng.draws(seed, round_, client)


def _read_eps(content, like):
  """Returns every ε that was sent, by estimator."""
  eps = {}
  for key, record in content.array_records.items():
    if key.startswith(records.EPS):
      leaves = [a.numpy() for a in record.values()]
      tree = jax.tree.unflatten(jax.tree.structure(like), leaves)
      eps[key.removeprefix(records.EPS)] = tree
  return eps
