"""Laws of valuation: ranking, rewards, cleansing, and what others measure."""

import functools
import itertools
import math
import types

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import memory
from fedinf_jax import rng
from fedinf_jax import valuation
from fedinf_jax.valuation import rankings
from fedinf_jax.valuation import scores as update_scores
from fedinf_jax.valuation import shapley
from tests import reference

NUM_CLIENTS = 7
FED = fi.FedAvg(
  rounds=4, cohort_size=4, local_steps=2, learning_rate=0.4, batch_size=8
)
MODEL = fi.models.logreg(3, 3)
EXACT = valuation.GTGShapley(
  max_sweeps=6, eps_between=0, eps_within=0, tolerance=None
)


def make_data(seed=0, sizes=(5, 30, 12, 5, 12, 30, 30), flipped=()):
  draw = np.random.default_rng(seed)
  truth = np.random.default_rng(9).normal(size=(3, 3))
  clients = []
  for k, n in enumerate(sizes):
    x = draw.normal(size=(n, 3))
    y = (x @ truth + 0.3 * draw.gumbel(size=(n, 3))).argmax(1)
    clients.append((x, (y + 1) % 3 if k in flipped else y))
  ids = [f"id{k}" for k in range(len(sizes))]
  return fi.FederatedData.from_clients(clients, ids, num_classes=3)


VALIDATION = make_data(seed=1, sizes=(31,)).pooled()


def scores_of(data=None, fed=FED, settings=EXACT, **kwargs):
  return valuation.baselines(
    MODEL, data or make_data(), fed, *VALIDATION, shapley=settings, **kwargs
  )


# Shapley values of any game.


def random_game(num_players, seed=0):
  """A utility table, and a list of every subset that was asked for."""
  table = np.random.default_rng(seed).normal(size=2**num_players)
  asked = []

  def utility(subsets):
    numbers = subsets @ (1 << np.arange(num_players))
    asked.extend(numbers)
    return table[numbers]

  return utility, asked


def exact_shapley(utility, num_players):
  """The definition by subsets, Σ_S |S|! (B − |S| − 1)! / B! (U(S+k) − U(S))."""
  phi = np.zeros(num_players)
  for k in range(num_players):
    others = [j for j in range(num_players) if j != k]
    for size in range(num_players):
      share = 1 / (num_players * math.comb(num_players - 1, size))
      for chosen in itertools.combinations(others, size):
        without = np.isin(np.arange(num_players), chosen)
        having = without | (np.arange(num_players) == k)
        after, before = utility(np.stack([having, without]))
        phi[k] += share * (after - before)
  return phi


def values(utility, num_players, **settings):
  settings = {"eps_between": 0, "eps_within": 0, "tolerance": None} | settings
  return shapley.values(
    utility,
    num_players,
    valuation.GTGShapley(**settings),
    np.random.default_rng(0),
  )


