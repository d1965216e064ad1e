"""The scoreboard's figure: exact predictions lie on the diagonal and at 0 %; each point names its score."""

from __future__ import annotations

import math

import pytest

from kernels.experiment import from_json
from visualize.predict.scores import DRAM, Score
from visualize.views import theme
from visualize.views.library.figures import scoreboard_figure


def score(predicted, counted, operation="load", gpu="H200", count="sectors", **fields):
    experiment = from_json({"kernel": "matmul.grouped", "gpu": gpu})
    return Score(experiment, operation, count, predicted, counted, **fields)


SCORES = (
    score(100, 100),
    score(20_000, 20_000, "store", "H100"),
    score(50, 80, "TMA load"),
    score(0, 7, "atomic"),
    score(400, 400, "load", "H100"),
)


@pytest.fixture(scope="module")
def figure():
    return scoreboard_figure(SCORES, "sectors")


def traces(figure, errors=False):
    return [trace for trace in figure.data if trace.customdata is not None and (trace.yaxis == "y2") == errors]


def points(figure, errors=False):
    """Return (x, y) by the score's index."""
    return {
        int(index): (float(x), float(y))
        for trace in traces(figure, errors)
        for index, x, y in zip(trace.customdata, trace.x, trace.y, strict=True)
    }


def test_points_lie_at_their_counts_and_errors_and_zeros_are_omitted(figure):
    assert points(figure) == {0: (100, 100), 1: (20_000, 20_000), 2: (50, 80), 4: (400, 400)}
    assert points(figure, errors=True) == {0: (100, 0), 1: (20_000, 0), 2: (50, -37.5), 4: (400, 0)}


def test_axes_have_units_and_the_diagonal_spans_both(figure):
    layout = figure.layout
    assert layout.xaxis.title.text == "32-byte sectors, predicted"
    assert layout.yaxis.title.text == "sectors, counted"
    assert layout.yaxis2.title.text == "error, %"
    assert layout.xaxis.type == layout.yaxis.type == "log"
    low, high = layout.yaxis2.range
    assert low == -high < -37.5
    (line,), (label,) = layout.shapes, layout.annotations
    assert (line.x0, line.x1) == (line.y0, line.y1)
    assert list(layout.xaxis.range) == list(layout.yaxis.range) == [math.log10(line.x0), math.log10(line.x1)]
    assert line.x0 < 50 < 20_000 < line.x1
    assert "predicted = counted" in label.text
    assert label.x == label.y


def test_colours_show_the_operation_symbols_the_gpu_and_rings_the_misses(figure):
    symbols = {"H100": "circle", "H200": "diamond"}
    for trace in traces(figure):
        (index,) = trace.customdata
        expected = SCORES[index]
        assert trace.name == expected.operation
        assert trace.marker.color == theme.OPERATIONS[expected.operation]
        assert trace.marker.symbol == symbols[expected.experiment.gpu]
        assert (trace.marker.line.color == theme.WRONG) == expected.is_miss
    assert traces(figure)[-1].name == "TMA load", "the miss is drawn last"
    assert len({*theme.OPERATIONS.values(), theme.WRONG}) == len(theme.OPERATIONS) + 1
    for index in (0, 1):
        (alone,) = traces(scoreboard_figure([SCORES[index]], "sectors"))
        assert alone.marker.symbol == symbols[SCORES[index].experiment.gpu], "whichever GPUs are selected"


def test_the_legends_list_each_operation_and_each_gpu_once(figure):
    entries = sorted((str(trace.legend), trace.name) for trace in figure.data if trace.showlegend is not False)
    assert entries == [
        *(("None", name) for name in ("TMA load", "load", "store")),
        *(("legend2", name) for name in ("H100", "H200", "miss")),
    ]
    exact = scoreboard_figure([score for score in SCORES if not score.is_miss], "sectors")
    assert "miss" not in {trace.name for trace in exact.data}


def test_dram_reads_are_in_gigabytes_coloured_by_flag_with_the_allowed_band():
    reads = [
        score(2_000_000_000, 1_000_000_000, "DRAM read", count=DRAM, is_flagged=True),
        score(10**9, 10**9, "DRAM read", count=DRAM),
    ]
    figure = scoreboard_figure(reads, DRAM)
    assert points(figure) == {0: (2, 1), 1: (1, 1)}
    assert figure.layout.xaxis.title.text == "GB read from DRAM, predicted"
    assert {trace.name for trace in traces(figure)} == {"flagged", "no flag"}
    (band,) = [trace for trace in figure.data if trace.fill == "toself"]
    assert [x / y - 1 for x, y in zip(band.x, band.y, strict=True)] == pytest.approx([0.2, 0.2, -0.2, -0.2])


def test_operations_at_the_same_point_have_different_sizes():
    figure = scoreboard_figure([score(9, 9), score(9, 9, "store")], "sectors")
    sizes = {trace.name: trace.marker.size for trace in traces(figure)}
    assert sizes["load"] > sizes["store"]


def test_a_score_that_cannot_be_drawn_leaves_an_empty_picture_with_finite_axes():
    figure = scoreboard_figure([SCORES[3]], "sectors")
    assert points(figure) == {}
    assert all(map(math.isfinite, figure.layout.xaxis.range))
