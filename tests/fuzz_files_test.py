"""Attacks on configs, ids and files: one clear line, nothing silently wrong.

The default tests make a tenth of the tries; all of them: -m slow.
"""

import math
import random
import shutil
import time

import hypothesis
from hypothesis import strategies
import ml_collections
import pytest

from experiments.configs import quickstart
from experiments.configs import setting2
from experiments.configs import setting3
from fedinf_jax import recipes
from fedinf_jax import report
from fedinf_jax.report import figures
from fedinf_jax.running import files
from fedinf_jax.running import logs
from fedinf_jax.running import records
from fedinf_jax.running import task as tasks
from fedinf_jax.running import workdir
from tests import binaries
from tests import kills
from tests import workdirs

CONFIGS, LOGS, JSONS, IDS, KILLS = 400, 400, 400, 200, 20
# The whole, and a tenth of it.
SHARES = [pytest.param(1, marks=pytest.mark.slow), 10]

HOSTILE = (
  *(-1, 0, 1, 2, 10**9, 10**12, 2**63, 10**400),
  *(-0.5, 0.0, 0.5, 1.5, 1e300, math.nan, math.inf, -math.inf),
  *("", "zzz", "rng", "one_hot", "all", "none", "-1", "1e3", "٣", "4x", "0x2"),
  *("both,,", "both,both", "exact", "\x1b[31m", "[/red]", "\ud800", "a\nb"),
  *(None, True, (), (4,), (4, 8, 16), (4, -8), ("a", "b"), [], {}, {"a": 1}),
  *(b"bytes", 1j, object, len),
)


def leaves(config, prefix=""):
  """Returns the keys with dots, of sections as well."""
  found = []
  for key, value in config.items():
    found.append(prefix + key)
    if isinstance(value, ml_collections.ConfigDict):
      found += 2 * leaves(value, f"{prefix}{key}.")  # More often than it.
  return found


def mutated(draw):
  """Returns a small recipe, and what is wrong with it."""
  made = draw.choice((quickstart, setting2, setting3)).get_config()
  made.data.num_clients, made.fed.cohort_size, made.mesh = 5, 2, "none"
  made.fed.rounds = 4
  made.scale = draw.choice((1.0, 0.5))
  if "examples" in made.data:
    made.data.update(examples=6, test_examples=10)
  content, changes = made.to_dict(), {}
  for _ in range(draw.choice((1, 1, 1, 2))):
    key = draw.choice(leaves(made))
    *path, last = key.split(".")
    place = content
    for part in path:
      place = place.get(part)
      if not isinstance(place, dict):
        break
    else:
      if draw.random() < 0.1:
        place.pop(last, None)
        changes[key] = "deleted"
      else:
        # Mostly of the right type: the others do not get far.
        same = [h for h in HOSTILE if type(h) is type(place.get(last))]
        values = same if same and draw.random() < 0.8 else HOSTILE
        place[last] = changes[key] = draw.choice(values)
  return ml_collections.ConfigDict(content), changes


