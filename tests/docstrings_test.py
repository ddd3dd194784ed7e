"""Every public function has an example, and every example runs."""

import contextlib
import doctest
import inspect
import io
import pathlib
import pkgutil
import re
import sys
import tempfile

import jax
import pytest

import fedinf_jax as fi
from fedinf_jax import server
from fedinf_jax import simulation

PAGE = pathlib.Path(__file__).parent.parent / "docs" / "api" / "index.md"
MODULES = (
  fi,
  fi.data,
  fi.data.corrupt,
  fi.data.femnist,
  fi.data.partition,
  fi.federation,
  fi.metrics,
  fi.models,
  fi.presets,
  fi.report,
  fi.report.figures,
  fi.theory,
  fi.valuation,
  server,
  simulation,
)
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def public():
  """Returns all public functions and classes, each once."""
  found = {}
  for module in MODULES:
    for value in vars(module).values():
      ours = getattr(value, "__module__", "").startswith("fedinf_jax")
      named = not getattr(value, "__name__", "_").startswith("_")
      if (
        ours and named and (inspect.isfunction(value) or inspect.isclass(value))
      ):
        found[f"{value.__module__}.{value.__qualname__}"] = value
  return found


def methods(value):
  """Returns the public methods and properties of a class, by name."""
  if not inspect.isclass(value):
    return {}
  kinds = (classmethod, property, staticmethod)
  return {
    name: method
    for name, method in vars(value).items()
    if not name.startswith("_")
    and (inspect.isfunction(method) or isinstance(method, kinds))
  }


def is_record(value):
  """Returns whether it is a plain record, which others return."""
  is_tuple = inspect.isclass(value) and issubclass(value, tuple)
  return is_tuple and not methods(value)


def examples(value):
  """Returns the examples of a function, or of a class and its methods."""
  texts = [value.__doc__, *(m.__doc__ for m in methods(value).values())]
  parse = doctest.DocTestParser().get_examples
  return [example for text in texts for example in parse(text or "")]


PUBLIC = public()


@pytest.fixture(scope="module")
def names():
  """What the reference says that every example begins with."""
  (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
  with jax.enable_x64(False):
    found = {}
    exec(compile(block, PAGE.name, "exec"), found)
    yield found


@pytest.mark.parametrize("name", [n for n in PUBLIC if examples(PUBLIC[n])])
def test_examples_run(name, names, tmp_path, monkeypatch):
  monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
  test = doctest.DocTest(
    examples(PUBLIC[name]), dict(names), name, None, None, None
  )
  said = []
  runner = doctest.DocTestRunner(optionflags=FLAGS)
  with contextlib.redirect_stderr(io.StringIO()):  # TFDS shows progress.
    runner.run(test, out=said.append, clear_globs=False)
  assert not runner.failures, "".join(said)


@pytest.mark.parametrize("name", PUBLIC)
def test_all_have_examples(name):
  value = PUBLIC[name]
  if not is_record(value):
    assert examples(value), f"{name} has no example"
  shown = "".join(example.source for example in examples(value))
  for method in methods(value):
    assert re.search(rf"\.{method}\b", shown), f"{name}.{method} is not shown"


def test_the_reference_has_all():
  pages = "".join(page.read_text() for page in PAGE.parent.glob("*.md"))
  entries = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
  flower = [entry for entry in entries if entry.startswith("fedinf_jax.flower")]
  assert flower  # Their module needs flwr.
  listed = [pkgutil.resolve_name(e) for e in entries if e not in flower]
  for name, value in PUBLIC.items():
    module = sys.modules[value.__module__]
    assert value in listed or module in listed or is_record(value), name
