"""The estimators that recipes name, and what each is made of."""

import fedinf_jax as fi

_OURS = {"labels": "sampled", "layerwise": False}
_NO_GUARD = ("no_guard", {})
_LWET = ("lwet", {})

# name: (curvature, guard), each a function of fedinf_jax and its arguments.
SPECS = {
  # The four methods of the paper.
  "basic": (("exact_hessian", {}), _NO_GUARD),
  "only_lwet": (("layerwise_hessian", {}), _LWET),
  "only_ha": (("fisher", {}), _NO_GUARD),
  "both": (("fisher", {}), _LWET),
  "both_fine": (("fisher", {}), ("lwet", {"per": "participant"})),
  # Ours.
  "sampled_lwet": (("fisher", {"labels": "sampled"}), _LWET),
  "whole": (("fisher", _OURS), _NO_GUARD),
  "clip": (("fisher", {**_OURS, "spectrum": "clip"}), _NO_GUARD),
  "relu": (("fisher", {**_OURS, "spectrum": "relu"}), _NO_GUARD),
  "exp": (("fisher", {**_OURS, "spectrum": "exp"}), _NO_GUARD),
  "implicit": (("fisher", {**_OURS, "spectrum": "implicit"}), _NO_GUARD),
  "relu_rank10": (
    ("fisher", {**_OURS, "rank": 10, "spectrum": "relu"}),
    _NO_GUARD,
  ),
  "relu_observed": (
    ("fisher", {"layerwise": False, "spectrum": "relu"}),
    _NO_GUARD,
  ),
  "lowrank": (("lowrank_hessian", {"rank": 50, "per": "round"}), _NO_GUARD),
  "lowrank_step": (("lowrank_hessian", {"rank": 50}), _NO_GUARD),
  "lowrank_relu": (
    ("lowrank_hessian", {"rank": 50, "per": "round", "spectrum": "relu"}),
    _NO_GUARD,
  ),
  "difference": (("exact_difference", {}), _NO_GUARD),
  "truncated": (("truncated", {}), _NO_GUARD),
}


def build(names: str) -> dict[str, fi.influence.Estimator]:
  """Builds estimators from a list such as "both,relu"; "" is none."""
  names = [name.strip() for name in names.split(",") if name.strip()]
  for name in names:
    if name not in SPECS:
      raise ValueError(
        f"estimators: {name!r} is unknown; there are {', '.join(SPECS)}"
      )
  make = lambda spec: getattr(fi, spec[0])(**spec[1])
  return {name: fi.estimator(*map(make, SPECS[name])) for name in names}


def describe(name: str) -> str:
  """Returns what an estimator is made of, as one would write it."""
  return " + ".join(
    f"{function}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})"
    for function, arguments in SPECS[name]
  )