@pytest.mark.parametrize("num_players", [1, 2, 3, 4])
def test_all_permutations_give_the_exact_value(num_players):
  utility, asked = random_game(num_players)
  sweeps = math.factorial(num_players - 1)
  phi = values(utility, num_players, max_sweeps=sweeps)
  assert sorted(asked) == list(range(2**num_players))  # Each subset once.
  expected = exact_shapley(utility, num_players)
  np.testing.assert_allclose(phi, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("num_players", [5, 9])
def test_sampled_permutations_share_out_the_whole(num_players):
  utility, asked = random_game(num_players)
  phi = values(utility, num_players, max_sweeps=2)
  assert len(asked) == len(set(asked)) <= 2 * num_players**2
  everyone = np.ones(num_players, bool)
  nobody, everyone = utility(np.stack([~everyone, everyone]))
  np.testing.assert_allclose(phi.sum(), everyone - nobody, atol=1e-12)


def test_samples_are_unbiased_and_every_player_leads_once_a_sweep():
  utility, _ = random_game(6)
  phi = values(utility, 6, max_sweeps=119)  # One fewer than all.
  np.testing.assert_allclose(phi, exact_shapley(utility, 6), atol=0.1)
  for orders in shapley._sweeps(6, 3, np.random.default_rng(0)):
    np.testing.assert_array_equal(orders[:, 0], np.arange(6))
    np.testing.assert_array_equal(np.sort(orders, 1), [np.arange(6)] * 6)


def test_a_round_that_changes_little_is_skipped():
  utility, asked = random_game(5)
  assert not values(utility, 5, eps_between=1e3).any()
  assert sorted(asked) == [0, 31]


def test_a_permutation_ends_where_nothing_is_left_to_gain():
  # Literally, one permutation after another.
  num_players, eps = 5, 1.2
  utility, asked = random_game(num_players)
  phi = values(utility, num_players, max_sweeps=2, eps_within=eps)
  of = lambda players: float(
    utility(np.isin(np.arange(num_players), players)[None])[0]
  )
  num_asked, everyone = len(asked), of(range(num_players))
  expected, num_cut = np.zeros(num_players), 0
  sweeps = shapley._sweeps(num_players, 2, np.random.default_rng(0))
  for order in np.concatenate(list(sweeps)):
    value = of([])
    for j, k in enumerate(order):
      if abs(everyone - value) < eps:
        num_cut += 1
        continue
      after = of(order[: j + 1])
      expected[k] += (after - value) / (2 * num_players)
      value = after
  assert num_cut > 5 and num_asked < 2**num_players
  np.testing.assert_allclose(phi, expected, atol=1e-12)


def test_sweeps_end_when_the_values_no_longer_move():
  # In an additive game every permutation gives the same values.
  worth = np.array([3.0, -1.0, 2.0, 0.0, 0.5, 1.0])
  asked = []

  def utility(subsets):
    asked.append(len(subsets))
    return subsets @ worth

  counts = []
  for tolerance in (1e-9, None):
    asked.clear()
    phi = values(utility, 6, max_sweeps=9, tolerance=tolerance)
    np.testing.assert_allclose(phi, worth, atol=1e-12)
    counts.append(sum(asked))
  assert counts[0] < counts[1]


# The baselines, on the training that `simulate` runs.


@functools.cache
def simulated():
  return fi.simulate(MODEL, make_data(), FED)


def test_the_training_is_that_of_simulate():
  data = make_data()
  happened = list(update_scores.rounds(MODEL, data, FED))
  cohorts = rng.cohorts(0, rng.id_words(data.ids), FED.rounds, FED.cohort_size)
  for round_, cohort in zip(happened, cohorts, strict=True):
    assert set(round_.participants) == set(cohort)
  jax.tree.map(
    lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-14),
    happened[-1].after,
    simulated().params,
  )


def literal_scores(data, cohorts, seed):
  """Every baseline by its definition, in NumPy, one client at a time."""
  x, y = VALIDATION
  flat = lambda w: np.concatenate([w["kernel"].ravel(), w["bias"]])
  cos = lambda a, b: a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
  fed = types.SimpleNamespace(
    local_steps=FED.local_steps, batch_size=FED.batch_size,
    eta=FED.learning_rate,
  )  # fmt: skip

  def loss(w):
    logits = x @ w[:9].reshape(3, 3) + w[9:]
    return (np.log(np.exp(logits).sum(1)) - logits[np.arange(len(y)), y]).mean()

  init = MODEL.init(rng.stream_key(seed, rng.Stream.INIT))["dense"]
  w = {name: np.asarray(a, np.float64) for name, a in init.items()}
  scores = {name: np.zeros(data.num_clients) for name in update_scores.SCORES}
  for t, cohort in enumerate(cohorts, 1):
    local = [reference.local_update(w, data, k, t, fed, seed, 0.0)
             for k in cohort]  # fmt: skip
    delta = np.stack([flat(v) for v in local]) - flat(w)
    n = data.num_examples[cohort]
    a = n / n.sum()
    norms = np.linalg.norm(delta, axis=1)
    start = flat(w)
    gradient = flat(reference.softmax_regression_gradient(w, x, y))

    def utility(subsets, start=start, delta=delta, n=n):
      return np.array([
        -loss(start + (s * n) @ delta / max((s * n).sum(), 1)) for s in subsets
      ])  # fmt: skip

    game = exact_shapley(utility, len(cohort))
    for i, k in enumerate(cohort):
      scores["update_norm"][k] += norms.mean() - norms[i]
      scores["cosine"][k] += cos(delta[i], a @ delta)
      scores["cosine_others"][k] += cos(delta[i], a @ delta - a[i] * delta[i])
      scores["dig_fl"][k] += -a[i] * gradient @ delta[i]
      scores["gtg_shapley"][k] += game[i]
    w = {name: sum(s * v[name] for s, v in zip(a, local, strict=True))
         for name in w}  # fmt: skip
  return scores


