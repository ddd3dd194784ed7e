"""One federation in Flower's own simulation engine, with its processes."""

import pytest

pytest.importorskip(
  "flwr", reason="flwr wants older packages; .ci/run has an environment for it"
)
pytest.importorskip("ray", reason="Flower's simulation engine runs on ray")

import functools

from flwr import app
from flwr import clientapp
from flwr import serverapp
from flwr import simulation
import numpy as np

from fedinf_jax.flower import identity
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


@functools.cache
def built(mode):
  """A client's app; in JAX it is compiled in the process that runs it."""
  return grids.numpy_client() if mode == "silent" else grids.jax_client(mode)


def client_app():
  """Clients of all three modes: the server says in which one they are."""
  made = clientapp.ClientApp()

  def delegate(mode, message, context):
    context.node_config["client-id"] = grids.client_of(context)
    return built(mode)(message, context)

  @made.query("identity")
  def identify(message: app.Message, context: app.Context) -> app.Message:
    return delegate("upload", message, context)

  @made.train()
  def train(message: app.Message, context: app.Context) -> app.Message:
    return delegate(message.content["config"]["mode"], message, context)

  @made.train("influence")
  def answer(message: app.Message, context: app.Context) -> app.Message:
    return delegate("interactive", message, context)

  @made.query("kept")
  def kept(message: app.Message, context: app.Context) -> app.Message:
    """The id that is drawn where the operator gives none."""
    nameless = app.Context(
      context.run_id, context.node_id, {}, context.state, {}
    )
    return identity.reply(message, nameless)

  return made


def kept_ids(grid):
  """Returns the ids that nodes have drawn and keep, by node."""
  asked = [
    app.Message(app.RecordDict(), node, "query.kept")
    for node in grid.get_node_ids()
  ]
  return {
    reply.metadata.src_node_id: reply.content["fedinf"]["client-id"]
    for reply in grid.send_and_receive(asked, timeout=120)
  }


def test_flowers_simulation_gets_what_ours_measures(tmp_path, monkeypatch):
  # Clients draw as this process does.
  monkeypatch.setenv("JAX_ENABLE_X64", "1")
  made = {
    mode: grids.strategy(mode, workdir=tmp_path / mode, wait_for=6)
    for mode in federations.MODES
  }
  kept = []
  server = serverapp.ServerApp()

  @server.main()
  def main(grid: serverapp.Grid, context: app.Context):
    for mode, strategy in made.items():
      config = app.ConfigRecord({"mode": mode})
      strategy.start(grid, num_rounds=5, train_config=config)
      kept.append(kept_ids(grid))

  simulation.run_simulation(
    server, client_app(), num_supernodes=6,
    backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}},
  )  # fmt: skip
  for mode, strategy in made.items():
    assert strategy.ledger.round == 5
    federations.assert_same(strategy.ledger, federations.simulated(mode))
    assert np.isfinite(strategy.table().fil).all()
  # An id that was drawn once is kept, and everybody has one of its own.
  assert len(set(kept[0].values())) == 6
  assert kept[0] == kept[1] == kept[2]
