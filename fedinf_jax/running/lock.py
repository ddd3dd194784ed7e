"""A workdir has one owner: a lock that ends with its process.

The lock is the system's, on a file in the workdir that names the owner; a
process that is killed leaves the file behind, but not the lock.
"""

import contextlib
import datetime
import errno
import functools
import os
import pathlib
import socket
import sys

from fedinf_jax.running import processes
from fedinf_jax.running import records

try:
  import fcntl
except ImportError:  # There is none on Windows.
  fcntl = None  # type: ignore[assignment]  # a module that may be missing

# What file systems without locks answer.
_NO_LOCKS = {
  *(errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
}


@contextlib.contextmanager
def owned(folder: pathlib.Path):
  """Owns a workdir; of several processes, the first one does.

  The folder is made if it does not exist, and taken away again if nothing else
  was written into it.

  Raises:
    ValueError: on all processes, if another process owns it, naming that one.
  """
  with contextlib.ExitStack() as stack:
    processes.on_first(lambda: stack.enter_context(_held(folder)))
    yield


@contextlib.contextmanager
def _held(folder):
  if folder.exists() and not folder.is_dir():
    raise ValueError(f"--workdir={folder} is not a folder")
  missing = [p for p in (folder, *folder.parents) if not p.exists()]
  folder.mkdir(parents=True, exist_ok=True)
  path = folder / records.LOCK
  file = None
  try:
    file = _locked(path)
    yield
  finally:
    if file is not None:
      # While it is locked: whoever has opened it notices that it is gone.
      with contextlib.suppress(OSError):
        path.unlink()
      os.close(file)
    for place in missing:
      with contextlib.suppress(OSError):  # It is not empty.
        place.rmdir()


def _locked(path):
  """Returns the open and locked file."""
  while True:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o644)
    try:
      _lock(file, path)
      # The owner before may have deleted it between the two calls.
      if path.exists() and os.path.samestat(os.fstat(file), path.stat()):
        os.ftruncate(file, 0)
        os.write(file, _owner().encode())
        return file
    except BaseException:
      os.close(file)
      raise
    os.close(file)


def _lock(file, path):
  try:
    if fcntl is None:
      raise OSError(errno.ENOSYS, "this system has no locks")
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except OSError as error:
    if error.errno in _NO_LOCKS:
      _warn_once(error.strerror)
      return
    owner = os.pread(file, 1000, 0).decode(errors="replace")
    raise ValueError(
      f"--workdir={path.parent} is in use by {owner or 'another process'}; wait"
      " for it, or choose another"
    ) from error


@functools.cache
def _warn_once(reason):
  print(
    f"warning: the workdir cannot be locked ({reason}): start no second process"
    " on it",
    file=sys.stderr,
  )


def _owner():
  now = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
  return f"process {os.getpid()} on {socket.gethostname()} since {now}"
