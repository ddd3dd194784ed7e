"""Arrays and statements, to Flower's records and back.

A reply may hold anything. What cannot be read is a ValueError whose message
begins with the field.
"""

from typing import Any

from flwr import app
import jax
import numpy as np

from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax.server import answers
from fedinf_jax.server import reply as replies

# Records of ours; everything else in a message is FedAvg's.
STATEMENT = "fedinf"  # who replies, in which round
REPORT = "fedinf.report"
EPS = "fedinf.eps."  # followed by the name of an estimator
CLIENT_ID = "client-id"
ROUND = "server-round"
DIGEST = "eps-digest"
_HEADER = 4096  # the most that describes an array in NumPy's format


def to_record(params: types.Params) -> app.ArrayRecord:
  """Returns a model as a record, by the names of its layers.

  Examples:
    >>> sorted(flower.to_record(run.params))
    ['dense/bias', 'dense/kernel']
  """
  leaves = [np.asarray(a) for a in jax.tree.leaves(params)]
  named = zip(tree.names(params), leaves, strict=True)
  return app.ArrayRecord({name: app.Array(a) for name, a in named})


def numbered(arrays: Any) -> app.ArrayRecord:
  """Returns the leaves of a tree as a record, by number."""
  leaves = [np.asarray(a) for a in jax.tree.leaves(arrays)]
  return app.ArrayRecord(
    {f"{k:04d}": app.Array(a) for k, a in enumerate(leaves)}
  )


def from_record(record: app.ArrayRecord, like: types.Params) -> types.Params:
  """Returns the model in a record; refuses one that is not like `like`."""
  names = tree.names(like)
  if set(record) != set(names):
    raise ValueError(
      f"arrays: the record has {sorted(record)}; the model has {sorted(names)}"
    )
  found = []
  for name, leaf in zip(names, jax.tree.leaves(like), strict=True):
    array = _array("arrays", name, record[name])
    if array.shape != leaf.shape or array.dtype != leaf.dtype:
      raise ValueError(
        f"arrays: {name} is {array.dtype} {list(array.shape)}; the model's is"
        f" {leaf.dtype} {list(leaf.shape)}"
      )
    found.append(array)
  return jax.tree.unflatten(jax.tree.structure(like), found)


def statement(client: str, round_: int, **others) -> app.ConfigRecord:
  """Returns who replies, in which round."""
  return app.ConfigRecord({CLIENT_ID: client, ROUND: round_, **others})


def read_reply(
  content: app.RecordDict, client: str, weighted_by: str
) -> replies.Sent:
  """Reads a reply to `train`.

  Args:
    content: of the message.
    client: whose it is, by the server's account.
    weighted_by: the metric that holds n_k.
  """
  own = {STATEMENT, REPORT}
  arrays = [r for k, r in content.array_records.items() if k not in own]
  if len(arrays) != 1:
    raise ValueError(f"arrays: there are {len(arrays)} records; it must be one")
  metrics = list(content.metric_records.values())
  if len(metrics) != 1:
    raise ValueError(
      f"metrics: there are {len(metrics)} records; it must be one"
    )
  if weighted_by not in metrics[0]:
    raise ValueError(f"{weighted_by}: there is none among the metrics")
  stated = content.config_records.get(STATEMENT, {})
  return replies.Sent(
    client=client,
    arrays={k: _array("arrays", k, a) for k, a in arrays[0].items()},
    num_examples=metrics[0][weighted_by],
    claimed=stated.get(CLIENT_ID),
    round=stated.get(ROUND),
    report=_in_order("report", content.array_records.get(REPORT, {})),
  )


def read_answer(content: app.RecordDict, client: str) -> answers.Answered:
  """Reads a reply to `train.influence`."""
  stated = content.config_records.get(STATEMENT, {})
  return answers.Answered(
    client=client,
    digest=stated.get(DIGEST),
    arrays={
      key.removeprefix(EPS): _in_order("answer", record)
      for key, record in content.array_records.items()
    },
    claimed=stated.get(CLIENT_ID),
    round=stated.get(ROUND),
  )


def for_fedavg(
  accepted: list[app.Message], models: list[types.Params], weighted_by: str
):
  """Leaves in replies what FedAvg averages, the same fields in each.

  FedAvg gives up a whole round where two clients report other metrics.

  Args:
    accepted: replies that were read; changed in place.
    models: their local models.
    weighted_by: the metric that holds n_k.
  """
  metrics = [_metrics(m.content) for m in accepted]
  common = set.intersection(*(set(m) for m in metrics))
  form = lambda value: len(value) if isinstance(value, list) else -1
  common = {k for k in common if len({form(m[k]) for m in metrics}) == 1}
  common.add(weighted_by)
  for message, model, values in zip(accepted, models, metrics, strict=True):
    kept = {k: v for k, v in values.items() if k in common}
    message.content = app.RecordDict(
      {"arrays": to_record(model), "metrics": app.MetricRecord(kept)}
    )


def _metrics(content):
  return next(iter(content.metric_records.values()))


def _in_order(field, record):
  """Returns the arrays of a numbered record."""
  if list(record) != [f"{k:04d}" for k in range(len(record))]:
    raise ValueError(f"{field}: its arrays are not numbered from 0000")
  return [_array(field, k, a) for k, a in record.items()]


def _array(field, name, array):
  """Returns an array that a client sent, whatever is in its bytes."""
  shown = repr(name)[:60]
  try:
    # A few bytes may claim to be a huge array.
    claimed = np.dtype(array.dtype).itemsize * int(np.prod(array.shape))
    if claimed > len(array.data):
      raise ValueError("it is shorter than its shape")
    found = array.numpy()
  except Exception as error:  # NumPy raises what its parts raise.
    reason = (str(error) or type(error).__name__).splitlines()[0][:100]
    raise ValueError(f"{field}: {shown} cannot be read ({reason})") from error
  if not isinstance(found, np.ndarray):  # np.load also reads archives.
    raise ValueError(f"{field}: {shown} is not an array")
  return found
