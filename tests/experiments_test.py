"""The binaries, started as a user starts them."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def start(*arguments):
  return subprocess.run(
    [sys.executable, "-m", "experiments.run", *arguments],
    cwd=ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    check=False,
    env={**os.environ, "COLUMNS": "100"},
  )


def test_the_main_job_prints_who_helps_and_who_hurts():
  done = start("--config.data.num_clients=40", "--config.fed.rounds=10")
  assert done.returncode == 0, done.stderr
  assert done.stderr == ""
  assert "Most helpful: without them the test loss would rise" in done.stdout
  assert "Most harmful: without them the test loss would fall" in done.stdout
  assert done.stdout.count("rises") == 10
  assert done.stdout.count("falls") == 10
  assert "relu: 0% of layers truncated" in done.stdout
  assert "against exact FIL Pearson 0.9" in done.stdout


@pytest.mark.parametrize("name", ["setting1", "setting1_convex"])
def test_settings_run_without_the_replay(name):
  done = start(
    f"--config=experiments/configs/{name}.py",
    "--config.exact=False",
    "--config.fed.rounds=20",
    "--config.data.num_clients=100",
  )
  assert done.returncode == 0, done.stderr
  assert "after 20 rounds: test loss" in done.stdout


BAD = {
  "value": ("--config.fed.rounds=0", "error: rounds is 0; it must be"),
  "type": ("--config.fed.rounds=abc", "error: flag --config.fed.rounds=abc"),
  "key": ("--config.nope=3", "error: --config has no such key: \"'nope'\""),
  "flag": ("--nope", "error: Unknown command line flag 'nope'"),
  "argument": ("nope", "error: unexpected argument 'nope'"),
  "config": ("--config=nope.py", "nope.py [Errno 2] No such file"),
  "cohort": ("--config.fed.cohort_size=999", "error: cohort_size is 999 but"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_mistake_is_one_line_and_exit_code_2(name):
  argument, message = BAD[name]
  done = start(argument)
  assert done.returncode == 2
  assert message in done.stderr
  assert done.stderr.count("\n") == 1
