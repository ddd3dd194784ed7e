"""Mistakes of a user: one clear line each, before anything slow."""

import numpy as np
import optax
import pytest

import fedinf_jax as fi
from tests import cases


def run_momentum(c):
  model, data = cases.logreg()
  fed = fi.FedAvg(
    rounds=1,
    cohort_size=3,
    local_steps=2,
    client_optimizer=optax.sgd(0.1, momentum=0.5),
  )
  fi.simulate(
    model, data, fed, estimators={"a": fi.estimator(c, fi.no_guard())}
  )


CURVATURES = {
  "samples": (lambda: fi.fisher(num_samples=0), "num_samples is 0"),
  "labels": (lambda: fi.fisher(labels="true"), "labels is 'true'"),
  "rank": (lambda: fi.fisher(rank=-1), "rank is -1"),
  "spectrum": (lambda: fi.fisher(spectrum="log"), "spectrum is 'log'"),
  "per": (lambda: fi.lowrank_hessian(rank=2, per="day"), "per is 'day'"),
  "upload": (lambda: fi.dense_hessian(upload="all"), "upload is 'all'"),
  "guard": (lambda: fi.lwet(per="client"), "per is 'client'"),
  "tolerance": (lambda: fi.lwet(tolerance=-1), "tolerance is -1"),
  "momentum spectrum": (
    lambda: run_momentum(fi.fisher(spectrum="exp")),
    "spectrum='exp' is defined for plain gradient descent only",
  ),
  "momentum round": (
    lambda: run_momentum(fi.lowrank_hessian(rank=2, per="round")),
    "per='round' is defined for plain gradient descent only",
  ),
  "name": (
    lambda: cases.simulate({"exact": cases.FISHER}),
    '"exact" is the name of the ground truth',
  ),
  "not an estimator": (
    lambda: cases.simulate({"both": fi.fisher()}),
    "estimators: 'both' is not an estimator",
  ),
  "chunk": (lambda: cases.simulate({}, upload_chunk=0), "upload_chunk is 0"),
  "dense": (
    lambda: fi.simulate(
      fi.models.logreg(1500, 3),
      cases.make_data((1500,)),
      fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1),
      estimators={"a": fi.estimator(fi.dense_hessian(), fi.no_guard())},
    ),
    "dense_hessian: dense/kernel has 4,500 parameters; at most 4,096",
  ),
}


@pytest.mark.parametrize("name", CURVATURES)
def test_errors_say_what_would_be_right(name):
  call, message = CURVATURES[name]
  with pytest.raises(ValueError, match=message):
    call()


FED = fi.FedAvg(rounds=6, cohort_size=4, local_steps=3, learning_rate=0.2)
LOO = np.eye(9, dtype=bool)
RUNS = {
  "cohort": (
    {"fed": fi.FedAvg(rounds=1, cohort_size=10, local_steps=1,
                      learning_rate=0.1)},
    "cohort_size is 10 but there are only 9 clients",
  ),
  "removal columns": ({"removals": LOO[:, :4]}, "removals has 4 columns for 9"),
  "removal dtype": ({"removals": LOO.astype(int)}, "removals is int64"),
  "removal rank": ({"removals": LOO[0]}, r"removals is bool of shape \[9\]"),
  "removal none": ({"removals": LOO[:0]}, "it must be bool"),
  "cohorts shape": ({"cohorts": LOO[:3, :3]}, r"cohorts has shape \[3, 3\]"),
  "cohorts range": (
    {"cohorts": np.arange(24).reshape(6, 4)},
    "clients run from 0 to 8",
  ),
  "cohorts twice": (
    {"cohorts": np.array([[0, 1, 2, 3]] * 5 + [[4, 5, 5, 1]])},
    "round 6 names a client twice",
  ),
  "cohorts dtype": ({"cohorts": np.ones((6, 4))}, "must hold integers"),
  "exact rows": ({"exact": [9]}, "exact: rows run from 0 to 8"),
  "exact kind": ({"exact": [0.5]}, "exact must be True, False or a list"),
  "chunk": ({"exact": True, "replay_chunk": 0}, "replay_chunk is 0"),
  "params": (
    {"params": {"dense": {"kernel": np.zeros((4, 3)), "bias": np.zeros(3)}}},
    r"params: dense/kernel has shape \[4, 3\]; the model's is \[5, 3\]",
  ),
  "params tree": ({"params": {"w": np.zeros(3)}}, "params: the model has"),
  "seed": ({"seed": -1}, "seed is -1"),
  "one estimator": (
    {"estimators": cases.FISHER},
    "estimators is a Estimator; it must be a dictionary of names",
  ),
  "list of estimators": (
    {"estimators": [cases.FISHER]},
    "estimators is a list; it must be a dictionary of names",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUNS)
def test_arguments_of_a_run_are_named(name):
  options, message = RUNS[name]
  options = {"fed": FED, **options}
  data = cases.make_data((5,), sizes=range(1, 10))
  with pytest.raises(ValueError, match=message):
    fi.simulate(fi.models.logreg(5, 3), data, **options)


LOSSES = {
  "mean": lambda outputs, y: fi.models.cross_entropy(outputs, y).mean(),
  "column": lambda outputs, y: fi.models.cross_entropy(outputs, y)[:, None],
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_one_number_per_example(name, compilations):
  model = fi.models.logreg(4, 3)._replace(loss=LOSSES[name])
  with pytest.raises(ValueError, match="it must return one number per example"):
    fi.simulate(model, cases.logreg()[1], FED)
  assert not compilations


def test_a_model_of_other_inputs_is_refused():
  model, data = fi.models.logreg(4, 3), cases.make_data((7,))
  with pytest.raises(ValueError, match=r"inputs of shape \[N, 7\]"):
    fi.simulate(model, data, FED)


def test_labels_are_sampled_from_models_that_can(compilations):
  model, data = cases.logreg()
  sampled = fi.estimator(fi.fisher(labels="sampled"), fi.no_guard())
  with pytest.raises(ValueError, match="draws labels from the model, which"):
    fi.simulate(
      model._replace(sample=None), data, FED, estimators={"ours": sampled}
    )
  assert not compilations


def test_swapped_parts_of_an_estimator_are_refused():
  with pytest.raises(ValueError, match=r"it must be one such as fi\.fisher"):
    fi.estimator(fi.lwet(), fi.fisher())
  with pytest.raises(ValueError, match=r"it must be fi\.lwet\(\) or"):
    fi.estimator(fi.fisher(), fi.fisher())


def test_an_nnx_module_is_refused_by_name():
  from flax import nnx

  module = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match=r"Linear is a module of flax\.nnx"):
    fi.models.from_flax(module, np.zeros((1, 4)), fi.models.cross_entropy)
  with pytest.raises(ValueError, match=r"module is 3; it must be a flax"):
    fi.models.from_flax(3, np.zeros((1, 4)), fi.models.cross_entropy)


def test_numpy_s_integers_are_as_good():
  fed = fi.FedAvg(
    rounds=np.int64(3), cohort_size=2, local_steps=1, learning_rate=0.1
  )
  assert type(fed.rounds) is int
