"""Several processes, as a cluster would start them."""

import csv
import shutil
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from fedinf_jax.running import processes
from tests import binaries

ROUNDS = 40
ARGUMENTS = (
  *binaries.SMALL,
  f"--config.fed.rounds={10 * ROUNDS}",  # Scaled down.
  "--config.evaluate_every=200",
  "--config.cleanse_round=100",
  "--checkpoint_rounds=5",
  "--heartbeat_seconds=15",  # Less waiting than by default.
)


def begin(workdir, count=2, slurm=False):
  """Starts processes with two devices each; or one with one."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]

  def start(i):
    arguments, env = [*ARGUMENTS, f"--workdir={workdir}"], {}
    if count > 1:
      env = {"JAX_NUM_CPU_DEVICES": "2"}
    if slurm:  # As srun would: JAX finds everything out by itself.
      arguments += ["--distributed"]
      env |= {"SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost"}
      env |= {"SLURM_NTASKS": str(count), "SLURM_PROCID": str(i)}
      env |= {"SLURM_LOCALID": str(i)}
    elif count > 1:
      arguments += [f"--coordinator=localhost:{port}"]
      arguments += [f"--num_processes={count}", f"--process_id={i}"]
    return binaries.begin("run", *arguments, env=env)

  return [start(i) for i in range(count)]


def finish(started):
  printed = [process.communicate(timeout=300) for process in started]
  for process, (_, error) in zip(started, printed, strict=True):
    assert process.returncode == 0, error
    assert error == ""
  return printed


def influence(workdir):
  with open(workdir / "influence.csv", newline="") as file:
    lines = list(csv.DictReader(file))
  # Where FIL is next to nothing, its sign is rounding.
  skipped = ("client_id", "effect_", "sign_held_")
  numbers = [n for n in lines[0] if not n.startswith(skipped)]
  values = [[float(line[n] or "nan") for n in numbers] for line in lines]
  return numbers, [line["client_id"] for line in lines], np.array(values)


def assert_same_influence(workdir, other):
  *names, values = influence(workdir)
  *expected, other_values = influence(other)
  assert names == expected
  np.testing.assert_allclose(values, other_values, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_two_processes_find_what_one_finds(tmp_path):
  one, two = tmp_path / "one", tmp_path / "two"
  finish(begin(one, count=1))
  (first, _), (second, _) = finish(begin(two))
  assert_same_influence(two, one)
  assert "4 cpu device(s)" in first
  assert first.rstrip().endswith("report.html")
  assert second == ""  # Only the first one prints.
  assert sorted(binaries.files(two)) == sorted(binaries.files(one))


def kill(started, victim, workdir, after):
  """Kills a process after a checkpoint; returns the error of the other one."""
  saved = workdir / "checkpoints"
  reached = lambda: any(
    int(p.name) >= after for p in saved.glob("*") if p.name.isdecimal()
  )
  while not reached():
    assert all(process.poll() is None for process in started)
    time.sleep(0.02)
  started[victim].kill()
  at = time.monotonic()
  _, error = started[1 - victim].communicate(timeout=100)
  assert time.monotonic() - at < 60
  assert started[1 - victim].returncode == 1
  started[victim].communicate()
  return error


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_killed_it_ends_with_one_line_and_resumes(tmp_path, victim):
  workdir = tmp_path / "killed"
  error = kill(begin(workdir), victim, workdir, after=15)
  assert error.startswith("error: this process cannot continue (")
  assert error.endswith("they resume from the last checkpoint\n")
  assert error.count("\n") == 1
  from_two = tmp_path / "from_two"
  shutil.copytree(workdir, from_two)
  # The same command again: the same bytes.
  (printed, _), _ = finish(begin(workdir))
  assert "resuming after round" in printed
  finish(begin(tmp_path / "two"))
  assert binaries.files(workdir) == binaries.files(tmp_path / "two")
  # A checkpoint from two processes on one.
  ((printed, _),) = finish(begin(from_two, count=1))
  assert "resuming after round" in printed
  assert_same_influence(from_two, workdir)


@pytest.mark.slow
def test_a_checkpoint_of_one_process_resumes_on_two_of_slurm(tmp_path):
  one, workdir = tmp_path / "one", tmp_path / "from_one"
  finish(begin(one, count=1))
  shutil.copytree(one, workdir)
  (workdir / "summary.json").unlink()  # It is not finished.
  for path in (workdir / "checkpoints").glob("*"):
    if path.name != "10":  # The one that is kept for cleansing.
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  (printed, _), _ = finish(begin(workdir, slurm=True))
  assert "resuming after round 10" in printed
  assert_same_influence(workdir, one)


def test_flags_that_go_together():
  with pytest.raises(ValueError, match="--coordinator, --num_processes and"):
    processes.join(
      coordinator=None,
      num_processes=2,
      process_id=None,
      heartbeat_seconds=30,
      distributed=False,
    )


def test_an_abort_of_jaxs_runtime_is_one_line():
  # From a thread that is not Python's, while the main one waits within C.
  script = """
import ctypes, threading, time
from fedinf_jax.running import processes
processes.end_aborts_with_one_line()
ctypes.CDLL(None).perror(b"pages of it")
threading.Thread(target=ctypes.CDLL(None).abort).start()
time.sleep(60)
"""
  done = subprocess.run(
    [sys.executable, "-c", script],
    cwd=binaries.ROOT,
    capture_output=True,
    text=True,
    timeout=50,
    check=False,
    env=binaries.environment(),
  )
  assert done.returncode == 1
  assert done.stdout == ""
  assert done.stderr.startswith("error: this process cannot continue (JAX's")
  assert done.stderr.count("\n") == 1
