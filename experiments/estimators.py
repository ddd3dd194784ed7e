"""The estimators that recipes name, and what each is made of.

A number after @ is another rank, number of sampled gradients or of directions:
`server@600`, `adjoint@32`. For adjoint_server it is the rounds that it goes
back through: `adjoint_server@100`.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import fedinf_jax as fi
from fedinf_jax import influence
from fedinf_jax.running import task as tasks


class Part(NamedTuple):
  """A curvature or a guard: a function of fedinf_jax and its arguments."""

  function: Callable
  arguments: dict[str, Any]


_OURS = {"labels": "sampled", "layerwise": False}
# Drawn by the server from its own examples, afresh in each round.
_SERVER = Part(
  fi.fisher,
  {
    **_OURS,
    "num_samples": 200,
    "label_draws": 16,
    "spectrum": "relu",
    "per": "round",
  },
)
_NO_GUARD = Part(fi.no_guard, {})
_LWET = Part(fi.lwet, {})

# name: (curvature, guard)
SPECS = {
  # The four methods of the paper.
  "basic": (Part(fi.exact_hessian, {}), _NO_GUARD),
  "only_lwet": (Part(fi.layerwise_hessian, {}), _LWET),
  "only_ha": (Part(fi.fisher, {}), _NO_GUARD),
  "both": (Part(fi.fisher, {}), _LWET),
  "both_fine": (Part(fi.fisher, {}), Part(fi.lwet, {"per": "participant"})),
  # Ours.
  "sampled_lwet": (Part(fi.fisher, {"labels": "sampled"}), _LWET),
  "whole": (Part(fi.fisher, _OURS), _NO_GUARD),
  "clip": (Part(fi.fisher, {**_OURS, "spectrum": "clip"}), _NO_GUARD),
  "relu": (Part(fi.fisher, {**_OURS, "spectrum": "relu"}), _NO_GUARD),
  "exp": (Part(fi.fisher, {**_OURS, "spectrum": "exp"}), _NO_GUARD),
  "implicit": (Part(fi.fisher, {**_OURS, "spectrum": "implicit"}), _NO_GUARD),
  "relu_rank10": (
    Part(fi.fisher, {**_OURS, "rank": 10, "spectrum": "relu"}),
    _NO_GUARD,
  ),
  "relu_observed": (
    Part(fi.fisher, {"layerwise": False, "spectrum": "relu"}),
    _NO_GUARD,
  ),
  "lowrank": (
    Part(fi.lowrank_hessian, {"rank": 50, "per": "round"}),
    _NO_GUARD,
  ),
  "lowrank_step": (Part(fi.lowrank_hessian, {"rank": 50}), _NO_GUARD),
  "lowrank_relu": (
    Part(fi.lowrank_hessian, {"rank": 50, "per": "round", "spectrum": "relu"}),
    _NO_GUARD,
  ),
  # Nothing uploaded; they need --config.server_examples.
  "server": (Part(fi.server_side, {"curvature": _SERVER}), _NO_GUARD),
  "matched": (
    Part(
      fi.server_side,
      {"curvature": _SERVER, "num_examples": 1000, "match": True},
    ),
    _NO_GUARD,
  ),
  "server_lowrank": (
    Part(
      fi.server_side,
      {
        "curvature": Part(fi.lowrank_hessian, {"rank": 50, "per": "round"}),
        "num_examples": 1000,
      },
    ),
    _NO_GUARD,
  ),
  "difference": (Part(fi.exact_difference, {}), _NO_GUARD),
  "truncated": (Part(fi.truncated, {}), _NO_GUARD),
}
# For all clients at once: one pass backwards per evaluated round. No ε, and
# nothing uploaded. The first goes through the participants' trainings, in
# simulation only; the second by the curvature of the server's own examples.
ADJOINT, ADJOINT_SERVER = "adjoint", "adjoint_server"
DIRECTIONS = 16
NAMES = (*SPECS, ADJOINT, ADJOINT_SERVER)


def build(
  names: str, server_examples: int | None = None
) -> dict[str, influence.Estimator]:
  """Builds estimators from a list such as "both,relu@100"; "" is none.

  Args:
    names: separated by commas; passes backwards are left out.
    server_examples: how many the server has; it cannot draw more.
  """
  return {
    name: fi.estimator(*map(_make, _parts(name, server_examples)))
    for name in split(names)
    if not _is_pass(name)
  }


def passes(
  names: str, server_examples: int | None = None
) -> dict[str, tasks.Backwards]:
  """Returns the passes backwards of such a list."""
  return {
    name: _backwards(name, server_examples)
    for name in split(names)
    if _is_pass(name)
  }


def split(names: str) -> list[str]:
  """Returns the names of a list."""
  return [name.strip() for name in names.split(",") if name.strip()]


def describe(name: str, server_examples: int | None = None) -> str:
  """Returns what an estimator is made of, as one would write it."""
  if _is_pass(name):
    asked = _backwards(name, server_examples)
    if asked.curvature is None:
      return f"adjoint(directions={asked.directions})"
    curvature = _words(_serving(server_examples))
    return f"adjoint(curvature={curvature}, window={asked.window})"
  return " + ".join(map(_words, _parts(name, server_examples)))


def _parts(name, server_examples):
  """Returns (curvature, guard) of "relu", or of "relu@100" with 100 samples."""
  base, _, _ = name.partition("@")
  size = _size(name)
  if base not in SPECS:
    raise ValueError(
      f"estimators: {base!r} is unknown; there are {', '.join(NAMES)}"
    )
  curvature, guard = SPECS[base]
  if size is not None:
    curvature = _sized(name, curvature, size)
  if server_examples is not None and curvature.function is fi.server_side:
    curvature = _at_most(curvature, server_examples)
  return curvature, guard


def _size(name):
  """Returns the number after @; None if there is no @."""
  _, at, size = name.partition("@")
  if not at:
    return None
  if not size.isdecimal() or int(size) < 1:
    raise ValueError(
      f"estimators: {name!r}; after @ there must be a number of at least 1"
    )
  return int(size)


def _is_pass(name):
  return name.partition("@")[0] in (ADJOINT, ADJOINT_SERVER)


def _backwards(name, server_examples):
  if name.partition("@")[0] == ADJOINT:
    return tasks.Backwards(directions=_size(name) or DIRECTIONS)
  return tasks.Backwards(
    directions=DIRECTIONS,
    curvature=_make(_serving(server_examples)),
    window=_size(name),
  )


def _serving(server_examples):
  """Returns the server's curvature, from no more examples than it has."""
  part = Part(fi.server_side, {"curvature": _SERVER})
  return part if server_examples is None else _at_most(part, server_examples)


