"""Tables for the screen."""

from rich import table as rich_table

from fedinf_jax.report import numbers
from fedinf_jax.running import planning


def plan_table(
  sizes: planning.Sizes,
  machine: planning.Machine,
  rounds: int,
  compiled: int | None,
) -> rich_table.Table:
  """Returns the plan of a run.

  Args:
    sizes: what is planned for.
    machine: the devices.
    rounds: of the whole run.
    compiled: bytes of the compiled program, where there is one.
  """
  found = planning.plan(sizes, machine)
  table = rich_table.Table(
    "per device", "", title=f"{machine.removals} × {machine.params} device(s)"
  )
  rows = [
    ("ε, flags, replayed models", found.state, "B"),
    ("examples", found.inputs, "B"),
    ("working memory", found.working, "B"),
    ("memory in all", found.memory, "B"),
    ("… by the compiler's account", compiled, "B"),
    ("training, per round", found.training, "op"),
    ("propagation, per round", found.propagation, "op"),
    ("replay, per round", found.replay, "op"),
    ("received, per round", found.traffic, "B"),
    ("measured peak", machine.flops, "op/s"),
  ]
  for title, value, unit in rows:
    table.add_row(title, numbers.amount(value, unit))
  for title, count in (
    ("a round, at that peak", 1),
    (f"{rounds} rounds", rounds),
  ):
    table.add_row(title, numbers.duration(count * found.seconds))
  table.add_row("most of it", planning.bottleneck(sizes, machine))
  return table
