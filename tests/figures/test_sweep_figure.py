"""A sweep's pictures are held to its rows: cells to the best of the others, points to their times, lines to knobs."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from kernels.results import Failure, Strategy
from tests.sweep.fakes import FakeBuilder, FakeDevice, grid, predicting, swept
from visualize.figures.sweep_figure import bound_figure, convergence_figure, heatmap_figure, parallel_figure
from visualize.predict.launch_time import expected_best

VARY = {"BLOCK_M": [16, 32, 64], "BLOCK_N": [32, 64], "num_warps": [2, 4]}


@pytest.fixture(scope="module")
def timed():
    """Configs of BLOCK_M 16 are wrong, one can't be compiled."""
    refused = Failure("compile", "out_of_resources", "Too much shared memory.")
    builder = FakeBuilder(failures=lambda e: refused if (e.config.BLOCK_M, e.config.num_warps) == (64, 2) else None)
    device = FakeDevice(wrong=lambda e: e.config.BLOCK_M == 16)
    return swept(Strategy("grid"), device, predicting(error=0.2), within=grid(VARY), builder=builder)


@pytest.fixture(scope="module")
def guessed(timed):
    """The same where nothing was timed."""
    none = dict.fromkeys(("median_ms", "low_ms", "high_ms", "relative", "turn"))
    rows = [replace(row, status="predicted", **none) if row.status == "timed" else row for row in timed.rows]
    return replace(timed, rows=tuple(rows), final=None, backend="predicted")


def value(row, is_timed):
    return row.median_ms if is_timed else row.predicted.ms


@pytest.mark.parametrize("of", ["timed", "guessed"])
def test_a_cell_has_the_best_of_the_others_and_names_its_config(of, request):
    found = request.getfixturevalue(of)
    figure = heatmap_figure(found, "BLOCK_M", "BLOCK_N")
    (cells,) = figure.data
    assert (list(cells.x), list(cells.y)) == (["16", "32", "64"], ["32", "64"])
    for i, n in enumerate((32, 64)):
        for j, m in enumerate((16, 32, 64)):
            configs = [(row, vars(row.experiment.config)) for row in found.rows]
            of_cell = [row for row, config in configs if config["BLOCK_M"] == m and config["BLOCK_N"] == n]
            right = [row for row in of_cell if row.is_right]
            named = found.rows[cells.customdata[i][j]]
            assert named in of_cell
            if right:
                best = min(right, key=lambda row: value(row, found.is_timed))
                assert cells.z[i][j] == pytest.approx(value(best, found.is_timed))
                assert named == best
            else:
                assert np.isnan(cells.z[i][j])
    source = "measured" if found.is_timed else "predicted"
    assert cells.colorbar.title.text == f"ms, {source}"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("BLOCK_M", "BLOCK_N")


def test_one_knob_alone_is_a_row_of_cells(timed):
    (cells,) = heatmap_figure(timed, "num_warps", "num_warps").data
    assert np.shape(cells.z) == (1, 2)


def test_a_point_of_the_bound_is_its_two_times_and_the_diagonal_is_equality(timed):
    figure = bound_figure(timed)
    met = {}
    for trace in figure.data:
        for x, y, place in zip(trace.x, trace.y, trace.customdata, strict=True):
            row = timed.rows[place]
            assert (x, y, trace.name) == (row.predicted.ms, row.median_ms, row.predicted.resource)
            met[place] = True
    assert len(met) == timed.count("timed") > 0
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1) == (line.y0, line.y1)
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("ms, predicted", "ms, measured")
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_convergence_falls_to_the_fastest_beside_the_expectation_of_random_order(timed):
    each, random, fastest = convergence_figure(timed).data
    assert list(fastest.y) == [min(each.y[:count]) for count in range(1, len(each.y) + 1)]
    assert random.y == pytest.approx(expected_best(np.array([y for _, y in enumerate(each.y)])))
    turns = [timed.rows[place].turn for place in each.customdata]
    assert turns == sorted(turns)
    assert [timed.rows[place].median_ms for place in each.customdata] == list(each.y)


