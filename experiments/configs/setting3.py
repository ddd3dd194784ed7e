r"""Setting 3 of the paper: a CNN on FEMNIST by writer.

python -m experiments.run --config=experiments/configs/setting3.py \
    --data_dir=FEMNIST

In full this is a job for an accelerator: on two cores the replay of all 100
writers takes about half a minute a round. A look that fits a coffee break:
--config.fed.rounds=60 --config.exact=25 --config.data.examples=40
"""

from experiments.configs import setting2


def get_config():
  """Returns the configuration."""
  config = setting2.get_config()
  config.data.kind = "femnist_by_writer"
  config.data.num_clients = 100
  config.data.examples = 150  # About what LEAF's writers have (median 152).
  config.model.widths = (8, 16)
  config.model.dense = 64
  config.model.activation = "relu"
  config.model.pool = "max"
  config.server_from, config.server_examples = "held_out", 600
  config.fed.rounds = 2000
  config.fed.cohort_size = 10
  config.fed.learning_rate = 0.02
  config.repeat_clients = "30"  # All of them would double the time.
  config.evaluate_every = 50
  config.cleanse_round = 1500
  return config
