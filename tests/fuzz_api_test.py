"""Hostile files and calls: a ValueError, or a sane result, and nothing else.

Seeded, so that a failure can be had again by its number. The default tests try
a tenth; `-m slow` tries all.
"""

import contextlib
import io
import json
import zipfile

from flax import nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedinf_jax as fi
from fedinf_jax import theory
from fedinf_jax.data import corrupt
from fedinf_jax.data import femnist
from fedinf_jax.data import partition
from tests import cases
from tests import hostile

NUM_FILES = 2000  # of each kind
SECONDS = 20  # that one try may take
SLOW = pytest.param(1, marks=pytest.mark.slow, id="all")
TENTH = pytest.param(10, id="tenth")


# Targets that may answer NaN: they were asked about NaN.
PASS_ON = {"fip_norms", "new_error", "predictions", "what a metric returns"}


def assert_sane(result):
  """A call that was not refused must have an answer that can be used."""
  for leaf in jax.tree.leaves(result):
    if isinstance(leaf, fi.FederatedData):
      assert leaf.num_examples.sum() == len(leaf.x) == len(leaf.y)
      assert np.isfinite(leaf.x).all() and np.isfinite(leaf.y).all()
      assert leaf.x.dtype.itemsize >= 4 or leaf.x.dtype.kind in "iub"
    elif isinstance(leaf, fi.Run):
      assert_sane(leaf.params)
    elif isinstance(leaf, np.ndarray | jax.Array | float):
      assert not np.isnan(np.asarray(leaf, float)).any()


def report(failures):
  """Fails with the first few of them."""
  shown = "\n".join(failures[:20])
  assert not failures, f"{len(failures)} failures:\n{shown}"


# Files.


def leaf_file(draw):
  """Returns the bytes of a LEAF file with something wrong in it."""
  pixels = lambda: draw.integers(0, 256, 784).tolist()
  one = lambda: {"x": [[round(g / 255, 4) for g in pixels()]], "y": [3]}
  content = {
    "users": ["v", "w"],
    "num_samples": [1, 1],
    "user_data": {"v": one(), "w": one()},
  }
  return hostile.spoiled_json(content, draw)


def npz_file(draw):
  """Returns the bytes of an .npz of writers with something wrong in it."""
  arrays = {
    "users": np.array(["v", "w", "idle"]),
    "x_train": draw.integers(0, 256, (3, 784), np.uint8),
    "y_train": draw.integers(0, 62, 3),
    "u_train": np.array([1, 0, 1]),
  }
  way = draw.integers(4)
  names = list(arrays)
  name = names[draw.integers(4)]
  if way == 0:  # A field dropped or of another type.
    change = int(draw.integers(len(hostile.ARRAYS) + 1))
    if change == len(hostile.ARRAYS):
      del arrays[name]
    else:
      with contextlib.suppress(ValueError):  # Names are no numbers.
        arrays[name] = hostile.ARRAYS[change](arrays[name], draw)
  file = io.BytesIO()
  (np.savez, np.savez_compressed)[draw.integers(2)](file, **arrays)
  if way == 1:
    return hostile.mangled(file.getvalue(), draw)
  if way == 0:
    return file.getvalue()
  made = io.BytesIO()
  with zipfile.ZipFile(file) as good, zipfile.ZipFile(made, "w") as bad:
    for entry in good.namelist():
      content = good.read(entry)
      if entry == f"{name}.npy":
        content = (
          hostile.forged(content, draw)
          if way == 2
          else hostile.mangled(content, draw)
        )
      bad.writestr(entry, content)
  return made.getvalue()


def attempt_file(kind, path, content):
  """Returns what went wrong with one file; None if nothing did."""
  path.write_bytes(content)
  try:
    with cases.patience(SECONDS):
      if kind == "leaf":
        data = femnist.from_leaf(path.parent)
      else:
        data = femnist.from_npz(path)
      assert data.x.dtype == np.float32 and data.y.dtype == np.int32
      assert data.x.shape == (data.num_examples.sum(), 28, 28, 1)
      assert 0 <= data.x.min() <= data.x.max() <= 1
      assert 0 <= data.y.min() <= data.y.max() < 62
      assert all(i.encode() is not None for i in data.ids)
  except ValueError as error:
    if type(error) is ValueError and path.name in str(error):
      return None
    return repr(error)
  except BaseException as error:
    return repr(error)
  return None


