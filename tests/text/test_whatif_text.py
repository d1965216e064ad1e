"""What the what-if tables say of a change: which saves requests, by how much, and what differs between two GPUs."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kernels.results import Failure
from visualize.text import whatif_text
from visualize.views.prose import html


def operation(requests, sectors=8, width=16, number=0):
    return SimpleNamespace(
        number=number,
        access=SimpleNamespace(op="load", tensor="A", source=("kernels/x.py", 7)),
        width_bytes=width,
        launch=SimpleNamespace(requests=requests, sectors=sectors, is_lower_bound=False),
        compiled=None,
    )


@pytest.mark.parametrize(
    ("totals", "expected"),
    [
        ({"as it is": None, "x": 4}, "As it is, this can't be compiled, so there is nothing to compare with."),
        ({"as it is": 8, "x": 8, "y": 9, "z": None}, "None of these changes saves requests"),
        ({"as it is": 8, "x": 2, "y": 8}, "Fewer requests with x (4 × fewer)."),
        ({"as it is": 8, "x": 0, "y": 4}, "Fewer requests with x (none at all: boxes are copied); y (2 × fewer)."),
    ],
)
def test_only_what_saves_requests_is_named(totals, expected):
    assert str(whatif_text.verdict(totals)).startswith(expected)


@pytest.mark.parametrize(
    ("now", "before", "shown"),
    [
        (8, 8, '<span class="hint">same</span>'),
        (16, 8, "<b>2 ×</b>"),
        (2, 8, "<b>1 / 4</b>"),
        (0, 8, "<b>none</b>"),
        (8, 0, ""),
    ],
)
def test_a_change_is_a_ratio_to_the_base(now, before, shown):
    code = SimpleNamespace(registers=40)
    (row,) = whatif_text.change_rows("x", code, (operation(now),), (operation(before),))
    assert html([row[4]]) == shown


def test_an_operation_without_its_like_in_the_base_has_no_ratio():
    rows = whatif_text.change_rows("x", SimpleNamespace(registers=40), (operation(8, number=1),), (operation(8),))
    assert rows == [("x", "load A", "16 B", "8", "", "8", "", "40")]


def test_what_was_not_compiled_is_a_row_with_the_reason():
    (row,) = whatif_text.change_rows("x", Failure("compile", "timeout", "Too slow."), None, None)
    assert row == ("x", "Too slow.", *("",) * 6)


def test_rows_of_two_gpus_say_where_they_differ():
    frame = whatif_text.across({"one": {"registers": "40", "warps": "4"}, "two": {"registers": "48", "warps": "4"}})
    assert [str(cell) for cell in frame.iloc[0]] == ["registers", "40", "48", "differs"]
    assert [str(cell) for cell in frame.iloc[1]] == ["warps", "4", "4", ""]
    assert [str(name) for name in frame.columns] == ["", "one", "two", ""]
