r"""What fits where: devices, memory and time for federations of any size.

python -m experiments.plan [--memory_gb=80 --tflops=60 --link_gbs=25]

By the formulas of `experiments.run --plan`, which does the same for one recipe.
Nothing is run.
"""

from absl import flags
from rich import console

from experiments import launch
from fedinf_jax.command import plans
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


def main(argv):
  """Prints, for each size, the fewest devices that it fits."""
  del argv
  like = planning.Machine(
    removals=1,
    params=1,
    flops=1e12 * _TFLOPS.value,
    link=1e9 * _LINK.value,
    memory=1e9 * _MEMORY.value,
  )
  federations = [
    plans.made_up(
      clients,
      params,
      participants=_PARTICIPANTS.value,
      steps=_STEPS.value,
      samples=_SAMPLES.value,
      examples=_EXAMPLES.value,
    )
    for clients in _integers(_CLIENTS)
    for params in _integers(_PARAMS)
  ]
  plans.show_fewest(federations, like, console.Console())


def _integers(flag):
  try:
    return [int(float(text)) for text in flag.value]
  except ValueError as error:
    raise ValueError(f"--{flag.name}: {error}") from error


if __name__ == "__main__":
  launch.run(main)
