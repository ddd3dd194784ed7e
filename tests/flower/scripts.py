"""A federation whose clients come and go, in a process that may be killed.

python -m tests.flower.scripts WORKDIR ROUNDS [KILL_AT]
"""

import os
import pathlib
import signal
import sys

from tests.flower import grids


def attendance(grid, round_):
  """client-1 joins in round 3; client-4 dies in 4, is back in 6 elsewhere."""
  node = {i: n for n, i in grids.nodes().items()}
  there = set(grid.get_node_ids())
  if round_ < 3 and node["client-1"] in there:
    grid.leave(node["client-1"])
  if round_ >= 3 and node["client-1"] not in there:
    grid.join(node["client-1"], "client-1")
  if round_ in (4, 5) and node["client-4"] in there:
    grid.leave(node["client-4"])
  if round_ >= 6:
    if node["client-4"] in there:
      grid.leave(node["client-4"])
    grid.join(7, "client-4")


def play(workdir, step, *, num_rounds=6, **options):
  """Plays a federation; step(grid, round) before each round."""
  made = grids.strategy(workdir=workdir, **options)
  grid = grids.InProcess(grids.jax_client("silent"), grids.nodes())
  configure = made.configure_train

  def with_step(server_round, *args):
    step(grid, made.ledger.round + 1)
    return configure(server_round, *args)

  made.configure_train = with_step
  made.start(grid, num_rounds=num_rounds)
  return made


def main(workdir, rounds, kill_at=None):
  from flwr.supercore import task_identity

  task_identity.TaskIdentity.task_id = 1
  task_identity.TaskIdentity.run_id = 1
  task_identity.TaskIdentity.node_id = 1
  if kill_at is not None:
    from fedinf_jax.flower import store

    save = store.Store.save

    def killed(self, kept):
      if kept.ledger.round == int(kill_at):
        # Logs of the round are written, its checkpoint is not.
        os.kill(os.getpid(), signal.SIGKILL)
      save(self, kept)

    store.Store.save = killed
  play(pathlib.Path(workdir), attendance, num_rounds=int(rounds))


if __name__ == "__main__":
  main(*sys.argv[1:])
