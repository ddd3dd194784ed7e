r"""What fits where: devices, memory and time for federations of any size.

python -m experiments.plan [--memory_gb=80 --tflops=60 --link_gbs=25]

By the formulas of `experiments.run --plan`, which does the same for one recipe.
Nothing is run.
"""

from absl import flags
from rich import console
from rich import table

from experiments import launch
from fedinf_jax.report import numbers
from fedinf_jax.running import planning

_MEMORY = flags.DEFINE_float("memory_gb", 80, "Of one device.")
_TFLOPS = flags.DEFINE_float("tflops", 60, "Of one device, in float32.")
_LINK = flags.DEFINE_float("link_gbs", 25, "GB/s that one device receives.")
_CLIENTS = flags.DEFINE_list("clients", ["1e4", "1e5", "1e6"], "Clients, K.")
_PARAMS = flags.DEFINE_list(
  "params", ["1e4", "1e6", "1e8"], "Parameters of the model, P."
)
_PARTICIPANTS = flags.DEFINE_integer("participants", 10, "Of a round, B.")
_STEPS = flags.DEFINE_integer("steps", 2, "Local steps, m.")
_SAMPLES = flags.DEFINE_integer("samples", 20, "Gradients per step, N_s.")
_EXAMPLES = flags.DEFINE_integer("examples", 100, "Of a participant.")
_MOST, _MOST_ALONG = 20, 6  # Powers of two to try: devices, along `params`.


def main(argv):
  """Prints, for each size, the fewest devices that it fits."""
  del argv
  shown = table.Table(
    *("clients", "params", "devices", "memory", "a round", "most of it")
  )
  for clients in _integers(_CLIENTS):
    for params in _integers(_PARAMS):
      size = sizes(clients, params)
      machine = fewest_devices(size)
      cells = ["none fits"]
      if machine is not None:
        found = planning.plan(size, machine)
        cells = [
          f"{machine.removals} × {machine.params}",
          numbers.amount(found.memory, "B"),
          numbers.duration(found.seconds),
          planning.bottleneck(size, machine),
        ]
      labels = (numbers.scientific(count) for count in (clients, params))
      shown.add_row(*labels, *cells)
  console.Console().print(shown)


def sizes(clients: int, params: int) -> planning.Sizes:
  """Makes up a federation that keeps every ε with one estimator."""
  rows = _STEPS.value * _SAMPLES.value
  return planning.Sizes(
    clients=clients,
    params=params,
    participants=_PARTICIPANTS.value,
    uploads=(4 * rows * params,),
    propagations=(4 * rows * params,),
    # Forward, for the inputs and for the weights: two operations each.
    training=6 * params * _STEPS.value * _EXAMPLES.value,
  )


def fewest_devices(size: planning.Sizes) -> planning.Machine | None:
  """Returns the smallest mesh of powers of two that has enough memory."""
  memory = 1e9 * _MEMORY.value
  for devices in range(_MOST + 1):
    for along in range(min(devices, _MOST_ALONG) + 1):
      machine = planning.Machine(
        removals=2 ** (devices - along),
        params=2**along,
        flops=1e12 * _TFLOPS.value,
        link=1e9 * _LINK.value,
        memory=memory,
      )
      if planning.plan(size, machine).memory <= memory:
        return machine
  return None


def _integers(flag):
  try:
    return [int(float(text)) for text in flag.value]
  except ValueError as error:
    raise ValueError(f"--{flag.name}: {error}") from error


if __name__ == "__main__":
  launch.run(main)
