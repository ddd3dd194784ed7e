"""Several processes that run one program together, by JAX's own means.

Every process runs the same lines in the same order. Only the first writes files
and speaks; what depends on a clock, a signal or a disk is agreed upon first.
"""

import ctypes
import os
import signal
import sys

from absl import flags
import jax
from jax.experimental import multihost_utils
import numpy as np

FINISH_SECONDS = 3600  # How long the others wait for the first one's report.

_DISTRIBUTED = flags.DEFINE_boolean(
  "distributed", False, "Join other processes; Slurm, TPU pods and MPI are"
  " detected, elsewhere give the three flags below.",
)  # fmt: skip
_COORDINATOR = flags.DEFINE_string(
  "coordinator", None, "Host and port of process 0, such as node1:1234."
)
_NUM_PROCESSES = flags.DEFINE_integer(
  "num_processes", None, "How many processes there are.", lower_bound=1
)
_PROCESS_ID = flags.DEFINE_integer(
  "process_id", None, "The number of this one, from 0.", lower_bound=0
)
_HEARTBEAT_SECONDS = flags.DEFINE_integer(
  "heartbeat_seconds", 30, "A process that is silent for so long is gone.",
  lower_bound=2,
)  # fmt: skip


class Alone(Exception):
  """What can only be done together has failed."""


def join():
  """Joins the other processes, if the flags say that there are any."""
  given = _COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_ID.value
  if given == (None, None, None) and not _DISTRIBUTED.value:
    return
  if None in given and not _DISTRIBUTED.value:
    raise ValueError(
      "--coordinator, --num_processes and --process_id go together; where JAX"
      " can find them out, --distributed is enough"
    )
  _last_words()
  try:
    jax.distributed.initialize(
      *given,
      heartbeat_timeout_seconds=_HEARTBEAT_SECONDS.value,
      shutdown_timeout_seconds=FINISH_SECONDS,
    )
  except RuntimeError as error:
    raise ValueError(f"the processes do not find each other: {error}") from (
      error
    )


def is_first() -> bool:
  """Says whether this process writes and speaks."""
  return jax.process_index() == 0


def gather(*numbers) -> np.ndarray:
  """Returns everybody's numbers, a row for each process."""
  mine = np.array(numbers, float)
  if jax.process_count() == 1:
    return mine[None]
  return np.asarray(multihost_utils.process_allgather(mine))


def on_first(function, *args):
  """Calls a function on the first process; what it raises, all raise."""
  error = None
  if is_first():
    try:
      function(*args)
    except (ValueError, OSError) as raised:
      error = raised
  if gather(error is not None)[0, 0]:
    raise error or ValueError("the first process has said what is wrong")


def leave(code: int):
  """Ends this process; where there are others, without waiting for them."""
  sys.stdout.flush()
  sys.stderr.flush()
  if jax.distributed.is_initialized():
    os._exit(code)
  sys.exit(code)


def alone(reason: str) -> str:
  """Says why a process without the others cannot go on."""
  reason = " ".join(reason.split())[:200]
  return (
    f"error: this process cannot go on ({reason}); if another one has ended,"
    " start all of them again: they resume from the last checkpoint"
  )


def _last_words():
  """Turns the end that JAX prepares for a process left alone into one line.

  When others are gone JAX's runtime writes pages to the error output and
  aborts, from a thread of its own. What it writes is dropped (unless the
  variable FEDINF_RUNTIME_LOG names a file for it); the abort speaks for itself.
  """
  voice = os.dup(2)
  sys.stdout = os.fdopen(os.dup(1), "w", buffering=1)
  sys.stderr = os.fdopen(voice, "w", buffering=1)
  path = os.environ.get("FEDINF_RUNTIME_LOG", os.devnull)
  log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
  os.dup2(log, 1)
  os.dup2(log, 2)

  @ctypes.CFUNCTYPE(None, ctypes.c_int)
  def say(number):
    del number
    os.write(voice, (alone("JAX's runtime gave up") + "\n").encode())
    os._exit(1)

  _last_words.handler = say  # C keeps no reference to it.
  ctypes.CDLL(None).signal(signal.SIGABRT, say)
