"""The benchmark measures what it says; how fast, no test asks."""

import json
import math

import numpy as np
import pytest

from experiments import bench_backwards
from experiments import bench_choose
from experiments import bench_workloads
from experiments.configs import setting3
import fedinf_jax as fi
from tests import binaries

FIELDS = {
  "gemm_peak_gflops",
  "compile_seconds",
  "peak_rss_mb",
  "influence_over_training",
  "sigma_gflops",
  "sigma_fraction_of_peak",
  "replay_gflops",
  "replay_fraction_of_peak",
  "replay_speedup_vs_sequential",
}
EXPONENTS = {f"exponent_{s}" for s in ("K", "P", "m", "N_s", "R")}


def run(workloads, path):
  done = binaries.start(
    "bench", f"--json={path}", f"--workloads={workloads}", "--scale=0.02"
  )
  assert done.returncode == 0, done.stderr
  found = json.loads(path.read_text())["workloads"]
  assert list(found) == workloads.split(",")
  for numbers in found.values():
    for field, number in numbers.items():
      assert math.isfinite(number), field
      assert field in done.stdout
  return found


@pytest.mark.slow
def test_two_workloads_in_processes_of_their_own(tmp_path):
  found = run("setting1,exponents", tmp_path / "bench.json")
  assert set(found["setting1"]) >= FIELDS
  assert set(found["exponents"]) >= EXPONENTS


@pytest.mark.slow
def test_backwards_beside_forward_and_replay(enable_x32):
  found = bench_backwards.measure(0.02, lambda line: None)
  assert all(map(math.isfinite, found.values()))
  assert {"trainings_forward_1000", "trainings_replay_1000"} <= set(found)
  for clients in (1_000, 10_000, 100_000):
    assert found[f"trainings_16_directions_{clients}"] > 0
    assert found[f"program_mb_0_directions_{clients}"] > 0


@pytest.mark.slow
def test_choose_times_every_method(enable_x32, monkeypatch):
  monkeypatch.setattr(bench_choose, "CLIENTS", (10,))
  monkeypatch.setattr(bench_choose, "HIDDEN", ((8,),))
  found = bench_choose.measure(1.0, lambda line: None)
  methods = ("replay", "relu", "server", "adjoint")
  assert list(found) == [f"K=10 P=533 {method}" for method in methods]
  assert all(math.isfinite(n) and n > 0 for n in found.values())


def test_a_wrong_flag_is_one_line():
  done = binaries.start("bench", "--workloads=setting9")
  assert done.returncode == 2
  message = "--workloads: 'setting9' is unknown; there are setting1, "
  assert message in done.stderr and done.stderr.count("\n") == 1


def test_operations_are_those_of_direct_convolutions():
  config = setting3.get_config()
  images = np.zeros((8, 28, 28, 1), np.float32)
  data = fi.data.partition.iid(
    images, np.zeros(8, np.int32), num_clients=2, seed=0, num_classes=62
  )
  # 28² · 25 · 8, 14² · 25 · 8 · 16, 784 · 64 and 64 · 62 products.
  first, rest = 156_800, 627_200 + 50_176 + 3_968
  expected = 2 * (2 * first + 3 * rest)
  assert bench_workloads._operations(config, data) == expected
  config.model.kind = "logreg"
  assert bench_workloads._operations(config, data) == 4 * 28 * 62
