"""Memory, operations and traffic of each device in a run, by formula.

tests/planning_test.py compares them with the compiled program's own account.
"""

from collections.abc import Mapping
import math
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from fedinf_jax import influence
from fedinf_jax import memory
from fedinf_jax import simulation
from fedinf_jax.running import task as tasks

FLAG_BYTES = 12  # Per layer of a row: two rounds and a growth.


class Sizes(NamedTuple):
  """What the cost of a run depends on."""

  clients: int  # K, as many removals
  params: int  # P
  participants: int  # B
  uploads: tuple[int, ...]  # bytes per participant, of each kind of upload
  propagations: tuple[float, ...]  # operations per estimator: P_k on one ε
  training: float  # operations of one participant's local training
  replayed: int = 0  # E
  layers: int = 2
  data: int = 0  # bytes of all clients' examples
  drawn: float = 1.0  # share of the examples whose client ever takes part
  applied: bool = False  # some curvature is applied by participants instead
  gradient: int = 0  # bytes that one local step may take
  forward: int = 0  # bytes that one evaluation of the model may take
  item: int = 4  # bytes of a number


class Machine(NamedTuple):
  """The devices. One device is 1 × 1."""

  removals: int  # devices along this axis
  params: int
  flops: float  # operations per second of one device
  link: float = 25e9  # bytes per second that one device receives
  memory: float | None = None  # bytes of one device

  @property
  def devices(self) -> int:
    """How many there are."""
    return self.removals * self.params


class Plan(NamedTuple):
  """What one device holds, in bytes, and does in one round, in operations."""

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


class _Layout(NamedTuple):
  """How the work of a round lies on one device."""

  model: int  # bytes of a model
  upload: int  # bytes per participant, all kinds together
  rows: int  # of ε, were their parameters not cut
  replayed: int  # models
  together: int  # participants whose uploads exist at once
  lanes: int  # those of them that this device trains
  trained: int  # participants that this device trains in a round

  @property
  def eps(self):
    """Bytes of the device's part of one estimator's ε."""
    return self.rows * self.model


def plan(sizes: Sizes, machine: Machine) -> Plan:
  """Works out what each device needs; see `simulation.round` for the layout."""
  layout = _layout(sizes, machine)
  training, propagation, replay = _operations(sizes, layout)
  sent = layout.upload / machine.params + layout.model
  # A sum over all devices.
  share = (machine.devices - 1) / machine.devices
  traffic = 2 * sizes.participants * sent * share
  seconds = (training + propagation + replay) / machine.flops
  return Plan(
    state=_state(sizes, machine, layout),
    inputs=_inputs(sizes, machine, layout),
    working=_working(sizes, machine, layout),
    training=training,
    propagation=propagation,
    replay=replay,
    traffic=traffic,
    seconds=seconds + traffic / machine.link,
  )


def bottleneck(sizes: Sizes, machine: Machine) -> str:
  """Names what limits a run on such devices."""
  found = plan(sizes, machine)
  if machine.memory is not None and found.memory > machine.memory:
    return "memory"
  seconds = {
    "training": found.training / machine.flops,
    "propagation": found.propagation / machine.flops,
    "replay": found.replay / machine.flops,
    "traffic": found.traffic / machine.link,
  }
  return max(seconds, key=seconds.__getitem__)


def sizes_of(
  task: tasks.Task,
  estimators: Mapping[str, influence.Estimator],
  replayed: int,
  drawn: np.ndarray,
) -> Sizes:
  """Reads the sizes off a task.

  Args:
    task: whose model, clients and training are planned for.
    estimators: by name.
    replayed: number of removals that are replayed.
    drawn: bool [K], who ever takes part.
  """
  model, train, fed = task.model, task.train, task.fed
  params = model.param_shapes()
  largest = int(min(train.num_examples.max(), fed.batch_size or math.inf))
  x, y = (
    jax.ShapeDtypeStruct((largest, *a.shape[1:]), a.dtype)
    for a in (train.x, train.y)
  )
  loss = lambda w, x, y: model.loss(model.apply(w, x), y).mean()
  cost: Any = jax.jit(jax.grad(loss)).lower(params, x, y).cost_analysis()
  typical = min(train.num_examples.mean(), fed.batch_size or math.inf)
  training = cost["flops"] / largest * typical * fed.local_steps
  num_params = sum(a.size for a in jax.tree.leaves(params))
  uploads, propagations = _uploads(task, estimators, training, num_params)
  return Sizes(
    clients=train.num_clients,
    params=num_params,
    participants=fed.cohort_size,
    uploads=uploads,
    propagations=propagations,
    training=training,
    replayed=replayed,
    layers=len(jax.tree.leaves(params)),
    data=train.x.nbytes + train.y.nbytes,
    drawn=float(train.num_examples[drawn].sum() / len(train.x)),
    applied=any(e.curvature.interactive for e in estimators.values()),
    gradient=memory.gradient_bytes(model, params, (x, y)),
    forward=memory.intermediate_bytes(model.apply, params, x),
    item=train.x.dtype.itemsize,
  )


