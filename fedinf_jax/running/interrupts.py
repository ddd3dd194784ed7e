"""Ctrl-C: the first one asks a run to stop, the second one ends it."""

import contextlib
import signal


@contextlib.contextmanager
def stop_requests():
  """Records the first Ctrl-C (or SIGTERM); yields a function that tells."""
  signals = (signal.SIGINT, signal.SIGTERM)
  before = [signal.getsignal(s) for s in signals]
  received: list[int] = []

  def handle(number, frame):
    if received:  # The second one ends the run at once.
      raise KeyboardInterrupt
    received.append(number)

  try:
    for s in signals:
      signal.signal(s, handle)
    yield lambda: bool(received)
  finally:
    for s, handler in zip(signals, before, strict=True):
      signal.signal(s, handler)
