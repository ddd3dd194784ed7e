"""The federations that trust is learnt from, and how."""

from collections.abc import Callable
from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

from flax import linen as nn
import numpy as np
from scipy import stats

import fedinf_jax as fi
from fedinf_jax import checks
from fedinf_jax.recipes import estimators as named
from fedinf_jax.simulation import signs
from fedinf_jax.valuation import reliability
from fedinf_jax.valuation import trust

ESTIMATORS = "both,relu,server,matched"
SEEDS = 3  # of data and training
AT = 15, 30  # rounds
CLIENTS, TESTERS, SERVERS = 24, 6, 6  # clients; whose examples are the others'
EXAMPLES = 24  # per client
HELD_OUT = ("MLP, Gaussians", "CNN, FEMNIST")


class Setting(NamedTuple):
  """A kind of federation."""

  name: str
  learning_rate: float
  local_steps: int
  model: fi.Model
  clients: Callable[[int], fi.FederatedData]  # seed -> all clients


def settings(data_dir: str | None) -> list[Setting]:
  """Returns those to learn from, and after them the held-out ones.

  Args:
    data_dir: an .npz of FEMNIST's writers; None: without them.
  """
  small: dict[str, Any] = {"widths": (2, 4), "dense": 16}
  leaf, glyphs = (5, _leaf), (2, _glyphs)
  kinds = [
    ("logreg", (0.02, 0.1, 0.3), fi.models.logreg(60, 5), *leaf),
    ("logreg, sigmoid", (0.2, 0.8), fi.models.logreg(60, 5, "sigmoid"), *leaf),
  ]
  for activation, pool, rates in (
    ("tanh", "avg", (0.2, 0.6)),
    ("relu", "max", (0.03, 0.1)),
    (None, "stride", (0.1,)),
  ):
    model = fi.models.cnn(62, activation=activation, pool=pool, **small)
    name = f"CNN, {activation or 'linear'}/{pool}"
    kinds.append((name, rates, model, *glyphs))
  mlp = fi.models.from_flax(
    MLP(),
    np.zeros((1, 8), np.float32),
    fi.models.cross_entropy,
    fi.models.categorical,
  )
  kinds.append((HELD_OUT[0], (0.1, 0.5), mlp, 5, _gaussians))
  if data_dir is not None:
    clients = lambda seed: _femnist(data_dir, seed)
    model = fi.models.cnn(62, **small)
    kinds.append((HELD_OUT[1], (0.05,), model, 2, clients))
  return [
    Setting(name, rate, steps, model, clients)
    for name, rates, model, steps, clients in kinds
    for rate in rates
  ]


class MLP(nn.Module):
  """A hidden layer of 16, five classes."""

  @nn.compact
  def __call__(self, x):
    """Returns logits."""
    return nn.Dense(5)(nn.relu(nn.Dense(16)(x)))


def measure(setting: Setting) -> Iterator[dict[str, Any]]:
  """Yields what was found of each estimator, by seed and round."""
  for seed in range(SEEDS):
    everyone = setting.clients(seed)
    parts = np.split(np.arange(len(everyone.ids)), [CLIENTS, CLIENTS + TESTERS])
    data, testers, servers = (everyone.take(part) for part in parts)
    x, y = testers.pooled()
    server = servers.pooled()
    fed = fi.FedAvg(
      rounds=AT[-1], cohort_size=5, local_steps=setting.local_steps,
      learning_rate=setting.learning_rate,
    )  # fmt: skip
    estimators = named.build(ESTIMATORS, len(server[0]))
    drawn = checks.cohorts(None, data, fed, seed)[: AT[0]]
    rows = [np.eye(CLIENTS, dtype=bool)]
    rows += [
      signs.groups(drawn, CLIENTS, 100 * seed + i) for i in range(signs.SPOTS)
    ]
    init, step = fi.simulator(
      setting.model,
      data,
      fed,
      estimators=signs.with_redrawn(estimators),
      exact=True,
      removals=np.concatenate(rows),
      server_data=server,
      seed=seed,
    )
    state, done = init(), 0
    for at in AT:
      state, done = step(state, at - done), at
      run = fi.Run.of(setting.model, state, copy=False)
      found = signs.changes(run, x, y)
      about = {
        "setting": setting.name,
        "learning_rate": setting.learning_rate,
        "seed": seed,
        "round": at,
      }
      for name in estimators:
        fil, exact = (found[of][:CLIENTS].mean(1) for of in (name, "exact"))
        yield {
          **about,
          "estimator": name,
          "pearson": reliability.correlation(stats.pearsonr, fil, exact),
          "signs": signs.read(run, found, name, first=CLIENTS)._asdict(),
        }


