"""The binary of a real federation: what it refuses before it starts any."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

from experiments import federation_workdir as workdirs

ROOT = pathlib.Path(__file__).parent.parent


def configuration(folder, **changes):
  options = {"mode": "silent", "clients": 3, "rounds": 4, "cohort": 2}
  return workdirs.configuration(folder, timeout=60, **(options | changes))


def test_a_workdir_is_owned_by_one_configuration(tmp_path):
  folder = tmp_path / "a" / "run"
  workdirs.own(folder, configuration(folder))
  workdirs.own(folder, configuration(folder, rounds=6))  # It may go on.
  for changes, match in (
    ({"rounds": 5}, "--rounds is 5, .* a federation of 6; choose another"),
    ({"rounds": 6, "mode": "upload"}, "--mode is upload, .* with silent"),
    ({"rounds": 6, "clients": 4}, "--clients is 4, .* with 3; choose"),
    ({"rounds": 6, "cohort": 3}, "--cohort is 3, .* with 2; choose"),
  ):
    with pytest.raises(ValueError, match=match):
      workdirs.own(folder, configuration(folder, **changes))
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match="holds something else"):
    workdirs.own(tmp_path, configuration(tmp_path))
  with pytest.raises(ValueError, match="is not a folder"):
    workdirs.own(tmp_path / "file", configuration(tmp_path))


@pytest.mark.skipif(
  importlib.util.find_spec("flwr") is not None, reason="flwr is installed"
)
def test_without_flwr_it_says_so_in_one_line(tmp_path):
  found = subprocess.run(
    [
      sys.executable, "-m", "experiments.federation",
      f"--workdir={tmp_path / 'run'}",
    ],
    cwd=ROOT, capture_output=True, text=True, check=False,
  )  # fmt: skip
  assert found.returncode == 2 and not (tmp_path / "run").exists()
  assert found.stderr.startswith("error: flwr is not installed: pip install")
  assert len(found.stderr.splitlines()) == 1
