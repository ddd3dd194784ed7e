"""Mistakes of a user: one clear line each, before anything slow."""

import dataclasses

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import memory
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
  "params nan": (
    {"params": {"dense": {"kernel": np.full((5, 3), np.nan),
                          "bias": np.zeros(3)}}},
    "params: dense/kernel has a value that is not finite",
  ),
  "params text": (
    {"params": {"dense": {"kernel": "a", "bias": np.zeros(3)}}},
    "params: dense/kernel is not a rectangular array",
  ),
  "fed": ({"fed": {"rounds": 3}}, "fed is a dict; it must be a fi.FedAvg"),
  "cohorts ragged": (
    {"cohorts": [[1], [1, 2, 3, 4, 5]]},
    "cohorts: round 2 has 5 clients; cohort_size is 4",
  ),
  "cohorts short": (
    {"cohorts": [[1], [1, 2]]},
    r"cohorts has shape \[2, 4\]; .* ask for \[6, 4\]",
  ),
  "cohorts nobody": (
    {"cohorts": [[], [1, 2], [3], [99], [], []]},
    "cohorts: clients run from 0 to",
  ),
  "cohorts twice in a short one": (
    {"cohorts": [[], [1, 2], [3, 3], [], [], []]},
    "cohorts: round 3 names a client twice",
  ),
  "estimator's name": (
    {"estimators": {3: cases.FISHER}},
    "estimators: the name 3 is not a string",
  ),
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


HUGE = {
  "rounds": ({"rounds": 10**12}, {}, "rounds"),
  "local_steps": ({"local_steps": 10**12}, {}, "local_steps"),
  "optimizer": (
    {
      "local_steps": 10**9,
      "learning_rate": None,
      "client_optimizer": optax.sgd(0.1),
    },
    {"estimators": {"a": cases.FISHER}},
    "local_steps",
  ),
}


@pytest.mark.parametrize("name", HUGE)
def test_absurd_sizes_are_refused_with_their_bytes(name, compilations):
  changes, options, message = HUGE[name]
  data = cases.make_data((5,), sizes=range(1, 10))
  with pytest.raises(
    ValueError, match=rf"{message} .* would need [\d,]+ bytes"
  ):
    fed = dataclasses.replace(FED, **changes)
    fi.simulate(fi.models.logreg(5, 3), data, fed, **options)
  assert not compilations


def test_absurd_data_are_refused_with_their_bytes():
  for call in (
    lambda: fi.data.synthetic(num_clients=10**9),
    lambda: fi.data.synthetic(num_clients=2, num_features=10**6),
    lambda: fi.data.glyphs(10**9, 5),
    lambda: fi.data.glyphs(2, [5, 10**12]),
    lambda: fi.simulate(fi.models.logreg(5, 10**12), cases.logreg()[1], FED),
  ):
    with pytest.raises(ValueError, match=r"would need [\d,]+ bytes"):
      call()


def test_models_of_all_removals_that_cannot_fit_are_refused(monkeypatch):
  model, data = cases.logreg()
  monkeypatch.setattr(memory.os, "sysconf", lambda name: 45)
  fed = fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1)
  with pytest.raises(
    ValueError, match="18 models of 120 bytes would need 2,160"
  ):
    fi.simulate(
      model, data, fed, exact=True,
      estimators={"a": cases.FISHER, "b": cases.FISHER},
    )  # fmt: skip


LABELS = {
  "negative": (-5, r"client 1: y has a label outside 0 … 2 \(example 3\)"),
  "too large": (7, r"client 1: y has a label outside 0 … 2 \(example 3\)"),
  "fraction": (0.5, "the model's 3 outputs ask for one integer label"),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_are_the_model_s_classes(name, compilations):
  label, message = LABELS[name]
  y = np.zeros(5, type(label))
  other = y.copy()
  other[3] = label
  data = fi.FederatedData.from_clients([(np.eye(5), y), (np.eye(5), other)])
  model = fi.models.logreg(5, 3)
  fed = fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=0.1)
  for call in (
    lambda: fi.simulate(model, data, fed),
    lambda: fi.valuation.baselines(model, data, fed, np.eye(5), y),
    lambda: fi.theory.round_theory(model, data, fed, None, [0], 1),
  ):
    with pytest.raises(ValueError, match=message):
      call()
  assert not compilations
  # Another loss may make of them what it likes.
  squared = model._replace(loss=lambda outputs, y: (outputs[:, 0] - y) ** 2)
  assert np.isfinite(
    fi.simulate(squared, data, fed).params["dense"]["bias"]
  ).all()