def _sized(name, part, size):
  """Returns a curvature with another rank, or number of sampled gradients."""
  arguments = part.arguments
  if part.function is fi.server_side:
    changed = {"curvature": _sized(name, arguments["curvature"], size)}
    if "num_examples" in arguments:
      changed["num_examples"] = max(size, arguments["num_examples"])
  elif "rank" in arguments:
    changed = {"rank": size}
  elif part.function is fi.fisher:
    changed = {"num_samples": size}
  else:
    raise ValueError(
      f"estimators: {name!r}; this estimator has neither samples nor a rank"
    )
  return part._replace(arguments={**arguments, **changed})


def _at_most(part, count):
  """Returns a server-side curvature that draws no more examples than these."""
  less = {
    k: min(v, count) if k in ("num_samples", "num_examples") else v
    for k, v in part.arguments.items()
  }
  if "curvature" in less:
    less["curvature"] = _at_most(less["curvature"], count)
  return part._replace(arguments=less)


def _make(part):
  made = {
    k: _make(v) if isinstance(v, Part) else v for k, v in part.arguments.items()
  }
  return part.function(**made)


def _words(part):
  arguments = (
    _words(v) if isinstance(v, Part) else f"{k}={v!r}"
    for k, v in part.arguments.items()
  )
  return f"{part.function.__name__}({', '.join(arguments)})"
