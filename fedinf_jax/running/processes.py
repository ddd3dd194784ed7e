"""Several processes that run one program together, by JAX's own means.

Every process runs the same lines in the same order. Only the first writes files
and prints; what depends on a clock, a signal or a disk is agreed upon first.
"""

import ctypes
import os
import signal
import sys

import jax
from jax.experimental import multihost_utils
import numpy as np

FINISH_SECONDS = 3600  # How long the others wait for the first one's report.

# The handler that C calls at an abort: C keeps no reference to it.
_abort_handler = None


class Alone(Exception):
  """What can only be done together has failed."""


def join(
  *,
  coordinator: str | None,
  num_processes: int | None,
  process_id: int | None,
  heartbeat_seconds: int,
  distributed: bool,
):
  """Joins the other processes, if there are any.

  Args:
    coordinator: host and port of process 0.
    num_processes: how many there are.
    process_id: the number of this one, from 0.
    heartbeat_seconds: a process that is silent for that long is gone.
    distributed: there are others; JAX finds out what is not given.
  """
  given = coordinator, num_processes, process_id
  if given == (None, None, None) and not distributed:
    return
  if None in given and not distributed:
    raise ValueError(
      "--coordinator, --num_processes and --process_id go together; where JAX"
      " can find them out, --distributed is enough"
    )
  end_aborts_with_one_line()
  try:
    jax.distributed.initialize(
      *given,
      heartbeat_timeout_seconds=heartbeat_seconds,
      shutdown_timeout_seconds=FINISH_SECONDS,
    )
  except RuntimeError as error:
    raise ValueError(f"the processes do not find each other: {error}") from (
      error
    )


def is_first() -> bool:
  """Says whether this process writes and prints."""
  return jax.process_index() == 0


def gather(*numbers) -> np.ndarray:
  """Returns the numbers of all processes, a row per process."""
  mine = np.array(numbers, float)
  if jax.process_count() == 1:
    return mine[None]
  return np.asarray(multihost_utils.process_allgather(mine))


def on_first(function, *args):
  """Calls a function on the first process; what it raises, all raise.

  Returns:
    What the function returned; None on the other processes.
  """
  found = error = None
  if is_first():
    try:
      found = function(*args)
    except (ValueError, OSError) as raised:
      error = raised
  if gather(error is not None)[0, 0]:
    raise error or ValueError("the first process reports the error")
  return found


def leave(code: int):
  """Ends this process; where there are others, without waiting for them."""
  sys.stdout.flush()
  sys.stderr.flush()
  if jax.distributed.is_initialized():
    os._exit(code)
  sys.exit(code)


def alone(reason: str) -> str:
  """Says why a process without the others cannot continue."""
  reason = " ".join(reason.split())[:200]
  return (
    f"error: this process cannot continue ({reason}); if another one has ended,"
    " start all of them again: they resume from the last checkpoint"
  )


def end_aborts_with_one_line():
  """Replaces the pages that JAX writes when other processes are gone.

  JAX's runtime then writes to the error output and aborts, from a thread of its
  own. What it writes is dropped (unless the variable FEDINF_RUNTIME_LOG names a
  file for it), and the abort becomes one line.
  """
  global _abort_handler
  errors = os.dup(2)
  sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
  sys.stderr = os.fdopen(errors, "w", buffering=1)
  path = os.environ.get("FEDINF_RUNTIME_LOG", os.devnull)
  log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  os.dup2(log, 1)
  os.dup2(log, 2)

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def handler(number):
    del number
    os.write(errors, (alone("JAX's runtime gave up") + "\n").encode())
    os._exit(1)

  _abort_handler = handler
  ctypes.CDLL(None).signal(signal.SIGABRT, handler)
