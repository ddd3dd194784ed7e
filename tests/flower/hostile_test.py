"""Broken and hostile clients in a Flower federation: each is named, alone."""

import pytest

pytest.importorskip(
  "flwr", reason="flwr wants older packages; .ci/run has an environment for it"
)

from flwr import app
import jax
import numpy as np

from fedinf_jax import flower
from fedinf_jax.flower import exchange
from fedinf_jax.flower import identity
from tests import federations
from tests.flower import grids


def edited(message, *, arrays=None, metrics=None, config=None, also=None):
  """Returns a reply with some of its records changed, or None: without."""
  content = app.RecordDict(dict(message.content.items()))
  for key, change in (
    ("arrays", arrays), ("metrics", metrics), ("fedinf", config),
  ):  # fmt: skip
    if change == "none":
      del content[key]
    elif change is not None:
      content[key] = change(content[key])
  for key, value in (also or {}).items():
    content[key] = value
  changed = app.Message(content=content, metadata=message.metadata)
  return [changed]


def with_bias(change):
  def arrays(record):
    made = {k: app.Array(a.numpy()) for k, a in record.items()}
    made["dense/bias"] = change(made["dense/bias"])
    return app.ArrayRecord(made)

  return lambda message: edited(message, arrays=arrays)


def value(new):
  return with_bias(lambda a: app.Array(np.full_like(a.numpy(), new)))


def forged(array, **fields):
  """Returns an array whose description is not that of its bytes."""
  whole = {
    "dtype": array.dtype, "shape": array.shape, "stype": array.stype,
    "data": array.data,
  }  # fmt: skip
  return app.Array(**(whole | fields))


def count(new):
  return lambda message: edited(
    message, metrics=lambda _: app.MetricRecord({"num-examples": new})
  )


def statement(**fields):
  return lambda message: edited(
    message, config=lambda record: app.ConfigRecord({**record, **fields})
  )


# name -> (reply -> replies in its place, what the log line says)
ATTACKS = {
  "nan": (value(np.nan), "arrays: dense/bias is not finite"),
  "infinity": (value(np.inf), "arrays: dense/bias is not finite"),
  "huge": (value(1e30), "arrays: the update's norm is above 1e+09"),
  "shape": (
    with_bias(lambda a: app.Array(a.numpy()[:2])),
    "arrays: dense/bias has shape [2]",
  ),
  "dtype": (
    with_bias(lambda a: app.Array(a.numpy().astype(np.float64))),
    "arrays: dense/bias is float64",
  ),
  "bytes": (
    with_bias(lambda a: forged(a, data=b"nonsense" * 9)),
    "arrays: 'dense/bias' cannot be read",
  ),
  "no bytes": (
    with_bias(lambda a: forged(a, data=b"")),
    "arrays: 'dense/bias' cannot be read",
  ),
  "a huge claim": (
    with_bias(lambda a: forged(a, shape=(10**9, 10**9))),
    "arrays: 'dense/bias' cannot be read",
  ),
  "serialisation": (
    with_bias(lambda a: forged(a, stype="pickle")),
    "arrays: 'dense/bias' cannot be read",
  ),
  "no arrays": (
    lambda m: edited(m, arrays="none"),
    "arrays: there are 0 records",
  ),
  "two arrays": (
    lambda m: edited(m, also={"more": m.content["arrays"]}),
    "arrays: there are 2 records",
  ),
  "no metrics": (
    lambda m: edited(m, metrics="none"),
    "metrics: there are 0 records",
  ),
  "no count": (
    lambda m: edited(m, metrics=lambda _: app.MetricRecord({"n": 3})),
    "num-examples: there is none",
  ),
  "0": (count(0), "num-examples: it must be from 1 to"),
  "-1": (count(-1), "num-examples: it must be from 1 to"),
  "10^18": (count(10**18), "num-examples: it must be from 1 to"),
  "float": (count(3.0), "num-examples: it is a float"),
  "list": (count([3]), "num-examples: it is a list"),
  "forged id": (
    statement(**{"client-id": "client-0!"}),
    "client-id: the reply states another",
  ),
  "an id of bytes": (
    statement(**{"client-id": b"\xff\n"}),
    "client-id: the reply states another",
  ),
  "an earlier round": (
    statement(**{"server-round": 1}),
    "server-round: the reply is not of round 2",
  ),
  "error": (
    lambda m: [app.Message(app.Error(1, "out\nof memory"), reply_to=m)],
    "",
  ),
  "nothing": (lambda m: [], "no reply; it takes no part"),
}


