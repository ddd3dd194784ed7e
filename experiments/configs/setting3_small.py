r"""Setting 3 for two cores: a narrower network, fewer images per writer.

python -m experiments.run --config=experiments/configs/setting3_small.py \
    --data_dir=FEMNIST

The paper's widths and images per writer are not known; these allow the replay
of all 100 writers. The server has images of the writers that nobody trains on.
"""

from experiments.configs import setting3


def get_config():
  """Returns the configuration."""
  config = setting3.get_config()
  config.data.examples = 40
  config.model.widths = (4, 8)
  config.model.dense = 32
  config.server_from, config.server_examples = "others", 3000
  config.evaluate_every = 25
  return config
