"""What a finished run says: verdict, figures, page and number formats."""

import importlib
import pathlib
from typing import Any

_LAZY = ("figures",)  # With matplotlib, which takes a second to import.


def write(
  run: Any,
  folder: Any = None,
  *,
  test: Any = None,
  owners: Any = None,
  name: str | None = None,
) -> pathlib.Path:
  """Writes the report of a run: figures, and a page that needs no other file.

  Two ways:

    write(run, folder, test=(x, y), owners=ids)  # any run, from Python
    write(folder)  # of a workdir that experiments.run has filled

  The first also writes the files that a recipe's run has, measured on the test
  examples: influence.csv, summary.json and so on.

  Args:
    run: what `fi.simulate` or `fi.Run.of` returned; or the workdir of a
      finished run, and nothing else.
    folder: new, empty, or of an earlier report by this function, which is
      replaced; a run that was saved may be in it.
    test: (x [N, ...], y [N, ...]) to measure influence on, or a FederatedData,
      whose clients own its examples.
    owners: [N] ids of the clients that the examples belong to, None for
      nobody's; None: all are nobody's.
    name: of the run, for the title; None: that of the folder.

  Returns:
    The path of the page, report.html.

  Raises:
    ValueError: naming the argument at fault, or what the folder holds.

  Examples:
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp(), "hospitals")
    >>> fi.report.write(run, folder, test=test).name
    'report.html'
  """
  # Here, as matplotlib takes a second to import: a run need not wait for it.
  from fedinf_jax.report import page
  from fedinf_jax.running import given
  from fedinf_jax.running import records

  if isinstance(run, str | pathlib.PurePath):
    if any(a is not None for a in (folder, test, owners, name)):
      raise ValueError(
        "run is a folder, whose report is drawn from its files; give nothing"
        " else, or a run"
      )
    folder = pathlib.Path(run)
  else:
    folder = given.claim(folder)
    title = folder.resolve().name if name is None else name
    given.write(folder, given.measure(run, test, owners, title))
  page.write(folder)
  return folder / records.REPORT


def measured(run: Any, *, test: Any, owners: Any = None) -> Any:
  """Returns a run as `report.figures` draw it, to draw several of them.

  Args:
    run: see `write`.
    test: see `write`.
    owners: see `write`.

  Examples:
    >>> several = fi.report.measured(run, test=test)  # Measures once.
    >>> type(fi.report.figures.scatter(several)).__name__
    'Figure'
  """
  from fedinf_jax.running import given

  return given.contents(given.measure(run, test, owners))


def __getattr__(name):
  if name in _LAZY:
    return importlib.import_module(f"{__name__}.{name}")
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
