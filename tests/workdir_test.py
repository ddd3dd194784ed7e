"""The files of a run, its checkpoints and its progress."""

import errno
import io
import sys
from unittest import mock

import jax.numpy as jnp
import numpy as np
import pytest
from rich import console as rich_console
from scipy import stats

from fedinf_jax.running import checkpoint
from fedinf_jax.running import files
from fedinf_jax.running import logs
from fedinf_jax.running import progress
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from fedinf_jax.valuation import reliability
from tests import kills

ABOUT = records.About(
  name="test",
  config={"fed": {"rounds": 3}},
  data={"digest": "ab"},
  versions={"jax": "1"},
)


@pytest.mark.parametrize(
  "change,message",
  [
    ({"config": {"fed": {"rounds": 4}}}, "its config.fed.rounds is 3, not 4"),
    ({"data": {"digest": "cd"}}, "its data.digest is 'ab', not 'cd'"),
    ({"versions": {"jax": "2"}}, "its versions.jax is '1', not '2'"),
    ({"data": {"digest": "ab", "more": 1}}, "its data.more is None, not 1"),
  ],
)
def test_a_workdir_of_another_run_is_refused(tmp_path, change, message):
  workdir.claim(tmp_path / "w", ABOUT)
  workdir.claim(tmp_path / "w", ABOUT)
  with pytest.raises(ValueError, match=message):
    workdir.claim(tmp_path / "w", ABOUT._replace(**change))


def test_a_folder_of_something_else_is_refused(tmp_path):
  (tmp_path / "thesis.tex").write_text("years of work")
  with pytest.raises(ValueError, match=r"holds no run \(thesis.tex\)"):
    workdir.claim(tmp_path, ABOUT)
  assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]


def test_a_workdir_is_checked_before_anything_is_written(tmp_path):
  workdir.check(tmp_path / "new" / "w")
  assert not (tmp_path / "new").exists()
  (tmp_path / "file").write_text("")
  with pytest.raises(ValueError, match=r"file/w: .*/file is not a folder$"):
    workdir.check(tmp_path / "file" / "w")


def test_a_damaged_config_is_named(tmp_path):
  (tmp_path / "config.json").write_text('{"config"')
  with pytest.raises(ValueError, match=r"config\.json is damaged"):
    workdir.claim(tmp_path, ABOUT)


def test_logs_are_cut_back_and_torn_lines_go(tmp_path):
  header = records.LAYERS_HEADER
  line = '{"round": %d, "loss": 1, "accuracy": 1, "estimators": {}}\n'
  whole = line % 1 + line % 2
  (tmp_path / "metrics.jsonl").write_text(whole + '{"rou')
  rows = "1,a,w,e,,0.1\n2,a,w,e,,0.1\n"
  (tmp_path / "layers.csv").write_text(f"{header}{rows}3,a,w,e,,0.1\n4,")
  logs.rewind(tmp_path, 2)
  assert (tmp_path / "metrics.jsonl").read_text() == whole
  assert (tmp_path / "layers.csv").read_text() == header + rows
  logs.rewind(tmp_path, 0)
  assert (tmp_path / "layers.csv").read_text() == header


def test_json_has_no_nan_and_csv_is_quoted(tmp_path):
  files.write_json(
    tmp_path / "a.json",
    {"a": np.array([1.0, np.nan]), 2: records.Gain(0.5, np.inf)},
  )
  assert files.read_json(tmp_path / "a.json") == {
    "a": [1.0, None],
    "2": {"loss": 0.5, "accuracy": None},
  }
  line = files.csv_line(['a,"b"', None, 0.1, 3])
  assert line == '"a,""b""",,0.1,3'


def test_correlations_without_meaning_are_none():
  exact = np.array([1.0, 2.0, 3.0, np.nan])
  good = np.array([1.0, 2.0, 4.0, 9.0])
  assert reliability.correlation(stats.pearsonr, good, exact) > 0.9
  for bad in (np.ones(4), np.array([1.0, np.inf, 2.0, 0.0])):
    assert reliability.correlation(stats.pearsonr, bad, exact) is None
  assert reliability.correlation(stats.pearsonr, good[2:], exact[2:]) is None


def state(value):
  return {
    "round": jnp.asarray(value, jnp.int32),
    "eps": jnp.full((50, 300), value, jnp.float32),
    "flags": jnp.zeros((3, 2), bool),
    "none": None,
  }


def test_checkpoints_keep_the_latest_and_the_rounds_to_keep(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path / "c", keep={2})
  for round_ in range(1, 7):
    saved.save(state(round_), round_)
  assert saved.rounds() == [2, 5, 6]
  found, round_ = saved.restore(lambda: state(0))
  assert round_ == 6
  assert found["none"] is None
  np.testing.assert_array_equal(found["eps"], state(6)["eps"])
  assert found["flags"].dtype == bool
  saved.close()


def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path / "c", keep=set())
  for round_ in (3, 4):
    saved.save(state(round_), round_)
  kills.spoil(tmp_path / "c" / "4")
  warnings = []
  found, round_ = saved.restore(lambda: state(0), warn=warnings.append)
  assert round_ == 3
  np.testing.assert_array_equal(found["eps"], state(3)["eps"])
  assert len(warnings) == 1
  assert warnings[0].startswith("the checkpoint of round 4 is damaged")
  kills.spoil(tmp_path / "c" / "3")
  found, round_ = saved.restore(lambda: state(0), warn=warnings.append)
  assert round_ == 0
  np.testing.assert_array_equal(found["eps"], state(0)["eps"])
  assert len(warnings) == 2
  saved.close()


def test_a_checkpoint_that_does_not_fit_is_one_line(tmp_path, monkeypatch):
  monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
  full = OSError(errno.ENOSPC, "No space left on device\nand more lines")
  monkeypatch.setattr(
    checkpoint.ocp.CheckpointManager, "save", mock.Mock(side_effect=full)
  )
  saved = checkpoint.Checkpoints(tmp_path / "c", keep=())
  with pytest.raises(OSError, match=r"^the checkpoint of round 1 .* device\)$"):
    saved.save(state(1), 1)
  saved.close()


def test_progress_is_a_plain_line_now_and_then():
  screen = rich_console.Console(file=io.StringIO(), width=40)
  now = 0.0
  show = progress.plain_lines(screen, 100, clock=lambda: now)
  none = records.Agreement(None, None, None, None, None, 0.25)
  metrics = records.Metrics(
    round=5, loss=0.5, accuracy=0.75, estimators={"both": none}
  )
  for round_ in range(1, 31):
    show(round_, 0.0 if round_ == 1 else 1.5, metrics if round_ == 5 else None)
    now += 1.5
  lines = screen.file.getvalue().splitlines()
  assert lines[0] == "round 1/100"
  assert lines[1] == (
    "round 8/100, loss 0.500, acc 0.750, truncated 25%, 1.5 s/round,"
    " 0:02:18 left"
  )
  assert [line.split(",")[0] for line in lines[2:]] == [
    *("round 15/100", "round 22/100", "round 29/100")
  ]
