"""Tests that share what takes long to make are run by one worker: each computes it once."""

from __future__ import annotations

import pytest


@pytest.mark.xdist_group("named")
def test_an_id_names_its_group_where_tests_are_spread_by_group(request):
    is_spread = request.config.getoption("loadgroup", default=False)
    assert request.node.nodeid.endswith("@named") == is_spread


def test_an_id_without_a_group_names_none(request):
    assert "@" not in request.node.nodeid