def test_baselines_equal_literal_loops():
  # Client 6 is never drawn.
  cohorts = np.array([[0, 1, 2, 3], [5, 4, 3, 2], [1, 5, 0, 4], [3, 1, 2, 0]])
  scores = scores_of(cohorts=cohorts, seed=2)
  expected = literal_scores(make_data(), cohorts, seed=2)
  assert list(scores) == list(expected)
  for name, score in scores.items():
    assert score.shape == (NUM_CLIENTS,) and score.dtype == np.float64
    np.testing.assert_allclose(score, expected[name], rtol=0, atol=1e-10)
    assert score[6] == 0
  assert list(scores_of(settings=None)) == list(expected)[:-1]


def test_baselines_after_some_rounds_are_those_of_shorter_trainings():
  cohorts = np.array([[0, 1, 2, 3], [5, 4, 3, 2], [1, 5, 0, 4], [3, 1, 2, 0]])
  found = scores_of(cohorts=cohorts, settings=None, at=[1, 3, 4])
  assert {score.shape for score in found.values()} == {(3, NUM_CLIENTS)}
  for row, rounds in enumerate((1, 3, 4)):
    expected = literal_scores(make_data(), cohorts[:rounds], seed=0)
    for name, score in found.items():
      np.testing.assert_allclose(score[row], expected[name], atol=1e-10)
  for wrong in ([], [0], [2, 1], [5]):
    with pytest.raises(ValueError, match=r"^at (is|must)"):
      scores_of(cohorts=cohorts, at=wrong)


def test_shapley_values_sum_to_what_training_gained():
  # Round after round U(all) − U(∅) telescopes, however few permutations.
  sampled = valuation.GTGShapley(max_sweeps=1, eps_between=0, eps_within=0)
  x, y = VALIDATION
  loss = lambda params: float(MODEL.loss(MODEL.apply(params, x), y).mean())
  start = MODEL.init(rng.stream_key(0, rng.Stream.INIT))
  gained = loss(start) - loss(simulated().params)
  score = scores_of(settings=sampled)["gtg_shapley"]
  np.testing.assert_allclose(score.sum(), gained, rtol=0, atol=1e-12)


def test_memory_does_not_change_the_scores(monkeypatch):
  whole = scores_of()
  monkeypatch.setattr(memory, "CHUNK_BYTES", 4 * 1500)
  blocks = update_scores._validation(MODEL, *VALIDATION, FED.cohort_size).x
  assert 1 < blocks.shape[1] < 31 and blocks.shape[0] * blocks.shape[1] > 31
  for name, score in scores_of().items():
    np.testing.assert_allclose(score, whole[name], rtol=0, atol=1e-13)


def test_reordering_clients_with_ids_permutes_the_scores():
  data = make_data()
  order = np.random.default_rng(3).permutation(NUM_CLIENTS)
  sampled = valuation.GTGShapley(max_sweeps=1)
  scores, moved = (
    scores_of(d, settings=sampled) for d in (data, data.take(order))
  )
  for name in scores:
    np.testing.assert_allclose(moved[name], scores[name][order], atol=1e-12)


def test_the_rounds_share_their_programs(compilations):
  scores_of()
  before = len(compilations)
  scores_of(cohorts=np.array([[6, 0, 1, 2]] * 4))
  assert len(compilations) == before


def test_a_label_flipper_scores_below_honest_clients():
  data = make_data(seed=4, sizes=(25,) * 8, flipped=[2, 5])
  fed = fi.FedAvg(rounds=6, cohort_size=8, local_steps=2, learning_rate=0.3)
  scores = scores_of(data, fed, valuation.GTGShapley(max_sweeps=2))
  bad = np.isin(np.arange(8), [2, 5])
  for name in ("dig_fl", "gtg_shapley", "cosine_others"):
    assert scores[name][bad].max() < scores[name][~bad].min(), name
    assert valuation.auroc(scores[name], bad) == 1
    assert set(valuation.choose(scores[name], 0.25)) == {2, 5}


def test_float32_agrees():
  data = make_data()
  clients = [(x.astype(np.float32), y) for x, y in data.clients()]
  single = fi.FederatedData.from_clients(clients, data.ids, data.num_classes)
  assert single.x.dtype == np.float32
  expected = scores_of()
  for name, score in scores_of(single).items():
    np.testing.assert_allclose(score, expected[name], rtol=0, atol=1e-5)


# Rankings and choices.

FIL = np.array([0.2, -0.1, 0.0, 0.7, 0.2, 0.0, -0.3])