@pytest.mark.parametrize("of", ["timed", "guessed"])
def test_a_line_goes_through_its_configs_values_and_ends_at_its_time(of, request):
    found = request.getfixturevalue(of)
    figure = parallel_figure(found)
    axes = [*VARY, "time"]
    assert list(figure.layout.xaxis.ticktext) == axes
    drawn = []
    for trace in figure.data:
        points = np.array(trace.y).reshape(-1, len(axes) + 1)
        places = np.array(trace.customdata).reshape(-1, len(axes) + 1)
        for heights, place in zip(points, places[:, 0], strict=True):
            config = found.rows[place].experiment.config
            shares = [VARY[name].index(getattr(config, name)) / (len(VARY[name]) - 1) for name in VARY]
            assert heights[:-2] == pytest.approx(shares)
            assert np.isnan(heights[-1])
            drawn.append((trace.name, place, heights[-2]))
    *lines, best = drawn
    assert (best[0], found.rows[best[1]]) == ("best", found.best)
    assert {found.rows[place].experiment for _, place, _ in lines} == {row.experiment for row in found.ranked}
    assert len(lines) == len(found.ranked)
    times = [value(found.rows[place], found.is_timed) for _, place, _ in sorted(lines, key=lambda one: one[2])]
    assert times == sorted(times)
    fifth = [found.rows[place] for name, place, _ in lines if name == "fastest fifth"]
    assert fifth == list(found.ranked[: len(fifth)])
    assert len(fifth) == -(-len(found.ranked) // 5)


def test_nothing_ranked_draws_no_line(guessed):
    empty = replace(guessed, rows=tuple(replace(row, status="not tried", predicted=None) for row in guessed.rows))
    assert parallel_figure(empty).data == ()


def test_times_that_are_all_equal_have_a_scale_from_zero(guessed):
    """Plotly's own would reach from half below it to half above, and no time is negative."""
    rows = [
        replace(row, predicted=replace(row.predicted, ms=0.5)) if row.predicted is not None else row
        for row in guessed.rows
    ]
    (cells,) = heatmap_figure(replace(guessed, rows=tuple(rows)), "BLOCK_M", "BLOCK_N").data
    assert (cells.zmin, cells.zmax) == (0, 0.5)
    (differing,) = heatmap_figure(guessed, "BLOCK_M", "BLOCK_N").data
    assert (differing.zmin, differing.zmax) == (None, None)


def segments(traces):
    """The pieces of lines that are drawn, once each, as pairs of points."""
    found = set()
    for trace in traces:
        points = np.stack([np.array(trace.x, dtype=float), np.array(trace.y, dtype=float)], axis=1).round(6)
        for one, other in itertools.pairwise(points):
            if np.isfinite([*one, *other]).all():
                found.add(tuple(sorted([tuple(one), tuple(other)])))
    return found


def test_of_many_configs_the_same_lines_are_drawn_and_only_the_best_has_markers(timed):
    """A browser makes an element of each marker, and a line between two gaps takes it as long as many points."""
    whole = parallel_figure(timed)
    assert {trace.mode for trace in whole.data} == {"lines+markers"}
    many = parallel_figure(timed, max_points=10)
    assert {trace.name: trace.mode for trace in many.data}["best"] == "lines+markers"
    assert {trace.mode for trace in many.data if trace.name != "best"} == {"lines"}
    for name in {trace.name for trace in whole.data}:
        named = [[trace for trace in figure.data if trace.name == name] for figure in (whole, many)]
        assert segments(named[0]) == segments(named[1]), name
    times = [trace for trace in many.data if trace.name != "best" and trace.customdata is not None]
    ends = [
        (timed.rows[place].experiment, y)
        for trace in times
        for x, y, place in zip(trace.x, trace.y, trace.customdata, strict=True)
        if x == len(VARY)
    ]
    assert {found for found, _ in ends} == {row.experiment for row in timed.ranked}
    heights = dict(ends)
    assert sorted(heights, key=heights.get) == [row.experiment for row in timed.ranked]


def test_many_values_of_a_single_knob_are_drawn(timed):
    space = replace(timed.space, varied=timed.space.varied[:1])
    traces = parallel_figure(replace(timed, space=space), max_points=1).data
    assert {x for trace in traces for x, y in zip(trace.x, trace.y, strict=True) if np.isfinite(y)} == {0, 1}
