"""What a finished run says: verdict, figures, page and number formats."""

import pathlib


def write(folder: pathlib.Path):
  """Writes figures/, report.html, and the verdict into summary.json.

  Args:
    folder: the workdir of a finished run.
  """
  # Here, as matplotlib takes a second to import: a run need not wait for it.
  from fedinf_jax.report import page

  page.write(folder)
