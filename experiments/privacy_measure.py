"""Attacks on uploads, measured: which images come back, and how well."""

from collections.abc import Iterator
from typing import Any
from typing import NamedTuple

import jax
import numpy as np

from experiments import privacy_attacks as attacks
from experiments import privacy_defences as defences
from experiments import privacy_uploads as uploads
import fedinf_jax as fi
from fedinf_jax import types

RANK = 4


def training(local_steps: int) -> fi.FedAvg:
  """Returns how clients train, as in setting 2."""
  return fi.FedAvg(
    rounds=1, cohort_size=1, local_steps=local_steps, learning_rate=0.03
  )


class Found(NamedTuple):
  """Images that an attack found, beside those that there were."""

  what: str  # was sent
  images: np.ndarray  # [N, 28, 28, 1], each beside its true one
  psnr: np.ndarray  # [N], in decibels


class Secrets(NamedTuple):
  """The images of some clients, whose messages are attacked."""

  x: np.ndarray  # [clients, n, 28, 28, 1]
  y: np.ndarray  # [clients, n]

  @property
  def images(self) -> np.ndarray:
    """All of them, [N, 28, 28, 1]."""
    return self.x.reshape(-1, *attacks.IMAGE)

  def by(self, n: int) -> "Secrets":
    """Deals the same images to clients with n each."""
    return Secrets(self.x.reshape(-1, n, *attacks.IMAGE), self.y.reshape(-1, n))


def secrets(
  writers: fi.FederatedData, clients: int, images: int, seed: int
) -> Secrets:
  """Draws images at random."""
  some = np.random.default_rng([seed, 2]).permutation(len(writers.x))
  some = some[: clients * images]
  shape = clients, images
  x = np.asarray(writers.x[some], np.float32)
  return Secrets(
    x.reshape(*shape, *attacks.IMAGE), writers.y[some].reshape(shape)
  )


def sample(count: int, **options: Any):
  """Returns the curvature whose uploads are attacked: whole vectors."""
  return fi.fisher(
    num_samples=count, labels="sampled", layerwise=False, **options
  )


def _sent(model, fed, params, secrets_, curvature):
  """Returns the messages of clients with these images."""
  n = secrets_.x.shape[1]
  send = uploads.sender(model, fed, params, n, curvature)
  pairs = zip(secrets_.x, secrets_.y, strict=True)
  return [send(x, y, i) for i, (x, y) in enumerate(pairs)]


class Bench:
  """One network at its start, clients, and an attacker.

  Attributes:
    net: the network.
    params: w_0.
    secrets: the clients' images.
  """

  def __init__(self, net, secrets_: Secrets, steps: int, seed: int):
    self.net, self.secrets = net, secrets_
    self.params = net.model.init(jax.random.key(seed))
    self.attacker = attacks.Attacker(net, steps)

  def send(self, curvature) -> list[uploads.Messages]:
    """Returns every client's messages; of uploads, the first step's rows."""
    fed = training(local_steps=1)
    return _sent(self.net.model, fed, self.params, self.secrets, curvature)

  def update_alone(self, n: int) -> Found:
    """FedAvg itself: inverts updates of clients with n images each."""
    dealt, fed = self.secrets.by(n), training(local_steps=1)
    sent = _sent(self.net.model, fed, self.params, dealt, None)
    update = jax.tree.map(lambda *a: np.stack(a), *[m.update for m in sent])
    found = self.attacker.from_update(self.params, update, dealt.y, fed)
    return self._found(f"FedAvg's update alone, n_k = {n}", found)

  def uploaded(self) -> types.Params:
    """Returns all clients' gradients, as they are."""
    n = self.secrets.x.shape[1]
    return uploads.stacked([m.rows for m in self.send(sample(n))])

  def single_gradients(self, what: str, rows: types.Params) -> Found:
    """Inverts every row as the gradient of one image."""
    return self._by_client(
      what, self.attacker.from_gradients(self.params, rows)
    )

  def rotated(self) -> types.Params:
    """Unmixes rotated rows."""
    n = self.secrets.x.shape[1]
    sent = self.send(sample(n, spectrum="relu"))
    return uploads.stacked([self.unmixed(m, n).gradients for m in sent])

  def compressed(self, what: str, rank: int) -> Found:
    """Unmixes what the first dense layer read, and inverts that."""
    n = self.secrets.x.shape[1]
    sent = self.send(sample(n, spectrum="relu", rank=rank))
    inputs = np.concatenate([self.unmixed(m, n).inputs for m in sent])
    return self._by_client(what, self.attacker.from_inputs(self.params, inputs))

  def unmixed(self, message: uploads.Messages, count: int) -> attacks.Unmixed:
    """Unmixes one upload by its first dense layer."""
    layer = message.rows["dense1"]
    return attacks.unmix(layer["kernel"], layer["bias"], message.rows, count)

  def _by_client(self, what, images):
    shape = *self.secrets.y.shape, *attacks.IMAGE
    return self._found(what, np.reshape(images, shape))

  def _found(self, what, images):
    dealt = self.secrets.by(images.shape[1])
    pairs = zip(images, dealt.x, strict=True)
    images = np.concatenate([attacks.paired(a, b) for a, b in pairs])
    return Found(what, images, attacks.psnr(images, self.secrets.images))


