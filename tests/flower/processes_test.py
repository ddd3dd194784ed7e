"""Real processes: a SuperLink, SuperNodes, servers that are killed."""

import pytest

pytest.importorskip(
  "flwr", reason="flwr wants older packages; .ci/run has an environment for it"
)

import pathlib
import signal
import subprocess
import sys
import time

import jax
import psutil

from experiments import federation_processes as processes
from experiments import federation_workdir as workdirs

ROOT = pathlib.Path(__file__).parent.parent.parent


def listening(found):
  """Returns the addresses that processes listen on."""
  ends = [c for p in found for c in p.net_connections("inet")]
  return {c.laddr.ip for c in ends if c.status == psutil.CONN_LISTEN}


@pytest.mark.slow  # Alone: where it has no core in time, Flower gives it up.
def test_real_processes_get_what_the_simulator_measures(tmp_path, monkeypatch):
  monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
  with processes.Processes(tmp_path / "processes") as started:
    federation = processes.Federation(started, 3)
    for mode, rounds in (("silent", 3), ("upload", 2), ("interactive", 2)):
      folder = tmp_path / mode
      config = workdirs.configuration(
        folder, mode=mode, clients=3, rounds=rounds, cohort=2, timeout=300,
        report=False,
      )  # fmt: skip
      silent = mode == "silent"
      processes.play(federation, workdirs.APP, config, kill_server=silent)
      with jax.enable_x64(False):  # As the processes are.
        by_hand, simulated, full = workdirs.compare(folder, config)
      assert max(by_hand, simulated) < 1e-5
      assert full  # On busy cores somebody may be late.
    assert listening(started.marked()) == {"127.0.0.1"}
    log = (tmp_path / "processes" / "run.log").read_text()
    # After the second, or after the first: its checkpoint may not be whole yet.
    assert "Resuming after round" in log
  assert not started.marked()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_behind_by_an_interrupted_binary(tmp_path, number):
  command = [
    sys.executable, "-m", "experiments.federation", "--clients=3",
    f"--workdir={tmp_path / 'run'}",
  ]  # fmt: skip
  with subprocess.Popen(
    command, cwd=ROOT, stderr=subprocess.PIPE, text=True
  ) as started:
    logs = tmp_path / "run" / "processes"
    until = time.monotonic() + 120
    while not (logs / "run.log").exists():  # The last one to be started.
      assert started.poll() is None and time.monotonic() < until
      time.sleep(0.1)
    time.sleep(2)  # The others start more.
    below = psutil.Process(started.pid).children(recursive=True)
    assert len(below) > 4
    started.send_signal(number)
    started.send_signal(number)  # Who interrupts is impatient.
    _, said = started.communicate(timeout=120)
  assert started.returncode == 130
  assert said == f"interrupted by {number.name}\n"
  assert not psutil.wait_procs(below, timeout=10)[1]
  for process in psutil.process_iter():
    try:
      home = process.environ().get("FLWR_HOME", "")
    except (psutil.Error, OSError):
      continue
    assert str(tmp_path) not in home
