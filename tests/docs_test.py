"""The documents: their Python runs, and what they name exists."""

import ast
import functools
import importlib.util
import json
import pathlib
import pkgutil
import re
import shlex
import subprocess
import sys

import pytest

import fedinf_jax as fi
from fedinf_jax.command import flags
from fedinf_jax.command import main
from fedinf_jax.command import parser
from fedinf_jax.recipes import estimators
from tests import binaries
from tests import stand_ins

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RECIPES = [
  importlib.import_module(f"experiments.configs.{name}").get_config()
  for name in ("setting1", "setting3")
]


def blocks(page):
  return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def name_of(page):
  return str(page.relative_to(ROOT).with_suffix("")).removeprefix("docs/")


def command_lines(page, start):
  """Returns the lines of shell blocks that start so, as arguments."""
  text = page.read_text().replace("\\\n", "")
  shell = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
  lines = re.findall(rf"{start}([^\"\n]*)", shell)
  return [shlex.split(line, comments=True) for line in lines]


def has_key(recipe, key):
  first, _, rest = key.partition(".")
  return first in recipe and (not rest or has_key(recipe[first], rest))


# What a page must have printed, in words that do not depend on rounding.
PRINTED = {
  "command": [],
  "experiments": [],
  "README": ["hurts most: hospital 0\n"],
  "guide": [
    "ours hospital 0 -",
    "exact hospital 0 -",
    "after round 30",
    "Influence of 12 clients, one at a time: exact (for 3 of them), ours",
    "report.html and influence.csv\n",
    "{'helps': ",
    "Table of 12 rows; exact: ",
    "per class: (12, 3)",
    "worst owner: (12,)",
    "would be less probable without: hospital",
    "backwards: hospital 0 -",
    "'kernel': (12, 4, 3)",
    "read off:",
  ],
  "index": [
    "12 clients by column hospital",
    "hurts the others most: hospital 0\n",
  ],
  "choose": ["relu: local training is plain", "lowrank_step: client_opt"],
  "data": [
    "left: 8\n",
    "held out: (",
    "hospitals.csv: 12 clients by column hospital, 480 rows, 1 numeric column"
    " (standardised), 1 category (one-hot, 2 values), label outcome with 2"
    " classes\n(12,)\n",
    "images: (10, 8, 8, 1)\nwriters: ('ann', 'ben')\nby ink: (8, 1)\n",
    "partitions: [4 4]\n",
  ],
  "trust": ["ceiling 1.000\n"],
}


