"""Setting 1 of the paper: LEAF's logistic regression on LEAF's synthetic data.

python -m experiments.run --config=experiments/configs/setting1.py

LEAF's `log_reg` puts a sigmoid on its logits, which costs convexity. Two cores:
about 8 minutes with the replay of all 1000 clients, 2 minutes with
--config.exact=False. Expect test loss 1.33–1.40 and accuracy 0.47–0.60.
"""

import ml_collections


def get_config():
  """Returns the configuration."""
  config = ml_collections.ConfigDict()
  config.seed = 0
  config.exact = True  # Replay the training without each client.
  config.data = ml_collections.ConfigDict(
    {"num_clients": 1000, "train_fraction": 0.9}
  )
  config.logit_activation = "sigmoid"
  config.fed = ml_collections.ConfigDict(
    {
      "rounds": 1000,
      "cohort_size": 10,
      "local_steps": 5,
      "learning_rate": 0.003,
    }
  )
  return config
