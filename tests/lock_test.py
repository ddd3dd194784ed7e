"""A workdir has one owner, for as long as that process lives."""

import errno
import os
import signal
import socket
import subprocess
import sys

import pytest

from fedinf_jax.running import lock
from fedinf_jax.running import workdir
from tests import binaries

HOLD = """
import pathlib, sys, time
from fedinf_jax.running import lock
with lock.owned(pathlib.Path(sys.argv[1])):
  print("owned", flush=True)
  time.sleep(600)
"""


slow = pytest.mark.slow
OTHERS = ("report", "cleanse", "debug")


@pytest.mark.parametrize(
  "binary",
  ["run", *(pytest.param(b, marks=slow) for b in OTHERS)],
)
def test_the_second_process_is_refused_until_the_first_is_gone(
  binary, tmp_path
):
  folder = tmp_path / "flip_labels"
  owner = subprocess.Popen(
    [sys.executable, "-c", HOLD, str(folder)],
    cwd=binaries.ROOT,
    stdout=subprocess.PIPE,
    text=True,
  )
  try:
    assert owner.stdout.readline() == "owned\n"
    # A folder that holds a lock and nothing else is as good as empty.
    workdir.check(folder)
    place = tmp_path if binary == "debug" else folder
    refused = binaries.start(binary, f"--workdir={place}")
    assert refused.returncode == 2
    assert refused.stderr.startswith(
      f"error: --workdir={folder} is in use by process {owner.pid} on"
      f" {socket.gethostname()} since 20"
    )
    assert refused.stderr.count("\n") == 1
  finally:
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
  assert (folder / ".lock").exists()
  with lock.owned(folder):
    with (
      pytest.raises(ValueError, match=f"in use by process {os.getpid()} "),
      lock.owned(folder),
    ):
      pass
    assert (folder / ".lock").exists()
  assert list(folder.iterdir()) == []


def test_a_folder_that_nothing_was_written_to_is_taken_away(tmp_path):
  with (
    pytest.raises(ValueError, match="no use"),
    lock.owned(tmp_path / "a" / "b"),
  ):
    raise ValueError("no use")
  assert list(tmp_path.iterdir()) == []
  with lock.owned(tmp_path / "a" / "b"):
    (tmp_path / "a" / "b" / "c").touch()
  assert [p.name for p in (tmp_path / "a" / "b").iterdir()] == ["c"]
  with (
    pytest.raises(ValueError, match="is not a folder"),
    lock.owned(tmp_path / "a" / "b" / "c"),
  ):
    pass


def test_where_there_are_no_locks_one_line_warns(tmp_path, monkeypatch, capsys):
  def flock(file, how):
    raise OSError(errno.ENOLCK, "No locks available")

  monkeypatch.setattr(lock.fcntl, "flock", flock)
  lock._warn_once.cache_clear()
  for _ in range(2):
    with lock.owned(tmp_path / "w"):
      pass
  assert capsys.readouterr().err == (
    "warning: the workdir cannot be locked (No locks available): start no"
    " second process on it\n"
  )