def test_ranking_goes_from_helpful_to_harmful():
  np.testing.assert_array_equal(
    valuation.ranking(FIL), [3, 0, 4, 2, 5, 1, 6]
  )  # Ties by position; the clients never drawn, 2 and 5, in the middle.
  np.testing.assert_array_equal(
    valuation.ranking(-FIL, higher_is_helpful=False), valuation.ranking(FIL)
  )


@pytest.mark.parametrize("end", rankings.ENDS)
def test_choices_are_nested(end):
  chosen = [valuation.choose(FIL, f / 20, end=end, seed=4) for f in range(21)]
  for f, positions in enumerate(chosen):
    assert len(positions) == math.floor(f / 20 * 7 + 0.5)
    np.testing.assert_array_equal(positions, chosen[-1][: len(positions)])
  assert sorted(chosen[-1]) == list(range(7))


def test_choices_take_the_end_they_name():
  np.testing.assert_array_equal(valuation.choose(FIL, 0.3), [6, 1])
  np.testing.assert_array_equal(valuation.choose(FIL, 0.4, end="helpful"),
                                [3, 0, 4])  # fmt: skip
  fia = valuation.choose(-FIL, 0.3, higher_is_helpful=False)
  np.testing.assert_array_equal(fia, [6, 1])
  draws = {
    tuple(valuation.choose(FIL, 1, end="random", seed=s)) for s in range(5)
  }
  assert len(draws) == 5
  # 0.29 · 100 is 28.999…: the nearest whole number is meant.
  assert len(valuation.choose(np.arange(100), 0.29)) == 29
  assert len(valuation.choose(np.arange(10), 0.05)) == 1


@pytest.mark.parametrize(
  ("count", "expected"),
  [
    (1, [3]),
    (2, [3, 6]),
    (3, [3, 0, 6]),  # Of equal scores, the first position.
    (4, [3, 0, 1, 6]),
    (5, [3, 0, 4, 1, 6]),
    (6, [3, 0, 4, 2, 1, 6]),  # A client never drawn, as there is nobody else.
    (7, [3, 0, 4, 2, 5, 1, 6]),
  ],
)
def test_extremes_are_taken_from_both_ends(count, expected):
  np.testing.assert_array_equal(valuation.extremes(FIL, count), expected)


def test_extremes_of_clients_that_all_help_or_were_never_drawn():
  np.testing.assert_array_equal(valuation.extremes([0, 3, 0, 1, 2], 2), [1, 3])
  np.testing.assert_array_equal(valuation.extremes(np.zeros(4), 3), [0, 1, 2])


def test_extremes_are_rows_to_replay():
  rows = valuation.extremes(np.arange(make_data().num_clients) - 2.5, 3)
  run = fi.simulate(MODEL, make_data(), FED, exact=rows)
  np.testing.assert_array_equal(run.exact_rows, rows)


def test_rewards_go_to_those_who_help():
  rewards = valuation.rewards(FIL, budget=11)
  np.testing.assert_allclose(rewards, [2, 0, 0, 7, 2, 0, 0], atol=1e-12)
  assert valuation.rewards(FIL).sum() == pytest.approx(1)
  np.testing.assert_allclose(valuation.rewards(FIL * 1e-3), rewards / 11)
  np.testing.assert_allclose(valuation.rewards([-1, 0], 3), [1.5, 1.5])
  np.testing.assert_allclose(valuation.rewards([1.5e308, 1.5e308]), [0.5, 0.5])
  np.testing.assert_allclose(valuation.rewards([5e-324, -1]), [1, 0])


# How well bad clients are found.


@pytest.mark.parametrize("seed", range(5))
def test_auroc_counts_pairs(seed):
  draw = np.random.default_rng(seed)
  score = draw.integers(0, 6, 20)  # With ties.
  bad = draw.permutation(20) < draw.integers(1, 19)
  pairs = [
    (b < g) + (b == g) / 2
    for b, g in itertools.product(score[bad], score[~bad])
  ]
  assert valuation.auroc(score, bad) == pytest.approx(np.mean(pairs))
  opposite = valuation.auroc(-score, bad)
  assert valuation.auroc(score, bad) + opposite == pytest.approx(1)


def test_overlap_is_the_share_of_the_true_extremes():
  exact = [5, 4, 1, 0, -1, -4]
  assert valuation.overlap(exact, exact, 4) == 1
  # The ends of the estimate: 5, 0 and 3, 4; those of the truth: 0, 1 and 4, 5.
  assert valuation.overlap([4, 1, 0.5, -5, -4, 6], exact, 4) == 0.75
  assert valuation.overlap([1, 2, 6, -6, -2, -1], exact, 2) == 0
  with pytest.raises(ValueError, match="count is 7; there are 6 clients"):
    valuation.overlap(exact, exact, 7)