def attack_images(
  bench: Bench, clip: float, multipliers: list[float], say
) -> Iterator[Found]:
  """Attacks every kind of message, one after the other.

  Args:
    bench: network, clients and attacker.
    clip: C.
    multipliers: z of each amount of noise.
    say: called with what is done next.
  """
  n = bench.secrets.x.shape[1]
  say("rows as they are")
  rows = bench.uploaded()
  yield bench.single_gradients("uploaded as they are", rows)
  # Clipping alone scales a row, which its direction does not show. The rows
  # are not rotated: rotation hides nothing, as the next attack shows.
  scale = np.sqrt(training(1).learning_rate / n)
  count = bench.secrets.y.size
  for z in multipliers:
    mechanism, key = defences.Mechanism(clip, z), jax.random.key(0)
    noised = defences.privatised(rows, mechanism, scale, count, key)
    yield bench.single_gradients(f"clipped, noise {z:g}", noised)
  say("rotated rows")
  yield bench.single_gradients("rotated, then unmixed", bench.rotated())
  for count in sorted({1, n}):
    say(f"FedAvg's update of n_k = {count}")
    yield bench.update_alone(count)
  if n > 1:
    rank = min(RANK, n - 1)
    say(f"rank {rank}")
    yield bench.compressed(f"rank {rank} of {n}, unmixed", rank)


class Mixed(NamedTuple):
  """How well inputs of a dense layer were unmixed, |Pearson| of each, [N]."""

  what: str
  independent: np.ndarray  # by independent component analysis
  algebra: np.ndarray | None  # by `attacks.unmix`; None: it needs single rows


def unmix_inputs(
  model: fi.Model, features, secrets_: Secrets, name: str, seed: int
) -> list[Mixed]:
  """Unmixes what a dense layer read, from rotated rows and from their sum.

  Args:
    model: with a layer "dense1".
    features: (params, image) -> what that layer reads.
    secrets_: the clients' images.
    name: of the network.
    seed: of its parameters.
  """
  params = model.init(jax.random.key(seed))
  n = secrets_.x.shape[1]
  found: dict[str, list] = {
    f"{name}: rotated rows of {n}": [],
    f"{name}: sum of {n}": [],
  }
  curvature = sample(n, spectrum="relu")
  messages = _sent(model, training(1), params, secrets_, curvature)
  for x, sent in zip(secrets_.x, messages, strict=True):
    true = np.asarray(jax.vmap(features, (None, 0))(params, x))
    layer = sent.rows["dense1"]
    kernel = np.asarray(layer["kernel"]).reshape(n, true.shape[1], -1)
    sides = np.moveaxis(kernel, 1, 2).reshape(-1, true.shape[1])
    by_algebra = attacks.unmix(
      layer["kernel"], layer["bias"], sent.rows, n
    ).inputs
    total = np.asarray(sent.update["dense1"]["kernel"]).T
    rotated, summed = found.values()
    rotated.append((
      attacks.correlations(attacks.independent_components(sides, n), true),
      attacks.correlations(by_algebra, true),
    ))  # fmt: skip
    components = attacks.independent_components(total, min(n, len(total)))
    summed.append((attacks.correlations(components, true), None))
  return [
    Mixed(
      what,
      np.concatenate([a for a, _ in pairs]),
      None if pairs[0][1] is None else np.concatenate([b for _, b in pairs]),
    )
    for what, pairs in found.items()
  ]


def logreg(seed: int, count: int = 50) -> dict[str, float]:
  """Reads the inputs of a logistic regression off single and rotated rows.

  Returns:
    The largest error of an entry, relative to the largest entry.
  """
  data = fi.data.synthetic(num_clients=60)
  k = int(np.argsort(-data.num_examples)[0])
  x, y = (a[:count] for a in data.client(k))
  model = fi.models.logreg(60, 5)
  params = model.init(jax.random.key(seed))
  errors = {}
  for what, options in (("single", {}), ("rotated", {"spectrum": "relu"})):
    curvature = sample(count, **options)
    sent = uploads.sender(model, training(1), params, count, curvature)(x, y, 0)
    kernel, bias = (sent.rows["dense"][n] for n in ("kernel", "bias"))
    if options:
      read = attacks.unmix(kernel, bias, sent.rows, count).inputs
    else:
      read = attacks.read_off(kernel.reshape(count, 60, 5), bias)
    found = attacks.paired(np.asarray(read), x)
    errors[what] = float(np.abs(found - x).max() / np.abs(x).max())
  return errors
