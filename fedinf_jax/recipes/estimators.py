"""The estimators that recipes name.

Those with ε are in `fedinf_jax.presets`; here are lists of them, and the passes
backwards. A number after @ is another rank, number of sampled gradients or of
directions: `server@600`, `adjoint@32`. For adjoint_server it is the rounds that
it goes back through: `adjoint_server@100`.
"""

from fedinf_jax import influence
from fedinf_jax import presets
from fedinf_jax.running import task as tasks

# For all clients at once: one pass backwards per evaluated round. No ε, and
# nothing uploaded. The first goes through the participants' trainings, in
# simulation only; the second by the curvature of the server's own examples.
ADJOINT, ADJOINT_SERVER = "adjoint", "adjoint_server"
DIRECTIONS = 16
NAMES = (*presets.SPECS, ADJOINT, ADJOINT_SERVER)


def build(
  names: str, server_examples: int | None = None
) -> dict[str, influence.Estimator]:
  """Builds estimators from a list such as "both,relu@100"; "" is none.

  Args:
    names: separated by commas; passes backwards are left out.
    server_examples: how many the server has; it cannot draw more.
  """
  return {
    name: _spec(name, server_examples).make()
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


def serving(names: str) -> list[str]:
  """Returns those of such a list that need examples of the server's own."""
  found = [
    name
    for name, made in build(names).items()
    if made.curvature.serve is not None
  ]
  return found + [
    name for name, made in passes(names).items() if made.curvature is not None
  ]


def split(names: str) -> list[str]:
  """Returns the names of a list."""
  return [name.strip() for name in names.split(",") if name.strip()]


def describe(name: str, server_examples: int | None = None) -> str:
  """Returns what an estimator is made of, as one would write it."""
  if not _is_pass(name):
    return _spec(name, server_examples).words()
  asked = _backwards(name, server_examples)
  if asked.curvature is None:
    return f"adjoint(directions={asked.directions})"
  curvature = presets.spec("server", server_examples).curvature.words()
  return f"adjoint(curvature={curvature}, window={asked.window})"


def _spec(name, server_examples):
  """Returns what an estimator is made of; names all there are if it is none."""
  if name.partition("@")[0] not in NAMES:
    raise ValueError(
      f"estimators: {name.partition('@')[0]!r} is unknown; there are"
      f" {', '.join(NAMES)}"
    )
  return presets.spec(name, server_examples)


def _is_pass(name):
  return name.partition("@")[0] in (ADJOINT, ADJOINT_SERVER)


def _backwards(name, server_examples):
  size = presets.size_of(name)
  if name.partition("@")[0] == ADJOINT:
    return tasks.Backwards(directions=size or DIRECTIONS)
  return tasks.Backwards(
    directions=DIRECTIONS,
    curvature=presets.spec("server", server_examples).curvature.make(),
    window=size,
  )
