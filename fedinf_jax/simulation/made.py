"""How a run was made, in plain facts that a file can hold."""

import dataclasses
from typing import Any
from typing import NamedTuple

from fedinf_jax import fedavg
from fedinf_jax import influence


class Kind(NamedTuple):
  """What an estimator of a run is."""

  description: str
  upload_bytes: int  # per participant and round, beside its model
  interactive: bool  # participants answer the server instead of uploading


class Made(NamedTuple):
  """What a run was made with."""

  fed: dict[str, Any]  # the arguments of FedAvg
  seed: int
  estimators: dict[str, Kind]


def made(
  fed: fedavg.FedAvg,
  seed: int,
  estimators: dict[str, influence.Estimator],
  uploads: dict[str, int],
) -> Made:
  """Says how a run was made.

  Args:
    fed: how participants train.
    seed: of every draw.
    estimators: by name.
    uploads: bytes per participant and round, by the same names.
  """
  arguments = {f.name: getattr(fed, f.name) for f in dataclasses.fields(fed)}
  if arguments.pop("client_optimizer") is not None:
    arguments["client_optimizer"] = "one of optax's"
  kinds = {
    name: Kind(_words(e), uploads[name], e.curvature.interactive)
    for name, e in estimators.items()
  }
  return Made(arguments, int(seed), kinds)


def _words(estimator):
  """Returns what an estimator is made of."""
  per = estimator.guard.per
  guard = {None: "no_guard", "layer": "lwet"}.get(per, f"lwet(per={per!r})")
  return f"{estimator.curvature.name} + {guard}"
