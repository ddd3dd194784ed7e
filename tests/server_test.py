"""A server by itself: clients come and go, and may send anything."""

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import server as servers
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import policy
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds
from fedinf_jax.server import table as tables
from tests import federations


@pytest.mark.parametrize("mode", federations.MODES)
def test_a_server_gets_what_the_simulation_measures(mode):
  ledger = federations.play(mode)
  federations.assert_same(ledger, federations.simulated(mode))
  moved = [np.abs(a).max() for a in jax.tree.leaves(ledger.state.estimators)]
  assert max(moved) > 1e-3


@pytest.mark.parametrize("mode", federations.MODES)
def test_who_is_absent_is_absent_from_the_simulation_too(mode):
  came = []

  def absent(t, cohort):
    came.append({1: cohort, 2: cohort[1:], 3: []}.get(t, cohort[:1]))
    return came[-1]

  ledger = federations.play(mode, absent)
  ids = federations.data().ids
  cohorts = [[ids.index(i) for i in cohort] for cohort in came]
  exact = mode == "interactive"
  run = federations.simulate(mode, cohorts=cohorts, exact=exact)
  federations.assert_same(ledger, run)
  if exact:  # Retraining by participants, and all participants retrained.
    close = lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    jax.tree.map(close, run.eps["difference"], run.exact_eps)
  table = run.table(*federations.server_data(seed=9)).to_dict()
  times = [sum(i in cohort for cohort in came) for i in ids]
  np.testing.assert_array_equal(table["times_selected"], times)


def test_cohorts_are_those_of_the_simulation_in_any_order():
  ids = federations.data().ids
  drawn = fi.federation.rng.cohorts(
    federations.SEED, fi.federation.rng.id_words(ids), 5, 3
  )
  for t, cohort in enumerate(drawn, start=1):
    expected = [ids[k] for k in cohort]
    assert federations.server().cohort(t, ids) == expected
    assert federations.server().cohort(t, ids[::-1]) == expected


