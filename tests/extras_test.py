"""What is optional is not needed, and says how to get it."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent


def ask(code):
  command = [sys.executable, "-c", code]
  return subprocess.run(
    command, cwd=ROOT, capture_output=True, text=True, check=False
  )


def test_importing_loads_nothing_slow_and_nothing_optional():
  """`import fedinf_jax` is quick: these wait until something asks for them."""
  slow = "matplotlib", "orbax", "tensorflow_datasets", "scipy.stats"
  optional = "flwr", "fedinf_jax.flower", "pandas", "pyarrow"
  found = ask(
    "import sys, fedinf_jax, fedinf_jax.server;"
    f"print([m for m in {slow + optional} if m in sys.modules])"
  )
  assert found.stdout.strip() == "[]", found.stderr


@pytest.mark.skipif(
  importlib.util.find_spec("flwr") is not None, reason="flwr is installed"
)
def test_without_flwr_the_extra_is_named():
  found = ask("import fedinf_jax.flower")
  last = found.stderr.strip().splitlines()[-1]
  assert last.startswith("ImportError: fedinf_jax.flower needs flwr")
  assert 'pip install "fedinf_jax[flower]"' in last
