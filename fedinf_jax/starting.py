"""What a command sets before NumPy and JAX are loaded; nobody else does."""

import os
import pathlib
import signal
import sys


def is_command() -> bool:
  """Says whether this is `fedinf` or `python -m fedinf_jax` as it starts."""
  # "-m" stands there only while Python looks for what it is to start.
  program = "".join(sys.argv[:1])
  return program == "-m" or pathlib.PurePath(program).stem == "fedinf"


def _set_up():
  # Alarms about slow compilation are no news to a user; errors are raised.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  # OpenBLAS's threads wait for one another in small eigendecompositions.
  os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
  # Nothing is written yet, and one line says more than a traceback.
  signal.signal(signal.SIGINT, _interrupted)


def _interrupted(number, frame):
  del number, frame
  os.write(2, b"interrupted\n")
  os._exit(130)


if is_command():
  _set_up()
