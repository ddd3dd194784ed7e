"""Killed, interrupted or out of space: a run resumes and ends the same."""

import os
import random
import signal
import subprocess
import time

import pytest

from tests import binaries

KILLS = int(os.environ.get("FEDINF_KILLS", "4"))
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
  return subprocess.Popen(
    binaries.command("run", *ARGUMENTS, f"--workdir={folder}"),
    cwd=binaries.ROOT,
    env=binaries.environment(),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def wait_for_progress(process, folder, lines):
  """Waits until timing.jsonl has grown by some lines, or the run has ended."""
  log = folder / "timing.jsonl"
  count = lambda: len(log.read_bytes().splitlines()) if log.exists() else 0
  first = count()
  while process.poll() is None and count() < first + lines:
    time.sleep(0.005)


def test_killed_interrupted_and_damaged_it_ends_with_the_same_bytes(tmp_path):
  folder = tmp_path / "w"
  process = begin(folder)
  wait_for_progress(process, folder, 12)
  process.kill()
  process.communicate()
  assert not (folder / "summary.json").exists()

  process = begin(folder)
  wait_for_progress(process, folder, 3)
  process.send_signal(signal.SIGINT)
  printed, error = process.communicate(timeout=120)
  assert process.returncode == 130, (printed, error)
  assert "\nresuming after round " in printed
  assert error.startswith("stopped after round ")
  assert error.endswith("the same command resumes from there\n")
  stopped = int(error.split()[3])
  assert (folder / "checkpoints" / str(stopped)).exists()

  # A checkpoint that the disk has damaged is passed over, with a warning.
  spoil(folder / "checkpoints" / str(stopped))
  error = finish(folder)
  assert error.startswith(
    f"warning: the checkpoint of round {stopped} is damaged"
  )
  assert binaries.files(folder) == whole(tmp_path / "whole")


@pytest.mark.slow
def test_killed_at_random_it_ends_with_the_same_bytes(tmp_path):
  files = whole(tmp_path / "whole")
  folder, draw = tmp_path / "w", random.Random(0)
  killed = 0
  while killed < KILLS:
    process = begin(folder)
    wait_for_progress(process, folder, draw.randrange(1, 30))
    time.sleep(0.05 * draw.random())
    process.kill()
    ended = process.wait()
    process.communicate()
    if ended == 0:  # Done before it could be killed: begin anew.
      assert binaries.files(folder) == files
      folder = tmp_path / f"w{killed}"
      continue
    killed += 1
  finish(folder)
  assert binaries.files(folder) == files


@pytest.mark.slow
def test_out_of_space_is_one_line_and_the_run_resumes_later(tmp_path):
  folder = tmp_path / "w"
  # Files of at most 8 kB (16 blocks): a checkpoint's are larger. The shell sets
  # the limit: preexec_fn would fork a process in which JAX's threads run.
  done = binaries.start(
    "run",
    *ARGUMENTS,
    f"--workdir={folder}",
    prefix=("sh", "-c", 'ulimit -f 16; exec "$@"', "sh"),
  )
  assert done.returncode == 2, done.stderr
  assert done.stderr.count("\n") == 1
  assert done.stderr.startswith("error: ")
  finish(folder)
  assert binaries.files(folder) == whole(tmp_path / "whole")


def spoil(folder):
  """Overwrites the middle of the largest file of a checkpoint."""
  path = max(
    (p for p in folder.rglob("*") if p.is_file()),
    key=lambda p: p.stat().st_size,
  )
  content = bytearray(path.read_bytes())
  middle = len(content) // 2
  content[middle : middle + 64] = bytes(64)
  path.write_bytes(content)
