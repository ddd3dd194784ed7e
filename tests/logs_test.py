"""Logs are whole or mended: no gap is drawn from as if it were none."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import pytest
from rich import console as rich_console

from experiments.configs import quickstart
from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax.running import checkpoint
from fedinf_jax.running import finishing
from fedinf_jax.running import logs
from fedinf_jax.running import loop
from fedinf_jax.running import records
from fedinf_jax.running import workdir
from tests import binaries
from tests import workdirs


def cut_last_line(path):
  path.write_bytes(path.read_bytes()[:-1].rpartition(b"\n")[0] + b"\n")


def cut_a_line(path):
  lines = path.read_bytes().split(b"\n")
  del lines[len(lines) // 2]
  path.write_bytes(b"\n".join(lines))


def repeat_a_line(path):
  lines = path.read_bytes().split(b"\n")
  lines.insert(2, lines[2])
  path.write_bytes(b"\n".join(lines))


def tear(path):
  path.write_bytes(path.read_bytes()[:-5])


def empty(path):
  path.write_bytes(b"")


def remove(path):
  path.unlink()


def fill_with_zeros(path):
  content = bytearray(path.read_bytes())
  content[len(content) // 2 : len(content) // 2 + 20] = bytes(20)
  path.write_bytes(content)


DAMAGES = (
  *(cut_last_line, cut_a_line, repeat_a_line, tear, empty, remove),
  fill_with_zeros,
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  return workdirs.write(tmp_path_factory.mktemp("logs") / "w", clients=6)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", (*records.LOGS, records.INFLUENCE))
def test_a_damaged_file_is_refused_by_name(finished, name, damage):
  path = finished / name
  before = path.read_bytes()
  (finished / records.REPORT).touch()
  assert workdir.is_finished(finished)
  try:
    damage(path)
    with pytest.raises(ValueError, match=name) as caught:
      report.write(finished)
    assert str(finished) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not workdir.is_finished(finished)
  finally:
    path.write_bytes(before)


EXPECTED = logs.Expected([1, *range(5, 101, 5)], 2 * 2 * 3)


def test_a_gap_is_where_the_earliest_log_is_no_longer_whole(finished):
  assert logs.first_gap(finished, EXPECTED) is None
  more = EXPECTED._replace(rounds=[*EXPECTED.rounds, 105])
  assert logs.first_gap(finished, more).round == 105
  path = finished / records.LAYERS
  before = path.read_bytes()
  path.write_bytes(before[: len(before) // 2])
  gap = logs.first_gap(finished, EXPECTED)
  path.write_bytes(b"")
  empty_gap = logs.first_gap(finished, EXPECTED)
  path.write_bytes(before)
  assert gap.name == empty_gap.name == records.LAYERS
  assert gap.round == 50
  assert empty_gap.round == 1


def test_a_header_that_never_reached_the_disk_is_mended(tmp_path):
  path = tmp_path / records.LAYERS
  row = "1,a,w,e,,0.1\n"
  for content in ("", row, records.LAYERS_HEADER + row, None):
    if content is None:
      path.unlink()
    else:
      path.write_text(content)
    logs.rewind(tmp_path, 1)
    kept = row if content else ""
    assert path.read_text() == records.LAYERS_HEADER + kept


def task():
  config = quickstart.get_config()
  config.scale, config.estimators = 0.1, "truncated"
  config = recipes.scaled(config)
  config.update({"mesh": "none", "exact": "5", "cleanse_round": 4})
  return recipes.build("test", config, None)


def run(made, folder):
  screen = rich_console.Console(quiet=True)
  trained = loop.train(made, folder, screen, loop.Saving(rounds=2))
  finishing.finish(made, folder, trained)
  report.write(folder)


@pytest.mark.slow
def test_a_finished_run_mends_its_logs_from_an_earlier_checkpoint(
  enable_x32, tmp_path, capsys
):
  made = task()
  run(made, tmp_path / "w")
  whole = binaries.files(tmp_path / "w")
  assert loop.is_finished(made, tmp_path / "w")
  path = tmp_path / "w" / records.METRICS
  lines = path.read_bytes().split(b"\n")
  path.write_bytes(b"\n".join([*lines[:5], b'{"rou']))
  assert not loop.is_finished(made, tmp_path / "w")
  capsys.readouterr()
  run(made, tmp_path / "w")
  first, *others = capsys.readouterr().err.splitlines()
  assert first == f"warning: {path} is damaged at round 6"
  # The last two checkpoints; that of round 4 was kept.
  assert [line.split(" is ")[0] for line in others] == [
    f"warning: the checkpoint of round {round_}" for round_ in (10, 8)
  ]
  assert binaries.files(tmp_path / "w") == whole


class State(NamedTuple):
  round: jax.Array
  eps: jax.Array


def state(value):
  return State(jnp.int32(value), jnp.full((3, 4), value, jnp.float32))


def test_a_checkpoint_under_another_number_is_passed_over(tmp_path):
  saved = checkpoint.Checkpoints(tmp_path / "c", keep=set())
  for round_ in (1, 2):
    saved.save(state(round_), round_)
  saved.close()
  (tmp_path / "c" / "2").rename(tmp_path / "c" / "99")
  saved = checkpoint.Checkpoints(tmp_path / "c", keep=set())
  warnings = []
  found, round_ = saved.restore(lambda: state(0), warn=warnings.append)
  saved.close()
  assert round_ == int(found.round) == 1
  assert warnings == [
    "the checkpoint of round 99 is damaged (it is a copy of that of round 2);"
    " going back to the one before"
  ]
  assert not (tmp_path / "c" / "99").exists()