def calibrate(rows: list[dict]) -> trust.Calibration:
  """Learns from rows; errors are those of settings that were left out."""
  slopes = _fit(rows)
  errors = []
  for kept, left in _without_each(rows):
    found = _fit(kept)
    errors += [
      _z(row["pearson"]) - _z(expected(row, found).pearson) for row in left
    ]
  tail = (1 - trust.COVERED) / 2
  low, high = np.quantile(errors, [tail, 1 - tail])
  return slopes._replace(errors=(float(low), float(high)))


def left_out(rows: list[dict]) -> list[tuple[dict, trust.Trust]]:
  """Returns each row, and what is expected without its setting."""
  return [
    (row, expected(row, found))
    for kept, left in _without_each(rows)
    for found in [calibrate(kept)]
    for row in left
  ]


def expected(row: dict, calibration: trust.Calibration) -> trust.Trust:
  """Returns what a calibration says about a row."""
  return trust.expected(_signs(row), calibration)


def _signs(row):
  """Returns the signs of a row; what was not finite is null in a file."""
  read = {k: np.nan if v is None else v for k, v in row["signs"].items()}
  return trust.Signs(**read)


def _without_each(rows):
  for name in dict.fromkeys(row["setting"] for row in rows):
    yield (
      [row for row in rows if row["setting"] != name],
      [row for row in rows if row["setting"] == name],
    )


def _fit(rows):
  """Learns from rows; those that overflowed are for a rule of their own."""
  rows = [row for row in rows if np.isfinite(_signs(row)).all()]
  return trust.fit(
    [_signs(row) for row in rows], [row["pearson"] for row in rows]
  )


def _z(pearson):
  return np.arctanh(np.clip(pearson, -trust.LIMIT, trust.LIMIT))


def _leaf(seed):
  """LEAF's synthetic clients, cut to one size."""
  everyone = fi.data.synthetic(400, seed=931231 + seed)
  large = np.flatnonzero(everyone.num_examples >= EXAMPLES)
  return _cut(everyone.take(large[: CLIENTS + TESTERS + SERVERS]))


def _glyphs(seed):
  return fi.data.glyphs(CLIENTS + TESTERS + SERVERS, EXAMPLES, seed=seed)


def _gaussians(seed):
  """Classes are Gaussians; each client has its own shift and its own share."""
  draw = np.random.default_rng(seed)
  centres = draw.normal(size=(5, 8))
  clients = []
  for _ in range(CLIENTS + TESTERS + SERVERS):
    y = draw.choice(5, EXAMPLES, p=draw.dirichlet(np.ones(5)))
    shift = draw.normal(size=8)
    x = centres[y] + 0.5 * shift + draw.normal(size=(EXAMPLES, 8))
    clients.append((x.astype(np.float32), y))
  return fi.FederatedData.from_clients(clients)


def _femnist(data_dir, seed):
  everyone = fi.data.femnist.from_npz(data_dir)
  large = np.flatnonzero(everyone.num_examples >= EXAMPLES)
  draw = np.random.default_rng(seed)
  some = draw.permutation(large)[: CLIENTS + TESTERS + SERVERS]
  return _cut(everyone.take(some))


def _cut(clients):
  """Keeps the first EXAMPLES of each client."""
  first = np.cumsum(clients.num_examples) - clients.num_examples
  rows = first[:, None] + np.arange(EXAMPLES)
  return clients.with_examples(rows.ravel())
