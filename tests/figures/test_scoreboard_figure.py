"""The scoreboard's figure: what is exact lies on the diagonal and on 0 %, and each point says which score it is."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from kernels.experiment import from_json
from visualize.figures.scoreboard_figure import scoreboard_figure
from visualize.predict.scores import DRAM, Score
from visualize.views import theme


def score(predicted, counted, operation="load", gpu="H200", count="sectors", **more):
    experiment = from_json({"kernel": "matmul.grouped", "gpu": gpu})
    return Score(experiment, operation, count, predicted, counted, **more)


SCORES = (
    score(100, 100),
    score(20_000, 20_000, "store", "H100"),
    score(50, 80, "TMA load"),
    score(0, 7, "atomic"),
    score(400, 400, "load", "H100"),
)


def traces(figure, errors=False):
    """The traces of points, above or below."""
    return [one for one in figure.data if one.customdata is not None and (one.yaxis == "y2") == errors]


def points(figure, errors=False):
    """Place of the score → where its point is."""
    return {
        int(place): (float(x), float(y))
        for one in traces(figure, errors)
        for place, x, y in zip(one.customdata, one.x, one.y, strict=True)
    }


def test_every_point_is_at_what_was_predicted_and_counted():
    figure = scoreboard_figure(SCORES, "sectors")
    assert points(figure) == {0: (100, 100), 1: (20_000, 20_000), 2: (50, 80), 4: (400, 400)}
    assert points(figure, errors=True) == {0: (100, 0), 1: (20_000, 0), 2: (50, -37.5), 4: (400, 0)}


def test_the_diagonal_goes_through_the_whole_picture_and_says_what_it_is():
    figure = scoreboard_figure(SCORES, "sectors")
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1) == (line.y0, line.y1)
    assert list(figure.layout.xaxis.range) == list(figure.layout.yaxis.range)
    assert figure.layout.xaxis.range[0] == math.log10(line.x0) < math.log10(50)
    assert figure.layout.xaxis.range[1] == math.log10(line.x1) > math.log10(20_000)
    assert "predicted = counted" in figure.layout.annotations[0].text
    assert figure.layout.annotations[0].x == figure.layout.annotations[0].y


def test_axes_say_what_they_count():
    layout = scoreboard_figure(SCORES, "sectors").layout
    assert layout.xaxis.title.text == "32-byte sectors, predicted"
    assert layout.yaxis.title.text == "sectors, counted"
    assert layout.yaxis2.title.text == "error, %"
    assert {layout.xaxis.type, layout.yaxis.type} == {"log"}
    low, high = layout.yaxis2.range
    assert low == -high < -37.5


def test_colours_say_the_operation_symbols_the_gpu_and_a_ring_a_miss():
    figure = scoreboard_figure(SCORES, "sectors")
    for one in traces(figure):
        (place,) = one.customdata
        mine = SCORES[place]
        assert one.marker.color == theme.OPERATIONS[mine.operation]
        assert one.name == mine.operation
        assert one.marker.symbol == {"H100": "circle", "H200": "diamond"}[mine.experiment.gpu]
        assert (one.marker.line.color == theme.WRONG) == mine.is_miss
    assert len(set(theme.OPERATIONS.values())) == len(theme.OPERATIONS)
    assert theme.WRONG not in theme.OPERATIONS.values()


def test_an_operation_stands_once_in_the_legend_and_each_gpu_in_its_own():
    figure = scoreboard_figure(SCORES, "sectors")
    listed = [(one.name, one.legend) for one in figure.data if one.showlegend is not False]
    named = [("load", None), ("store", None), ("TMA load", None)]
    assert sorted(map(str, listed)) == sorted(map(str, [*named, *((n, "legend2") for n in ("H100", "H200", "miss"))]))
    without = scoreboard_figure([one for one in SCORES if not one.is_miss], "sectors")
    assert "miss" not in {one.name for one in without.data}


def test_a_gpu_keeps_its_symbol_whichever_others_are_shown():
    alone = scoreboard_figure([SCORES[1]], "sectors")
    assert {one.marker.symbol for one in traces(alone)} == {"circle"}
    assert {one.marker.symbol for one in traces(scoreboard_figure([SCORES[0]], "sectors"))} == {"diamond"}


def test_misses_are_drawn_last():
    names = [one.marker.line.color for one in traces(scoreboard_figure(SCORES, "sectors"))]
    assert names[-1] == theme.WRONG
    assert theme.WRONG not in names[:-1]


def test_dram_reads_are_gigabytes_coloured_by_flag_beside_the_band_that_is_no_miss():
    reads = [
        score(2_000_000_000, 1_000_000_000, "DRAM read", count=DRAM, is_flagged=True),
        score(10**9, 10**9, count=DRAM),
    ]
    figure = scoreboard_figure(reads, DRAM)
    assert points(figure) == {0: (2, 1), 1: (1, 1)}
    assert figure.layout.xaxis.title.text == "GB read from DRAM, predicted"
    assert {one.name for one in traces(figure)} == {"flagged", "no flag"}
    (band,) = [one for one in figure.data if one.fill == "toself"]
    edges = [x / y - 1 for x, y in zip(band.x, band.y, strict=True)]
    assert edges == pytest.approx([0.2, 0.2, -0.2, -0.2])


def test_what_lies_on_another_operations_point_is_smaller():
    sizes = {
        one.name: one.marker.size
        for one in traces(
            scoreboard_figure([replace(s, counted=s.predicted or 1) for s in SCORES if s.predicted], "sectors")
        )
    }
    assert sizes["load"] > sizes["store"]


def test_scores_that_can_not_be_drawn_leave_an_empty_picture():
    figure = scoreboard_figure([SCORES[3]], "sectors")
    assert points(figure) == {}
    assert json.dumps(list(figure.layout.xaxis.range))
