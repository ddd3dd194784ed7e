"""Test-wide settings: double precision, eight devices, strict broadcasting."""

import os

# Before NumPy is loaded; why is said in experiments/__init__.py.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Tests mostly compile, and little would be won by compiling well: XLA's older
# emitters take two thirds of the time of its newer ones, see BUILD_NOTES.md.
os.environ["XLA_FLAGS"] = (
  os.environ.get("XLA_FLAGS", "") + " --xla_cpu_use_fusion_emitters=false"
)

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

# What tests start in processes of their own is compiled as users have it.
jax.devices()
os.environ["XLA_FLAGS"] = os.environ["XLA_FLAGS"].rpartition(" ")[0]


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory):
  """What a binary has compiled, those that tests start later need not."""
  folder = tmp_path_factory.getbasetemp()
  if "PYTEST_XDIST_WORKER" in os.environ:  # Shared by all workers.
    folder = folder.parent
  os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
  os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.5"


@pytest.fixture
def compilations():
  """A list that grows by one entry with every program XLA compiles."""
  events = []

  def listen(event, duration, **unused):
    del duration, unused
    if event == "/jax/core/compile/backend_compile_duration":
      events.append(event)

  jax.monitoring.register_event_duration_secs_listener(listen)
  yield events
  jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture
def enable_x32():
  """JAX as users have it by default, without x64."""
  with jax.enable_x64(False):
    yield