@pytest.mark.parametrize("share", [TENTH, SLOW])
@pytest.mark.parametrize(
  ("kind", "make"), [("leaf", leaf_file), ("npz", npz_file)]
)
@pytest.mark.filterwarnings("ignore")  # NumPy warns of headers of Python 2.
def test_a_hostile_file_is_read_or_explained(kind, make, share, tmp_path):
  path = tmp_path / ("hostile.json" if kind == "leaf" else "hostile.npz")
  failures = []
  for number in range(0, NUM_FILES, share):
    content = make(np.random.default_rng([7, number]))
    problem = attempt_file(kind, path, content)
    if problem is not None:
      failures.append(f"{kind} {number}: {problem}")
  report(failures)


# Calls.

START = object()  # stands for a new state

HOSTILE = {
  "None": None, "True": True, "text": "abc", "no text": "", "bytes": b"x",
  "surrogate": "\ud800", "zero": 0, "minus": -1, "half": 1.5, "ten": 10,
  "nan": float("nan"), "inf": float("inf"), "-inf": -float("inf"),
  "huge": 10**12, "-huge": -(10**12), "2^63": 2**63, "10^30": 10**30,
  "list": [], "dict": {}, "tuple": (), "of None": [None], "set": {1},
  "ragged": [[1], [2, 3]], "nested": [[[1]]], "names": ["a", "b"],
  "dict of": {"a": 1}, "object": object(), "lambda": lambda *_: None,
  "type": int, "empty": np.zeros(0), "no columns": np.zeros((3, 0)),
  "matrix": np.ones((2, 2)), "nans": np.full((9, 4), np.nan),
  "text array": np.array(["a"]), "objects": np.array([None, 1]),
  "complex": np.array([1j]), "half float": np.ones((9, 4), np.float16),
  "scalar": np.array(3), "bools": np.ones(6, bool),
  "date": np.datetime64(3, "s"), "column": np.ones((6, 1)),
  "masked": np.ma.masked_equal(np.arange(6), 2),
  "endless": np.broadcast_to(1.0, (10**12, 4)),
  "endless ints": np.broadcast_to(1, (10**12, 3)),
  "of JAX": jnp.ones(3), "wide": np.array([2**40]), "record": optax.sgd(0.1),
  "deep": json.loads("[" * 80 + "]" * 80), "slice": slice(3),
}  # fmt: skip


def named(name, value):
  """Returns {name: value}; a name that no dictionary holds is not our case."""
  try:
    return {name: value}
  except TypeError:
    return {}


