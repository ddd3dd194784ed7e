r"""Setting 2 of the paper: a CNN without activations on IID FEMNIST.

python -m experiments.run --config=experiments/configs/setting2.py \
    --data_dir=FEMNIST

Two idle cores: about 15 minutes, an hour with the estimators of docs/results.md
(the Hessian ones are the slow ones), and the exact replay once more for how far
the truth agrees with itself (--config.exact_repeats=1 leaves that out). On real
FEMNIST expect a plateau at a test loss of 3.2 until round 100, on which every
estimate loses its way for a while.
"""

from experiments.configs import setting1


def get_config():
  """Returns the configuration."""
  config = setting1.get_config()
  config.data = {
    "kind": "femnist_iid",
    "num_clients": 50,
    "examples": 60,  # Training images of a client.
    "test_examples": 1685,
  }
  config.model = {
    "kind": "cnn",
    "widths": (4, 8),
    "dense": 32,
    "activation": "",
    "pool": "stride",
  }
  config.fed.rounds = 500
  config.fed.cohort_size = 5
  config.fed.local_steps = 2
  config.fed.learning_rate = 0.03
  config.server_from = "others"  # Images that no client has.
  config.exact_repeats = 2  # Nothing says that the truth is reproducible here.
  config.evaluate_every = 10
  config.cleanse_round = 350
  return config
