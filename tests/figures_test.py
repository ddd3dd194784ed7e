"""The figures of a report: what they show, and what they leave out."""

import re

import pytest

from fedinf_jax.report import figures
from fedinf_jax.report import tracked_figures
from fedinf_jax.running import workdir
from tests import workdirs


@pytest.fixture(scope="module")
def full(tmp_path_factory):
  """A run with three estimators, one of which blows up."""
  folder = workdirs.write(
    tmp_path_factory.mktemp("figures"),
    clients=24,
    estimators=("both", "relu", "naive"),
  )
  return workdir.read(folder)


def test_a_tracked_client_that_was_not_replayed_has_no_error(tmp_path):
  workdirs.write(tmp_path, clients=30, exact="20", tracked=(29, 3))
  contents = workdir.read(tmp_path)
  (panel,) = (
    ax for ax in tracked_figures.distance(contents).axes if ax.get_title()
  )
  assert panel.get_title() == "Client f_0003"
  (legend,) = tracked_figures.layers(contents).legends
  assert legend.get_title().get_text() == "Client f_0003"
  other = tmp_path / "other"
  workdirs.write(other, clients=30, exact="20", tracked=(29,))
  contents = workdir.read(other)
  assert tracked_figures.distance(contents) is None
  assert len(tracked_figures.layers(contents).axes) == len(workdirs.LAYERS)


def test_a_tracked_client_that_was_never_drawn_is_not_shown(tmp_path):
  folder = workdirs.write(tmp_path, tracked=(0,))
  rows = (folder / "layers.csv").read_text().splitlines()
  still = [rows[0], *(re.sub(r"[^,]*,[^,]*$", "0.0,0.0", r) for r in rows[1:])]
  (folder / "layers.csv").write_text("\n".join(still) + "\n")
  contents = workdir.read(folder)
  assert tracked_figures.layers(contents) is None
  assert tracked_figures.distance(contents) is None


def test_a_blow_up_leaves_the_chart_and_the_rest_stays_readable(full):
  truth = max(
    trace["norm"].max()
    for client in full.tracked.values()
    for layer in client.values()
    for name, trace in layer.items()
    if name == "exact"
  )
  figure = tracked_figures.distance(full)
  low, high = figure.axes[0].get_ylim()
  assert truth < high < 200 * truth
  assert low > high / 1e8
  (legend,) = figure.legends
  assert any("naive (up to" in text.get_text() for text in legend.get_texts())


def test_an_estimator_has_one_colour_in_all_figures(full):
  lines = figures.pearson(full).axes[0].lines
  again = tracked_figures.distance(full).axes[0].lines
  colours = [line.get_color() for line in lines if len(line.get_xdata()) > 2]
  others = [line.get_color() for line in again]
  assert len(set(colours)) == 3
  assert colours == others[1:]  # The first is the truth.