@pytest.fixture(scope="module")
def second_round():
  """A strategy before its second round, its cohort and honest replies."""
  with pytest.MonkeyPatch.context() as patch:
    from flwr.supercore import task_identity

    for name in ("_task_id", "_run_id", "_node_id"):
      patch.setattr(task_identity.TaskIdentity, name, 1)
    made = grids.strategy()
    grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
    made.start(grid, num_rounds=1)
    arrays = flower.to_record(made.ledger.state.params)
    messages = made.configure_train(2, arrays, app.ConfigRecord(), grid)
    replies = grid.send_and_receive(list(messages))
    yield made, replies


def ended(made, replies):
  """Returns the ledger after the second round, and the lines."""
  accepted, _, lines = exchange.examine(
    made._server, made.ledger, made._cohort, replies, "num-examples"
  )
  return made._server.end(made.ledger, accepted)[0], lines


def same(a, b):
  assert a.ids == b.ids
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize("name", ATTACKS)
def test_each_attack_is_named_and_moves_nobody_else(second_round, name):
  made, replies = second_round
  attack, reason = ATTACKS[name]
  without, _ = ended(made, [replies[0], replies[2]])
  client = made._cohort[replies[1].metadata.src_node_id]
  bad = attack(replies[1])
  if name == "error":  # A reply to the reply has its ends exchanged.
    bad = [app.Message(error=bad[0].error, metadata=replies[1].metadata)]
    reason = "error: out"
  after, lines = ended(made, [replies[0], *bad, replies[2]])
  assert len(lines) == 1 and "\n" not in lines[0]
  assert lines[0].startswith(f"client {client!r}: {reason}")
  same(after, without)


def test_who_was_not_asked_or_replies_twice_is_named(second_round):
  made, replies = second_round
  whole, lines = ended(made, replies)
  assert not lines
  after, lines = ended(made, [*replies, *value(3)(replies[1])])
  assert "client-id: a second reply in one round" in lines[0]
  same(after, whole)
  cohort = dict(made._cohort)
  stranger = replies[0].metadata.src_node_id
  made._cohort = {n: i for n, i in cohort.items() if n != stranger}
  _, lines = ended(made, replies)
  made._cohort = cohort
  assert lines == [f"node {stranger}: it was not asked; its reply is left out"]


def test_fuzzed_messages(second_round):
  made, replies = second_round
  draw = np.random.default_rng(0)
  attacks = [a for name, (a, _) in ATTACKS.items() if name != "error"]
  without, _ = ended(made, [replies[0], replies[2]])
  client = made._cohort[replies[1].metadata.src_node_id]
  for _ in range(300):
    bad = attacks[draw.integers(len(attacks))](replies[1])
    accepted, _, lines = exchange.examine(
      made._server, made.ledger, made._cohort,
      [replies[0], *bad, replies[2]], "num-examples",
    )  # fmt: skip
    assert len(accepted) == 2 and len(lines) == 1 and repr(client) in lines[0]
  same(made._server.end(made.ledger, accepted)[0], without)


