"""Schedules: little padding, few programs, nobody's examples mixed up."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax.data import on_device
from fedinf_jax.simulation import schedule


@pytest.mark.parametrize("num_classes", [1, 2, 3, 5, 9])
def test_size_classes_are_the_best_there_are(num_classes):
  sizes = np.random.default_rng(0).integers(1, 60, 12)
  value = np.unique(sizes)

  def rows(classes):
    return np.array(classes)[np.searchsorted(classes, sizes)].sum()

  choices = itertools.combinations(value[:-1], min(num_classes, len(value)) - 1)
  best = min(rows([*choice, value[-1]]) for choice in choices)
  assert rows(schedule.size_classes(sizes, num_classes)) == best


def test_many_distinct_sizes_are_thinned():
  sizes = np.arange(1, 20_001)
  classes = schedule.size_classes(sizes, 8)
  assert classes[-1] == 20_000 and len(classes) == 8
  padded = classes[np.searchsorted(classes, sizes)].sum()
  assert 1 - sizes.sum() / padded < 0.12  # The best is 1/9.


def test_take_reads_every_client():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(n, 2)), draw.integers(0, 3, n)) for n in (3, 9, 4, 1)]
  )
  clients = on_device.put(data)
  for k, size in itertools.product(range(4), (9, 12, 17)):
    x, y, first, count = on_device.take(clients, jnp.int32(k), size)
    assert x.shape == (size, 2) and count == data.num_examples[k]
    rows = slice(int(first), int(first + count))
    np.testing.assert_array_equal(x[rows], data.client(k)[0])
    np.testing.assert_array_equal(y[rows], data.client(k)[1])
  assert on_device.take(clients, jnp.int32(4), 9).count == 0


@pytest.mark.parametrize("batch_size", [None, 20])
def test_a_schedule_names_every_participant_once(batch_size):
  draw = np.random.default_rng(0)
  sizes = draw.integers(1, 90, 30)
  cohorts = rng.cohorts(0, rng.id_words(range(30)), 40, 7)
  plan = schedule.schedule(cohorts, sizes, batch_size)
  flat = plan.clients.reshape(40, -1)
  for cohort, scheduled in zip(cohorts, flat, strict=True):
    assert sorted(cohort) == sorted(k for k in scheduled if k < 30)
  rows = np.array(plan.sizes)[plan.size_class]
  assert (np.append(sizes, 0)[plan.clients] <= rows[:, :, None]).all()


def test_balanced_clients_train_in_one_wave():
  cohorts = rng.cohorts(0, rng.id_words(range(50)), 10, 5)
  plan = schedule.schedule(cohorts, np.full(50, 60), None)
  assert plan.sizes == (60,) and plan.clients.shape == (10, 1, 5)
  assert plan.padding == 0


@pytest.mark.slow
def test_setting_1_pads_less_than_a_third_in_a_handful_of_programs(
  compilations,
):
  train, _ = fi.data.synthetic().split(0.9, seed=0)
  fed = fi.FedAvg(
    rounds=1000, cohort_size=10, local_steps=5, learning_rate=0.003
  )
  cohorts = rng.cohorts(0, rng.id_words(train.ids), 1000, 10)
  plan = schedule.schedule(cohorts, train.num_examples, None)
  rows = np.array(plan.sizes)[plan.size_class].sum()
  wanted = train.num_examples[plan.clients].sum()
  assert 1 - wanted / rows == pytest.approx(plan.padding)
  assert plan.padding <= 1 / 3
  init, step = fi.simulator(fi.models.logreg(60, 5), train, fed)
  state = init()
  before = len(compilations)
  state = step(state)
  assert len(compilations) - before == 1
  # Other cohorts, other sizes, another number of rounds: the same program.
  state = step(step(state, 300), 699)
  jax.block_until_ready(state.params)
  assert len(compilations) - before == 1