def targets():
  """Returns {name: (function, good keyword arguments)} of all public calls."""
  model, data = cases.logreg()
  fed = fi.FedAvg(rounds=2, cohort_size=3, local_steps=2, learning_rate=0.4)
  ours = fi.estimator(fi.fisher(num_samples=2), fi.lwet())
  init, step = fi.simulator(model, data, fed)
  run = fi.simulate(model, data, fed, exact=True)
  x, y = data.pooled()
  params = model.init(jax.random.key(0))
  many = {"x": x, "y": y, "num_classes": 3}
  a_run = {
    "model": model, "data": data, "fed": fed, "exact": False, "removals": None,
    "cohorts": np.array([[0, 1, 2], [3, 4, 5]]), "params": params, "seed": 0,
    "replay_chunk": None, "upload_chunk": None, "mesh": None,
    "estimators": None, "evaluate": (x, y), "evaluate_every": 2,
    "progress": False,
  }  # fmt: skip
  bad = np.arange(6) < 2
  spoil = {"data": data, "clients": 2, "seed": 0}
  labels = {"outputs": np.eye(3), "y": np.arange(3)}
  from_clients = fi.FederatedData.from_clients
  return {
    "simulate": (fi.simulate, a_run),
    "step": (
      lambda state, rounds: step(init() if state is START else state, rounds),
      {"state": START, "rounds": 1},
    ),
    "Run.of": (fi.Run.of, {"model": model, "state": init(), "data": data}),
    "influence": (
      run.influence,
      {"metric": fi.metrics.loss, "x": x, "y": y, "of": "exact"},
    ),
    "table": (
      run.table,
      {"x": x, "y": y, "of": "exact", "owners": None, "seed": 0},
    ),
    "bootstrap": (
      fi.valuation.bootstrap,
      {"change": np.eye(3), "counts": np.arange(1, 4), "level": 0.95,
       "resamples": 50, "seed": 0},
    ),
    "effects": (
      fi.valuation.effects,
      {"value": np.ones(3), "p": np.ones(3), "level": 0.95},
    ),
    "owner_losses": (fi.metrics.owner_losses, {"owners": [0, 1, 1]}),
    "gap": (fi.metrics.gap, {"is_first": np.arange(3) < 1}),
    "from_exact": (fi.from_exact, {"state": init(), "name": "a"}),
    "upload_bytes": (
      fi.upload_bytes,
      {"model": model, "data": data, "fed": fed, "estimator": ours,
       "num_removals": 3},
    ),
    "from_clients": (
      from_clients,
      {"clients": [(x, y), (x, y)], "ids": ["a", "b"], "num_classes": 3},
    ),
    "one client's x": (lambda x: from_clients([(x, y)]), {"x": x}),
    "one client's y": (lambda y: from_clients([(x, y)]), {"y": y}),
    "one id": (lambda i: from_clients([(x, y)], ids=[i]), {"i": "a"}),
    "FederatedData": (
      fi.FederatedData,
      {"x": x, "y": y, "num_examples": data.num_examples, "ids": data.ids,
       "num_classes": 3},
    ),
    "client": (data.client, {"k": 0}),
    "take": (data.take, {"positions": [0, 1]}),
    "positions": (data.positions, {"ids": ["client-1"]}),
    "without": (data.without, {"ids": ["client-1"]}),
    "split": (data.split, {"train_fraction": 0.5, "seed": 0}),
    "hold_out": (data.hold_out, {"fraction": 0.5, "seed": 0}),
    "Run.load": (fi.Run.load, {"folder": "nowhere", "model": model}),
    "measured": (
      fi.report.measured, {"run": run, "test": (x, y), "owners": None}
    ),
    "a preset": (fi.presets.paper, {"num_samples": 2}),
    "a preset's name": (fi.presets.named, {"name": "relu@3"}),
    "synthetic": (
      fi.data.synthetic,
      {"num_clients": 3, "num_classes": 2, "num_features": 2, "seed": 1},
    ),
    "glyphs": (
      fi.data.glyphs,
      {"num_writers": 2, "examples_per_writer": 2, "seed": 0},
    ),
    "iid": (partition.iid, many | {"num_clients": 3, "seed": 0}),
    "dirichlet": (
      partition.dirichlet,
      many | {"num_clients": 3, "alpha": 0.5, "seed": 0},
    ),
    "by_writer": (
      partition.by_writer, many | {"writers": [f"w{k % 3}" for k in range(43)]}
    ),
    "flip_labels": (corrupt.flip_labels, spoil | {"fraction": 0.5}),
    "add_noise": (corrupt.add_noise, spoil | {"scale": 0.5}),
    "free_rider": (corrupt.free_rider, spoil),
    "duplicate": (corrupt.duplicate, spoil),
    "from_leaf": (femnist.from_leaf, {"folder": "nowhere", "split": "train"}),
    "from_npz": (femnist.from_npz, {"path": "nowhere", "split": "train"}),
    "ranking": (
      fi.valuation.ranking,
      {"fil": np.arange(6), "higher_is_helpful": True},
    ),
    "choose": (
      fi.valuation.choose,
      {"fil": np.arange(6), "fraction": 0.5, "end": "harmful", "seed": 0,
       "higher_is_helpful": True},
    ),
    "extremes": (fi.valuation.extremes, {"scores": np.arange(6), "count": 3}),
    "overlap": (
      fi.valuation.overlap,
      {"estimated": np.arange(6), "exact": np.arange(6), "count": 3},
    ),
    "rewards": (fi.valuation.rewards, {"fil": np.arange(6), "budget": 1}),
    "precision_at_k": (
      fi.valuation.precision_at_k, {"score": np.arange(6), "bad": bad}
    ),
    "auroc": (fi.valuation.auroc, {"score": np.arange(6), "bad": bad}),
    "GTGShapley": (
      fi.valuation.GTGShapley,
      {"max_sweeps": 2, "eps_between": 0, "eps_within": 0, "tolerance": 0.1},
    ),
    "baselines": (
      fi.valuation.baselines,
      {"model": model, "data": data, "fed": fed, "x": x, "y": y,
       "cohorts": None, "params": params, "seed": 0, "shapley": None},
    ),
    "round_theory": (
      theory.round_theory,
      {"model": model, "data": data, "fed": fed, "params": params,
       "cohort": [0, 1], "round_": 1, "seed": 0, "num_steps": 3},
    ),
    "amplification": (theory.amplification, {"gamma": 0.9, "t": 3}),
    "fip_norms": (theory.fip_norms, {"eps": {"a": jnp.ones((3, 2))}}),
    "new_error": (
      theory.new_error,
      {"exact": {"a": jnp.ones((3, 2))}, "one_step": {"a": jnp.ones((3, 2))}},
    ),
    "theorem2_bound": (theory.theorem2_bound, {"gamma": 0.9, "C": 3.0}),
    "accuracy": (fi.metrics.accuracy, labels),
    "cross_entropy": (fi.metrics.cross_entropy, labels),
    "precision": (fi.metrics.precision, labels),
    "recall": (fi.metrics.recall, labels),
    "mse": (fi.metrics.mse, {"outputs": np.eye(3), "y": np.eye(3)}),
    "predictions": (fi.metrics.predictions, labels),
    "a layer": (
      lambda v: fi.simulate(
        model, data, fed,
        params={"dense": {"kernel": v, "bias": params["dense"]["bias"]}},
      ),
      {"v": params["dense"]["kernel"]},
    ),
    "a model's init": (
      lambda f: fi.simulate(model._replace(init=f), data, fed), {"f": None}
    ),
    "what init returns": (
      lambda v: fi.simulate(model._replace(init=lambda key: v), data, fed),
      {"v": None},
    ),
    "what apply returns": (
      lambda v: fi.simulate(
        model._replace(apply=lambda params, x: v), data, fed
      ),
      {"v": None},
    ),
    "what the loss returns": (
      lambda v: fi.simulate(model._replace(loss=lambda o, y: v), data, fed),
      {"v": None},
    ),
    "what a metric returns": (
      lambda v: run.influence(lambda o, y: v, x, y, of="exact"), {"v": None}
    ),
    "an estimator": (
      lambda v: fi.simulate(model, data, fed, estimators={"a": v}), {"v": None}
    ),
    "an estimator's name": (
      lambda v: fi.simulate(model, data, fed, estimators=named(v, ours)),
      {"v": "a"},
    ),
    "curvature and guard": (
      fi.estimator, {"curvature": fi.fisher(), "guard": fi.lwet()}
    ),
    "FedAvg": (
      fi.FedAvg,
      {"rounds": 2, "cohort_size": 3, "local_steps": 2, "learning_rate": 0.4,
       "client_optimizer": None, "batch_size": 2},
    ),
    "an optimizer": (
      lambda v: fi.simulate(
        model, data,
        fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, client_optimizer=v),
      ),
      {"v": optax.sgd(0.1)},
    ),
    "a rate": (
      lambda v: fi.simulate(
        model, data,
        fi.FedAvg(rounds=1, cohort_size=1, local_steps=1, learning_rate=v),
      ),
      {"v": 0.1},
    ),
    "lwet": (fi.lwet, {"per": "layer", "tolerance": 0.1}),
    "fisher": (
      fi.fisher,
      {"num_samples": 3, "labels": "observed", "layerwise": True, "rank": 2,
       "spectrum": "relu"},
    ),
    "lowrank_hessian": (
      fi.lowrank_hessian, {"rank": 2, "per": "step", "spectrum": None}
    ),
    "dense_hessian": (
      fi.dense_hessian, {"layerwise": True, "upload": "product"}
    ),
    "logreg": (
      lambda **kw: fi.simulate(fi.models.logreg(**kw), data, fed),
      {"num_features": 4, "num_classes": 3, "logit_activation": None},
    ),
    "cnn": (
      lambda **kw: fi.models.cnn(**kw).param_shapes(),
      {"num_classes": 3, "widths": (2, 2), "dense": 3, "activation": None,
       "pool": "max"},
    ),
    "mlp": (
      lambda **kw: fi.models.mlp(**kw).param_shapes(),
      {"num_features": 4, "num_classes": 3, "hidden": (5,),
       "activation": "tanh"},
    ),
    "from_nnx": (
      lambda **kw: fi.simulate(fi.models.from_nnx(**kw), data, fed),
      {"make": lambda rngs: nnx.Linear(4, 3, rngs=rngs),
       "loss": fi.models.cross_entropy, "sample": None},
    ),
    "default_estimator": (
      fi.default_estimator,
      {"fed": fed, "model": model, "server_data": (x, y)},
    ),
    "read": (
      fi.data.read,
      {"path": {"client": ["a", "b"], "v": [1, 2], "label": [0, 1]},
       "client": "client", "label": "label", "task": "auto"},
    ),
    "encode": (
      fi.data.read({"client": list("ab"), "v": [1, 2], "y": [0, 1]}).encode,
      {"path": {"v": [1, 2], "y": [0, 1]}},
    ),
    "from_arrays": (
      fi.FederatedData.from_arrays,
      {"x": x, "y": y, "client": np.arange(len(y)) % 3, "num_classes": 3},
    ),
    "from_dict": (
      fi.FederatedData.from_dict,
      {"clients": {"a": (x, y)}, "num_classes": 3},
    ),
    "from_flax": (
      lambda **kw: fi.simulate(fi.models.from_flax(**kw), data, fed),
      {"module": cases.MLP(), "example_input": np.zeros((1, 4)),
       "loss": fi.models.cross_entropy, "sample": None},
    ),
  }  # fmt: skip


