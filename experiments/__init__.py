"""Binaries: flags in, files and tables out."""

import os

# XLA's alarms about slow compilation are no news to a user; errors are raised.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
