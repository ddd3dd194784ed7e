"""Runs that are killed and started again."""

import time

from tests import binaries

ARGUMENTS = (
  *binaries.SMALL,
  "--config.fed.rounds=400",  # Scaled down to 40.
  "--config.cleanse_round=100",
  "--checkpoint_rounds=3",
)


def whole(folder):
  """Returns the files of an uninterrupted run."""
  finish(folder)
  return binaries.files(folder)


def finish(folder):
  """Runs to the end; returns what is printed as an error."""
  done = binaries.start("run", *ARGUMENTS, f"--workdir={folder}")
  assert done.returncode == 0, done.stderr
  return done.stderr


def begin(folder):
  return binaries.begin("run", *ARGUMENTS, f"--workdir={folder}")


def wait_for_progress(process, folder, lines):
  """Waits until timing.jsonl has grown by some lines, or the run has ended."""
  log = folder / "timing.jsonl"
  count = lambda: len(log.read_bytes().splitlines()) if log.exists() else 0
  first = count()
  while process.poll() is None and count() < first + lines:
    time.sleep(0.005)


def spoil(checkpoint):
  """Overwrites the middle of the largest file of a checkpoint."""
  path = max(
    (p for p in checkpoint.rglob("*") if p.is_file()),
    key=lambda p: p.stat().st_size,
  )
  content = bytearray(path.read_bytes())
  middle = len(content) // 2
  content[middle : middle + 64] = bytes(64)
  path.write_bytes(content)