class Normed(nn.Module):
  """A network that keeps batch statistics."""

  @nn.compact
  def __call__(self, x):
    return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x))


class Unnormed(nn.Module):
  """The same, without saying which statistics to use."""

  @nn.compact
  def __call__(self, x):
    return nn.Dense(3)(nn.BatchNorm()(x))


LOGREG = fi.models.logreg(4, 3)
MODELS = {
  "none": (None, "model is a NoneType; it must be a fi.Model"),
  "init": (LOGREG._replace(init=None), "model: init is not a function"),
  "sample": (LOGREG._replace(sample=3), "model: sample is neither"),
  "statistics": (
    fi.models.from_flax(Normed(), np.zeros((1, 4)), LOGREG.loss),
    "keeps variables beside its parameters",
  ),
  "no statistics": (
    fi.models.from_flax(Unnormed(), np.zeros((1, 4)), LOGREG.loss),
    "model: init fails: ",
  ),
  "no parameters": (
    LOGREG._replace(init=lambda key: {}), "a pytree of floating arrays",
  ),
  "integers": (
    LOGREG._replace(init=lambda key: {"w": jnp.zeros(3, int)}),
    "a pytree of floating arrays",
  ),
  "loss of none": (
    LOGREG._replace(loss=lambda outputs, y: None), "the loss returns NoneType",
  ),
  "loss of two": (
    LOGREG._replace(loss=lambda outputs, y: (y, y)), "the loss returns tuple",
  ),
  "loss of integers": (
    LOGREG._replace(loss=lambda outputs, y: y), "the loss returns int64",
  ),
  "loss that fails": (
    LOGREG._replace(loss=lambda outputs, y: y["a"]),
    "the loss does not accept labels of shape",
  ),
  "mean loss": (
    LOGREG._replace(loss=lambda outputs, y: LOGREG.loss(outputs, y).mean()),
    "it must return one number per example",
  ),
  "loss as a column": (
    LOGREG._replace(loss=lambda outputs, y: LOGREG.loss(outputs, y)[:, None]),
    "it must return one number per example",
  ),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_four_functions_that_fit(name, compilations):
  model, message = MODELS[name]
  with pytest.raises(ValueError, match=message):
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


def test_whole_numbers_are_as_good_as_floats_in_params():
  whole = {"dense": {"kernel": np.ones((4, 3), int), "bias": np.zeros(3)}}
  float_ = jax.tree.map(lambda a: a.astype(float), whole)
  runs = [cases.simulate({}, params=p) for p in (whole, float_)]
  cases.close(runs[0].params, runs[1].params, rtol=0)


def test_a_state_serves_one_simulator_once():
  model, data = cases.logreg()
  fed = fi.FedAvg(rounds=3, cohort_size=3, local_steps=2, learning_rate=0.4)
  init, step = fi.simulator(model, data, fed)
  used = init()
  state = step(used)
  with pytest.raises(ValueError, match="used up by an earlier step"):
    step(used)
  with pytest.raises(ValueError, match="used up by an earlier step"):
    fi.Run.of(model, used)
  with pytest.raises(ValueError, match="state is a dict; it must be what"):
    step({})
  other = fi.simulator(model, data, fed, exact=True).init()
  with pytest.raises(ValueError, match="state is one of another simulator"):
    step(other)
  for rounds in (0, 3, 1.5, "2", None, True):
    with pytest.raises(ValueError, match=f"rounds is {rounds!r}"):
      step(state, rounds)
  with pytest.raises(ValueError, match="name is 'a'; this run has no"):
    fi.from_exact(state, "a")
  assert int(step(state, jnp.int32(2)).round) == 3
