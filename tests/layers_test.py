"""The layers of the house: imports point downwards only."""

import ast
import pathlib

import pytest

import fedinf_jax

ROOT = pathlib.Path(fedinf_jax.__file__).parent
# From the ground up; a module may import from its own floor or a lower one,
# never from itself upwards.
FLOORS = [
  {
    "types",
    "tree",
    "rng",
    "memory",
    "lanczos",
    "guards",
    "shapley",
    "sharding",
  },
  {"data", "models"},
  {"metrics", "packing"},
  {"fedavg"},
  {"leave_one_out", "tangent", "theory"},
  {"curvature"},
  {"propagation"},
  {"influence"},
  {"checks", "exchange", "runs"},
  {"baselines", "engine"},
  {"simulation", "valuation"},
]
# Within `data`, in the same way.
DATA_FLOORS = [
  {"federated"},
  {"corrupt", "femnist", "glyph_writers", "leaf_synthetic", "partition"},
  {"femnist_tfds"},
]


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


@pytest.mark.parametrize(
  "path",
  [p for p in sorted(ROOT.rglob("*.py")) if p.name != "__init__.py"],
  ids=lambda p: p.stem,
)
def test_imports_point_down(path):
  in_data = path.parent.name == "data"
  own = floor_of("data" if in_data else path.stem, FLOORS)
  for name in imports(path):
    package, first, *rest = name.split(".")
    assert package == "fedinf_jax"
    if in_data and first == "data":
      lower, upper = (floor_of(n, DATA_FLOORS) for n in (rest[0], path.stem))
      assert lower < upper, name
    else:
      assert floor_of(first, FLOORS) < own, name


def test_every_module_has_a_floor():
  modules = {p.stem for p in ROOT.glob("*.py")} | {"data"}
  assert modules - {"__init__"} == set().union(*FLOORS)
  modules = {p.stem for p in (ROOT / "data").glob("*.py")}
  assert modules - {"__init__"} == set().union(*DATA_FLOORS)


def test_the_package_has_no_side_effects():
  for path in ROOT.rglob("*.py"):
    tree = ast.parse(path.read_text())
    called = {
      node.func.id
      for node in ast.walk(tree)
      if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    assert not called & {"print", "input"}, path
    assert "time" not in {
      name.name
      for node in ast.walk(tree)
      if isinstance(node, ast.Import)
      for name in node.names
    }, path
