"""Temporary: run.py will import fedinf_jax.running.planning itself."""

from fedinf_jax.report import screen
from fedinf_jax.running import planning

Machine, sizes_of, table = (
  planning.Machine,
  planning.sizes_of,
  screen.plan_table,
)


def compiled_bytes(step):
  """See `planning.compiled_bytes`."""
  return planning.compiled_bytes(step.program().compile())
