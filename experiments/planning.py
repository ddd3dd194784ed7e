"""What a run needs: memory, operations and traffic of each device, by formula.

Checked against the compiled program's own account in tests/planning_test.py.
"""

import math
from typing import NamedTuple

import jax
import numpy as np
from rich import table as rich_table

from experiments import problem as problems
import fedinf_jax as fi
from fedinf_jax import memory
from fedinf_jax import simulation

FLAG_BYTES = 12  # Of a row's layer: two rounds and a growth.


class Sizes(NamedTuple):
  """What the cost of a run depends on."""

  clients: int  # K, as many removals
  params: int  # P
  participants: int  # B
  uploads: tuple[int, ...]  # bytes of a participant's, of each kind
  propagations: tuple[float, ...]  # operations of each estimator, P_k on one ε
  training: float  # operations of one participant's local training
  replayed: int = 0  # E
  layers: int = 2
  data: int = 0  # bytes of all clients' examples
  drawn: float = 1.0  # share of them that ever takes part
  applied: bool = False  # some curvature is not uploaded but applied there
  gradient: int = 0  # bytes that one local step may take
  forward: int = 0  # bytes that one evaluation of the model may take
  item: int = 4  # bytes of a number


class Machine(NamedTuple):
  """The devices. One device is (1, 1)."""

  removals: int  # devices along this axis
  params: int
  flops: float  # operations a second, of one device
  link: float = 25e9  # bytes a second that one device receives
  memory: float | None = None  # bytes of one device

  @property
  def devices(self) -> int:
    """How many there are."""
    return self.removals * self.params


class Plan(NamedTuple):
  """What one device does, in bytes and in operations of one round."""

  state: float  # ε, flags, replayed models, the model
  inputs: float  # examples
  working: float  # the most that is held beside them within a round
  training: float  # operations: local training, and the uploads' gradients
  propagation: float
  replay: float
  traffic: float  # bytes received: models and uploads
  seconds: float  # of a round, at the peak of device and link

  @property
  def memory(self) -> float:
    """Bytes, in all."""
    return self.state + self.inputs + self.working

  @property
  def operations(self) -> float:
    """Operations of a round, in all."""
    return self.training + self.propagation + self.replay


