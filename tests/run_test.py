"""A run outlives its state, is saved and loaded, and says what it is."""

import dataclasses
import json

from flax import linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedinf_jax as fi
from fedinf_jax.simulation import saved
from tests import cases

X, Y = cases.server_data()
OWN = ["client-1", None, *["client-4"] * 18]


def of_ids(data, ids):
  return dataclasses.replace(data, ids=tuple(ids))


class Tanh(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.tanh(nn.Dense(cases.CLASSES)(x))


class Sigmoid(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.sigmoid(nn.Dense(cases.CLASSES)(x))


def flax(module):
  return fi.models.from_flax(
    module, np.zeros((1, 4)), fi.models.cross_entropy, jax.random.categorical
  )


MODEL = flax(Tanh())
FED = fi.FedAvg(rounds=5, cohort_size=3, local_steps=2, learning_rate=0.4)
ALONE = fi.estimator(fi.truncated(), fi.no_guard())
BOTH = {"other": ALONE, "a/b": fi.estimator(fi.truncated(), fi.lwet())}


@pytest.fixture(scope="module")
def full():
  """A run with all that a run can have."""
  _, data = cases.logreg()
  run = fi.simulate(
    MODEL,
    of_ids(data, ["a", 7, "line\nbreak", 10**30, "ü", np.int64(3)]),
    FED,
    estimators=BOTH,
    exact=[0, 2],
    removals=[["a", 7], [10**30], ["ü", "line\nbreak"]],
    evaluate=(X, Y),
    evaluate_every=2,
  )
  # As an estimator that matches mixtures has them.
  residual = jnp.array([0.5, np.nan, *[0.25] * 4])
  health = run.health["other"]._replace(residual=residual)
  return dataclasses.replace(run, health={**run.health, "other": health})


@pytest.fixture(scope="module")
def bare():
  """A run with as little as a run can have."""
  model, data = cases.logreg()
  return fi.simulate(model, data, FED)


def same(a, b):
  """Whether two trees have the same arrays, to the bit."""
  assert jax.tree.structure(a) == jax.tree.structure(b)
  for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    assert x.dtype == y.dtype and x.shape == y.shape
    assert x.tobytes() == y.tobytes()


def test_what_was_saved_says_what_the_run_said(full, tmp_path):
  full.save(tmp_path / "r")
  again = fi.Run.load(tmp_path / "r", MODEL)
  for of in full.names:
    found = [r.influence(fi.metrics.loss, X, Y, of=of) for r in (full, again)]
    same(*found)
  tables = [r.table(X, Y).to_csv() for r in (full, again)]
  assert tables[0] == tables[1]
  same(full.history._asdict(), again.history._asdict())
  same(full.exact_eps, again.exact_eps)
  for name in BOTH:
    mine, theirs = (r.health[name]._asdict() for r in (full, again))
    assert mine.pop("layer_names") == theirs.pop("layer_names")
    same(mine, theirs)
  assert again.ids == full.ids and type(again.ids[1]) is int
  assert again.made == full.made and again.rounds == 5
  assert list(again.made.estimators) == ["other", "a/b"]
  assert again.example == full.example
  for field in ("exact_rows", "num_examples", "labels", "cohorts", "removed"):
    same(getattr(full, field), getattr(again, field))
  assert repr(again) == repr(full)
  assert again.agreement(X, Y) == full.agreement(X, Y)
  # Another's, on the same folder, in its place.
  again.save(tmp_path / "r")
  assert [p.name for p in (tmp_path / "r").iterdir()] == [saved.FILE]


def test_a_run_with_little_is_saved_as_well(bare, tmp_path):
  bare.save(tmp_path)
  again = fi.Run.load(tmp_path, bare.model)
  same(bare.params, again.params)
  assert again.names == [] and again.history is again.removed is None
  assert again.table(X, Y).to_csv() == bare.table(X, Y).to_csv()
  init, _ = fi.simulator(bare.model, cases.logreg()[1], FED)
  fi.Run.of(bare.model, init()).save(tmp_path / "barest")
  barest = fi.Run.load(tmp_path / "barest", bare.model)
  assert barest.ids is barest.made is barest.example is barest.cohorts is None


def test_half_precision_is_kept(bare, tmp_path):
  half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), bare.params)
  dataclasses.replace(bare, params=half, example=None).save(tmp_path)
  same(fi.Run.load(tmp_path, bare.model).params, half)


def test_no_pickle_and_nothing_but_numbers(full, tmp_path):
  full.save(tmp_path)
  with np.load(tmp_path / saved.FILE, allow_pickle=False) as arrays:
    assert all(arrays[name].dtype.kind in "biufV" for name in arrays)
    about = json.loads(arrays["about"].tobytes())
  assert about["format"] == saved.FORMAT


def _other_layers():
  return flax(nn.Sequential([nn.Dense(2), nn.Dense(cases.CLASSES)]))


