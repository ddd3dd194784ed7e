"""Presets: estimators under plain names are those of recipes."""

import inspect

import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.recipes import estimators
from tests import cases

PLAIN = {
  "paper": "both",
  "paper_basic": "basic",
  "paper_only_lwet": "only_lwet",
  "paper_only_fisher": "only_ha",
  "same_upload": "relu",
  "small_upload": "lowrank",
  "nothing_uploaded": "server",
  "nothing_uploaded_matched": "matched",
}


def makers():
  """The functions of the module that make an estimator without being told."""
  return {
    name: function
    for name, function in inspect.getmembers(fi.presets, inspect.isfunction)
    if function.__module__ == fi.presets.__name__
    and name[0] != "_"
    and all(
      p.default is not p.empty
      for p in inspect.signature(function).parameters.values()
    )
  }


def test_plain_names_are_those_of_recipes():
  assert makers().keys() == PLAIN.keys()
  for plain, name in PLAIN.items():
    made, of_recipe = makers()[plain](), estimators.build(name)[name]
    assert made.curvature.key == of_recipe.curvature.key, plain
    assert made.guard == of_recipe.guard
    assert f"`{name}`" in inspect.getdoc(makers()[plain]) or "paper" in plain


def test_sizes_are_arguments():
  assert fi.presets.paper(num_samples=7).curvature.num_samples == 7
  key = fi.presets.small_upload(rank=5).curvature.key
  assert key == fi.presets.named("lowrank@5").curvature.key
  less = fi.presets.named("matched", server_examples=90).curvature
  assert less.num_samples == 90
  for wrong in (0, -1, "many", 2.5):
    with pytest.raises(ValueError, match=r"^num_samples is"):
      fi.presets.paper(num_samples=wrong)
  with pytest.raises(ValueError, match="'ours' is unknown; there are basic,"):
    fi.presets.named("ours")


def test_a_preset_is_the_paper_s_method():
  by_hand = fi.estimator(fi.fisher(num_samples=3), fi.lwet())
  runs = [
    cases.simulate({"it": e}, rounds=3)
    for e in (fi.presets.paper(num_samples=3), by_hand)
  ]
  cases.close(runs[0].eps["it"], runs[1].eps["it"], rtol=0, atol=0)
  assert np.abs(cases.ravel(runs[0].eps["it"])).max() > 0
