"""Setting 1 with a plain softmax: the convex problem that the paper describes.

python -m experiments.run --config=experiments/configs/setting1_convex.py

Two cores: about 8 minutes with the replay of all 1000 clients, 2 minutes with
--config.exact=False. Expect test loss 0.38–0.50 and accuracy 0.83–0.90.
"""

from experiments.configs import setting1


def get_config():
  """Returns the configuration."""
  config = setting1.get_config()
  config.logit_activation = ""
  return config
