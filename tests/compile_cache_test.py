"""Where compiled programs are kept between two starts of a binary."""

import jax
import pytest

from experiments import launch
from fedinf_jax.running import compile_cache


@pytest.fixture(autouse=True)
def no_cache(monkeypatch, tmp_path):
  """JAX as it starts, and a user whose cache is a folder of the test."""
  monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
  monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
  names = "compilation_cache_dir", "persistent_cache_min_compile_time_secs"
  before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
  jax.config.update("jax_compilation_cache_dir", None)
  yield
  for name, value in before.items():
    jax.config.update(name, value)


def test_programs_are_kept_in_the_users_cache(tmp_path):
  compile_cache.keep()
  folder = tmp_path / "cache" / "fedinf_jax"
  assert jax.config.jax_compilation_cache_dir == str(folder)
  assert folder.is_dir()


def test_without_a_variable_the_cache_is_below_the_home(monkeypatch, tmp_path):
  monkeypatch.delenv("XDG_CACHE_HOME")
  monkeypatch.setenv("HOME", str(tmp_path))
  expected = tmp_path / ".cache" / "fedinf_jax"
  assert compile_cache.default_folder() == expected


def test_a_folder_that_the_user_named_is_left_to_jax(monkeypatch, tmp_path):
  monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "named"))
  compile_cache.keep()
  assert jax.config.jax_compilation_cache_dir is None
  assert not (tmp_path / "cache").exists()


def test_where_no_folder_can_be_made_nothing_is_kept(tmp_path):
  (tmp_path / "cache").write_text("a file, not a folder")
  compile_cache.keep()
  assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.parametrize("asked", [True, False])
def test_a_flag_turns_it_off(monkeypatch, asked):
  flag = [] if asked else ["--nocompilation_cache"]
  monkeypatch.setattr("sys.argv", ["binary", *flag])
  seen = []
  with pytest.raises(SystemExit):
    launch.run(lambda argv: seen.append(jax.config.jax_compilation_cache_dir))
  assert [folder is not None for folder in seen] == [asked]
