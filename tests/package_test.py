"""The package as one gets it: built, installed, and used from another place."""

import ast
import importlib.metadata
import pathlib
import shutil
import signal
import site
import subprocess
import sys
import tomllib

from packaging import requirements
import pytest

from tests import hospitals

ROOT = pathlib.Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What a distribution is called that does not have its module's name.
CALLED = {
  "absl": "absl-py",
  "array_record": "array-record",
  "ml_collections": "ml-collections",
  "orbax": "orbax-checkpoint",
  "PIL": "pillow",
  "tensorflow_datasets": "tensorflow-datasets",
}
OPTIONAL = {"flwr", "pandas"}  # Whoever has them may use them.


def pinned():
  lines = (ROOT / "requirements.txt").read_text().splitlines()
  pins = [line.split("==") for line in lines if "==" in line]
  return {name.lower().replace("_", "-"): version for name, version in pins}


def test_dependencies_are_bounded_and_tested_within_the_bounds():
  pins = pinned()
  for line in PROJECT["dependencies"]:
    wanted = requirements.Requirement(line)
    assert any(s.operator == ">=" for s in wanted.specifier), line
    assert wanted.specifier.contains(pins[wanted.name]), line


def test_everything_imported_is_a_dependency():
  declared = {requirements.Requirement(d).name for d in PROJECT["dependencies"]}
  for path in (ROOT / "fedinf_jax").rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      names = []
      if isinstance(node, ast.Import):
        names = [name.name for name in node.names]
      elif isinstance(node, ast.ImportFrom):
        names = [node.module]
      for name in names:
        first = name.partition(".")[0]
        if first in sys.stdlib_module_names | OPTIONAL | {"fedinf_jax"}:
          continue
        assert CALLED.get(first, first) in declared, (path, name)


def test_only_a_command_sets_up_its_process():
  ask = (
    "import sys; sys.argv = [{!r}]; import fedinf_jax, os, signal;"
    "print(os.environ.get('OPENBLAS_NUM_THREADS'),"
    " signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
  )
  for program, printed in (("bin/fedinf", "1 False"), ("mine.py", "None True")):
    done = subprocess.run(
      [sys.executable, "-c", ask.format(program)],
      cwd=ROOT,
      env={"PATH": "/usr/bin:/bin"},
      capture_output=True,
      text=True,
      check=True,
    )
    assert done.stdout.strip() == printed


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
  """The wheel, built from a copy: building leaves files behind."""
  source = tmp_path_factory.mktemp("source")
  shutil.copytree(ROOT / "fedinf_jax", source / "fedinf_jax")
  for name in ("pyproject.toml", "README.md"):
    shutil.copy(ROOT / name, source)
  for license_ in ROOT.glob("LICENSE*"):
    shutil.copy(license_, source)
  pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", source, source)
  (path,) = source.glob("*.whl")
  return path


@pytest.fixture(scope="module")
def folder(wheel, tmp_path_factory):
  """An environment with the wheel; its dependencies are those of this one."""
  folder = tmp_path_factory.mktemp("installed")
  subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
  (packages,) = (folder / "venv").glob("lib/python*/site-packages")
  there = "\n".join(site.getsitepackages())
  (packages / "dependencies.pth").write_text(there)
  # With dependencies, but no index: pip finds that all are there.
  pip(folder / "venv/bin/python", "install", "--no-index", wheel)
  return folder


def pip(python, *arguments):
  done = subprocess.run(
    [python, "-m", "pip", "--quiet", *arguments],
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr


def begin(folder, *arguments, module=False):
  program = [folder / "venv/bin/fedinf"]
  if module:
    program = [folder / "venv/bin/python", "-m", "fedinf_jax"]
  empty = folder / "empty"
  empty.mkdir(exist_ok=True)
  return subprocess.Popen(
    [*program, *map(str, arguments)],
    cwd=empty,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def start(folder, *arguments, **options):
  process = begin(folder, *arguments, **options)
  printed, errors = process.communicate(timeout=600)
  return process.returncode, printed, errors


def trains(process):
  """Waits until a run has done its first round; says whether it has."""
  return any(line.startswith("round ") for line in process.stdout)


@pytest.mark.slow
def test_a_wheel_has_all_it_needs(wheel, folder):
  python = folder / "venv/bin/python"
  ask = "import fedinf_jax; print(fedinf_jax.__file__, fedinf_jax.__version__)"
  done = subprocess.run(
    [python, "-c", ask], cwd=folder, capture_output=True, text=True, check=True
  )
  place, version = done.stdout.split()
  assert place.startswith(str(folder)) and f"-{version}-" in wheel.name
  assert (pathlib.Path(place).parent / "py.typed").exists()
  (metadata,) = importlib.metadata.distributions(
    name="fedinf_jax",
    path=[str(pathlib.Path(place).parent.parent)],
  )
  assert metadata.metadata["Requires-Python"] == ">=3.11"
  assert set(metadata.metadata.get_all("Provides-Extra")) == {"dev", "flower"}


@pytest.mark.slow
def test_a_wheel_names_the_mislabelled_hospital(folder):
  path = hospitals.csv(folder / "hospitals.csv", hospitals.rows())
  argv = "run", f"--clients={path}", "--out=runs/hospitals"
  code, printed, errors = start(folder, *argv)
  assert (code, errors) == (0, "")
  assert f"But client {hospitals.BAD} helps its own" in printed
  assert f"Next, inspect the data of {hospitals.BAD}" in printed
  page = folder / "empty/runs/hospitals/report.html"
  assert hospitals.BAD in page.read_text("utf-8")
  # The other way to start it; and nothing is trained twice.
  code, again, _ = start(folder, *argv, module=True)
  assert code == 0 and "this run is finished" in again
  code, _, errors = start(folder, "run", "--clients=no.csv", "--out=runs/no")
  assert code == 2 and errors.startswith("error: no.csv: ")
  assert errors.count("\n") == 1
  code, printed, _ = start(folder, "report", "runs/hospitals")
  assert code == 0 and printed.strip() == "runs/hospitals/report.html"


@pytest.mark.slow
def test_a_stopped_run_resumes(folder):
  path = hospitals.csv(folder / "hospitals.csv", hospitals.rows())
  argv = "run", f"--clients={path}", "--rounds=20000", "--exact=none"
  argv = *argv, "--estimators=truncated", "--out=stopped"
  process = begin(folder, *argv)
  assert trains(process)
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 130, errors
  assert errors.startswith("stopped after round") and errors.count("\n") == 1
  process = begin(folder, *argv)
  assert any(line.startswith("resuming after") for line in process.stdout)
  process.kill()
  process.communicate()


@pytest.mark.slow
def test_a_wheel_has_the_demo_and_plans(folder):
  code, printed, errors = start(folder, "plan", "--num-clients=1e3")
  assert (code, errors) == (0, "") and "1e3" in printed
  # The run itself is that of any clients: until it trains is enough.
  process = begin(folder, "demo")
  assert trains(process)
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate(timeout=300)
  assert process.returncode == 130 and errors.startswith("stopped after round")
  assert (folder / "empty/runs/quickstart/config.json").is_file()
