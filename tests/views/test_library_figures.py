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
FIGURE = scoreboard_figure(SCORES, "sectors")


def traces(figure, axis=None):
    return [trace for trace in figure.data if trace.customdata is not None and trace.yaxis == axis]


def points(figure, axis=None):
    """Return (x, y) by the score's index."""
    return {i: (x, y) for t in traces(figure, axis) for i, x, y in zip(t.customdata, t.x, t.y, strict=True)}


def test_points_lie_at_their_counts_and_errors_and_zeros_are_omitted():
    assert points(FIGURE) == {0: (100, 100), 1: (20_000, 20_000), 2: (50, 80), 4: (400, 400)}
    assert points(FIGURE, "y2") == {0: (100, 0), 1: (20_000, 0), 2: (50, -37.5), 4: (400, 0)}
    empty = scoreboard_figure([SCORES[3]], "sectors")
    assert points(empty) == {}
    assert all(map(math.isfinite, empty.layout.xaxis.range))


def test_axes_have_units_and_the_diagonal_spans_both():
    axes = (FIGURE.layout.xaxis, FIGURE.layout.yaxis, FIGURE.layout.yaxis2)
    titles = [axis.title.text for axis in axes]
    assert titles == ["32-byte sectors, predicted", "sectors, counted", "error, %"]
    assert axes[0].type == axes[1].type == "log"
    assert axes[2].range[0] == -axes[2].range[1] < -37.5
    (line,), (label,) = FIGURE.layout.shapes, FIGURE.layout.annotations
    assert (line.x0, line.x1) == (line.y0, line.y1)
    assert axes[0].range == axes[1].range == (math.log10(line.x0), math.log10(line.x1))
    assert line.x0 < 50 < 20_000 < line.x1
    assert (label.text, label.x) == ("<b>predicted = counted</b>", label.y)


def test_colours_show_the_operation_symbols_the_gpu_and_rings_the_misses():
    """A GPU has the same symbol whichever GPUs are selected."""
    for trace in (*traces(FIGURE), *(t for s in SCORES[:2] for t in traces(scoreboard_figure([s], "sectors")))):
        (expected,) = (s for s in SCORES if (s.predicted, s.counted) == (trace.x[0], trace.y[0]))
        assert (trace.name, trace.marker.color) == (expected.operation, theme.OPERATIONS[expected.operation])
        assert trace.marker.symbol == {"H100": "circle", "H200": "diamond"}[expected.experiment.gpu]
        assert (trace.marker.line.color == theme.WRONG) == expected.is_miss
    assert traces(FIGURE)[-1].name == "TMA load", "the miss is drawn last"
    assert len({*theme.OPERATIONS.values(), theme.WRONG}) == len(theme.OPERATIONS) + 1
    sizes = {trace.name: trace.marker.size for trace in traces(FIGURE)}
    assert sizes["load"] > sizes["store"], "both stay visible at the same point"


def test_the_legends_list_each_operation_and_each_gpu_once():
    entries = sorted((str(trace.legend), trace.name) for trace in FIGURE.data if trace.showlegend is not False)
    operations, others = ("TMA load", "load", "store"), ("H100", "H200", "miss")
    assert entries == [*(("None", name) for name in operations), *(("legend2", name) for name in others)]
    exact = scoreboard_figure([score for score in SCORES if not score.is_miss], "sectors")
    assert "miss" not in {trace.name for trace in exact.data}


def test_dram_reads_are_in_gigabytes_coloured_by_flag_with_the_allowed_band():
    flagged = score(2 * 10**9, 10**9, "DRAM read", count=DRAM, is_flagged=True)
    figure = scoreboard_figure([flagged, score(10**9, 10**9, "DRAM read", count=DRAM)], DRAM)
    assert points(figure) == {0: (2, 1), 1: (1, 1)}
    assert figure.layout.xaxis.title.text == "GB read from DRAM, predicted"
    assert {trace.name for trace in traces(figure)} == {"flagged", "no flag"}
    (band,) = [trace for trace in figure.data if trace.fill == "toself"]
    assert [x / y - 1 for x, y in zip(band.x, band.y, strict=True)] == pytest.approx([0.2, 0.2, -0.2, -0.2])
