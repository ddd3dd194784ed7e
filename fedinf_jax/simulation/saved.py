"""A run as one file of arrays, and back.

What is no array (ids, names, how the run was made) is JSON, held as an array of
bytes. The model's functions are not in it: whoever reads the run has them.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedinf_jax import agreement
from fedinf_jax import influence
from fedinf_jax import text
from fedinf_jax import tree
from fedinf_jax import types
from fedinf_jax import version
from fedinf_jax.data import archive
from fedinf_jax.simulation import devices
from fedinf_jax.simulation import history as histories
from fedinf_jax.simulation import made as mades

FILE = "run.npz"
BESIDE = "config.json"  # of a report, which may have the same folder
FORMAT = 1
_PLAIN = ("exact_rows", "num_examples", "labels", "cohorts", "removed")
_HEALTH = ("truncated_at", "growth", "nonfinite_at", "residual")
_MODELS = ("params/", "eps/", "exact/")
_OVER_TIME = ("rounds", "loss", "accuracy")
# Two networks of the same shapes differ by far more; two devices by far less.
_TOLERANCE = 1e-2


def write(folder: Any, run: Any):
  """Writes a `run.Run`; see its `save`."""
  arrays = {name: getattr(run, name) for name in _PLAIN}
  arrays |= _leaves("params", run.params)
  for i, name in enumerate(run.spread_eps):
    arrays |= _leaves(f"eps/{i}", run.eps[name])
    health = run.health[name]._asdict()
    arrays |= {f"health/{i}/{field}": health[field] for field in _HEALTH}
  if run.exact_eps is not None:
    arrays |= _leaves("exact", run.exact_eps)
  if run.history is not None:
    history = run.history
    arrays |= {f"history/{f}": getattr(history, f) for f in _OVER_TIME}
    for i, fil in enumerate(history.fil.values()):
      arrays[f"history/fil/{i}"] = fil
  if run.example is not None:
    arrays["probe"] = _probe(run.model, run.params, run.example)
  arrays = {name: _host(a) for name, a in arrays.items() if a is not None}
  about = _about(run, {name: a.dtype.name for name, a in arrays.items()})
  arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
  archive.write("folder", folder, FILE, arrays, BESIDE)


def _about(run, dtypes):
  """Returns all that is no array."""
  plain = lambda i: i.item() if isinstance(i, np.integer) else i
  example = run.example and [[list(a.shape), a.dtype.name] for a in run.example]
  return {
    "format": FORMAT,
    "version": version.VERSION,
    "dtypes": dtypes,
    "layers": list(tree.names(run.params)),
    "num_removals": run.num_removals,
    "rounds": run.rounds,
    "estimators": list(run.spread_eps),
    "exact": run.exact_eps is not None,
    "example": example,
    "ids": None if run.ids is None else list(map(plain, run.ids)),
    "history": None if run.history is None else list(run.history.fil),
    "made": run.made
    and {
      **run.made._asdict(),
      # A list, as it has an order that is not that of the arrays.
      "estimators": [[n, *kind] for n, kind in run.made.estimators.items()],
    },
  }


def _leaves(name, params):
  return {f"{name}/{j}": a for j, a in enumerate(jax.tree.leaves(params))}


def _host(a):
  """Returns an array where files are written."""
  if isinstance(a, jax.Array) and not a.is_fully_addressable:
    a = devices.replicate(a)
  return np.asarray(a)


def read(folder: Any, model: types.Model) -> dict[str, Any]:
  """Returns the fields of a `run.Run`, all but the model; see its `load`."""
  shapes = agreement.param_shapes(model)
  arrays = archive.read("folder", folder, FILE)
  try:
    about = json.loads(arrays.pop("about").tobytes())
    if about["format"] != FORMAT:
      raise ValueError(f"its format is {about['format']}, not {FORMAT}")
    arrays = {n: _typed(a, about["dtypes"][n]) for n, a in arrays.items()}
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(
      f"folder: {folder} is of another version, or damaged ({error})"
    ) from error
  _require_shapes(folder, shapes, arrays, about["layers"])
  _require_digits(folder, arrays)
  try:
    fields = _fields(arrays, about, jax.tree.structure(shapes))
  except (KeyError, TypeError, ValueError) as error:
    raise ValueError(f"folder: {folder} is damaged ({error!r})") from error
  if fields["example"] is not None:
    _require_outputs(folder, model, fields, arrays["probe"])
  return fields


def _typed(array, dtype):
  """Returns an array of a dtype that NumPy does not know, such as bfloat16."""
  return array if array.dtype.kind != "V" else array.view(jnp.dtype(dtype))


def _require_shapes(folder, shapes, arrays, layers):
  """Refuses parameters that are not the model's."""
  other = f"folder: {folder} holds a run of another model: its"
  names, leaves = tree.names(shapes), jax.tree.leaves(shapes)
  if list(names) != layers:
    theirs, mine = (text.printable(", ".join(n)) for n in (layers, names))
    raise ValueError(f"{other} layers are {theirs}; this model's are {mine}")
  for j, (name, leaf) in enumerate(zip(names, leaves, strict=True)):
    found = list(np.shape(arrays.get(f"params/{j}")))
    if found != list(leaf.shape):
      raise ValueError(
        f"{other} {name} has shape {found}; this model's has {list(leaf.shape)}"
      )


