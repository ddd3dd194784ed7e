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


def test_the_package_does_not_import_flower():
  found = ask(
    "import sys, fedinf_jax, fedinf_jax.server;"
    "print([m for m in sys.modules if 'flower' in m or m == 'flwr'])"
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
