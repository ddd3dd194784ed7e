r"""How fast, and in how much memory? Compared with this machine's limit.

python -m experiments.bench --json=bench.json

Each workload runs in a process of its own, which first measures how fast the
machine multiplies matrices; ratios are within that process. Seconds are the
least of several repeats. With fedjax installed
(pip install -r requirements-fedjax.txt) the same rounds are timed with it, too.
Two idle cores: setting1, setting2 and exponents take two minutes together,
setting3 four, leafcnn about as long. The workload backwards times `fi.adjoint`
for 1,000, 10,000 and 100,000 clients with the same cohorts; choose times exact
replay, two estimators and `fi.adjoint` for several numbers of clients and
parameters, in plain trainings.
"""

import json
import pathlib
import subprocess
import sys
import tempfile

from absl import flags
from rich import console
from rich import table

from experiments import bench_workloads
from experiments import launch
from fedinf_jax.report import numbers
from fedinf_jax.running import files

_JSON = flags.DEFINE_string("json", None, "Where to write what was measured.")
_WORKLOADS = flags.DEFINE_list(
  "workloads", list(bench_workloads.NAMES), "Which to run."
)
_SCALE = flags.DEFINE_float("scale", 1.0, "Below 1: fewer clients and images.")


def main(argv):
  """Runs the workloads, writes the numbers and shows them."""
  del argv
  for name in _WORKLOADS.value:
    if name not in bench_workloads.NAMES:
      known = ", ".join(bench_workloads.NAMES)
      raise ValueError(f"--workloads: {name!r} is unknown; there are {known}")
  if not 0 < _SCALE.value <= 1:
    raise ValueError("--scale must be above 0 and at most 1")
  screen = console.Console()
  if len(_WORKLOADS.value) == 1:
    (name,) = _WORKLOADS.value
    say = lambda text: screen.print(f"{name}: {text}", style="dim")
    found = {name: bench_workloads.measure(name, _SCALE.value, say)}
  else:
    found = {}
    for name in _WORKLOADS.value:
      found |= _in_its_own_process(name)
      _write(found)
  _write(found)
  screen.print(_table(found))


def _in_its_own_process(name):
  """Runs one workload: its peak of memory is then its own."""
  with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "bench.json"
    command = [sys.executable, "-m", "experiments.bench", f"--json={path}"]
    options = [f"--workloads={name}", f"--scale={_SCALE.value}"]
    done = subprocess.run([*command, *options], check=False)
    if done.returncode:
      raise OSError(f"the workload {name} ended with code {done.returncode}")
    return json.loads(path.read_text())["workloads"]


def _write(found):
  if _JSON.value:
    text = json.dumps({"workloads": found}, indent=2) + "\n"
    files.write(pathlib.Path(_JSON.value), text)


def _table(found):
  """Returns a row per number and a column per workload."""
  shown = table.Table("", *found)
  fields = dict.fromkeys(f for measured in found.values() for f in measured)
  for field in fields:
    cells = (measured.get(field) for measured in found.values())
    shown.add_row(
      field, *("" if c is None else numbers.digits(c, 3) for c in cells)
    )
  return shown


if __name__ == "__main__":
  launch.run(main)
