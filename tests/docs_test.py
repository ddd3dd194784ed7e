"""The documents: their Python runs, and what they name exists."""

import functools
import importlib
import pathlib
import re

import pytest

import fedinf_jax as fi
from fedinf_jax.recipes import estimators

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECIPES = [
  importlib.import_module(f"experiments.configs.{name}").get_config()
  for name in ("setting1", "setting3")
]


def blocks(page):
  return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def name_of(page):
  return page.stem


def has_key(recipe, key):
  first, _, rest = key.partition(".")
  return first in recipe and (not rest or has_key(recipe[first], rest))


# What a page must have printed, in words that do not depend on rounding.
PRINTED = {
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
  "data": ["left: 8\n", "held out: ("],
  "trust": ["ceiling 1.000\n"],
}


@pytest.mark.parametrize(
  "page", [page for page in PAGES if blocks(page)], ids=name_of
)
def test_python_blocks_run(page, capsys, enable_x32, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)  # They may write reports.
  names = {}
  for block in blocks(page):
    exec(compile(block, page.name, "exec"), names)
  printed = capsys.readouterr().out
  for words in PRINTED[page.stem]:
    assert words in printed


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
    if heading:
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
