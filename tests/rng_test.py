"""Draws belong to (seed, stream, round, client id, step), not to positions."""

import jax
import numpy as np
import pytest

from fedinf_jax import rng

IDS = [f"client-{k}" for k in range(20)]


def batches(ids, seed=0, round_=3):
  """What every client draws for a step: {id: indices}."""
  key = rng.stream_key(seed, rng.Stream.BATCH)
  draw = lambda words: rng.choose(
    rng.client_key(key, round_, words), 30, size=8, limit=40
  )[0]
  drawn = jax.vmap(draw)(rng.id_words(ids))
  return dict(zip(ids, np.asarray(drawn).tolist(), strict=True))


def test_dropping_or_reordering_clients_leaves_other_draws_untouched():
  everyone = batches(IDS)
  assert batches(IDS[::-1]) == everyone
  without = batches([i for i in IDS if i != "client-4"])
  assert without == {i: d for i, d in everyone.items() if i != "client-4"}
  assert len({tuple(d) for d in everyone.values()}) == len(IDS)
  assert batches(IDS, round_=4) != everyone != batches(IDS, seed=1)


def test_cohorts_follow_ids():
  drawn = rng.cohorts(0, rng.id_words(IDS), 50, 6)
  assert drawn.shape == (50, 6) and drawn.dtype == np.int32
  assert all(len(set(cohort)) == 6 for cohort in drawn.tolist())
  order = np.random.default_rng(1).permutation(20)
  moved = rng.cohorts(0, rng.id_words([IDS[k] for k in order]), 50, 6)
  np.testing.assert_array_equal(order[moved], drawn)
  # Dropping a client can only bring one other in, where it had been drawn.
  fewer = rng.cohorts(0, rng.id_words(IDS[:-1]), 50, 6)
  for before, after in zip(drawn.tolist(), fewer.tolist(), strict=True):
    assert [k for k in before if k != 19] == after[: len(set(before) - {19})]
  everyone = rng.cohorts(0, rng.id_words(IDS), 2, 20)
  assert sorted(everyone[0]) == list(range(20))


def test_cohorts_are_uniform():
  drawn = rng.cohorts(5, rng.id_words(IDS), 2000, 5)
  share = np.bincount(drawn.ravel(), minlength=20) / 2000
  # Five standard deviations of a share of 1/4 over 2000 rounds.
  np.testing.assert_allclose(share, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 2000))


@pytest.mark.parametrize("count", [1, 5, 8, 9, 33])
def test_choose_is_without_replacement_and_blind_to_padding(count):
  key = jax.random.key(7)
  results = []
  for limit in (max(count, 8), 40, 64):
    index, valid = rng.choose(key, count, size=8, limit=limit)
    chosen = np.asarray(index)[np.asarray(valid)]
    assert len(set(chosen.tolist())) == len(chosen) == min(8, count)
    assert chosen.max() < count
    results.append(chosen)
  np.testing.assert_array_equal(results[0], results[1])
  np.testing.assert_array_equal(results[0], results[2])


def test_choose_is_uniform():
  keys = jax.random.split(jax.random.key(0), 4000)
  draw = jax.vmap(lambda key: rng.choose(key, 12, size=3, limit=16)[0])
  share = np.bincount(np.asarray(draw(keys)).ravel(), minlength=12) / 4000
  np.testing.assert_allclose(share, 0.25, atol=5 * np.sqrt(0.25 * 0.75 / 4000))


def test_ids_are_hashed_stably():
  # Golden: a change here changes the results of every seed.
  np.testing.assert_array_equal(
    rng.id_words(["f0001_41", 7]),
    [[471068985, 385461598], [3390525671, 2190440654]],
  )
  np.testing.assert_array_equal(rng.id_words([7]), rng.id_words(["7"]))


def test_draws_do_not_depend_on_x64(enable_x32):
  del enable_x32
  narrow = batches(IDS)
  with jax.enable_x64(True):
    assert batches(IDS) == narrow
