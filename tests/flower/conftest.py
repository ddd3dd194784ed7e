"""Who the process is, which Flower's own launcher would say."""

import os

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def compile_once(compile_cache):
  """Every strategy compiles for itself: what one has compiled, others need not.

  Only here, where nothing counts compilations.
  """
  folder = os.environ["JAX_COMPILATION_CACHE_DIR"]
  jax.config.update("jax_compilation_cache_dir", folder)
  jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
  jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)


@pytest.fixture(autouse=True)
def task_identity(monkeypatch):
  task = pytest.importorskip("flwr.supercore.task_identity")
  for name in ("_task_id", "_run_id", "_node_id"):
    monkeypatch.setattr(task.TaskIdentity, name, 1)
