"""Compiled programs are kept, so that a second start need not compile."""

import os
import pathlib

import jax


def keep():
  """Keeps what JAX compiles from now on, in a folder of the user's.

  Where JAX_COMPILATION_CACHE_DIR is set, JAX keeps it there by itself.
  """
  if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
    return
  folder = default_folder()
  try:
    folder.mkdir(parents=True, exist_ok=True)
  except OSError:  # No home, or a full or read-only disk: compile each time.
    return
  if os.access(folder, os.W_OK | os.X_OK):
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Small programs, too: there are dozens, and together they take a second.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def default_folder() -> pathlib.Path:
  """Returns where: $XDG_CACHE_HOME/fedinf_jax, by default below ~/.cache."""
  base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path("~/.cache")
  return pathlib.Path(os.path.expanduser(base), "fedinf_jax")