def hostile_calls():
  """Returns the targets and calls, one argument replaced, in some two."""
  known = targets()
  singles = [
    (name, {argument: kind})
    for name, (_, good) in known.items()
    for argument in good
    for kind in HOSTILE
  ]
  draw = np.random.default_rng(11)
  calls = [singles[i] for i in draw.permutation(len(singles))]
  for name, kinds in calls[::5]:
    argument = str(draw.choice(list(known[name][1])))
    kinds[argument] = str(draw.choice(list(HOSTILE)))
  return known, calls


def attempt_call(name, function, arguments):
  """Returns what went wrong with one call; None if nothing did."""
  try:
    with cases.patience(SECONDS):
      result = function(**arguments)
    if name not in PASS_ON:
      assert_sane(result)
  except ValueError as error:
    return None if str(error) else "a ValueError without a message"
  except BaseException as error:
    return repr(error)[:300]
  return None


@pytest.mark.parametrize("share", [TENTH, SLOW])
def test_a_hostile_call_is_answered_or_refused(share):
  known, calls = hostile_calls()
  failures = []
  for name, kinds in calls[: len(calls) // share]:
    function, good = known[name]
    arguments = good | {argument: HOSTILE[k] for argument, k in kinds.items()}
    problem = attempt_call(name, function, arguments)
    if problem is not None:
      failures.append(f"{name}({kinds}): {problem}")
  report(failures)