@pytest.mark.parametrize(
  "page",  # That of the reference is run by docstrings_test.
  [page for page in PAGES if blocks(page) and name_of(page) != "api/index"],
  ids=name_of,
)
def test_python_blocks_run(page, capsys, enable_x32, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # They may write reports.
  for name, module in stand_ins.modules().items():
    monkeypatch.setitem(sys.modules, name, module)
  names = {}
  for block in blocks(page):
    if "import equinox" in block and not importlib.util.find_spec("equinox"):
      continue  # The one package without a stand-in.
    exec(compile(block, page.name, "exec"), names)
  printed = capsys.readouterr().out
  for words in PRINTED[name_of(page)]:
    assert words in printed


@pytest.mark.slow
def test_the_command_s_example_finds_its_hospital(
  capsys, enable_x32, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  page = ROOT / "docs/command.md"
  for block in blocks(page):
    exec(compile(block, page.name, "exec"), {})
  lines = command_lines(page, "fedinf ")
  assert [line[0] for line in lines] == ["plan", "run", "report"]
  for line in lines:
    assert main.main(line) == 0
  printed = capsys.readouterr().out
  assert "But client h6 helps its own test examples only" in printed
  assert printed.endswith("runs/hospitals/report.html\n")


def test_the_command_s_page_has_every_flag():
  text = (ROOT / "docs/command.md").read_text()
  for name, command in flags.COMMANDS.items():
    assert f"fedinf {name}" in text
    for flag in command.flags:
      assert re.search(rf"--{flag.name}\b", text), flag.name


@pytest.mark.slow
def test_a_recipe_brings_its_own_problem(tmp_path):
  (block,) = blocks(ROOT / "docs/experiments.md")
  (tmp_path / "hospitals.py").write_text(block)
  done = binaries.start(
    "run",
    f"--config={tmp_path}/hospitals.py",
    f"--workdir={tmp_path}/run",
    "--config.data.hospitals=9",
    "--config.fed.rounds=6",
  )
  assert done.returncode == 0, done.stderr
  assert "hospitals: 9 clients, 288 training examples" in done.stdout
  done = binaries.start("cleanse", f"--workdir={tmp_path}/run")
  assert done.returncode == 2 and "get_problem(config), can" in done.stderr
  assert done.stderr.count("\n") == 1


def test_first_examples_are_short():
  lines = lambda block: [s for s in block.splitlines() if s.strip()]
  assert len(lines(blocks(ROOT / "README.md")[1])) <= 7
  assert len(lines(blocks(ROOT / "docs/guide.md")[0])) <= 25


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
  for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    assert target.exists(), link
    if heading.startswith("fedinf_jax."):  # An entry of the reference.
      pkgutil.resolve_name(heading)
    elif heading:
      titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
      anchors = [re.sub(r"[^\w -]", "", t).lower() for t in titles]
      assert heading in [a.replace(" ", "-") for a in anchors], link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_exist(page):
  text = page.read_text()
  for name in re.findall(r"\bfi\.(\w+(?:\.\w+)*)", text):
    functools.reduce(getattr, name.split("."), fi)
  for name in re.findall(r"-m experiments\.(\w+)", text):
    assert (ROOT / f"experiments/{name}.py").exists(), name
  for name in re.findall(r"--config=([a-z]\w*)", text):
    assert (ROOT / f"experiments/configs/{name}.py").exists(), name
  for names in re.findall(r"--config\.estimators=([a-z]\S*)", text):
    estimators.build(names.strip("`|)."))
  for key in re.findall(r"--config\.([\w.]+)=", text):
    assert any(has_key(recipe, key) for recipe in RECIPES), key


def test_commands_of_shell_blocks_parse():
  lines = [
    [f"experiments.{binary}", *arguments]
    for page in PAGES
    for binary, *arguments in command_lines(page, r"-m experiments\.")
  ]
  lines = [list(line) for line in dict.fromkeys(map(tuple, lines))]
  assert len(lines) > 30
  wrong = ["experiments.run", "--no_such_flag=1"]
  done = subprocess.run(
    [sys.executable, "-m", "tests.command_lines"],
    input=json.dumps([*lines, wrong]),
    cwd=ROOT,
    env=binaries.environment(),
    capture_output=True,
    text=True,
    check=True,
  )
  ((refused, error),) = json.loads(done.stdout)
  assert refused == wrong, error
  assert "no_such_flag" in error


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_of_fedinf_parse(page):
  for line in command_lines(page, r"(?m:^|/)fedinf (?!\S*/)"):
    parser.parse(line)


def test_the_strategy_is_called_as_it_is():
  """Its page cannot run here: flwr needs an environment of its own."""
  page = (ROOT / "docs/federation.md").read_text()
  (block,) = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
  source = (ROOT / "fedinf_jax/flower/strategy.py").read_text()
  (made,) = (
    node
    for node in ast.walk(ast.parse(source))
    if isinstance(node, ast.ClassDef) and node.name == "InfluenceStrategy"
  )
  functions = {f.name: f for f in made.body if isinstance(f, ast.FunctionDef)}
  arguments = functions["__init__"].args
  first, *others = [n for n in ast.walk(ast.parse(block)) if _is_call(n)]
  assert ast.unparse(first.func) == "flower.InfluenceStrategy"
  assert len(first.args) == len(arguments.args) - 1  # Without self.
  given = {keyword.arg for keyword in first.keywords}
  assert given <= {a.arg for a in arguments.kwonlyargs}
  for call in others:
    if ast.unparse(call.func).startswith("strategy."):
      assert call.func.attr in functions or call.func.attr == "start"


def _is_call(node):
  return isinstance(node, ast.Call)


@pytest.mark.slow
def test_the_first_command_finds_the_hospital(tmp_path, monkeypatch, capsys):
  page = ROOT / "docs/index.md"
  monkeypatch.chdir(tmp_path)
  exec(compile(blocks(page)[0], page.name, "exec"), {})
  ((name, *arguments),) = command_lines(page, "fedinf (?=run)")
  done = subprocess.run(
    [sys.executable, "-m", "fedinf_jax", name, *arguments],
    env=binaries.environment() | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=True,
  )
  said = " ".join(done.stdout.split())
  assert "hospital 0 helps its own test examples only, and hurts all" in said
  assert (tmp_path / "runs/hospitals/report.html").exists()


def test_files_of_shell_blocks_exist():
  for page in PAGES:
    for name in re.findall(r"pip install.* -r (\S+)", page.read_text()):
      assert (ROOT / name).exists(), name