def test_precision_at_k():
  bad = np.array([True, False, True, False])
  assert valuation.precision_at_k([0, 2, 1, 3], bad) == 1
  assert valuation.precision_at_k([0, 1, 2, 3], bad) == 0.5
  assert valuation.precision_at_k([2, 0, 3, 1], bad) == 0
  # All tie: the share of bad clients, whatever their order.
  assert valuation.precision_at_k([1, 1, 1, 1], bad) == 0.5
  # One of three gets the last place.
  assert valuation.precision_at_k([0, 1, 1, 1], bad) == pytest.approx(2 / 3)
  assert valuation.precision_at_k([3, 1], [True, True]) == 1


X, Y = VALIDATION
BAD = {
  "fil shape": (lambda: valuation.ranking(np.eye(3)), r"fil is .* \[3, 3\]"),
  "fil empty": (lambda: valuation.ranking([]), "one number per client"),
  "fil text": (lambda: valuation.ranking(["a"]), "fil is not a rectangular"),
  "fil nan": (
    lambda: valuation.rewards([0, np.nan]),
    "fil of client 1 is nan; it must be finite",
  ),
  "fraction": (lambda: valuation.choose(FIL, 1.5), "fraction is 1.5"),
  "fraction nan": (lambda: valuation.choose(FIL, np.nan), "fraction is nan"),
  "extremes nan": (
    lambda: valuation.extremes([0, np.nan], 1),
    "scores of client 1 is nan; it must be finite",
  ),
  "extremes of nobody": (lambda: valuation.extremes(FIL, 0), "count is 0"),
  "too many extremes": (
    lambda: valuation.extremes(FIL, 8),
    "count is 8; there are 7 clients",
  ),
  "end": (
    lambda: valuation.choose(FIL, 0.5, end="worst"),
    "end is 'worst'; it must be 'harmful', 'helpful' or 'random'",
  ),
  "seed": (lambda: valuation.choose(FIL, 0.5, seed=-1), "seed is -1"),
  "budget": (lambda: valuation.rewards(FIL, -1), "budget is -1"),
  "bad dtype": (lambda: valuation.auroc([1, 2], [0, 1]), "bad is int64"),
  "bad shape": (lambda: valuation.auroc([1, 2], [True]), r"must be bool \[2\]"),
  "nobody bad": (
    lambda: valuation.precision_at_k([1, 2], [False, False]),
    "bad is False everywhere",
  ),
  "nobody good": (
    lambda: valuation.auroc([1, 2], [True, True]),
    "bad is True everywhere",
  ),
  "sweeps": (lambda: valuation.GTGShapley(max_sweeps=0), "max_sweeps is 0"),
  "eps": (lambda: valuation.GTGShapley(eps_within=-1), "eps_within is -1"),
  "tolerance": (
    lambda: valuation.GTGShapley(tolerance=np.inf),
    "tolerance is inf",
  ),
  "shapley": (lambda: scores_of(settings=True), "shapley is True"),
  "validation": (
    lambda: valuation.baselines(MODEL, make_data(), FED, X, Y[:3]),
    r"x has shape \[31, 3\] and y \[3\]",
  ),
  "no validation": (
    lambda: valuation.baselines(MODEL, make_data(), FED, X[:0], Y[:0]),
    "at least one",
  ),
  "validation nan": (
    lambda: valuation.baselines(MODEL, make_data(), FED, X * np.nan, Y),
    r"x has a value that is not finite \(example 0\)",
  ),
  "validation overflow": (
    lambda: valuation.baselines(
      MODEL, make_data(), FED, np.copysign(1.7e308, X), Y
    ),
    r"round 1: the loss on the validation data \(x, y\) is not finite",
  ),
  "cohorts": (lambda: scores_of(cohorts=np.eye(3)), "cohorts has shape"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_argument(name):
  call, message = BAD[name]
  with pytest.raises(ValueError, match=message):
    call()


def test_a_diverging_client_is_named_with_its_round():
  clients = make_data().clients()
  clients[4] = (clients[4][0] * 1e200, clients[4][1])
  data = fi.FederatedData.from_clients(clients, make_data().ids, 3)
  cohorts = np.array([[0, 1, 2, 3]] * 2 + [[6, 5, 4, 1]] * 2)
  with pytest.raises(
    ValueError, match="round 3: the upload of client 'id4' is not finite"
  ):
    scores_of(data, cohorts=cohorts)
