"""FedAvg's settings, local training and aggregation."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import fedavg
from fedinf_jax import rng
from fedinf_jax.data import on_device

GOOD = {"rounds": 3, "cohort_size": 2, "local_steps": 4, "learning_rate": 0.1}
BAD = {
  "rounds": ({"rounds": 0}, "rounds is 0"),
  "cohort": ({"cohort_size": -1}, "cohort_size is -1"),
  "steps": ({"local_steps": 1.5}, r"local_steps is 1\.5"),
  "batch": ({"batch_size": 0}, "batch_size is 0"),
  "bool": ({"rounds": True}, "rounds is True"),
  "rate": ({"learning_rate": -0.1}, r"learning_rate is -0\.1"),
  "nan": ({"learning_rate": np.nan}, "learning_rate is nan"),
  "both": ({"client_optimizer": optax.adam(0.1)}, "exactly one of"),
  "neither": ({"learning_rate": None}, "exactly one of"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_are_checked(name):
  change, message = BAD[name]
  with pytest.raises(ValueError, match=message):
    fi.FedAvg(**{**GOOD, **change})


def quadratic():
  """½‖w − x‖² of one example; the optimum of a client is its mean."""
  return fi.Model(
    init=lambda key: {"w": jax.random.normal(key, (3,))},
    apply=lambda params, x: params["w"][None] - x,
    loss=lambda outputs, y: 0.5 * jnp.square(outputs).sum(-1) + 0 * y,
  )


def test_local_training_and_its_iterates_on_a_quadratic():
  fed = fi.FedAvg(**GOOD)
  x = np.random.default_rng(0).normal(size=(9, 3))
  # The client's own rows are 2 … 6; the others must not count.
  examples = on_device.Examples(
    jnp.asarray(x), jnp.zeros(9), jnp.int32(2), jnp.int32(5)
  )
  w = jnp.ones(3)
  train = jax.jit(fedavg.local_training(quadratic(), fed))
  draws = rng.Draws(jax.random.key(0), jnp.int32(1), jnp.zeros(2, jnp.uint32))
  local, iterates = train({"w": w}, examples, draws)
  mean = x[2:7].mean(0)
  expected = [mean + 0.9**i * (np.ones(3) - mean) for i in range(5)]
  np.testing.assert_allclose(local["w"], expected[4], atol=1e-14)
  np.testing.assert_allclose(iterates["w"], expected[:4], atol=1e-14)


def test_the_optimiser_starts_fresh_each_round():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients([(draw.normal(size=(4, 3)), np.ones(4))])
  optimizer = optax.adam(0.05)
  fed = fi.FedAvg(
    rounds=3, cohort_size=1, local_steps=2, client_optimizer=optimizer
  )
  run = fi.simulate(quadratic(), data, fed, params={"w": np.zeros(3)})
  w = jnp.zeros(3)
  for _ in range(fed.rounds):
    state = optimizer.init(w)
    for _ in range(fed.local_steps):
      update, state = optimizer.update(w - data.x.mean(0), state, w)
      w = w + update
  np.testing.assert_allclose(run.params["w"], w, atol=1e-12)


def test_aggregation_weighs_by_size():
  models = {"w": jnp.array([[1.0, 2.0], [4.0, 0.0], [7.0, 7.0]])}
  shares = fedavg.weights(jnp.array([1, 3, 0]), jnp.float64)
  mean = fedavg.aggregate(models, shares)
  np.testing.assert_allclose(mean["w"], [3.25, 0.5])
  np.testing.assert_array_equal(
    fedavg.weights(jnp.array([0, 0]), jnp.float64), [0, 0]
  )


@pytest.mark.parametrize(
  "change,message",
  [
    ({"rounds": 10**12}, "rounds = 1000000000000 .* 20,000,000,000,000 bytes"),
    ({"cohort_size": 10**13}, "cohort_size = 10* would need 40,000,000,000,00"),
    ({"local_steps": 10**12}, "local_steps = 10* would need 4,000,000,000,000"),
    ({"local_steps": 2**31}, "would need|local_steps is 2147483648; at most"),
  ],
)
def test_sizes_that_no_memory_holds_are_refused_with_their_bytes(
  change, message
):
  sizes = {"rounds": 1, "cohort_size": 5, "local_steps": 1} | change
  with pytest.raises(ValueError, match=message):
    fi.FedAvg(**sizes, learning_rate=0.1)
