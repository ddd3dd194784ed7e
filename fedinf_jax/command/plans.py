"""What a run needs, on each device, before it starts: memory and time."""

import math
import time

import jax
import jax.numpy as jnp
from rich import table as rich_table

from fedinf_jax import memory
from fedinf_jax.report import numbers
from fedinf_jax.running import passes
from fedinf_jax.running import planning
from fedinf_jax.running import progress
from fedinf_jax.running import repeats as repeat_runs
from fedinf_jax.running import task as tasks

REPEATS = 5
MOST, MOST_ALONG = 20, 6  # Powers of two to try: devices, along `params`.


def peak(side: int = 2048) -> float:
  """Returns the operations per second of a large float32 matrix product."""
  ones = jnp.ones((side, side), jnp.float32)
  product = jax.jit(jnp.matmul)
  jax.block_until_ready(product(ones, ones))  # Compiles.
  took = []
  for _ in range(REPEATS):
    started = time.perf_counter()
    jax.block_until_ready(product(ones, ones))
    took.append(time.perf_counter() - started)
  return 2 * side**3 / min(took)


def replayed(task: tasks.Task) -> int:
  """Returns how many removals a task replays."""
  return len(tasks.examined(task)) if task.exact else 0


def sizes(task: tasks.Task) -> planning.Sizes:
  """Reads the sizes off a task; see `planning.sizes_of`."""
  return planning.sizes_of(
    task, task.estimators, replayed(task), tasks.selected(task) > 0
  )


def show(task: tasks.Task, machine: planning.Machine, screen, *, fits: bool):
  """Prints what each device would need and do.

  Args:
    task: not started; of any devices.
    machine: the devices to plan for.
    screen: a rich console.
    fits: whether they are there, so that the program can be compiled for them.
  """
  size, compiled = sizes(task), None
  if fits:
    compiled = memory.compiled_bytes(tasks.lower(task).compile())
  progress.say(screen, tasks.describe(task))
  table = _table(size, machine, task.fed.rounds, compiled)
  if repeats := repeat_runs.asked(task):
    again = tasks.repeated(task, 1)
    seconds = planning.plan(sizes(again), machine).seconds
    table.add_row(
      f"{len(repeats)} repeat(s) of {replayed(again)} exact replays, before the"
      " run",
      numbers.duration(len(repeats) * task.fed.rounds * seconds),
    )
  for name in task.passes:
    program = passes.prepare(task, name).lower().back.compile()
    table.add_row(
      f"{name}, before the run: memory by the compiler's account",
      numbers.amount(memory.compiled_bytes(program), "B"),
    )
  screen.print(table)


def _table(sizes, machine, rounds, compiled):
  """Returns the plan of a run; `compiled`: bytes of its program, or None."""
  found = planning.plan(sizes, machine)
  table = rich_table.Table(
    "per device", "", title=f"{machine.removals} × {machine.params} device(s)"
  )
  for title, value, unit in (
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
  ):
    table.add_row(title, numbers.amount(value, unit))
  seconds = found.seconds
  table.add_row("a round, at that peak", numbers.duration(seconds))
  table.add_row(f"{rounds} rounds", numbers.duration(rounds * seconds))
  table.add_row("most of it", planning.bottleneck(sizes, machine))
  return table


def fewest_devices(
  size: planning.Sizes, like: planning.Machine
) -> planning.Machine | None:
  """Returns the smallest mesh of powers of two that has enough memory.

  Args:
    size: of the federation.
    like: one device, with its memory.
  """
  most = math.inf if like.memory is None else like.memory
  for devices in range(MOST + 1):
    for along in range(min(devices, MOST_ALONG) + 1):
      machine = like._replace(removals=2 ** (devices - along), params=2**along)
      if planning.plan(size, machine).memory <= most:
        return machine
  return None


def show_fewest(federations: list[planning.Sizes], like, screen):
  """Prints, for each federation, the fewest devices that it fits.

  Args:
    federations: their sizes.
    like: one device, with its memory.
    screen: a rich console.
  """
  shown = rich_table.Table(
    *("clients", "params", "devices", "memory", "a round", "most of it")
  )
  for size in federations:
    machine = fewest_devices(size, like)
    cells = ["none fits"]
    if machine is not None:
      found = planning.plan(size, machine)
      cells = [
        f"{machine.removals} × {machine.params}",
        numbers.amount(found.memory, "B"),
        numbers.duration(found.seconds),
        planning.bottleneck(size, machine),
      ]
    labels = map(numbers.scientific, (size.clients, size.params))
    shown.add_row(*labels, *cells)
  screen.print(shown)


def made_up(
  clients: int,
  params: int,
  *,
  participants: int = 10,
  steps: int = 2,
  samples: int = 20,
  examples: int = 100,
) -> planning.Sizes:
  """Makes up a federation that keeps every ε with one estimator.

  Args:
    clients: K.
    params: P.
    participants: of a round, B.
    steps: local steps, m.
    samples: gradients per step, N_s.
    examples: of a participant.
  """
  rows = steps * samples
  return planning.Sizes(
    clients=clients,
    params=params,
    participants=participants,
    uploads=(4 * rows * params,),
    propagations=(4 * rows * params,),
    # Forward, for the inputs and for the weights: two operations each.
    training=6 * params * steps * examples,
  )
