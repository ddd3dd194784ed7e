"""Binaries: flags in, files and tables out."""

import os
import signal
import sys

# XLA's alarms about slow compilation are no news to a user; errors are raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# Our eigendecompositions are small. OpenBLAS's threads wait for one another in
# them, and on busy cores that takes twenty times as long as the work.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _interrupted(number, frame):
  del number, frame
  os.write(2, b"interrupted\n")
  os._exit(130)


# Ctrl-C while modules are imported: nothing is written yet, and one line says
# more than a traceback. "-m" stands there only when Python starts a binary.
# `launch.run` takes over.
if sys.argv[0] == "-m":
  signal.signal(signal.SIGINT, _interrupted)
