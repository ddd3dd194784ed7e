"""Starts the command fedinf; `python -m fedinf_jax` is the same."""

import os
import signal


def _interrupted(number, frame):
  del number, frame
  os.write(2, b"interrupted\n")
  os._exit(130)


def main():
  """Sets up the process, then imports what takes its time."""
  # Nothing is written yet: one line says more than a traceback.
  signal.signal(signal.SIGINT, _interrupted)
  # XLA's alarms about slow compilation are no news to a user.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
  # OpenBLAS's threads wait for one another in small eigendecompositions.
  os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
  from fedinf_jax.command import main as command

  command.start()


if __name__ == "__main__":
  main()