def _require_digits(folder, arrays):
  """Refuses numbers that JAX would round."""
  models = (a for n, a in arrays.items() if n.startswith(_MODELS))
  is_double = any(a.dtype == np.float64 for a in models)
  if is_double and jnp.result_type(float) != np.float64:
    raise ValueError(
      f"folder: {folder} holds a run in float64; turn JAX's x64 flag on first"
      ' (jax.config.update("jax_enable_x64", True))'
    )


def _fields(arrays, about, treedef):
  """Returns the fields of a run."""
  layers = len(about["layers"])
  params = lambda name: jax.tree.unflatten(
    treedef, [jnp.asarray(arrays[f"{name}/{j}"]) for j in range(layers)]
  )
  names = about["estimators"]
  example = about["example"]
  if example is not None:
    shape = lambda a: jax.ShapeDtypeStruct(tuple(a[0]), jnp.dtype(a[1]))
    example = agreement.Example(*map(shape, example))
  return {
    **{name: arrays.get(name) for name in _PLAIN},
    "params": params("params"),
    "health": {n: _health(arrays, i, about) for i, n in enumerate(names)},
    "num_removals": about["num_removals"],
    "spread_eps": {n: params(f"eps/{i}") for i, n in enumerate(names)},
    "spread_exact": params("exact") if about["exact"] else None,
    "example": example,
    "ids": None if about["ids"] is None else tuple(about["ids"]),
    "history": _history(arrays, about["history"]),
    "rounds": about["rounds"],
    "made": _made(about["made"]),
  }


def _health(arrays, i, about):
  field = lambda name: arrays.get(f"health/{i}/{name}")
  found = {name: field(name) for name in _HEALTH}
  found = {n: a if a is None else jnp.asarray(a) for n, a in found.items()}
  return influence.Health(**found, layer_names=tuple(about["layers"]))


def _history(arrays, names):
  if names is None:
    return None
  fil = {name: arrays[f"history/fil/{i}"] for i, name in enumerate(names)}
  over_time = {field: arrays[f"history/{field}"] for field in _OVER_TIME}
  return histories.History(fil=fil, **over_time)


def _made(about):
  if about is None:
    return None
  kinds = {name: mades.Kind(*kind) for name, *kind in about["estimators"]}
  return mades.Made(about["fed"], about["seed"], kinds)


def _probe(model, params, example):
  """Returns what the model makes of two examples of the right shape."""
  shape = lambda a: (2, *a.shape)
  x = np.zeros(shape(example.x), example.x.dtype)
  if jnp.issubdtype(example.x.dtype, jnp.floating):
    # Not zeros, where many networks are alike.
    x = np.cos(np.arange(x.size)).reshape(x.shape).astype(x.dtype)
  y = np.zeros(shape(example.y), example.y.dtype)
  with jax.default_matmul_precision("highest"):
    outputs = model.apply(params, x)
    loss = model.loss(outputs, y)
  found = (np.ravel(np.asarray(a, float)) for a in (outputs, loss))
  return np.concatenate(list(found))


def _require_outputs(folder, model, fields, expected):
  """Refuses a model of the same shapes that computes something else."""
  found = _probe(model, fields["params"], fields["example"])
  size = np.abs(expected[np.isfinite(expected)]).max(initial=0)
  if found.shape != expected.shape or not np.allclose(
    found, expected, rtol=0, atol=_TOLERANCE * size, equal_nan=True
  ):
    raise ValueError(
      f"folder: {folder} holds a run of another model: its layers have the same"
      " shapes, but its outputs or its loss differ"
    )
