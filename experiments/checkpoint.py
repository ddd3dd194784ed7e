"""Checkpoints of a run's whole state, by orbax, with a check of their own.

Orbax writes a checkpoint beside its place and renames it, so a killed run
leaves a whole one or none. What a disk does to it later is another matter: the
state's digest is saved with it, and a checkpoint that does not match is passed
over for the one before.
"""

from collections.abc import Callable
import hashlib
import pathlib
import sys
from typing import Any
from typing import NamedTuple

from absl import logging
import jax
import numpy as np
import orbax.checkpoint as ocp

LATEST = 2  # Checkpoints to keep, besides those asked for.


class Checkpoints(NamedTuple):
  """Where a run's states are kept."""

  save: Callable[[Any, int], None]  # (state, round)
  # restore(like, rounds=None, warn=print) -> (state, round), or (like, 0)
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
    leaves = jax.tree.leaves(jax.device_get(state))
    # When one of orbax's writers fails, those beside it fail later, in threads
    # of their own that print: what failed is raised here anyway.
    sys.unraisablehook = lambda _: None
    try:
      manager.save(
        round_,
        args=ocp.args.Composite(
          state=ocp.args.StandardSave(_named(leaves)),
          digest=ocp.args.JsonSave({"digest": _digest(leaves)}),
        ),
      )
    except Exception as error:  # Orbax raises what its parts raise.
      raise OSError(
        f"the checkpoint of round {round_} cannot be saved in {folder}"
        f" ({_reason(error)})"
      ) from error
    sys.unraisablehook = sys.__unraisablehook__

  def restore(like, rounds=None, warn=print):
    leaves, treedef = jax.tree.flatten(like)
    abstract = _named(
      [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in map(np.asarray, leaves)]
    )
    for round_ in sorted(rounds or manager.all_steps(), reverse=True):
      try:
        saved = manager.restore(
          round_,
          args=ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract),
            digest=ocp.args.JsonRestore(),
          ),
        )
        found = [saved["state"][name] for name in abstract]
        if _digest(found) != saved["digest"]["digest"]:
          raise ValueError("its content has changed")
        return treedef.unflatten(found), round_
      except Exception as error:  # Whatever is wrong with it, it is no use.
        warn(
          f"the checkpoint of round {round_} is damaged ({_reason(error)});"
          " going back to the one before"
        )
        if rounds is None:
          manager.delete(round_)
    return like, 0

  return Checkpoints(
    save, restore, lambda: sorted(manager.all_steps()), manager.close
  )


def _named(leaves):
  return {f"{i:04d}": leaf for i, leaf in enumerate(leaves)}


def _digest(leaves):
  made = hashlib.blake2b(digest_size=16)
  for leaf in leaves:
    made.update(np.ascontiguousarray(leaf))
  return made.hexdigest()


def _reason(error):
  """Returns the end of an error's first line; before it stand only paths."""
  line = (str(error).strip() or type(error).__name__).splitlines()[0]
  return line.rsplit('": ', 1)[-1][:200]
