"""The text of a sweep: units, ties, reasons and lines to copy."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import pytest

from kernels.results import Strategy
from tests.sweep.fakes import FakeDevice, grid, swept
from visualize.views.tune import text


def words(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


@pytest.fixture(scope="module")
def sweep():
    return swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32], "num_warps": [4, 8]}))


def predicted_ms(sweep, *times):
    """The same sweep on a machine that only predicts, with these times."""
    none = {"status": "predicted", "median_ms": None, "turn": None, "relative": None}
    rows = [
        replace(row, **none, predicted=replace(row.predicted, ms=ms)) for row, ms in zip(sweep.rows, times, strict=True)
    ]
    return replace(sweep, rows=tuple(rows), final=None)


def test_the_best_time_sets_the_unit_of_headline_labels_and_ranking(sweep):
    fast = predicted_ms(sweep, 0.009996, 0.012, 1.5, 0.2)
    assert words(text.sweep_headline(fast)).startswith("10.00 µs predicted for the best config")
    assert "1,500 µs predicted" in text.point_label(fast.rows[2], fast)
    ranked = words(text.ranking_table(fast).render(text.rows_by_rank(fast), text.RankingView(), lambda new: ""))
    assert "Time, µs predicted" in ranked
    assert "4 16 8" not in ranked
    assert [cell in ranked for cell in ("9.996", "12.00", "200.0", "1,500")] == [True] * 4
    slow = predicted_ms(sweep, 0.2, 0.3, 0.4, 0.5)
    assert words(text.sweep_headline(slow)).startswith("0.200 ms predicted")
    assert "0.300 ms predicted" in text.point_label(slow.rows[1], slow)


def test_predictions_within_one_percent_are_ties(sweep):
    assert "2 configs are predicted within 1 % of the best" in words(
        text.sweep_headline(predicted_ms(sweep, 0.2, 0.2019, 0.21, 0.3))
    )
    assert "of the best" not in words(text.sweep_headline(predicted_ms(sweep, 0.2, 0.203, 0.21, 0.3)))


def test_a_compiler_s_message_is_one_escaped_line(sweep):
    message = "error:\n<a href='//x'>here</a>\n" + "x " * 500
    row = replace(sweep.rows[0], status="set aside", median_ms=None, reason=message)
    label = text.point_label(row, sweep)
    assert "\n" not in label
    assert "set aside: error: &lt;a href=" in label
    assert len(label) < 400
    listed = text.ranking_table(sweep).render([row], text.RankingView(), lambda new: "")
    assert "set aside" in listed
    assert "<a href='//x'" not in listed


def test_lines_to_copy_are_the_best_configs_in_order(sweep):
    lines = re.findall(r"triton\.Config\((.*?)\),", words(text.config_lines(sweep, "", "")))
    assert len(lines) == len(sweep.ranked) == 4
    for line, row in zip(lines, sweep.ranked, strict=True):
        assert f'"BLOCK_M": {row.experiment.config.BLOCK_M}, ' in line
        assert f"num_warps={row.experiment.config.num_warps}, " in line
