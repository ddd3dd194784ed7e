"""Killed, interrupted or out of space: a run resumes and ends the same."""

import signal

import pytest

from tests import binaries
from tests import kills


def test_killed_interrupted_and_damaged_it_ends_with_the_same_bytes(tmp_path):
  folder = tmp_path / "w"
  process = kills.begin(folder)
  kills.wait_for_progress(process, folder, 12)
  process.kill()
  process.communicate()
  assert not (folder / "summary.json").exists()

  process = kills.begin(folder)
  kills.wait_for_progress(process, folder, 3)
  process.send_signal(signal.SIGINT)
  printed, error = process.communicate(timeout=120)
  assert process.returncode == 130, (printed, error)
  assert "\nresuming after round " in printed
  assert error.startswith("stopped after round ")
  assert error.endswith("the same command resumes from there\n")
  stopped = int(error.split()[3])
  assert (folder / "checkpoints" / str(stopped)).exists()

  # A checkpoint that the disk has damaged is passed over, with a warning.
  kills.spoil(folder / "checkpoints" / str(stopped))
  error = kills.finish(folder)
  assert error.startswith(
    f"warning: the checkpoint of round {stopped} is damaged"
  )
  assert binaries.files(folder) == kills.whole(tmp_path / "whole")


@pytest.mark.slow
def test_out_of_space_is_one_line_and_the_run_resumes_later(tmp_path):
  folder = tmp_path / "w"
  # Files of at most 8 kB (16 blocks): a checkpoint's are larger. The shell sets
  # the limit: preexec_fn would fork a process in which JAX's threads run.
  done = binaries.start(
    "run",
    *kills.ARGUMENTS,
    f"--workdir={folder}",
    prefix=("sh", "-c", 'ulimit -f 16; exec "$@"', "sh"),
  )
  assert done.returncode == 2, done.stderr
  assert done.stderr.count("\n") == 1
  assert done.stderr.startswith("error: ")
  kills.finish(folder)
  assert binaries.files(folder) == kills.whole(tmp_path / "whole")
