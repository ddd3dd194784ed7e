"""Several processes, as a cluster would start them."""

import csv
import os
import shutil
import signal
import socket
import subprocess
import time

import numpy as np
import pytest

from tests import binaries

ROUNDS = 40
ARGUMENTS = (
  *binaries.SMALL,
  f"--config.fed.rounds={10 * ROUNDS}",  # Scaled down.
  "--config.evaluate_every=200",
  "--config.cleanse_round=100",
  "--checkpoint_rounds=5",
)


def begin(workdir, cache, processes=2, slurm=False):
  """Starts processes with two devices each; or one with one."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    port = free.getsockname()[1]

  def start(i):
    arguments, env = [*ARGUMENTS, f"--workdir={workdir}"], {}
    if processes > 1:
      env = {"JAX_NUM_CPU_DEVICES": "2"}
    if slurm:  # As srun would: JAX finds everything out by itself.
      arguments += ["--distributed"]
      env |= {"SLURM_JOB_ID": str(port), "SLURM_STEP_NODELIST": "localhost"}
      env |= {"SLURM_NTASKS": str(processes), "SLURM_PROCID": str(i)}
      env |= {"SLURM_LOCALID": str(i)}
    elif processes > 1:
      arguments += [f"--coordinator=localhost:{port}"]
      arguments += [f"--num_processes={processes}", f"--process_id={i}"]
    return subprocess.Popen(
      binaries.command("run", *arguments),
      cwd=binaries.ROOT,
      env=binaries.environment(cache) | env,
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )

  return [start(i) for i in range(processes)]


def finish(started):
  said = [process.communicate(timeout=300) for process in started]
  for process, (_, error) in zip(started, said, strict=True):
    assert process.returncode == 0, error
    assert error == ""
  return said


def influence(workdir):
  with open(workdir / "influence.csv", newline="") as file:
    header, *lines = csv.reader(file)
  values = [[float(cell) for cell in line[1:]] for line in lines]
  return header, [line[0] for line in lines], np.array(values)


def assert_same_influence(workdir, other):
  *names, values = influence(workdir)
  *expected, other_values = influence(other)
  assert names == expected
  np.testing.assert_allclose(values, other_values, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """The same run by one process and by two; and a compile cache."""
  folder = tmp_path_factory.mktemp("runs")
  cache = folder / "cache"
  finish(begin(folder / "one", cache, processes=1))
  said = finish(begin(folder / "two", cache))
  return folder, cache, said


def test_two_processes_say_what_one_says(runs):
  folder, _, ((first, _), (second, _)) = runs
  assert_same_influence(folder / "two", folder / "one")
  assert "4 cpu device(s)" in first
  assert first.rstrip().endswith("report.html")
  assert second == ""  # Only the first one speaks.
  names = lambda workdir: sorted(binaries.files(workdir))
  assert names(folder / "two") == names(folder / "one")


def test_killed_it_ends_with_one_line_and_resumes(runs):
  folder, cache, _ = runs
  workdir = folder / "killed"
  started = begin(workdir, cache)
  saved = workdir / "checkpoints"
  done = lambda: [p.name for p in saved.glob("*") if p.name.isdecimal()]
  while not {"15", "20", "25", "30"} & set(done()):
    assert all(process.poll() is None for process in started)
    time.sleep(0.02)
  started[1].kill()
  at = time.monotonic()
  _, error = started[0].communicate(timeout=100)
  assert time.monotonic() - at < 60
  assert started[0].returncode == 1
  assert error.startswith("error: this process cannot go on (")
  assert error.endswith("they resume from the last checkpoint\n")
  assert error.count("\n") == 1
  started[1].communicate()
  shutil.copytree(workdir, folder / "from_two")
  # The same command again: the same bytes.
  (said, _), _ = finish(begin(workdir, cache))
  assert "resuming after round" in said
  assert binaries.files(workdir) == binaries.files(folder / "two")
  # A checkpoint from two processes on one.
  ((said, _),) = finish(begin(folder / "from_two", cache, processes=1))
  assert "resuming after round" in said
  assert_same_influence(folder / "from_two", folder / "one")


def test_a_checkpoint_of_one_process_goes_on_with_two_of_slurm(runs):
  folder, cache, _ = runs
  workdir = folder / "from_one"
  shutil.copytree(folder / "one", workdir)
  for path in (workdir / "checkpoints").glob("*"):
    if path.name != "10":  # The one that is kept for cleansing.
      shutil.rmtree(path) if path.is_dir() else path.unlink()
  (said, _), _ = finish(begin(workdir, cache, slurm=True))
  assert "resuming after round 10" in said
  assert_same_influence(workdir, folder / "two")


def test_the_first_process_dies_and_one_is_stopped(runs):
  folder, cache, _ = runs
  workdir = folder / "stopped"
  started = begin(workdir, cache)
  log = workdir / "timing.jsonl"
  while not log.exists() or log.read_text().count("\n") < 3:
    time.sleep(0.02)
  os.kill(started[1].pid, signal.SIGINT)  # One is asked, all stop.
  for process in started:
    _, error = process.communicate(timeout=100)
    assert process.returncode == 130
    assert error.startswith("stopped after round ")
  started = begin(workdir, cache)
  while log.read_text().count("\n") < 8 and started[0].poll() is None:
    time.sleep(0.02)
  started[0].kill()
  _, error = started[1].communicate(timeout=100)
  assert started[1].returncode == 1
  assert error.count("\n") == 1
  assert error.startswith("error: this process cannot go on (")
  started[0].communicate()


def test_flags_that_do_not_go_together():
  done = binaries.start("run", "--num_processes=2")
  assert done.returncode == 2
  assert done.stderr.startswith("error: --coordinator, --num_processes and")
