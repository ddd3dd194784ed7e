"""Chunks, programs and memory: how a round is computed changes nothing."""

import functools

import jax
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax import memory
from fedinf_jax import simulation
from tests import cases

SHARED = {
  "both": fi.estimator(fi.fisher(num_samples=4), fi.lwet()),
  "fine": fi.estimator(fi.fisher(num_samples=4), fi.lwet(per="participant")),
  "relu": fi.estimator(
    fi.fisher(layerwise=False, spectrum="relu"), fi.no_guard()
  ),
}


@pytest.mark.slow
def test_chunks_of_uploads_change_nothing():
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [(draw.normal(size=(n, 4)), draw.integers(0, 3, n))
     for n in (90, 2, 30, 14, 61, 20)]
  )  # fmt: skip
  fed = fi.FedAvg(rounds=5, cohort_size=4, local_steps=2, learning_rate=2.0)
  runs = [
    fi.simulate(
      fi.models.logreg(4, 3), data, fed, estimators=SHARED, upload_chunk=chunk
    )
    for chunk in (None, 1)
  ]
  for name in SHARED:
    cases.close(runs[0].eps[name], runs[1].eps[name], rtol=0, atol=1e-12)
    first, second = (run.health[name].truncated_at for run in runs)
    cases.close(first, second)


@pytest.mark.parametrize(
  "name", [pytest.param("both", marks=pytest.mark.slow), "fine"]
)
def test_chunks_of_removals_change_nothing(name, monkeypatch):
  data = cases.make_data((4,), sizes=(9, 8, 7, 12, 6, 5, 8))
  fed = fi.FedAvg(rounds=4, cohort_size=3, local_steps=2, learning_rate=2.0)
  guard = fi.lwet(per="participant" if name == "fine" else "layer")
  runs = []
  # All seven at once; then three at a time, and one of them twice.
  for chunk in (None, 3):
    if chunk:
      monkeypatch.setattr(memory, "chunk_size", lambda *_, size=chunk: size)
    estimator = fi.estimator(fi.fisher(num_samples=2), guard)
    estimators = {name: estimator}
    runs.append(
      fi.simulate(fi.models.logreg(4, 3), data, fed, estimators=estimators)
    )
  cases.close(runs[0].eps[name], runs[1].eps[name], rtol=0, atol=1e-12)
  truncated = runs[0].health[name].truncated_at
  cases.close(truncated, runs[1].health[name].truncated_at)
  assert (np.asarray(truncated) > 0).any()


@pytest.mark.parametrize("num_samples", [1, 8])  # Compact form and recursion.
def test_the_fine_guard_needs_nobody_to_come_twice(num_samples):
  curvature_ = fi.fisher(num_samples=num_samples)
  fine = fi.estimator(curvature_, fi.lwet(per="participant"))
  coarse = fi.estimator(curvature_, fi.no_guard())
  run = cases.simulate({"fine": fine, "none": coarse}, rounds=1)
  cases.close(run.eps["fine"], run.eps["none"])


@pytest.mark.slow
def test_jit_equals_eager():
  chosen = {name: SHARED[name] for name in ("both", "fine")}
  make = functools.partial(
    cases.simulate, chosen, rounds=2, removals=np.eye(6, dtype=bool)[:3]
  )
  compiled = make()
  with jax.disable_jit():
    eager = make()
  for name in chosen:
    for a, b in zip(*(jax.tree.leaves(run.eps[name]) for run in
                      (compiled, eager)), strict=True):  # fmt: skip
      ulp = np.spacing(np.abs(b).max())
      np.testing.assert_allclose(a, b, rtol=0, atol=4 * ulp)


def test_one_program_and_no_buffer_of_removals_by_participants_by_parameters(
  compilations,
):
  features, classes, num_clients, cohort = 300, 10, 64, 48
  draw = np.random.default_rng(0)
  data = fi.FederatedData.from_clients(
    [
      (draw.normal(size=(6, features)), draw.integers(0, classes, 6))
      for _ in range(num_clients)
    ]
  )
  fed = fi.FedAvg(
    rounds=3, cohort_size=cohort, local_steps=1, learning_rate=0.1
  )
  small = {
    "coarse": fi.estimator(fi.fisher(num_samples=3), fi.lwet()),
    "fine": fi.estimator(fi.fisher(num_samples=3), fi.lwet(per="participant")),
    "layerwise": fi.estimator(fi.layerwise_hessian(), fi.lwet()),
  }
  model = fi.models.logreg(features, classes)
  program = simulation.lower(model, data, fed, estimators=small).compile()
  whole = num_clients * cohort * (features + 1) * classes * 8
  assert program.memory_analysis().temp_size_in_bytes < whole / 2
  init, step = fi.simulator(model, data, fed, estimators=small)
  state = jax.block_until_ready(step(init()))
  before = len(compilations)
  jax.block_until_ready(step(state, 2))
  assert len(compilations) == before
