"""One federation in Flower's own simulation engine, with its processes."""

import pytest

pytest.importorskip(
  "flwr", reason="flwr wants older packages; .ci/run has an environment for it"
)
pytest.importorskip("ray", reason="Flower's simulation engine runs on ray")

from flwr import app
from flwr import clientapp
from flwr import serverapp
from flwr import simulation
import numpy as np

from tests import federations
from tests.flower import grids

FILTERS = [
  "ignore::DeprecationWarning",
  "ignore::ResourceWarning",
  "ignore::pytest.PytestUnraisableExceptionWarning",
  "ignore::FutureWarning",
  "ignore::UserWarning",
]
pytestmark = [pytest.mark.filterwarnings(f) for f in FILTERS]


def client_app():
  """NumPy clients: they say who they are, and nothing else is changed."""
  made = grids.numpy_client()

  @made.query("identity")
  def identify(message: app.Message, context: app.Context) -> app.Message:
    stated = app.ConfigRecord({"client-id": grids.client_of(context)})
    return app.Message(app.RecordDict({"fedinf": stated}), reply_to=message)

  return made


def test_flowers_simulation_gets_what_ours_measures(tmp_path):
  made = grids.strategy(workdir=tmp_path, wait_for=6)
  server = serverapp.ServerApp()

  @server.main()
  def main(grid: serverapp.Grid, context: app.Context):
    made.start(grid, num_rounds=5)

  simulation.run_simulation(
    server, client_app(), num_supernodes=6,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
  )  # fmt: skip
  assert isinstance(client_app(), clientapp.ClientApp)
  assert made.ledger.round == 5
  federations.assert_same(made.ledger, federations.simulated("silent"))
  assert np.isfinite(made.table().fil).all()
