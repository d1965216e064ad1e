"""Fixtures of the tests of measurements."""

import pytest

from tests.tilescope.measure.held import Held


@pytest.fixture
def held(tmp_path):
    return Held(tmp_path)