@pytest.mark.parametrize("share", SHARES)
def test_mutated_configs_are_built_or_refused(share):
  draw, built, refused = random.Random(1), 0, 0
  for _ in range(CONFIGS // share):
    config, changes = mutated(draw)
    started = time.process_time()
    try:
      scaled = recipes.scaled(config)
      recipes.check(scaled)
      task = recipes.build("fuzz", scaled, None)
      # Seconds each; cohorts are drawn round by round.
      if share == 1 and task.fed.rounds < 100:
        tasks.simulator(task)
        tasks.logged(task)
      built += 1
    except (ValueError, OSError) as error:
      refused += 1
      assert str(error), changes
    except Exception as error:
      raise AssertionError(f"{changes}: {error!r}") from error
    assert time.process_time() - started < 20, changes
  # Neither way is empty.
  assert built > CONFIGS // share // 50
  assert refused > CONFIGS // share // 3


@pytest.mark.parametrize("share", SHARES)
def test_ids_survive_all_files_and_the_report(share, tmp_path):
  places = iter(range(10**6))

  @hypothesis.given(
    strategies.lists(
      strategies.text(
        strategies.characters(categories=("L", "N", "P", "S", "Z", "C")),
        max_size=12,
      ),
      min_size=3,
      max_size=6,
      unique=True,
    )
  )
  @hypothesis.settings(
    max_examples=IDS // share, derandomize=True, deadline=None, database=None
  )
  def check(ids):
    folder = tmp_path / str(next(places))
    workdirs.write(folder, clients=len(ids), ids=ids, rounds=5, debug=True)
    contents = workdir.read(folder)
    assert contents.ids == ids
    assert list(contents.tracked) == ids[:2]
    assert contents.debug["bad"] == ids[:1]
    expected = logs.Expected([1, 5], 2 * 2 * 3)
    assert logs.first_gap(folder, expected) is None
    before = binaries.files(folder)
    logs.rewind(folder, 5)
    assert binaries.files(folder) == before

  check()


def cut(draw, content):
  return content[: draw.randrange(len(content))]


def drop_lines(draw, content):
  lines = content.splitlines(keepends=True)
  start = draw.randrange(len(lines))
  del lines[start : start + draw.choice((1, 1, 2, 5))]
  return b"".join(lines)


def repeat_lines(draw, content):
  lines = content.splitlines(keepends=True)
  start = draw.randrange(len(lines))
  lines[start:start] = lines[start : start + draw.choice((1, 1, 2, 5))]
  return b"".join(lines)


def swap_lines(draw, content):
  lines = content.splitlines(keepends=True)
  # Within a round, the order of the rows of layers.csv says nothing.
  i = draw.randrange(len(lines) // 3)
  lines[i], lines[-1 - i] = lines[-1 - i], lines[i]
  return b"".join(lines)


def zeros(draw, content):
  start = draw.randrange(len(content))
  length = min(draw.choice((1, 8, 64, 512)), len(content) - start)
  return content[:start] + bytes(length) + content[start + length :]


def garbage(draw, content):
  lines = content.splitlines(keepends=True)
  junk = draw.choice(
    [
      b"[]\n",
      b"{}\n",
      b"null\n",
      b"\n",
      b"\xff\xfe\n",
      b'{"round": "1"}\n',
      b"1,2,3\n",
      b'"\n',
      b"\xe2\x80\xa8",
      b"," * 50 + b"\n",
      b"[" * 5000,
    ]
  )
  lines.insert(draw.randrange(len(lines) + 1), junk)
  return b"".join(lines)


DAMAGES = (cut, drop_lines, repeat_lines, swap_lines, zeros, garbage)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  return workdirs.write(
    tmp_path_factory.mktemp("fuzz") / "w",
    clients=5,
    rounds=40,
    debug=True,
    repeats=2,
  )


EXPECTED = logs.Expected([1, *range(5, 41, 5)], 2 * 2 * 3)


@pytest.mark.parametrize("share", SHARES)
def test_damaged_logs_are_cut_back_to_what_is_whole(whole, share, tmp_path):
  draw = random.Random(2)
  folder = shutil.copytree(whole, tmp_path / "w")
  for _ in range(LOGS // share):
    name, damage = draw.choice(records.LOGS), draw.choice(DAMAGES)
    before = (whole / name).read_bytes()
    after = damage(draw, before)
    (folder / name).write_bytes(after)
    if after != before:
      with pytest.raises(ValueError, match=name):
        workdir.read(folder)
    gap = logs.first_gap(folder, EXPECTED)
    last = gap.round - 1 if gap else 40
    intact = shutil.copytree(whole, tmp_path / "intact")
    for place in (folder, intact):
      logs.rewind(place, last)
    assert binaries.files(folder) == binaries.files(intact), (name, damage)
    shutil.rmtree(intact)
    for log in records.LOGS:
      shutil.copy(whole / log, folder / log)


def spoiled(draw, content):
  """Replaces a random part of parsed JSON by something else."""
  if isinstance(content, dict | list) and content and draw.random() < 0.8:
    keys = list(content) if isinstance(content, dict) else range(len(content))
    key = draw.choice(list(keys))
    if isinstance(content, dict) and draw.random() < 0.2:
      del content[key]
    else:
      content[key] = spoiled(draw, content[key])
    return content
  return draw.choice(
    ([], {}, None, "x", -1, 0, 1.5, 10**12, True, [[]], {"a": []}, "\x1b[31m")
  )


@pytest.mark.parametrize("share", SHARES)
def test_spoiled_json_is_refused_or_drawn(whole, share, tmp_path, monkeypatch):
  # Drawing takes most of the time, and has no part in what is tested.
  monkeypatch.setattr(figures, "images", lambda contents: {})
  draw = random.Random(3)
  folder, refused = shutil.copytree(whole, tmp_path / "w"), 0
  for _ in range(JSONS // share):
    name = draw.choice(
      (records.SUMMARY, records.CONFIG, records.DEBUG, records.REPEATS)
    )
    content = files.read_json(whole / name)
    files.write_json(folder / name, spoiled(draw, content))
    try:
      report.write(folder)
    except ValueError as error:
      refused += 1
      assert str(folder) in str(error)
    (folder / name).write_bytes((whole / name).read_bytes())
  assert refused > JSONS // share // 2


def test_a_file_without_any_object_is_refused(tmp_path):
  about = records.About(name="", config={}, data={}, versions={})
  for content in ("[]", "null", "3", '"x"', "[" * 10**5, "\x00"):
    (tmp_path / records.CONFIG).write_text(content)
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
      workdir.claim(tmp_path, about)


@pytest.mark.slow
def test_killed_at_random_it_ends_with_the_same_bytes(tmp_path):
  expected = kills.whole(tmp_path / "whole")
  folder, draw = tmp_path / "w", random.Random(0)
  killed = 0
  while killed < KILLS:
    process = kills.begin(folder)
    if draw.random() < 0.3:  # While it starts.
      time.sleep(6 * draw.random())
    else:
      kills.wait_for_progress(process, folder, draw.randrange(1, 30))
      time.sleep(0.05 * draw.random())
    process.kill()
    ended = process.wait()
    process.communicate()
    if ended == 0:  # Done before it could be killed: begin anew.
      assert binaries.files(folder) == expected
      folder = tmp_path / f"w{killed}"
      continue
    killed += 1
  kills.finish(folder)
  assert binaries.files(folder) == expected
