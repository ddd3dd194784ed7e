"""Checkpoints of a run's whole state, by orbax, with a check of their own.

Orbax writes a checkpoint beside its place and renames it, so a killed run
leaves a whole one or none. What a disk does to it later is another matter: the
state's digest is saved with it, and a checkpoint that does not match is passed
over for the one before. A checkpoint of a run on some devices can be restored
onto others.
"""

from collections.abc import Callable
from collections.abc import Iterable
import pathlib
import sys
from typing import Any

from absl import logging
import jax
from jax import lax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from fedinf_jax.running import processes
from fedinf_jax.simulation import devices

LATEST = 2  # checkpoints to keep, besides those of the rounds to keep


class Checkpoints:
  """The states of a run that are kept in a folder."""

  def __init__(self, folder: pathlib.Path, keep: Iterable[int]):
    """Opens the checkpoints.

    Args:
      folder: made if it does not exist.
      keep: rounds whose checkpoints stay for good.
    """
    # Orbax logs what it also raises; the user gets our one line.
    logging.set_verbosity(logging.FATAL)
    policies = ocp.checkpoint_managers.preservation_policy
    self._folder = folder
    self._manager = ocp.CheckpointManager(
      folder.absolute(),
      options=ocp.CheckpointManagerOptions(
        preservation_policy=policies.AnyPreservationPolicy(
          [policies.LatestN(LATEST), policies.CustomSteps(sorted(keep))]
        ),
        enable_async_checkpointing=False,
        cleanup_tmp_directories=True,
      ),
    )
    self.close = self._manager.close

  def rounds(self) -> list[int]:
    """Returns the rounds that have a checkpoint."""
    return sorted(self._manager.all_steps())

  def save(self, state, round_: int):
    """Saves the state after a round."""
    digest = _digest(state)
    if devices.mesh_of(state) is None:
      state = jax.device_get(state)
    # When one of orbax's writers fails, those beside it fail later, in threads
    # of their own that print: what failed is raised here anyway.
    sys.unraisablehook = lambda _: None
    try:
      self._manager.save(
        round_,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(_named(jax.tree.leaves(state))),
          digest=ocp.args.JsonSave({"digest": digest}),
        ),
      )
    except Exception as error:  # Orbax raises what its parts raise.
      if jax.process_count() > 1 and not isinstance(error, OSError):
        raise processes.Alone(_reason(error)) from error
      raise OSError(
        f"the checkpoint of round {round_} cannot be saved in {self._folder}"
        f" ({_reason(error)})"
      ) from error
    sys.unraisablehook = sys.__unraisablehook__

  def restore(
    self,
    init: Callable[[], Any],
    rounds: list[int] | None = None,
    warn: Callable[[str], None] = print,
    up_to: int | None = None,
  ) -> tuple[Any, int]:
    """Restores the latest state that is not damaged.

    Args:
      init: makes the state of round 0, whose shapes and devices are used.
      rounds: which checkpoints to try; None: all there are, and those that are
        damaged are deleted.
      warn: told about those that are damaged.
      up_to: the last round that is of use; None: all are.

    Returns:
      The state and its round; `init()` and 0 if there is none.
    """
    there = sorted(rounds or self.rounds(), reverse=True)
    like = init()
    if not there:
      return like, 0
    replayed = getattr(like, "replayed", None)
    mesh = devices.mesh_of(like)
    target = jax.tree.map(_shape, like)
    del like  # There may be no room for two states.
    for round_ in there:
      try:
        if up_to is not None and round_ > up_to:
          raise _Unusable(f"is of no use, as logs are whole up to {up_to}")
        state = self._restored(target, replayed, round_)
        return jax.device_get(state) if mesh is None else state, round_
      except _Unusable as damage:
        warn(
          f"the checkpoint of round {round_} {damage}; going back to the one"
          " before"
        )
      if rounds is None:
        self._manager.delete(round_)
    return init(), 0

  def _restored(self, target, replayed, round_):
    """Returns the state of a round, or raises _Unusable on every process.

    Args:
      target: the shapes of the state.
      replayed: int32 [E], removals replayed on these devices, padding
        included; None: none.
      round_: which round.
    """
    leaves, treedef = jax.tree.flatten(target)
    state: Any = None
    digest, reason = None, "another process found it so"
    try:
      saved = self._manager.restore(
        round_,
        args=ocp.args.Composite(
          # Not strict: other devices may need another number of padding rows.
          state=ocp.args.StandardRestore(_named(leaves), strict=False),
          digest=ocp.args.JsonRestore(),
        ),
      )
      digest = saved["digest"]["digest"]
      values = [saved["state"][n] for n in _named(leaves)]
      state = jax.tree.unflatten(treedef, values)
    except Exception as error:  # Whatever is wrong with it, it is no use.
      reason = _reason(error)
    if not processes.gather(state is not None).all():
      raise _Unusable(f"is damaged ({reason})")
    if replayed is not None:  # Padding is not the checkpoint's.
      state = state._replace(replayed=replayed)
    if _digest(state) != digest:
      raise _Unusable("is damaged (its content has changed)")
    own = getattr(state, "round", None)
    if own is not None and int(own) != round_:
      raise _Unusable(f"is damaged (it is a copy of that of round {int(own)})")
    return state


class _Unusable(Exception):
  """A checkpoint cannot be used; says why."""


def _shape(array):
  return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding)


def _named(leaves):
  return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}


def _digest(state):
  """Returns a fingerprint of a state, whatever devices it lies on."""
  return "".join(f"{int(part):08x}" for part in _sums(state))


@jax.jit
def _sums(state):
  """Sums all bits, each word times an odd number that depends on its place.

  Integers, so the order does not matter; nor do padding rows (zeros, or taken
  out here). One changed word always changes the sums.
  """
  if getattr(state, "replayed", None) is not None:
    real = state.replayed < state.num_removals
    replayed = jnp.where(real, state.replayed, 0)
    keep = jax.vmap(lambda real, a: jnp.where(real, a, 0))
    replay = jax.tree.map(lambda a: keep(real, a), state.replay)
    state = state._replace(replayed=replayed, replay=replay)
  totals = [jnp.uint32(0), jnp.uint32(0)]
  for j, leaf in enumerate(jax.tree.leaves(state)):
    if leaf.dtype == bool:
      leaf = leaf.astype(jnp.uint32)
    words = lax.bitcast_convert_type(leaf, jnp.uint32)
    place = jnp.full(words.shape, j, jnp.uint32)
    stride = 1
    for axis in reversed(range(words.ndim)):
      index = lax.broadcasted_iota(jnp.uint32, words.shape, axis)
      place += index * jnp.uint32(stride % 2**32)
      stride *= words.shape[axis]
    for i, factor in enumerate((0x85EBCA6B, 0xC2B2AE35)):
      mixed = (place ^ (place >> 16)) * jnp.uint32(factor)
      weight = (mixed ^ (mixed >> 13)) | jnp.uint32(1)
      totals[i] += (words * weight).sum(dtype=jnp.uint32)
  return totals


def _reason(error):
  """Returns the end of an error's first line; before it stand only paths."""
  line = (str(error).strip() or type(error).__name__).splitlines()[0]
  return line.rsplit('": ', 1)[-1][:200]
