"""The table of planted defects fits the source; `make mutants` shows that the tests find each."""

from __future__ import annotations

import pytest

from tests.kernels.trees import ROOT
from tests.mutants.__main__ import verdict
from tests.mutants.planted import PLANTED


def test_at_least_30_defects_are_planted_and_no_two_are_alike():
    assert len({(one.file, one.right, one.wrong) for one in PLANTED}) == len(PLANTED) >= 30


@pytest.mark.parametrize("one", PLANTED, ids=lambda one: f"{one.file}: {one.right}")
def test_what_a_defect_changes_stands_once_in_the_source(one):
    assert (ROOT / one.file).read_text(encoding="utf-8").count(one.right) == 1
    assert one.wrong != one.right
    assert any(part.endswith(".py") for part in one.tests)
    assert all((ROOT / part).exists() for part in one.tests if part.endswith(".py"))


def test_only_failed_tests_have_found_a_defect():
    assert [verdict(status) for status in (0, 1, 2, 4, 5, None)] == [
        "SURVIVED", "found", "ERROR", "ERROR", "ERROR", "found",
    ]  # fmt: skip
