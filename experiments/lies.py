r"""Measures what a client that lies can do to its own and to others' scores.

    python -m experiments.lies

The federation of examples/flower with more clients, in silent mode and by hand.
One client lies in every round; its number of examples and its update are all
that it sends. Prints a table.
"""

import functools
import pathlib
import sys
from typing import Any

from absl import app
from absl import flags
import jax
import numpy as np
from scipy import stats

import fedinf_jax as fi
from fedinf_jax import rng
from fedinf_jax import tree
from fedinf_jax.server import ledger as ledgers
from fedinf_jax.server import participant
from fedinf_jax.server import reply as replies
from fedinf_jax.server import rounds
from fedinf_jax.server import table as tables

sys.path.insert(
  0, str(pathlib.Path(__file__).parent.parent / "examples" / "flower")
)
from fedinf_app import task

_CLIENTS = flags.DEFINE_integer("clients", 12, "Clients.", lower_bound=3)
_ROUNDS = flags.DEFINE_integer("rounds", 30, "Rounds.", lower_bound=1)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Federations.", lower_bound=1)

MODEL = fi.models.logreg(task.DIMENSION, task.CLASSES)
OURS = fi.fisher(
  num_samples=100, labels="sampled", layerwise=False, spectrum="relu",
  per="round",
)  # fmt: skip
ESTIMATORS = {"ours": fi.estimator(fi.server_side(OURS), fi.lwet())}


def scaled(factor: float, sent: replies.Sent, start: Any, others: list):
  """Sends `factor` times its update."""
  del others
  move = lambda new, old: (old + factor * (new - old)).astype(new.dtype)
  arrays = {k: move(a, start[k]) for k, a in sent.arrays.items()}
  return sent._replace(arrays=arrays)


def copied(sent: replies.Sent, start: Any, others: list):
  """Sends the update of another participant in place of its own."""
  del start
  return sent._replace(arrays=others[0].arrays) if others else sent


def inflated(sent: replies.Sent, start: Any, others: list):
  """States ten times its number of examples."""
  del start, others
  return sent._replace(num_examples=10 * sent.num_examples)


LIES = {
  "none": lambda sent, start, others: sent,
  "10 × n_k": inflated,
  "10 × update": functools.partial(scaled, 10.0),
  "0.1 × update": functools.partial(scaled, 0.1),
  "sign flip": functools.partial(scaled, -1.0),
  "a copy of another's": copied,
}


@functools.cache
def built(seed: int, limits: replies.Limits):
  """Returns the server and its participants' side."""
  fed = fi.FedAvg(
    rounds=_ROUNDS.value, cohort_size=4, local_steps=task.LOCAL_STEPS,
    learning_rate=task.LEARNING_RATE,
  )  # fmt: skip
  server = rounds.server(
    MODEL, fed, ESTIMATORS, MODEL.init(jax.random.key(seed)),
    max_examples=task.MAX_EXAMPLES, seed=seed,
    server_data=task.load(-1, seed), limits=limits,
  )  # fmt: skip
  return server, participant.participant(server.setup, ESTIMATORS)


@functools.cache
def play(
  seed: int, liar: str, lie, limits: replies.Limits
) -> tuple[tables.Table, float, int]:
  """Plays a federation.

  Returns:
    The last table, the test loss, and how often the liar was refused.
  """
  server, side = built(seed, replies.Limits())
  examine = built(seed, limits)[0].examine
  data = {task.client_id(k): task.load(k, seed) for k in range(_CLIENTS.value)}
  params = MODEL.init(jax.random.key(seed))
  ledger, refused = ledgers.init(ESTIMATORS, params), 0
  for t in range(1, _ROUNDS.value + 1):
    start = ledger.state.params
    sent = {}
    for client in server.cohort(t, data):
      own = participant.examples(server.setup, *data[client])
      local, _ = side.train(start, own, rng.draws(seed, t, client))
      sent[client] = replies.Sent(
        client, named(local), len(data[client][0]), report=[]
      )
    if liar in sent:
      others = [s for i, s in sent.items() if i != liar]
      sent[liar] = lie(sent[liar], named(start), others)
    accepted, lines = examine(ledger, list(sent.values()))
    refused += sum(repr(liar) in line for line in lines)
    ledger, _ = server.end(ledger, accepted)
  x, y = task.load(-2, seed)
  outputs = MODEL.apply(ledger.state.params, x)
  found = tables.table(MODEL, ledger, "ours", (x, y))
  return found, float(MODEL.loss(outputs, y).mean()), refused


def named(params) -> dict[str, np.ndarray]:
  """Returns the arrays of a model by name."""
  leaves = [np.asarray(a) for a in jax.tree.leaves(params)]
  return dict(zip(tree.names(params), leaves, strict=True))


def row(seed: int, liar: str, lie, limits: replies.Limits) -> list[float]:
  """Returns the numbers of one federation; see `main`."""
  honest, _, _ = play(seed, liar, LIES["none"], replies.Limits())
  found, loss, refused = play(seed, liar, lie, limits)
  score = lambda table: dict(zip(table.ids, table.fil, strict=True))
  before, after = score(honest), score(found)
  others = [i for i in before if i != liar and i in after]
  pairs = [before[i] for i in others], [after[i] for i in others]
  rank = sorted(after, key=after.__getitem__)
  place = rank.index(liar) + 1 if liar in after else 0
  own = after.get(liar, 0.0)
  return [own, place, stats.spearmanr(*pairs)[0], loss, refused]


def main(argv: list[str]):
  """Prints a table."""
  if len(argv) > 1:
    raise app.UsageError(f"unknown argument {argv[1]!r}")
  print("| who | lie | bounds | FIL | place | others | loss | refused |")
  print("|---|---|---|---|---|---|---|---|")
  bounds = {
    "none": replies.Limits(),
    "share .5, norm 3": replies.Limits(largest_share=0.5, largest_update=3.0),
  }
  for who in (task.BAD, 3):
    for name, lie in LIES.items():
      for bound, limits in bounds.items():
        found = [
          row(seed, task.client_id(who), lie, limits)
          for seed in range(_SEEDS.value)
        ]
        fil, place, others, loss, refused = np.mean(found, 0)
        place = f"{place:.1f}" if place else "–"  # Never accepted.
        kind = "bad" if who == task.BAD else "good"
        print(
          f"| {kind} | {name} | {bound} | {fil:+.4f} | {place} |"
          f" {others:.2f} | {loss:.3f} | {refused:.1f} |",
          flush=True,
        )


if __name__ == "__main__":
  app.run(main)
