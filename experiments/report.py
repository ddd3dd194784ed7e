r"""Draws the figures and the page of a finished run again, from its files.

python -m experiments.report --workdir=DIR [--against=DIR]

With --against it compares two runs instead, A and B, client by client: it says
what changed and writes comparison.csv and comparison.html into --workdir.
Nothing is trained.
"""

import pathlib

from absl import flags

from experiments import launch
from fedinf_jax import report
from fedinf_jax import text
from fedinf_jax.report import comparison_page
from fedinf_jax.running import lock
from fedinf_jax.running import records

_WORKDIR = flags.DEFINE_string(
  "workdir", "runs/quickstart", "Folder of the finished run."
)
_AGAINST = flags.DEFINE_string(
  "against", None, "Folder of another finished run, to compare with."
)


def main(argv):
  """Writes the report, or compares."""
  del argv
  folder = pathlib.Path(_WORKDIR.value)
  lines: list[str | pathlib.Path] = []
  with lock.owned(folder):
    if _AGAINST.value is None:
      report.write(folder)
      lines.append(folder / records.REPORT)
    else:
      lines += comparison_page.write(folder, pathlib.Path(_AGAINST.value))
      lines += [folder / records.COMPARISON_CSV, folder / records.COMPARISON]
  for line in lines:
    print(text.printable(line))


if __name__ == "__main__":
  launch.run(main)
