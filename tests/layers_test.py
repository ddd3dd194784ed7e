"""The floors of the house: imports point downwards only."""

import ast
import pathlib

import pytest

import fedinf_jax

ROOT = pathlib.Path(fedinf_jax.__file__).parent
# From the ground up. A module imports from lower floors only; within a folder,
# the same holds for the floors of that folder.
FLOORS = [
  {
    *("networks", "types", "text", "tree", "rng", "starting", "version"),
    "wording",
  },
  {"memory"},
  {"checks"},
  {"data", "models", "linalg"},
  {"metrics", "fedavg"},
  {"agreement"},
  {"removals", "selection", "theory"},
  {"leave_one_out", "guards"},
  {"curvature"},
  {"influence", "backwards"},
  {"federation", "presets", "valuation"},
  {"choice"},
  {"simulation"},
  {"server"},
  {"running"},
  {"recipes"},
  {"report"},
  {"flower", "command"},
  {"__main__"},
]
WITHIN = {
  "data": [
    {"csv_file", "files", "packing"},
    {"archive", "federated", "leaf", "npz", "rows"},
    {
      "columns",
      "corrupt",
      "femnist_npz",
      "glyph_writers",
      "leaf_synthetic",
      "on_device",
      "partition",
      "sheets",
    },
    {"arrays", "femnist", "labels"},
    {"femnist_tfds", "images"},
    {"sources"},
    {"encoding"},
    {"reading"},
  ],
  "linalg": [{"hessian_products", "lanczos", "low_rank"}, {"spectra"}],
  "curvature": [
    {"dense_layers", "descent"},
    {"wall"},
    {"gradients", "interactive", "rows"},
    {"matching"},
    {"cores", "fisher", "hessians"},
    {"server_side"},
  ],
  "valuation": [
    {"intervals", "owners", "rankings", "reliability", "shapley", "trust"},
    {"scores"},
  ],
  "simulation": [
    {"describing", "devices", "history", "made", "meter", "schedule", "wave"},
    {"exchange", "saved", "scores", "table"},
    {"found", "measuring", "portraits"},
    {"run"},
    {"recorder", "stages"},
    {"round"},
    {"plan", "reverse"},
    {"simulator"},
    {"signs", "turning"},
    {"adjoint"},
  ],
  "server": [
    {"ledger", "reply"},
    {"rounds", "table"},
    {"answers", "policy"},
    {"participant"},
  ],
  "running": [
    {"compile_cache", "schema", "processes"},
    {"files"},
    {"records"},
    {"interrupts", "logs", "lock", "parsing", "progress", "checkpoint"},
    {"consistency"},
    {"workdir"},
    {"task"},
    {"evaluation", "explaining", "passes", "planning", "repeats"},
    {"loop", "summaries"},
    {"finishing", "given"},
  ],
  "recipes": [
    {"estimators", "keys", "models", "problems", "quickstart"},
    {"server"},
    {"building"},
  ],
  "command": [
    {"choices", "flags", "plans", "showing"},
    {"own", "parser", "running"},
    {"main"},
  ],
  "flower": [
    {"output", "records", "store"},
    {"evaluation", "exchange", "identity"},
    {"client", "strategy"},
  ],
  "report": [
    {"numbers"},
    {"captions", "remedies", "verdict"},
    {"drawing", "advice", "comparison", "embedding"},
    {"of_run", "tracked_figures", "cleanse_figures", "tables", "sentences"},
    {"figures", "alternatives", "sections"},
    {"comparison_page", "page"},
  ],
}
# The method and the simulation are pure: files, clocks and screens are above.
WITH_FILES = {
  *("running", "recipes", "report", "flower", "command", "data", "__main__")
}
PURE = set().union(*FLOORS) - WITH_FILES - {"starting"}


def imports(path):
  """Yields the names of our own modules that a file imports at its top."""
  for node in ast.parse(path.read_text()).body:
    if isinstance(node, ast.ImportFrom) and node.module:
      if node.module.split(".")[0] in ("fedinf_jax", "experiments"):
        for name in node.names:
          yield f"{node.module}.{name.name}"
    elif isinstance(node, ast.Import):
      for name in node.names:
        assert name.name.split(".")[0] != "fedinf_jax", path


def floor_of(name, floors):
  return next(i for i, floor in enumerate(floors) if name in floor)


def modules():
  return [p for p in sorted(ROOT.rglob("*.py")) if p.name != "__init__.py"]


@pytest.mark.parametrize(
  "path", modules(), ids=lambda p: str(p.relative_to(ROOT))
)
def test_imports_point_down(path):
  folder = path.parent.name if path.parent != ROOT else None
  own = floor_of(folder or path.stem, FLOORS)
  for name in imports(path):
    package, first, *rest = name.split(".")
    assert package == "fedinf_jax", name
    if first == folder:
      floors = WITHIN[folder]
      assert floor_of(rest[0], floors) < floor_of(path.stem, floors), name
    else:
      assert floor_of(first, FLOORS) < own, name


def test_every_module_has_a_floor():
  top = {p.stem for p in ROOT.glob("*.py")} - {"__init__"}
  top |= {p.parent.name for p in ROOT.glob("*/__init__.py")}
  assert top == set().union(*FLOORS)
  for folder, floors in WITHIN.items():
    found = {p.stem for p in (ROOT / folder).glob("*.py")} - {"__init__"}
    assert found == set().union(*floors)


def test_the_lower_floors_have_no_side_effects():
  for path in modules():
    if path.relative_to(ROOT).parts[0].removesuffix(".py") not in PURE:
      continue
    tree = ast.parse(path.read_text())
    called = {
      node.func.id
      for node in ast.walk(tree)
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"print", "input", "open"}, path
    imported = {
      name.name
      for node in ast.walk(tree)
      if isinstance(node, ast.Import)
      for name in node.names
    }
    assert not imported & {"time", "pathlib", "rich"}, path


def test_no_test_imports_another():
  for path in pathlib.Path(__file__).parent.glob("*_test.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.ImportFrom) and node.module == "tests":
        assert not any(n.name.endswith("_test") for n in node.names), path
