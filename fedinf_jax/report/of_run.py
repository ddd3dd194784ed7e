"""Lets a figure of a workdir be drawn of a run in memory, too."""

from collections.abc import Callable
import functools
from typing import Any

import matplotlib
import matplotlib.figure

from fedinf_jax.report import drawing
from fedinf_jax.running import given
from fedinf_jax.running import workdir


def either(needs: str) -> Callable:
  """Returns a decorator of a function that draws `workdir.Contents`.

  The decorated function also takes a run and the test examples:

    draw(run, test=(x, y), owners=None) -> matplotlib Figure

  Args:
    needs: what a run must have for it, in words.
  """

  def decorate(draw):
    @functools.wraps(draw)
    def drawn(
      run: Any, *, test: Any = None, owners: Any = None
    ) -> matplotlib.figure.Figure | None:
      if isinstance(run, workdir.Contents):
        with matplotlib.rc_context(drawing.STYLE):
          return draw(run)
      contents = given.contents(given.measure(run, test, owners))
      with matplotlib.rc_context(drawing.STYLE):
        figure = draw(contents)
      if figure is None:
        raise ValueError(
          f"{draw.__name__} has nothing to show of this run; it needs {needs}"
        )
      return figure

    return drawn

  return decorate
