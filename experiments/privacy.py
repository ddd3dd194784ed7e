r"""Attacks what participants send, and measures what defences cost.

    python -m experiments.privacy --data_dir=FEMNIST

Images are recovered from FedAvg's updates alone and from uploads of
`fi.fisher`: as they are, rotated, compressed, clipped and noised. Prints tables
and writes privacy.json and privacy.png. Needs the environment of
requirements-privacy.txt.
"""

import importlib.util
import pathlib
import time

from absl import flags
import numpy as np

from experiments import launch
from experiments import privacy_attacks as attacks
from experiments import privacy_cost as costs
from experiments import privacy_defences as defences
from experiments import privacy_figure
from experiments import privacy_measure as measure
from experiments import privacy_models
import fedinf_jax as fi
from fedinf_jax import recipes
from fedinf_jax.running import files

NEEDED = {"sklearn": "scikit-learn", "dp_accounting": "dp-accounting"}
DELTA = 1e-5
NETS = ("setting2", "setting3")
KINDS = ("logreg", "images")
PARTS = ("logreg", "images", "unmixed", "costs")

_DATA_DIR = launch.define_data_dir()
_WORKDIR = flags.DEFINE_string("workdir", "runs/privacy", "Where files go.")
_CLIENTS = flags.DEFINE_integer(
  "clients", 1, "Clients that are attacked.", lower_bound=1
)
_IMAGES = flags.DEFINE_integer(
  "images", 8, "Images of each of them.", lower_bound=1, upper_bound=32
)
_STEPS = flags.DEFINE_integer(
  "steps", 400, "Steps of every search for images.", lower_bound=1
)
_CLIP = flags.DEFINE_float(
  "clip", 10.0, "C, the norm that gradients are clipped to.", lower_bound=1e-6
)
_NOISE = flags.DEFINE_multi_float(
  "noise", [0.01, 0.1, 1.0],
  "z, the noise's standard deviation over the sensitivity 2C; repeatable.",
  lower_bound=1e-6,
)  # fmt: skip
_SEEDS = flags.DEFINE_integer(
  "seeds", 2, "Federations of each kind, for what a defence costs.",
  lower_bound=1,
)  # fmt: skip
_SCALE = flags.DEFINE_float(
  "scale", 1.0, "Shrinks those federations.", lower_bound=0.01, upper_bound=1.0
)
_PARTS = flags.DEFINE_list(
  "parts", list(PARTS), f"What to do, of {', '.join(PARTS)}."
)
_NETS = flags.DEFINE_list(
  "nets", list(NETS), f"Which CNNs, of {', '.join(NETS)}."
)
_COSTS = flags.DEFINE_list(
  "costs", list(KINDS), f"In which federations, of {', '.join(KINDS)}."
)
_SEED = flags.DEFINE_integer(
  "seed", 0, "Of the attacked images.", lower_bound=0
)


def main(argv: list[str]):
  """Attacks, prints tables and writes files."""
  del argv
  for module, name in NEEDED.items():
    if importlib.util.find_spec(module) is None:
      raise ValueError(
        f"{name} is not installed; this binary has an environment of its own:"
        " pip install -r requirements-privacy.txt"
      )
  for flag, known in ((_PARTS, PARTS), (_NETS, NETS), (_COSTS, KINDS)):
    for name in flag.value:
      if name not in known:
        raise ValueError(
          f"--{flag.name}: {name!r} is none of {', '.join(known)}"
        )
  folder = pathlib.Path(_WORKDIR.value)
  folder.mkdir(parents=True, exist_ok=True)
  writers, source = _writers()
  secrets = measure.secrets(writers, _CLIENTS.value, _IMAGES.value, _SEED.value)
  print(f"images: {source}; {len(secrets.images)} of them", flush=True)
  content = {"source": source, "flags": _flags()}
  do = {
    "logreg": _show_logreg,
    "images": lambda: _show_images(secrets, folder),
    "unmixed": lambda: _show_unmixed(secrets),
    "costs": lambda: _show_costs(writers),
  }
  for part in _PARTS.value:
    content[part] = do[part]()
    files.write_json(folder / "privacy.json", content)
  print(f"\n{folder / 'privacy.json'}")


def _flags():
  ours = (
    _CLIENTS, _IMAGES, _STEPS, _CLIP, _NOISE, _SEEDS, _SCALE, _SEED
  )  # fmt: skip
  return {f.name: f.value for f in ours}


def _writers():
  """Reads FEMNIST, or makes glyph writers; returns them and their source."""
  if _DATA_DIR.value is None:
    return fi.data.glyphs(20, 124, seed=_SEED.value), recipes.GLYPHS
  train, _, source = recipes.read_femnist(None, _DATA_DIR.value)
  return train, source


