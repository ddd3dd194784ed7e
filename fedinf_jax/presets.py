"""Estimators under plain names: the paper's methods and ours.

Each function makes one, ready for `simulate(estimators={"paper": paper()})`.
Recipes name the same estimators in short (`both`, `relu`, …): `named` reads
those names, and SPECS says what each is made of.
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

from fedinf_jax import checks
from fedinf_jax import curvature as curvatures
from fedinf_jax import guards
from fedinf_jax import influence


class Part(NamedTuple):
  """A curvature or a guard: the function that makes it, and its arguments.

  Examples:
    >>> fisher = fi.presets.spec("both").curvature
    >>> fisher.changed({"num_samples": 5}).words()
    'fisher(num_samples=5)'
    >>> fisher.make().name
    'fisher'
  """

  function: Callable
  arguments: dict[str, Any]

  def make(self) -> Any:
    """Calls the function; parts among its arguments are made first."""
    inner = lambda v: v.make() if isinstance(v, Part) else v
    made = {name: inner(v) for name, v in self.arguments.items()}
    return self.function(**made)

  def words(self) -> str:
    """Returns the call, as one would write it."""
    arguments = (
      v.words() if isinstance(v, Part) else f"{name}={v!r}"
      for name, v in self.arguments.items()
    )
    return f"{self.function.__name__}({', '.join(arguments)})"

  def changed(self, arguments: dict[str, Any]) -> "Part":
    """Returns the part with other values for some arguments."""
    return self._replace(arguments={**self.arguments, **arguments})


class Spec(NamedTuple):
  """What an estimator is made of.

  Examples:
    >>> fi.presets.spec("both").words()
    'fisher() + lwet()'
    >>> fi.presets.spec("both").make().curvature.name
    'fisher'
  """

  curvature: Part
  guard: Part

  def make(self) -> influence.Estimator:
    """Returns the estimator."""
    return influence.estimator(self.curvature.make(), self.guard.make())

  def words(self) -> str:
    """Returns what it is made of, as one would write it."""
    return f"{self.curvature.words()} + {self.guard.words()}"


def _fisher(**arguments):
  return Part(curvatures.fisher, arguments)


def _ours(**arguments):
  return _fisher(labels="sampled", layerwise=False, **arguments)


def _lowrank(**arguments):
  return Part(curvatures.lowrank_hessian, {"rank": 50, **arguments})


def _served(curvature, **arguments):
  return Part(curvatures.server_side, {"curvature": curvature, **arguments})


_NO_GUARD = Part(guards.no_guard, {})
_LWET = Part(guards.lwet, {})
# Drawn by the server from its own examples, afresh in each round.
_SERVER = _ours(num_samples=200, label_draws=16, spectrum="relu", per="round")

# By the names of recipes.
SPECS = {
  # The four methods of the paper.
  "basic": Spec(Part(curvatures.exact_hessian, {}), _NO_GUARD),
  "only_lwet": Spec(Part(curvatures.layerwise_hessian, {}), _LWET),
  "only_ha": Spec(_fisher(), _NO_GUARD),
  "both": Spec(_fisher(), _LWET),
  "both_fine": Spec(_fisher(), Part(guards.lwet, {"per": "participant"})),
  # Ours.
  "sampled_lwet": Spec(_fisher(labels="sampled"), _LWET),
  "whole": Spec(_ours(), _NO_GUARD),
  "clip": Spec(_ours(spectrum="clip"), _NO_GUARD),
  "relu": Spec(_ours(spectrum="relu"), _NO_GUARD),
  "exp": Spec(_ours(spectrum="exp"), _NO_GUARD),
  "implicit": Spec(_ours(spectrum="implicit"), _NO_GUARD),
  "relu_rank10": Spec(_ours(rank=10, spectrum="relu"), _NO_GUARD),
  "relu_observed": Spec(_fisher(layerwise=False, spectrum="relu"), _NO_GUARD),
  "lowrank": Spec(_lowrank(per="round"), _NO_GUARD),
  "lowrank_step": Spec(_lowrank(), _NO_GUARD),
  "lowrank_relu": Spec(_lowrank(per="round", spectrum="relu"), _NO_GUARD),
  # Nothing uploaded; they need examples of the server.
  "server": Spec(_served(_SERVER), _NO_GUARD),
  "matched": Spec(_served(_SERVER, num_examples=1000, match=True), _NO_GUARD),
  "server_lowrank": Spec(
    _served(_lowrank(per="round"), num_examples=1000), _NO_GUARD
  ),
  "difference": Spec(Part(curvatures.exact_difference, {}), _NO_GUARD),
  "truncated": Spec(Part(curvatures.truncated, {}), _NO_GUARD),
}


def paper(*, num_samples: int = 50) -> influence.Estimator:
  """Makes the paper's method, Fisher information and LWET (its "both").

  Args:
    num_samples: gradients that a participant uploads per local step.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.paper(num_samples=5))
    600
  """
  return _of_size("both", num_samples=num_samples)


def paper_basic() -> influence.Estimator:
  """Makes the paper's "basic": the exact Hessian, nothing dropped.

  Participants are interactive: they are sent every ε and answer.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.paper_basic())  # 6 models.
    360
  """
  return named("basic")


def paper_only_lwet() -> influence.Estimator:
  """Makes the paper's "only LWET": the Hessian layer by layer, with LWET.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.paper_only_lwet())
    360
  """
  return named("only_lwet")


def paper_only_fisher(*, num_samples: int = 50) -> influence.Estimator:
  """Makes the paper's "only H.A.": Fisher information, nothing dropped.

  Args:
    num_samples: as of `paper`.

  Examples:
    >>> made = fi.presets.paper_only_fisher(num_samples=5)
    >>> fi.upload_bytes(model, data, fed, made)
    600
  """
  return _of_size("only_ha", num_samples=num_samples)


def same_upload(*, num_samples: int = 50) -> influence.Estimator:
  """Makes ours with the paper's upload: gradients of sampled labels (`relu`).

  Args:
    num_samples: as of `paper`.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.same_upload(num_samples=5))
    600
  """
  return _of_size("relu", num_samples=num_samples)


def small_upload(*, rank: int = 50) -> influence.Estimator:
  """Makes ours with a fraction of the upload, for small steps (`lowrank`).

  Args:
    rank: eigenvectors of its Hessian that a participant uploads per round.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.small_upload(rank=2))
    128
  """
  return _of_size("lowrank", rank=rank)


def nothing_uploaded(*, num_samples: int = 200) -> influence.Estimator:
  """Makes ours by the server's own examples, `server_data=` (`server`).

  Args:
    num_samples: gradients that the server draws per round.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.nothing_uploaded())
    0
  """
  return _of_size("server", num_samples=num_samples)


def nothing_uploaded_matched(*, num_samples: int = 200) -> influence.Estimator:
  """Makes the same for clients that differ much, each a mixture (`matched`).

  The mixtures are of 1000 of the server's examples, or of `num_samples`.

  Args:
    num_samples: gradients that the server draws per round.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.nothing_uploaded_matched())
    0
  """
  return _of_size("matched", num_samples=num_samples)


def _of_size(name, **size):
  """Makes an estimator of another size, which is an argument's."""
  ((argument, value),) = size.items()
  return named(f"{name}@{checks.positive_integer(argument, value)}")


