"""A store of a test's own."""

from __future__ import annotations

import pytest

from kernels.store import Store


@pytest.fixture
def path(tmp_path):
    return tmp_path / "kept" / "tilescope.db"


@pytest.fixture
def store(path):
    opened = Store(path)
    yield opened
    opened.close()