def test_other_metrics_do_not_stop_a_round():
  made = grids.strategy()
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())

  def more(message):
    if message.metadata.message_type != "train":
      return [message]
    add = lambda record: app.MetricRecord({**record, "mine": [1.0, 2.0]})
    return edited(message, metrics=add)

  for node in list(grids.nodes())[:3]:
    grid.spoil[node] = more
  made.start(grid, num_rounds=5)
  federations.assert_same(made.ledger, federations.simulated("silent"))


def test_an_answer_for_other_eps_takes_no_part(caplog):
  made = grids.strategy("interactive")
  grid = grids.InProcess(grids.jax_client("interactive"), grids.nodes())
  node = {i: n for n, i in grids.nodes().items()}["client-5"]

  def lie(message):
    if message.metadata.message_type != "train.influence":
      return [message]
    return statement(**{"eps-digest": "0" * 32})(message)

  grid.spoil[node] = lie
  made.start(grid, num_rounds=3)
  said = "'client-5': answer: it is for other ε than were sent"
  assert caplog.text.count(said) == 1  # In the first round nobody is asked.
  gone = lambda t, cohort: [i for i in cohort if t == 1 or i != "client-5"]
  absent = federations.play("interactive", gone, num_rounds=3)
  assert made.ledger.ids == absent.ids
  np.testing.assert_array_equal(made.ledger.times, absent.times)
  for name in federations.MODES["interactive"]:
    jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6),
      made.ledger.eps(name), absent.eps(name),
    )  # fmt: skip


def test_two_nodes_with_one_id():
  grid = grids.InProcess(grids.jax_client("silent"), {1: "a", 2: "b", 3: "b"})
  nodes = identity.Nodes(flower.asked())
  there, lines = nodes.update(grid, 1.0)
  assert there == {"a": 1}
  assert lines == ["nodes 2, 3: client-id: all say 'b'; none takes part"]
  grid.leave(3)
  assert nodes.update(grid, 1.0) == ({"a": 1, "b": 2}, [])
  grid.join(4, "a")
  there, lines = nodes.update(grid, 1.0)
  assert there == {"a": 1, "b": 2}
  assert lines == ["node 4: client-id: 'a' is node 1; it takes no part"]
  grid.leave(1)  # The first is gone: the client came back elsewhere.
  assert nodes.update(grid, 1.0) == ({"b": 2, "a": 4}, [])


def test_ids_that_cannot_be_used_take_no_part():
  grid = grids.InProcess(grids.jax_client("silent"), {1: "a", 2: "b"})
  names = {1: "two\nlines", 2: None}
  there, lines = identity.Nodes(flower.mapped(names)).update(grid, 1.0)
  assert not there and len(lines) == 2
  assert "node 1: client-id: an id must be one line" in lines[0]
  there, _ = identity.Nodes(flower.by_node()).update(grid, 1.0)
  assert there == {"1": 1, "2": 2}


def test_an_id_is_drawn_once_and_kept():
  grid = grids.InProcess(grids.jax_client("silent"), {})
  grid.join(1, None)
  context = grid._contexts[1]
  first = flower.client_id(context)
  assert len(first) == 32 and flower.client_id(context) == first
  other = app.Context(2, 9, {}, context.state, {})  # Under another node id.
  assert flower.client_id(other) == first


def test_a_mute_node_is_asked_less_and_less():
  grid = grids.InProcess(grids.jax_client("silent"), {1: "a", 2: "b"})
  grid.spoil[2] = lambda message: []
  nodes = identity.Nodes(flower.asked())
  asked_in = []
  for t in range(1, 41):
    before = len(grid.sent)
    there, lines = nodes.update(grid, 1.0)
    assert there == {"a": 1}
    if len(grid.sent) > before:
      asked_in.append(t)
      assert lines == ["node 2: client-id: there is none; it takes no part"]
  assert asked_in == [1, 2, 4, 8, 16, 32]
  del grid.spoil[2]
  for _ in range(16):
    there, _ = nodes.update(grid, 1.0)
  assert there == {"a": 1, "b": 2}