def named(name: str, server_examples: int | None = None) -> influence.Estimator:
  """Makes the estimator that recipes call by a name, such as "relu@100".

  Args:
    name: one of SPECS; after @, another number of samples, or another rank.
    server_examples: how many the server has; it cannot draw more.

  Examples:
    >>> fi.upload_bytes(model, data, fed, fi.presets.named("relu@5"))
    600
  """
  return spec(name, server_examples).make()


def spec(name: str, server_examples: int | None = None) -> Spec:
  """Returns what the estimator of a name is made of; see `named`.

  Examples:
    >>> fi.presets.spec("both@100").words()
    'fisher(num_samples=100) + lwet()'
    >>> fi.presets.spec("basic").make().curvature.name
    'exact_hessian'
  """
  if not isinstance(name, str):
    raise ValueError(f"name is {name!r}; it must be one of fi.presets.SPECS")
  base, _, _ = name.partition("@")
  size = size_of(name)
  if base not in SPECS:
    raise ValueError(
      f"estimators: {base!r} is unknown; there are {', '.join(SPECS)}"
    )
  curvature, guard = SPECS[base]
  if size is not None:
    curvature = _sized(name, curvature, size)
  serves = curvature.function is curvatures.server_side
  if server_examples is not None and serves:
    curvature = _at_most(curvature, server_examples)
  return Spec(curvature, guard)


def size_of(name: str) -> int | None:
  """Returns the number after @; None if there is no @.

  Examples:
    >>> fi.presets.size_of("relu@100"), fi.presets.size_of("relu")
    (100, None)
  """
  _, at, size = name.partition("@")
  if not at:
    return None
  if not size.isdecimal() or int(size) < 1:
    raise ValueError(
      f"estimators: {name!r}; after @ there must be a number of at least 1"
    )
  return int(size)


def _sized(name, part, size):
  """Returns a curvature with another rank, or number of sampled gradients."""
  arguments = part.arguments
  if part.function is curvatures.server_side:
    changed = {"curvature": _sized(name, arguments["curvature"], size)}
    if "num_examples" in arguments:
      changed["num_examples"] = max(size, arguments["num_examples"])
  elif "rank" in arguments:
    changed = {"rank": size}
  elif part.function is curvatures.fisher:
    changed = {"num_samples": size}
  else:
    raise ValueError(
      f"estimators: {name!r}; this estimator has neither samples nor a rank"
    )
  return part.changed(changed)


def _at_most(part, count):
  """Returns a server-side curvature that draws no more examples than these."""
  less = {
    k: min(v, count) if k in ("num_samples", "num_examples") else v
    for k, v in part.arguments.items()
  }
  if "curvature" in less:
    less["curvature"] = _at_most(less["curvature"], count)
  return part._replace(arguments=less)
