"""Setting 1 with a plain softmax: the convex problem that the paper describes.

python -m experiments.run --config=experiments/configs/setting1_convex.py

Two idle cores: about 10 minutes; 2 with --config.exact=none. Expect test loss
0.38–0.50 and accuracy 0.83–0.90. Pearson of FIL: docs/results.md.
"""

from experiments.configs import setting1


def get_config():
  """Returns the configuration."""
  config = setting1.get_config()
  config.model.logit_activation = ""
  return config