OTHERS = {
  "shape": (
    lambda: fi.models.from_flax(
      Tanh(), np.zeros((1, 5)), fi.models.cross_entropy
    ),
    r"its Dense_0/kernel has shape \[4, 3\]; this model's has \[5, 3\]$",
  ),
  "layers": (_other_layers, r"its layers are Dense_0/bias, Dense_0/kernel; th"),
  "function": (
    lambda: flax(Sigmoid()),
    "its layers have the same shapes, but its outputs or its loss differ$",
  ),
  "loss": (
    lambda: MODEL._replace(loss=lambda o, y: 2 * MODEL.loss(o, y)),
    "its layers have the same shapes, but its outputs or its loss differ$",
  ),
  "no model": (lambda: 3, "^model is a int; it must be a fi.Model"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_model_is_refused_in_one_line(name, full, tmp_path):
  make, message = OTHERS[name]
  full.save(tmp_path)
  with pytest.raises(ValueError, match=message) as error:
    fi.Run.load(tmp_path, make())
  assert "\n" not in str(error.value)


def test_folders_that_hold_no_run_are_refused(bare, tmp_path):
  with pytest.raises(ValueError, match=r"holds no saved run \(no run\.npz\)"):
    fi.Run.load(tmp_path, bare.model)
  (tmp_path / "notes.txt").write_text("mine")
  with pytest.raises(ValueError, match=r"holds something else \(notes\.txt\)"):
    bare.save(tmp_path)
  assert [p.name for p in tmp_path.iterdir()] == ["notes.txt"]
  with pytest.raises(ValueError, match=r"cannot be written \(Not a directory"):
    bare.save(tmp_path / "notes.txt" / "r")
  with pytest.raises(ValueError, match=r"^folder is 3; it must be a path"):
    bare.save(3)


def test_damage_is_named(full, tmp_path):
  full.save(tmp_path)
  path = tmp_path / saved.FILE
  content = bytearray(path.read_bytes())
  half = len(content) // 2
  for damaged in (content[:half], b"", content[:half] + b"?" * half):
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"^folder: .*damaged") as error:
      fi.Run.load(tmp_path, MODEL)
    assert "\n" not in str(error.value)
  other = {"about": np.frombuffer(b'{"format": 9}', np.uint8)}
  np.savez(path, **other)
  with pytest.raises(ValueError, match=r"of another version.* 9, not 1"):
    fi.Run.load(tmp_path, MODEL)


def test_a_save_that_fails_leaves_the_old_run(bare, tmp_path, monkeypatch):
  bare.save(tmp_path)
  before = (tmp_path / saved.FILE).read_bytes()

  def full_disk(file, **arrays):
    file.write(b"half")
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(np, "savez", full_disk)
  with pytest.raises(ValueError, match=r"written \(No space left on device\)"):
    bare.save(tmp_path)
  assert (tmp_path / saved.FILE).read_bytes() == before


def test_float64_needs_the_flag(bare, tmp_path):
  bare.save(tmp_path)
  message = "float64; turn JAX's x64 flag on"
  with jax.enable_x64(False), pytest.raises(ValueError, match=message):
    fi.Run.load(tmp_path, fi.models.logreg(4, cases.CLASSES))


def test_a_run_outlives_the_next_step():
  model, data = cases.logreg()
  init, step = fi.simulator(model, data, FED, estimators=BOTH, exact=True)
  state = step(init(), 2)
  run = fi.Run.of(model, state, data)
  shared = fi.Run.of(model, state, data, copy=False)
  before = run.table(X, Y).to_csv()
  held = run.params, run.eps, run.health["other"].growth
  kept = jax.tree.map(np.array, held)
  state = step(state, 3)
  jax.block_until_ready(state)
  # The arrays of the state are gone, those of the run are as they were.
  assert all(a.is_deleted() for a in jax.tree.leaves(shared.params))
  assert all(a.is_deleted() for a in jax.tree.leaves(shared.spread_eps))
  same(kept, held)
  assert run.table(X, Y).to_csv() == before
  after = fi.Run.of(model, state, data).table(X, Y).to_csv()
  assert after != before


def test_three_lines_and_a_small_table(full, bare):
  lines = repr(full).splitlines()
  assert lines == [
    "Run: 5 rounds, a model of 15 parameters, 6 clients with 43 examples",
    "Influence of 3 groups of clients: exact (for 2 of them), a/b, other",
    f"History: 3 evaluated rounds, 2 to 5; loss {full.history.loss[-1]:.4g},"
    f" accuracy {full.history.accuracy[-1]:.4g} at the last",
  ]
  assert repr(bare).splitlines()[1:] == [
    "Influence of 6 clients, one at a time: not estimated",
    "History: none (simulate(..., evaluate=(x, y)) keeps one)",
  ]
  table = full._repr_html_()
  assert table.count("<tr>") == 4 and "<td>a/b</td><td>3</td>" in table
  odd = dataclasses.replace(
    full,
    spread_eps={"<script>\x1b": full.spread_eps["other"]},
    health={"<script>\x1b": full.health["other"]},
  )
  assert "<script>" not in odd._repr_html_()
  assert len(repr(odd).splitlines()) == 3 and "\x1b" not in repr(odd)
