"""A first look: logistic regression on small synthetic data, and every key."""

import ml_collections


def get_config():
  """Returns the configuration; other recipes begin with it."""
  return ml_collections.ConfigDict(
    {
      "seed": 0,
      "scale": 1.0,  # Below 1: fewer rounds, clients and examples.
      "data": {
        "kind": "synthetic",
        "num_clients": 200,
        "train_fraction": 0.9,
      },
      "corrupt": {"kind": "", "fraction": 0.0},  # Bad clients to plant.
      "model": {"kind": "logreg", "logit_activation": ""},
      "fed": {
        "rounds": 100,
        "cohort_size": 10,
        "local_steps": 5,
        "learning_rate": 0.03,
        "batch_size": 0,  # 0: all examples of a client in every step.
      },
      "estimators": "both,relu,matched",  # Names of recipes/estimators.py.
      # So many held-out examples, at most half, are the server's (curvature);
      # half of the others are for validation, half for testing.
      "server_examples": 800,
      # Where these are from: held_out, or others (of the same population, on
      # which nobody trains), skewed, stand_in; see docs/experiments.md.
      "server_from": "held_out",
      # Clients to replay: all, none, a number drawn at random, or top:20, the
      # extremes by adjoint; top:20:NAME, by another estimator of the run.
      "exact": "all",
      # Exact replays in all: 2 repeats it from a starting point a hair away,
      # `jitter` times each layer's spread, and shows how far the truth agrees
      # with itself. Here it does to rounding (docs/trust.md): a convex loss,
      # or one with a sigmoid, has no kinks.
      "exact_repeats": 1,
      "repeat_clients": "all",  # Or so many of the replayed ones, at random.
      "jitter": 1e-5,
      "adjoint_rounds": 1,  # Evaluated rounds with adjoint; 1: only the last.
      "evaluate_every": 5,
      # A test example, by its number: who made the model say what it says.
      "explain": -1,
      "mesh": "auto",  # Devices: auto, none, N, or NxM (removals x parameters).
      "tracked": 3,  # Clients whose layers are written to layers.csv.
      "cleanse_round": 70,  # A checkpoint to keep, for experiments.cleanse.
    }
  )