_STARTED = time.monotonic()


def _say(what):
  """Says what is done next."""
  print(f"[{time.monotonic() - _STARTED:4.0f} s] {what}", flush=True)


def _show_logreg():
  """Reads inputs of a logistic regression off."""
  errors = measure.logreg(_SEED.value)
  print("\nLogistic regression, 50 rows: largest error of an input read off")
  for what, error in errors.items():
    print(f"  {what} gradients: {error:.1e} of the largest entry")
  return errors


def _show_images(secrets, folder):
  """Attacks CNNs, and draws what was found."""
  blank = np.full_like(secrets.images, attacks.PAPER)
  drawn: list[tuple] = [
    ("the clients' images", secrets.images[: _IMAGES.value], None)
  ]
  nets = _NETS.value
  tables = {
    "blank paper": dict.fromkeys(nets, attacks.psnr(blank, secrets.images))
  }
  for name in nets:
    net = getattr(privacy_models, name)()
    bench = measure.Bench(net, secrets, _STEPS.value, _SEED.value)
    say = lambda what, name=name: _say(f"{name}: {what}")
    for f in measure.attack_images(bench, _CLIP.value, _NOISE.value, say):
      say(f"{f.what}: {_mean(f.psnr)} dB")
      tables.setdefault(f.what, {})[name] = f.psnr
      drawn.append((f"{name}, {f.what}", f.images[: _IMAGES.value], f.psnr))
    files.write(folder / "privacy.png", privacy_figure.png(drawn))
  print(f"\n| what is attacked, PSNR in dB | {' | '.join(nets)} |")
  print("|---" * (1 + len(nets)) + "|")
  for what, by_net in tables.items():
    cells = [_mean(by_net.get(name)) for name in nets]
    print(f"| {what} | {' | '.join(cells)} |", flush=True)
  return {
    what: {name: a.tolist() for name, a in by_net.items()}
    for what, by_net in tables.items()
  }


def _show_unmixed(secrets):
  """Unmixes what dense layers read."""
  flat = lambda params, x: x.reshape(-1)
  nets = {
    "dense first": (privacy_models.dense_first(), flat),
    **{n: getattr(privacy_models, n)()[:2] for n in _NETS.value},
  }
  found = []
  for name, (model, features) in nets.items():
    _say(f"{name}: unmixing")
    found += measure.unmix_inputs(model, features, secrets, name, _SEED.value)
  print("\n| unmixed, |Pearson| with the layer's true inputs | ICA | algebra |")
  print("|---|---|---|")
  for f in found:
    print(f"| {f.what} | {_mean(f.independent, 3)} | {_mean(f.algebra, 3)} |")
  as_list = lambda a: None if a is None else a.tolist()
  return {
    f.what: {"ica": as_list(f.independent), "algebra": as_list(f.algebra)}
    for f in found
  }


def _show_costs(writers):
  """Measures every defence's agreement with retraining."""
  return {kind: _cost(kind, writers) for kind in _COSTS.value}


def _cost(kind, writers):
  """Does so in federations of one kind, over seeds."""
  per_seed, rounds = [], 0
  for seed in range(_SEEDS.value):
    _say(f"{kind}: retraining without each client, seed {seed}")
    if kind == "images":
      federation = costs.images(writers, seed, _SCALE.value)
    else:
      federation = costs.logreg(seed, _SCALE.value)
    compared = costs.curvatures(_CLIP.value, _NOISE.value)
    found, most = costs.agreement(federation, compared)
    per_seed.append(found)
    rounds = max(rounds, most)
  agreement = {name: [one[name] for one in per_seed] for name in compared}
  epsilon = {
    f"{z:g}": [defences.epsilon(z, t, DELTA) for t in (1, rounds)]
    for z in _NOISE.value
  }
  print(f"\n| {kind}: what is sent | Pearson | Spearman |\n|---|---|---|")
  for name, pairs in agreement.items():
    pearson, spearman = np.array(pairs, float).T
    print(f"| {name} | {_mean(pearson, 3)} | {_mean(spearman, 3)} |")
  print(f"a client takes part in at most {rounds} rounds; δ = {DELTA:g}")
  for z, (one, all_) in epsilon.items():
    print(f"  noise {z}: ε = {one:.3g} a round, {all_:.3g} in all", flush=True)
  return {"rounds": rounds, "agreement": agreement, "epsilon": epsilon}


def _mean(values, digits=1):
  """Writes mean ± standard deviation."""
  if values is None:
    return "–"
  return f"{np.mean(values):.{digits}f} ± {np.std(values):.{digits}f}"


if __name__ == "__main__":
  launch.run(main)
