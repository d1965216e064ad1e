"""Where compiled kernels are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.measuring.cache_directory import default_cache_directory


@pytest.fixture
def without_variables(monkeypatch):
    for name in ("TILESCOPE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_it_is_where_the_environment_says_or_the_users_cache(without_variables, tmp_path):
    without_variables.setenv("HOME", str(tmp_path))
    assert default_cache_directory() == tmp_path / ".cache" / "tilescope"
    without_variables.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    assert default_cache_directory() == tmp_path / "caches" / "tilescope"
    without_variables.setenv("TILESCOPE_CACHE", str(tmp_path / "ours"))
    assert default_cache_directory() == tmp_path / "ours"


def test_a_user_without_a_home_gets_a_directory_that_is_theirs_alone(without_variables):
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    without_variables.setattr(Path, "home", homeless)
    found = default_cache_directory()
    assert found.is_dir()
    assert found.stat().st_mode & 0o077 == 0
    assert default_cache_directory() == found