def _uploads(task, estimators, training, num_params):
  """Returns bytes per kind of upload, and operations per estimator."""
  uploads, propagations = {}, []
  for estimator in estimators.values():
    curvature = estimator.curvature
    if curvature.interactive:  # Training's derivative, on every ε.
      propagations.append(2 * training)
    elif curvature.serve is not None:  # 4 S P, once for all participants.
      rows = curvature.num_samples or 0
      propagations.append(4 * rows * num_params / task.fed.cohort_size)
    else:
      bytes_ = simulation.upload_bytes(
        task.model, task.train, task.fed, estimator
      )
      uploads[curvature.key] = bytes_
      item = task.train.x.dtype.itemsize
      propagations.append(4 * bytes_ / item)  # 4 m S P
  return tuple(b for b in uploads.values() if b), tuple(propagations)


def _layout(sizes, machine):
  devices = machine.devices
  upload = sum(sizes.uploads)
  together = min(sizes.participants, memory.uploads_at_once(upload))
  lanes = math.ceil(together / devices)
  return _Layout(
    model=sizes.params * sizes.item,
    upload=upload,
    rows=math.ceil(sizes.clients / devices),
    replayed=math.ceil(sizes.replayed / devices),
    together=together,
    lanes=lanes,
    trained=math.ceil(sizes.participants / together) * lanes,
  )


def _state(sizes, machine, layout):
  flags = layout.rows * machine.params * sizes.layers * FLAG_BYTES
  estimators = len(sizes.propagations) * (layout.eps + flags)
  return estimators + (layout.replayed + 1) * layout.model


def _inputs(sizes, machine, layout):
  if machine.devices == 1:
    return sizes.data
  # Those who are drawn; where nobody else needs them, on one device each.
  inputs = sizes.data * sizes.drawn
  alone = not layout.replayed and not sizes.applied
  return inputs / machine.devices if alone else inputs


def _working(sizes, machine, layout):
  """Returns the bytes of the stage of a round that needs the most."""
  estimators = len(sizes.propagations)
  end = (estimators + 1) * layout.eps if estimators else 0
  replay = 0
  if layout.replayed:
    per_row = layout.lanes * sizes.gradient + 4 * layout.model
    chunk = memory.models_at_once(layout.replayed, per_row)
    replay = chunk * layout.lanes * (2 * layout.model + sizes.forward)
    replay += 2 * layout.replayed * layout.model
  return max(_receiving(sizes, machine, layout), end, replay)


def _receiving(sizes, machine, layout):
  """Returns the bytes that uploads, and what becomes of them, take."""
  # Uploads exist twice while waves of several, or devices, put them together,
  # and whole before they are cut.
  at_once = memory.models_at_once(layout.lanes, max(1, sizes.gradient))
  copies = 2 if machine.devices > 1 or at_once > 1 else 1
  there = max(layout.together / machine.params, layout.lanes)
  bytes_ = len(sizes.propagations) * layout.eps + at_once * sizes.forward
  bytes_ += copies * there * layout.upload
  bytes_ += 2 * sizes.participants * layout.model
  for upload in sizes.uploads:  # Gram matrices, u = Gε and what comes of it.
    n = upload / layout.model
    columns = n + 4 * layout.rows * machine.params
    bytes_ += layout.together * n * columns * sizes.item
  if sizes.applied:  # What a participant takes from every ε, and its sum.
    bytes_ += 2 * layout.eps
  return bytes_


def _operations(sizes, layout):
  """Returns the operations of training, propagation and replay."""
  gradients = layout.upload / layout.model * 6 * sizes.params
  training = layout.trained * (sizes.training + gradients)
  propagation = layout.rows * sizes.participants * sum(sizes.propagations)
  for upload in sizes.uploads:  # Gram matrices, where the participants are.
    n = upload / layout.model
    propagation += layout.trained * 2 * n**2 * sizes.params
  replay = layout.replayed * sizes.participants * sizes.training
  return training, propagation, replay
