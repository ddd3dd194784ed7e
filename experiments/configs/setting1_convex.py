"""Setting 1 with a plain softmax: the convex problem that the paper describes.

python -m experiments.run --config=experiments/configs/setting1_convex.py
"""

from experiments.configs import setting1


def get_config():
  """Returns the configuration."""
  config = setting1.get_config()
  config.model.logit_activation = ""
  return config
