"""Setting 1 of the paper: LEAF's logistic regression on LEAF's synthetic data.

python -m experiments.run --config=experiments/configs/setting1.py

LEAF's `log_reg` puts a sigmoid on its logits, which costs convexity. All 1000
clients are replayed as the ground truth; the paper took 200 of them
(--config.exact=200). Two idle cores: about 10 minutes; 2 with
--config.exact=none. Expect test loss 1.33–1.40 and accuracy 0.47–0.60. Pearson
of FIL: docs/results.md.
"""

from fedinf_jax.recipes import quickstart


def get_config():
  """Returns the configuration."""
  config = quickstart.get_config()
  config.data.num_clients = 1000
  config.model.logit_activation = "sigmoid"
  config.fed.rounds = 1000
  config.fed.learning_rate = 0.003
  config.server_examples = 3000
  config.evaluate_every = 25
  config.cleanse_round = 700
  return config
