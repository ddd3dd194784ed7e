"""The default estimator fits whatever trains, and says why."""

import numpy as np
import optax
import pytest

import fedinf_jax as fi

SGD = {"learning_rate": 0.1}
MOMENTUM = {"client_optimizer": optax.sgd(0.1, momentum=0.9)}
ADAM = {"client_optimizer": optax.adam(0.1)}
LOGREG = fi.models.logreg(4, 3)
NO_SAMPLE = LOGREG._replace(sample=None)
CASES = {
  "plain": (SGD, LOGREG, False, "relu", "plain gradient descent"),
  "plain by optax": (
    {"client_optimizer": optax.sgd(0.1)},
    LOGREG,
    False,
    "relu",
    "plain gradient descent",
  ),
  "no sample": (SGD, NO_SAMPLE, False, "lowrank", "no sample"),
  "momentum": (MOMENTUM, LOGREG, False, "lowrank_step", "linear but not plain"),
  "adam": (ADAM, LOGREG, False, "basic", "not linear"),
  "server": (SGD, LOGREG, True, "server", "upload nothing"),
  "server, no sample": (SGD, NO_SAMPLE, True, "server_hessian", "eigenvectors"),
  "server, momentum": (MOMENTUM, LOGREG, True, "server_hessian", "nothing"),
  "server, adam": (ADAM, LOGREG, True, "server_hessian", "whole"),
}


LIKE_OTHERS = "plain", "plain by optax", "server, no sample"  # They train, too.


@pytest.mark.parametrize("case", CASES)
def test_it_fits_and_says_why(case):
  options, model, served, name, why = CASES[case]
  draw = np.random.default_rng(0)
  x, y = draw.normal(size=(7, 6, 4)), draw.integers(0, 3, (7, 6))
  data = fi.FederatedData.from_clients(list(zip(x[:6], y[:6], strict=True)))
  fed = fi.FedAvg(rounds=2, cohort_size=3, local_steps=2, **options)
  server = (x[6], y[6]) if served else None
  choice = fi.default_estimator(fed, model=model, server_data=server)
  assert choice.name == name and why in choice.why
  if case in LIKE_OTHERS:
    return
  run = fi.simulate(
    model, data, fed, estimators={name: choice.estimator}, server_data=server
  )
  fil = run.influence(fi.metrics.loss, x[6], y[6], of=name)
  assert np.isfinite(fil).all() and np.abs(fil).max() > 0


def test_what_does_not_fit_is_refused():
  with pytest.raises(ValueError, match="fed is a float; it must be a"):
    fi.default_estimator(0.1)
  fed = fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1)
  assert fi.default_estimator(fed).name == "relu"
  with pytest.raises(ValueError, match="server_data is a int"):
    fi.default_estimator(fed, server_data=3)
