"""Every public function for Flower has an example, and every example runs."""

import doctest

import pytest

pytest.importorskip(
  "flwr", reason="flwr wants older packages; .ci/run has an environment for it"
)

from fedinf_jax import flower
from tests import docstrings_test

names = docstrings_test.names  # The fixture.
PUBLIC = {
  name: value
  for name, value in vars(flower).items()
  if not name.startswith("_")
  and getattr(value, "__module__", "").startswith("fedinf_jax.flower")
}


@pytest.mark.parametrize("name", PUBLIC)
def test_examples_run(name, names):
  examples = docstrings_test.examples(PUBLIC[name])
  assert examples, f"{name} has no example"
  known = {**names, "flower": flower}
  said = []
  runner = doctest.DocTestRunner(optionflags=docstrings_test.FLAGS)
  test = doctest.DocTest(examples, known, name, None, None, None)
  runner.run(test, out=said.append, clear_globs=False)
  assert not runner.failures, "".join(said)