def plan(sizes: Sizes, machine: Machine) -> Plan:
  """Works out what each device needs; see `engine` for what lies where."""
  devices = machine.devices
  model = sizes.params * sizes.item
  rows = math.ceil(sizes.clients / devices)  # of ε, were they not cut
  replayed = math.ceil(sizes.replayed / devices)
  eps = rows * model
  estimators = len(sizes.propagations)
  # Participants that are heard at once, and that one device trains in turn.
  upload = sum(sizes.uploads)
  together = sizes.participants
  if upload:
    fitting = max(1, simulation.UPLOAD_BYTES // upload)
    together = min(together, fitting)
  lanes = math.ceil(together / devices)
  turns = math.ceil(sizes.participants / together) * lanes

  flags = rows * machine.params * sizes.layers * FLAG_BYTES
  state = estimators * (eps + flags) + replayed * model + model
  inputs = sizes.data
  if devices > 1:  # Those who are drawn; on the device that trains them.
    inputs *= sizes.drawn
    if not replayed and not sizes.applied:
      inputs /= devices
  # Uploads exist twice while waves of several, or devices, put them together,
  # and whole before they are cut.
  at_once = memory.models_at_once(lanes, max(1, sizes.gradient))
  copies = 2 if devices > 1 or at_once > 1 else 1
  sent = copies * max(together / machine.params, lanes) * upload
  hear = estimators * eps + sent + 2 * sizes.participants * model
  hear += at_once * sizes.forward
  for bytes_ in sizes.uploads:  # Gram matrices, u = Gε and what comes of it.
    n = bytes_ / model
    hear += together * n * (n + 4 * rows * machine.params) * sizes.item
  if sizes.applied:  # What a participant takes from every ε, and its sum.
    hear += 2 * eps
  end = (estimators + 1) * eps if estimators else 0
  replay = 0
  if replayed:
    per_row = lanes * sizes.gradient + 4 * model
    chunk = memory.models_at_once(replayed, per_row)
    replay = chunk * lanes * (2 * model + sizes.forward) + 2 * replayed * model

  training = turns * (sizes.training + upload / model * 6 * sizes.params)
  propagation = rows * sizes.participants * sum(sizes.propagations)
  for bytes_ in sizes.uploads:  # Gram matrices, where the participants are.
    propagation += turns * 2 * (bytes_ / model) ** 2 * sizes.params
  again = replayed * sizes.participants * sizes.training
  sent = sizes.participants * (model + upload / machine.params)
  traffic = 2 * sent * (devices - 1) / devices  # A sum over all devices.
  seconds = (training + propagation + again) / machine.flops
  return Plan(
    state,
    inputs,
    max(hear, end, replay),
    training,
    propagation,
    again,
    traffic,
    seconds + traffic / machine.link,
  )


def bottleneck(sizes: Sizes, machine: Machine) -> str:
  """Names what binds a run on such devices."""
  found = plan(sizes, machine)
  if machine.memory is not None and found.memory > machine.memory:
    return "memory"
  at_work = {
    "training": found.training / machine.flops,
    "propagation": found.propagation / machine.flops,
    "replay": found.replay / machine.flops,
    "traffic": found.traffic / machine.link,
  }
  return max(at_work, key=at_work.get)


def compiled_bytes(step) -> int:
  """Returns what the compiled program of a simulator's `step` needs."""
  found = step.program().compile().memory_analysis()
  return (
    found.argument_size_in_bytes
    + found.output_size_in_bytes
    - found.alias_size_in_bytes
    + found.temp_size_in_bytes
  )


def table(
  sizes: Sizes, machine: Machine, rounds: int, compiled: int | None
) -> rich_table.Table:
  """Returns a plan for people to read.

  Args:
    sizes: what is planned for.
    machine: on which devices.
    rounds: of the whole run.
    compiled: what the compiled program needs, where it could be asked.
  """
  found = plan(sizes, machine)
  shown = rich_table.Table(
    "each device", "", title=f"{machine.removals} × {machine.params} device(s)"
  )
  for what, bytes_ in (
    ("ε, flags, replayed models", found.state),
    ("examples", found.inputs),
    ("working memory", found.working),
    ("memory in all", found.memory),
  ):
    shown.add_row(what, amount(bytes_, "B"))
  if compiled is not None:
    shown.add_row("… by the compiler's account", amount(compiled, "B"))
  shown.add_section()
  for what, operations in (
    ("training", found.training),
    ("propagation", found.propagation),
    ("replay", found.replay),
  ):
    shown.add_row(f"{what}, a round", amount(operations, "op"))
  shown.add_row("received, a round", amount(found.traffic, "B"))
  shown.add_section()
  shown.add_row("measured peak", amount(machine.flops, "op/s"))
  shown.add_row("a round, at that peak", f"{found.seconds:.3g} s")
  hours = rounds * found.seconds / 3600
  shown.add_row(f"{rounds} rounds", f"{hours:.3g} h")
  shown.add_row("most of it", bottleneck(sizes, machine))
  return shown


def amount(number: float, unit: str) -> str:
  """Writes a number with a prefix."""
  for prefix in ("", "k", "M", "G", "T"):
    if number < 1000:
      return f"{number:.3g} {prefix}{unit}"
    number /= 1000
  return f"{number:.3g} P{unit}"


def sizes_of(
  problem: problems.Problem, estimators: dict, replayed: int, drawn: np.ndarray
) -> Sizes:
  """Reads the sizes off a recipe's problem.

  Args:
    problem: the recipe's.
    estimators: by name.
    replayed: how many removals are replayed.
    drawn: bool [K], who ever takes part.
  """
  model, train, fed = problem.model, problem.train, problem.fed
  params = jax.eval_shape(model.init, jax.random.key(0))
  count = sum(a.size for a in jax.tree.leaves(params))
  most = int(min(train.num_examples.max(), fed.batch_size or math.inf))
  x, y = (
    jax.ShapeDtypeStruct((most, *a.shape[1:]), a.dtype)
    for a in (train.x, train.y)
  )
  loss = lambda w, x, y: model.loss(model.apply(w, x), y).mean()
  counted = _operations(jax.grad(loss), params, x, y) / most
  typical = min(train.num_examples.mean(), fed.batch_size or math.inf)
  training = counted * typical * fed.local_steps
  uploads, propagations, item = {}, [], train.x.dtype.itemsize
  for estimator in estimators.values():
    if not estimator.curvature.uploads:  # Training's derivative, on every ε.
      propagations.append(2 * training)
    else:
      bytes_ = fi.upload_bytes(model, train, fed, estimator)
      uploads[estimator.curvature.key] = bytes_
      propagations.append(4 * bytes_ / item)  # 4 m S P
  return Sizes(
    clients=train.num_clients,
    params=count,
    participants=fed.cohort_size,
    uploads=tuple(b for b in uploads.values() if b),
    propagations=tuple(propagations),
    training=training,
    replayed=replayed,
    layers=len(jax.tree.leaves(params)),
    data=train.x.nbytes + train.y.nbytes,
    drawn=float(train.num_examples[drawn].sum() / len(train.x)),
    applied=any(not e.curvature.uploads for e in estimators.values()),
    item=item,
    gradient=memory.intermediate_bytes(jax.grad(loss), params, x, y),
    forward=memory.intermediate_bytes(model.apply, params, x),
  )


def _operations(function, *args):
  """Counts a function's operations, as its lowered program does."""
  cost = jax.jit(function).lower(*args).cost_analysis()
  return cost["flops"]
