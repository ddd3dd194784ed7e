r"""Draws the figures and the page of a finished run again, from its files.

python -m experiments.report --workdir=DIR

Nothing is trained.
"""

import pathlib

from absl import flags

from experiments import launch
from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.running import lock
from fedinf_jax.running import records

_WORKDIR = flags.DEFINE_string(
  "workdir", "runs/quickstart", "Folder of the finished run."
)


def main(argv):
  """Writes the report."""
  del argv
  folder = pathlib.Path(_WORKDIR.value)
  with lock.owned(folder):
    report.write(folder)
  print(text.printable(folder / records.REPORT))


if __name__ == "__main__":
  launch.run(main)
