"""The server: FedAvg, wrapped."""

from flwr.app import Context
from flwr.serverapp import Grid
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

from fedinf_app import curvature
from fedinf_app import task
from fedinf_jax import flower
from fedinf_jax import server

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context):
  """Runs the federation and prints who helps and who hurts."""
  config = context.run_config
  mode, seed = str(config["mode"]), int(config["seed"])
  if mode not in curvature.ESTIMATORS:
    known = ", ".join(curvature.ESTIMATORS)
    raise ValueError(f"mode is {mode!r}; it must be one of {known}")
  strategy = flower.InfluenceStrategy(
    FedAvg(fraction_evaluate=0.0, min_available_nodes=1),
    curvature.MODEL,
    curvature.fed(config),
    curvature.ESTIMATORS[mode],
    curvature.params(seed),
    test=task.load(-2, seed),
    server_data=task.load(-1, seed) if mode == "silent" else None,
    max_examples=task.MAX_EXAMPLES,
    seed=seed,
    wait_for=int(config["num-clients"]),
    workdir=str(config["workdir"]) or None,
    report=bool(config["report"]),
    on_round=server.leave_out_harmful() if config["drop-harmful"] else None,
  )
  strategy.start(grid, timeout=float(config["timeout"]))
  table = strategy.table()
  for k in table.order():
    verb = "hurts" if table.fil[k] < 0 else "helps"
    print(f"{table.ids[k]} {verb}: {table.fil[k]:+.5f}")
