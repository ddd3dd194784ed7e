"""The verdict of a finished run on a screen."""

import pathlib

from rich import table as rich_table

from fedinf_jax.report import numbers
from fedinf_jax.report import sentences
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import workdir


def print_verdict(folder: pathlib.Path, screen):
  """Names the clients that matter and says how far to trust it."""
  contents = workdir.read(folder)
  summary = contents.summary
  _, said = sentences.write(contents)
  lines = [
    f"after {summary['rounds']} rounds: test loss"
    f" {numbers.fixed(summary['loss'], 4)}, accuracy"
    f" {numbers.fixed(summary['accuracy'], 4)}",
    *said.lines(),
  ]
  for line in lines:
    progress.say(screen, line)
  if summary["estimators"]:
    screen.print(_table(contents))
  progress.say(screen, f"report: {folder / records.REPORT}")


def _table(contents):
  """Returns what the verdict leaves out of summary.json's estimators."""
  table = rich_table.Table("estimator", "upload per participant", "FIP error")
  if contents.screened_by:
    table.caption = f"FIP error: of the extremes by {contents.screened_by} only"
  for name, e in contents.summary["estimators"].items():
    upload = f"{e['upload_models']:.0f} models"
    if name not in contents.with_eps:
      upload = "nothing (simulation only)"
    table.add_row(
      name,
      upload + (" each way" if e["interactive"] else ""),
      numbers.digits(e["fip_relative_error"], 3),
    )
  return table
