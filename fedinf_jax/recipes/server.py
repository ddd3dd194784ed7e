"""The server's own examples, for curvature without uploads."""

import math
from typing import Any

import ml_collections
import numpy as np

from fedinf_jax.data import federated
from fedinf_jax.data import glyph_writers
from fedinf_jax.data import leaf_synthetic
from fedinf_jax.recipes import problems


def part(
  config: ml_collections.ConfigDict, problem: problems.Problem
) -> tuple[federated.FederatedData | None, federated.FederatedData]:
  """Finds the server's examples for curvature.

  Args:
    config: the recipe, which says how many, and where from.
    problem: that has them.

  Returns:
    Those of the server; None: it has none. And those that influence is
    measured on: what the server leaves of the held-out examples, at least half.
  """
  held_out, wanted = problem.held_out, config.server_examples
  if not wanted:
    return None, held_out
  order = lambda data: np.random.default_rng([config.seed, 5]).permutation(
    len(data.x)
  )
  if config.server_from == "others":
    spare = problem.spare
    if spare is None:
      raise ValueError(
        'server_from is "others"; the clients train on all examples there are'
      )
    return spare.with_examples(order(spare)[:wanted]), held_out
  count, drawn = min(wanted, len(held_out.x) // 2), order(held_out)
  server = held_out.with_examples(drawn[:count])
  server = SOURCES[config.server_from](config, server)
  return server, held_out.with_examples(drawn[count:])


def _as_they_are(config, server):
  del config
  return server


def _skewed(config, server):
  """Keeps the lower half of the classes, of what the server would have."""
  del config
  kept = server.y <= np.median(server.y)
  return server.with_examples(np.flatnonzero(kept))


def _stand_in(config, server):
  """Makes as many examples of another population: public data, say."""
  x, y = server.pooled()
  if config.data.kind == "synthetic":
    count = min(200, config.data.num_clients)
    others = leaf_synthetic.synthetic(num_clients=count, seed=config.seed)
  else:
    others = glyph_writers.glyphs(
      20, math.ceil(len(x) / 20), seed=config.seed + 1
    )
  pool, labels = others.pooled()
  some = np.random.default_rng([config.seed, 6]).permutation(len(pool))
  some = some[: len(x)]
  return problems.unowned(
    pool[some].astype(x.dtype), labels[some].astype(y.dtype)
  )


# Where the server's examples are from.
SOURCES: dict[str, Any] = {
  "held_out": _as_they_are,
  "others": None,  # Problem.spare: nothing is made of held-out ones.
  "skewed": _skewed,
  "stand_in": _stand_in,
}
