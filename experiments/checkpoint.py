"""Checkpoints of a run's whole state, by orbax, with a check of their own.

Orbax writes a checkpoint beside its place and renames it, so a killed run
leaves a whole one or none. What a disk does to it later is another matter: the
state's digest is saved with it, and a checkpoint that does not match is passed
over for the one before. A checkpoint of a run on some devices can be restored
onto others.
"""

from collections.abc import Callable
import pathlib
import sys
from typing import Any
from typing import NamedTuple

from absl import logging
import jax
from jax import lax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from experiments import processes
from fedinf_jax import sharding

LATEST = 2  # Checkpoints to keep, besides those asked for.


class Checkpoints(NamedTuple):
  """Where a run's states are kept."""

  save: Callable[[Any, int], None]  # (state, round)
  # restore(init, rounds=None, warn=print) -> (state, round), or (init(), 0)
  restore: Callable[..., tuple[Any, int]]
  rounds: Callable[[], list[int]]
  close: Callable[[], None]


def checkpoints(folder: pathlib.Path, keep: set[int]) -> Checkpoints:
  """Opens the checkpoints in `folder`.

  Args:
    folder: made if it is not there.
    keep: rounds whose checkpoints stay for good.
  """
  # Orbax logs what it also raises; the user gets our one line.
  logging.set_verbosity(logging.FATAL)
  policies = ocp.checkpoint_managers.preservation_policy
  manager = ocp.CheckpointManager(
    folder.absolute(),
    options=ocp.CheckpointManagerOptions(
      preservation_policy=policies.AnyPreservationPolicy(
        [policies.LatestN(LATEST), policies.CustomSteps(sorted(keep))]
      ),
      enable_async_checkpointing=False,
      cleanup_tmp_directories=True,
    ),
  )

  def save(state, round_):
    digest = _digest(state)
    if sharding.mesh_of(state) is None:
      state = jax.device_get(state)
    # When one of orbax's writers fails, those beside it fail later, in threads
    # of their own that print: what failed is raised here anyway.
    sys.unraisablehook = lambda _: None
    try:
      manager.save(
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
        f"the checkpoint of round {round_} cannot be saved in {folder}"
        f" ({_reason(error)})"
      ) from error
    sys.unraisablehook = sys.__unraisablehook__

  def restore(init, rounds=None, warn=print):
    there = sorted(rounds or manager.all_steps(), reverse=True)
    like = init()
    if not there:
      return like, 0
    leaves, treedef = jax.tree.flatten(like)
    abstract = _named(
      [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
       for a in leaves]
    )  # fmt: skip
    rows = getattr(like, "rows", None)
    mesh = sharding.mesh_of(like)
    del like, leaves  # There may be no room for two states.
    for round_ in there:
      state, error = None, "another process found it so"
      try:
        saved = manager.restore(
          round_,
          args=ocp.args.Composite(
            # Not strict: other devices may fill rows up to another number.
            state=ocp.args.StandardRestore(abstract, strict=False),
            digest=ocp.args.JsonRestore(),
          ),
        )
        state = treedef.unflatten([saved["state"][name] for name in abstract])
      except Exception as raised:  # Whatever is wrong with it, it is no use.
        error = raised
      if processes.gather(state is not None).all():
        if rows is not None:  # How they are filled up is not the checkpoint's.
          state = state._replace(rows=rows)
        if _digest(state) == saved["digest"]["digest"]:
          return (state if mesh else jax.device_get(state)), round_
        error = "its content has changed"
      state = None
      warn(
        f"the checkpoint of round {round_} is damaged ({_reason(error)});"
        " going back to the one before"
      )
      if rounds is None:
        manager.delete(round_)
    return init(), 0

  return Checkpoints(
    save, restore, lambda: sorted(manager.all_steps()), manager.close
  )


def _named(leaves):
  return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}


def _digest(state):
  """Returns a fingerprint of a state, whatever devices it lies on."""
  return "".join(f"{int(part):08x}" for part in _sums(state))


@jax.jit
def _sums(state):
  """Sums all bits, each word times an odd number that depends on its place.

  Integers, so the order does not matter; rows that only fill up (zeros, or
  taken out here) do not, either. One changed word always changes the sums.
  """
  if getattr(state, "rows", None) is not None:
    real = state.rows < state.num_removals
    rows = jnp.where(real, state.rows, 0)
    keep = jax.vmap(lambda real, a: jnp.where(real, a, 0))
    replay = jax.tree.map(lambda a: keep(real, a), state.replay)
    state = state._replace(rows=rows, replay=replay)
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
