"""Test-wide settings: double precision, eight devices, strict broadcasting."""

import jax
import pytest

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


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