def test_more_rows_change_nothing():
  made = federations.server("upload")
  ledger = federations.play("upload", num_rounds=2)
  more = ledgers.admit(made.estimators, ledger, [f"new-{k}" for k in range(9)])
  assert ledger.num_rows == 8 and more.num_rows == 16
  ends = []
  for before in (ledger, more):
    sent = [federations.sent("upload", before, i)[0] for i in ledger.ids[:3]]
    after, _ = made.end(before, made.examine(before, sent)[0])
    ends.append(after)
  small, large = (e.state.estimators["paper"] for e in ends)
  for a, b in zip(jax.tree.leaves(small), jax.tree.leaves(large), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    inside = tuple(slice(n) for n in a.shape)
    np.testing.assert_allclose(a, b[inside], rtol=0, atol=1e-7)
    b = b.copy()
    b[inside] = 0
    assert not b.any()  # New rows are zero, exactly.


def test_who_did_not_reply_is_not_counted():
  first = federations.server().cohort(1, federations.data().ids)[0]
  absent = lambda t, cohort: [c for c in cohort if c != first or t > 3]
  ledger = federations.play("silent", absent, num_rounds=3)
  assert first not in ledger.ids
  late = federations.play("silent", absent)
  full = federations.play("silent")
  times = lambda played: dict(zip(played.ids, played.times, strict=True))
  assert times(late).get(first, 0) < times(full)[first]
  others = lambda played: {**times(played), first: 0}
  assert others(late) == others(full)


@pytest.mark.parametrize("name", federations.MODES["interactive"])
def test_nothing_is_lost_of_nothing(name):
  ledger = federations.play("interactive", num_rounds=1)
  _, client = federations.sent("interactive", ledger, "client-3")
  eps = jax.tree.map(
    lambda a: np.zeros((2, *a.shape), a.dtype), ledger.state.params
  )
  answer = federations.answering("interactive", name)(client, eps)
  assert not any(np.asarray(a).any() for a in jax.tree.leaves(answer))


def test_a_round_without_replies_changes_nothing():
  made = federations.server()
  ledger = federations.play("silent", num_rounds=2)
  after, lines = made.end(ledger, [])
  assert after.round == 3 and not lines
  assert after.state is ledger.state


# What a broken or hostile client may send, and the field that is named.
SPOILT = {
  "nan": ("arrays: dense/bias is not finite", np.nan),
  "infinite": ("arrays: dense/bias is not finite", -np.inf),
  "huge": ("arrays: the update's norm is above", 1e30),
}
COUNTS = [0, -1, 10**18, 3.0, np.float32(2), True, None, "5", [3], 2**31]


def spoil(sent, value):
  bias = np.full_like(sent.arrays["dense/bias"], value)
  return sent._replace(arrays={**sent.arrays, "dense/bias": bias})


def hostile():
  """Yields (a change of a reply, the field that the refusal names)."""
  for field, value in SPOILT.values():
    yield lambda s, v=value: spoil(s, v), field
  bias = "dense/bias"
  for change in (
    lambda a: a.astype(np.float64),
    lambda a: a.astype(np.int32),
    lambda a: a[:2],
    lambda a: a[None],
    lambda a: a.tolist(),
    lambda a: None,
    lambda a: a.astype(object),
  ):
    yield (
      lambda s, c=change: s._replace(
        arrays={**s.arrays, bias: c(s.arrays[bias])}
      ),
      "arrays: dense/bias",
    )
  yield lambda s: s._replace(arrays={}), "arrays: there must be 2"
  yield lambda s: s._replace(arrays=None), "arrays: there must be 2"
  yield lambda s: s._replace(arrays={**s.arrays, "x": 1}), "arrays: there must"
  for count in COUNTS:
    yield lambda s, n=count: s._replace(num_examples=n), "num-examples: "
  yield lambda s: s._replace(claimed="client-0x"), "client-id: the reply states"
  yield lambda s: s._replace(round=1), "server-round: the reply is not of"
  yield lambda s: s._replace(round="3"), "server-round: the reply is not of"
  yield lambda s: s._replace(client="two\nlines"), "client-id: an id must be"
  yield lambda s: s._replace(client=""), "client-id: an id must be"
  yield lambda s: s._replace(client="c" * 1000), "client-id: an id must be"
  yield lambda s: s._replace(report=[np.zeros(3)]), "report: there must be 0"


@pytest.fixture(scope="module")
def underway():
  """A ledger after two rounds, three honest replies, and what they lead to."""
  ledger = federations.play("silent", num_rounds=2)
  honest = [
    federations.sent("silent", ledger, f"client-{k}")[0] for k in (5, 1, 2)
  ]
  return ledger, honest


def ended(made, ledger, sent):
  accepted, lines = made.examine(ledger, sent)
  # One program for all limits.
  after, more = federations.server().end(ledger, accepted)
  return after, lines + more


def same(a, b):
  """Asserts equality to the last bit."""
  assert a.ids == b.ids
  jax.tree.map(np.testing.assert_array_equal, a, b)


def test_each_broken_reply_is_named_and_moves_nobody_else(underway):
  ledger, honest = underway
  made = federations.server()
  without, lines = ended(made, ledger, [honest[0], honest[2]])
  assert not lines
  for change, field in hostile():
    bad = change(honest[1])
    after, lines = ended(made, ledger, [honest[0], bad, honest[2]])
    assert len(lines) == 1 and "\n" not in lines[0]
    assert field in lines[0] and repr(bad.client)[:130] in lines[0]
    same(after, without)


def test_a_second_reply_is_refused(underway):
  ledger, honest = underway
  made = federations.server()
  other = spoil(honest[0], 3)
  after, lines = ended(made, ledger, [*honest, other])
  assert lines == [
    "client 'client-5': client-id: a second reply in one round; its reply is"
    " left out"
  ]
  same(after, ended(made, ledger, honest)[0])


def test_bounds_of_updates_shares_and_clients(underway):
  ledger, honest = underway
  made = federations.server("silent", largest_share=0.6, largest_update=50.0)
  greedy = honest[1]._replace(num_examples=170)
  after, lines = ended(made, ledger, [honest[0], greedy, honest[2]])
  assert "'client-1': num-examples: above 0.6 of the round" in lines[0]
  same(after, ended(made, ledger, [honest[0], honest[2]])[0])
  far = spoil(honest[1], 100)
  _, lines = ended(made, ledger, [honest[0], far, honest[2]])
  assert "'client-1': arrays: the update's norm is above 50" in lines[0]
  made = federations.server("silent", most_clients=len(ledger.ids))
  new = honest[1]._replace(client="one more")
  _, lines = ended(made, ledger, [honest[0], new])
  assert "'one more': client-id: there are" in lines[0]


@pytest.mark.parametrize(
  "mode, field",
  [("upload", "report: "), ("interactive", "answer")],
)
def test_a_broken_report_is_named(mode, field):
  made = federations.server(mode)
  ledger = federations.play(mode, num_rounds=1)
  ids = ["client-2", "client-4"]
  pairs = {i: federations.sent(mode, ledger, i) for i in ids}
  for change in (
    lambda a: a * np.nan,
    lambda a: a + 1e30,
    lambda a: a[:1],
    lambda a: a.astype(np.float16),
    lambda a: None,
  ):
    if mode == "upload":
      good, bad = (pairs[i][0] for i in ids)
      bad = bad._replace(report=[change(a) for a in bad.report])
      accepted, lines = made.examine(ledger, [good, bad])
    else:
      accepted, _ = made.examine(ledger, [s for s, _ in pairs.values()])
      given = {
        i: federations.answered(mode, ledger, i, client)
        for i, (_, client) in pairs.items()
      }
      spoilt = {
        n: [change(a) for a in arrays]
        for n, arrays in given["client-4"].arrays.items()
      }
      given["client-4"] = given["client-4"]._replace(arrays=spoilt)
      accepted, lines = servers.answers.add(made, ledger, accepted, given)
    assert [a.client for a in accepted] == ["client-2"]
    assert len(lines) == 1 and f"'client-4': {field}" in lines[0]


def test_an_answer_for_other_eps_is_refused():
  mode = "interactive"
  made = federations.server(mode)
  old = federations.play(mode, num_rounds=1)
  ledger = federations.play(mode, num_rounds=2)
  sent, client = federations.sent(mode, ledger, "client-2")
  accepted, _ = made.examine(ledger, [sent])
  given = federations.answered(mode, old, "client-2", client)
  for answers, reason in (
    ({"client-2": given}, "it is for other ε than were sent"),
    ({}, "answer: there is none"),
  ):
    left, lines = servers.answers.add(made, ledger, accepted, answers)
    assert not left and reason in lines[0]


def test_a_bound_on_the_growth_of_answers():
  mode, ids = "interactive", ["client-2", "client-4"]
  ledger = federations.play(mode, num_rounds=3)
  pairs = {i: federations.sent(mode, ledger, i) for i in ids}
  given = {
    i: federations.answered(mode, ledger, i, client)
    for i, (_, client) in pairs.items()
  }
  far = {n: [a + 1e3 for a in v] for n, v in given["client-4"].arrays.items()}
  lie = given | {"client-4": given["client-4"]._replace(arrays=far)}
  ends = {}
  for name, answers, limits in (
    ("honest", given, {"largest_growth": 10.0}),
    ("believed", lie, {}),
    ("bounded", lie, {"largest_growth": 10.0}),
    ("alone", {"client-2": given["client-2"]}, {}),
  ):
    made = federations.server(mode, **limits)
    accepted, _ = made.examine(ledger, [sent for sent, _ in pairs.values()])
    accepted, lines = servers.answers.add(made, ledger, accepted, answers)
    ends[name], _ = federations.server(mode).end(ledger, accepted)
    assert len(lines) == (name in ("bounded", "alone"))
    if name == "bounded":
      assert "'client-4': answer" in lines[0]
      assert "it makes an ε more than 10 times as long" in lines[0]
  same(ends["bounded"], ends["alone"])
  largest = lambda e: max(np.abs(a).max() for a in jax.tree.leaves(e))
  assert largest(ends["believed"].eps("hessian")) > 100  # Without a bound.
  assert largest(ends["honest"].eps("hessian")) < 1
  fell = lambda e: (np.asarray(e.guard.truncated_at) > 0).sum()
  guarded = [
    ends[n].state.estimators["difference"] for n in ("honest", "believed")
  ]
  assert fell(guarded[0]) < fell(guarded[1])  # LWET drops everybody's.


def fuzzed(draw, sent):
  """Returns a reply that is broken somewhere, in a way drawn at random."""
  changes = [change for change, _ in hostile()]
  bad = changes[draw.integers(len(changes))](sent)
  if draw.random() < 0.5:  # Broken in two ways.
    name = ["dense/kernel", "dense/bias"][draw.integers(2)]
    junk = [
      draw.normal(size=draw.integers(0, 4, draw.integers(0, 4))),
      draw.bytes(5),
      draw.normal(size=(4, 3)).astype(np.float32)
      * 10.0 ** draw.integers(10, 38),
      {},
      draw.integers(0, 9, (4, 3)),
    ]
    arrays = bad.arrays if isinstance(bad.arrays, dict) else {}
    value = junk[draw.integers(len(junk))]
    bad = bad._replace(arrays={**arrays, name: value})
  return bad


def fuzz(mode, ledger, honest, rounds_, per_round=10):
  made = federations.server(mode)
  draw = np.random.default_rng(0)
  expected, _ = made.end(ledger, made.examine(ledger, honest[:2])[0])
  for t in range(rounds_):
    bad = []
    for k in range(per_round):
      sent = honest[2]._replace(client=f"bad-{t}-{k}")
      if mode == "upload" and draw.random() < 0.5:
        bad.append(sent._replace(report=fuzzed_report(draw, sent.report)))
      else:
        bad.append(fuzzed(draw, sent))
    accepted, lines = made.examine(ledger, [*bad, *honest[:2]])
    assert [a.client for a in accepted] == [h.client for h in honest[:2]]
    assert len(lines) == per_round
    for b, line in zip(bad, lines, strict=True):
      assert repr(b.client)[:130] in line and "\n" not in line
      reason = line.split(": ", 1)[1]
      fields = ("arrays: ", "num-examples: ", "client-id: ", "server-round: ")
      assert reason.startswith((*fields, "report: "))
    if t % 100 == 0:
      same(made.end(ledger, accepted)[0], expected)


def fuzzed_report(draw, report):
  """Returns a report of which one array, at least, is broken."""
  k = draw.integers(len(report))
  a = report[k]
  junk = [
    None, a.tolist(), a[..., :-1], a[None], a.astype(np.float64), a[:0],
    np.full_like(a, draw.choice([np.nan, np.inf, 1e30])),
    np.where(draw.random(a.shape) < 0.1, a, -np.inf).astype(a.dtype),
    draw.bytes(4),
  ]  # fmt: skip
  changed = [*report[:k], junk[draw.integers(len(junk))], *report[k + 1 :]]
  whole = [changed, report[:-1], [*report, a], None, {}, report[::-1]]
  return whole[max(0, draw.integers(-5, len(whole)))]


@pytest.mark.parametrize(
  "rounds", [100, pytest.param(1000, marks=pytest.mark.slow)]
)
def test_ten_fuzzed_replies_in_each_round(underway, rounds):
  fuzz("silent", *underway, rounds)


def test_fuzzed_reports_in_each_round():
  ledger = federations.play("upload", num_rounds=2)
  honest = [
    federations.sent("upload", ledger, f"client-{k}")[0] for k in (5, 1, 2)
  ]
  fuzz("upload", ledger, honest, 100)


def some_table(fil, error):
  count = len(fil)
  ids = tuple(f"c{k}" for k in range(count))
  ones = np.ones(count, int)
  return servers.Table(
    round=1,
    ids=ids,
    num_examples=ones,
    times=ones,
    fil=np.asarray(fil),
    fil_error=np.asarray(error),
    interval=None,  # The policy has an error of its own.
    fia=np.zeros(count),
  )


def test_the_policy_leaves_out_who_is_surely_harmful():
  hook = policy.leave_out_harmful(evaluations=2, most=0.4)
  surely = some_table([-3.0, -2.0, -1.0, 0.5, 1.0], [0.1, 2.0, 0.1, 0.1, 0.1])
  assert hook(1, surely) == []
  assert hook(2, surely) == ["c0", "c2"]
  worse = some_table([-3.0, -9.0, -1.0, -8.0, 1.0], np.zeros(5))
  worse = worse._replace(left_out=("c0", "c2"))
  assert hook(3, worse) == []
  assert hook(4, worse) == []  # Never more than the share.
  assert hook(5, worse._replace(left_out=("c0",))) == ["c1"]
  hook = policy.leave_out_harmful(evaluations=2)
  hook(1, surely)
  hook(2, some_table([1.0] * 5, [0.1] * 5))
  assert hook(3, surely) == []  # Not in a row.


def test_the_table_is_the_influence_of_the_run():
  ledger = federations.play("silent")
  run = federations.simulated("silent")
  test = federations.server_data(seed=9)
  found = tables.table(federations.MODEL, ledger, "ours", test)
  fil = run.influence(fi.metrics.loss, *test, of="ours")
  fia = run.influence(fi.metrics.accuracy, *test, of="ours")
  rows = [federations.data().ids.index(i) for i in ledger.ids]
  np.testing.assert_allclose(found.fil, fil[np.array(rows)], atol=1e-5)
  np.testing.assert_allclose(found.fia, fia[np.array(rows)], atol=1e-5)
  assert (found.fil_error > 0).any()
  empty = ledgers.init(federations.server().estimators, federations.params())
  assert len(tables.table(federations.MODEL, empty, "ours", test).fil) == 0


@pytest.mark.parametrize(
  "change, match",
  [
    ({"estimators": {}}, "estimators: give at least one"),
    ({"server_data": None}, "is server_side and needs server_data"),
    ({"server_data": (np.zeros((3, 4)), [0, 1, 2])}, "server_data has 3"),
    ({"server_data": 3}, "server_data must be a pair"),
    ({"max_examples": 0}, "max_examples is 0"),
    ({"seed": -1}, "seed is -1"),
    ({"limits": replies.Limits(largest_share=0.2)}, "largest_share is 0.2"),
    ({"limits": replies.Limits(most_examples=2**30)}, "most_examples is"),
    ({"limits": replies.Limits(largest_update=-1)}, "largest_update is -1"),
    (
      {"estimators": federations.MODES["upload"], "server_data": None},
      "example: clients upload",
    ),
  ],
)
def test_what_does_not_fit_a_server_is_named(change, match):
  options = {
    "estimators": federations.MODES["silent"],
    "max_examples": 14,
    "server_data": federations.server_data(),
    **change,
  }
  estimators = options.pop("estimators")
  with pytest.raises(ValueError, match=match):
    rounds.server(
      federations.MODEL,
      federations.FED,
      estimators,
      federations.params(),
      **options,
    )
