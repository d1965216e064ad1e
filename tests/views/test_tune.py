"""A sweep's pictures and text are compared with its rows, and the history's picture with its runs."""

from __future__ import annotations

import datetime
import html
import itertools
import re
from dataclasses import replace

import numpy as np
import pytest

from kernels.results import Failure, Strategy
from tests.kernels.results_made_up import START, noisy
from tests.sweep.fakes import FakeBuilder, FakeDevice, grid, predicting, swept
from visualize.predict.history import PastRuns
from visualize.predict.launch_time import expected_best
from visualize.views import theme
from visualize.views.tabs import SETTINGS
from visualize.views.tune import text
from visualize.views.tune.figures import (
    bound_figure,
    convergence_figure,
    heatmap_figure,
    history_figure,
)

STATE = SETTINGS.state({"kernel": "matmul.grouped"}, None)
VARY = {"BLOCK_M": [16, 32, 64], "BLOCK_N": [32, 64], "num_warps": [2, 4]}


@pytest.fixture(scope="module")
def timed():
    """A sweep in which configs of BLOCK_M 16 are wrong, and some others cannot be compiled."""
    refused = Failure("compile", "out_of_resources", "Too much shared memory.")
    builder = FakeBuilder(failures=lambda e: refused if (e.config.BLOCK_M, e.config.num_warps) == (64, 2) else None)
    device = FakeDevice(wrong=lambda e: e.config.BLOCK_M == 16)
    return swept(Strategy("grid"), device, predicting(error=0.2), within=grid(VARY), builder=builder)


def predict_only(sweep, ms_of=lambda ms: ms):
    """Return the same sweep on a machine that cannot time configs, with other predicted times."""
    untimed = dict.fromkeys(("median_ms", "low_ms", "high_ms", "relative", "turn"))
    rows = []
    for row in sweep.rows:
        predicted = row.predicted and replace(row.predicted, ms=ms_of(row.predicted.ms))
        status = {"status": "predicted"} if row.status == "timed" else {}
        rows.append(replace(row, predicted=predicted, **untimed, **status))
    return replace(sweep, rows=tuple(rows), final=None, backend="predicted")


@pytest.mark.parametrize("has_times", [True, False])
def test_a_cell_has_its_fastest_time_and_that_config(timed, has_times):
    sweep = timed if has_times else predict_only(timed)
    figure = heatmap_figure(sweep, "BLOCK_M", "BLOCK_N")
    (cells,) = figure.data
    assert (list(cells.x), list(cells.y)) == (["16", "32", "64"], ["32", "64"])
    for (i, n), (j, m) in itertools.product(enumerate((32, 64)), enumerate((16, 32, 64))):
        rows = [row for row in sweep.rows if (m, n) == (row.experiment.config.BLOCK_M, row.experiment.config.BLOCK_N)]
        times = {text.time_ms(row, has_times): row for row in rows if row.is_right}
        assert cells.z[i][j] == pytest.approx(min(times, default=np.nan), nan_ok=True)
        linked = sweep.rows[cells.customdata[i][j]]
        assert linked == times[min(times)] if times else linked in rows
    assert cells.colorbar.title.text == f"ms, {'measured' if has_times else 'predicted'}"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("BLOCK_M", "BLOCK_N")
    assert np.shape(heatmap_figure(sweep, "num_warps", "num_warps").data[0].z) == (1, 2)


def test_a_colour_scale_of_one_value_begins_at_zero(timed):
    (cells,) = heatmap_figure(predict_only(timed), "BLOCK_M", "BLOCK_N").data
    assert (cells.zmin, cells.zmax) == (None, None)
    (equal,) = heatmap_figure(predict_only(timed, lambda _: 0.5), "BLOCK_M", "BLOCK_N").data
    assert (equal.zmin, equal.zmax) == (0, 0.5), "Plotly's own scale would reach below zero"


def test_a_point_has_its_measured_and_its_predicted_time_and_the_diagonal_is_equality(timed):
    figure = bound_figure(timed)
    points = [(timed.rows[place], trace.name, x, y) for trace in figure.data
              for x, y, place in zip(trace.x, trace.y, trace.customdata, strict=True)]  # fmt: skip
    assert len({row.experiment for row, *_ in points}) == timed.count("timed") > 0
    for row, name, x, y in points:
        assert (x, y, name) == (row.predicted.ms, row.median_ms, row.predicted.resource)
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1) == (line.y0, line.y1)
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("ms, predicted", "ms, measured")
    assert (figure.layout.xaxis.type, figure.layout.yaxis.type) == ("log", "log")


def test_convergence_falls_to_the_fastest_time_beside_the_expectation_in_random_order(timed):
    each, random, fastest = convergence_figure(timed).data
    assert list(fastest.y) == [min(each.y[:count]) for count in range(1, len(each.y) + 1)]
    assert random.y == pytest.approx(expected_best(np.array(each.y)))
    rows = [timed.rows[place] for place in each.customdata]
    assert [row.turn for row in rows] == sorted(row.turn for row in rows)
    assert [row.median_ms for row in rows] == list(each.y)


OLD, NEW = ("2.11.0", "3.6.0"), ("2.13.0", "3.7.1")


def past_runs(medians, places=None, versions=None, device="NVIDIA H200", every=datetime.timedelta(days=1)):
    median_ms, count = np.array(medians), len(medians)
    placed = np.arange(count) if places is None else np.array(places)
    ended = tuple(START + every * int(place) for place in placed)
    times = median_ms, median_ms * 0.99, median_ms * 1.01
    return PastRuns(device, placed, ended, tuple(versions or [OLD] * count), (100,) * count, *times)


def points(figure):
    return [trace for trace in figure.data if trace.mode == "markers"]


SLOWER = past_runs([0.2, 0.201, 0.199, 0.2, 0.22, 0.221, 0.219], versions=[OLD] * 4 + [NEW] * 3)
FASTER = past_runs([0.22, 0.221, 0.219, *[0.2, 0.201, 0.199] * 3])


def test_a_run_is_a_point_with_its_interval_and_versions_are_symbols():
    old, new = points(history_figure([SLOWER]))
    assert [list(old.x), list(new.x)] == [[0, 1, 2, 3], [4, 5, 6]]
    assert [*old.y, *new.y] == list(SLOWER.median_ms)
    assert np.allclose(new.y + new.error_y.array, SLOWER.p80_ms[4:])
    assert np.allclose(new.y - new.error_y.arrayminus, SLOWER.p20_ms[4:])
    assert [label.split("<br>")[0] for label in new.text] == [
        "<b>0.220 ms</b>, p20 to p80: 0.218 ms to 0.222 ms",
        "<b>0.221 ms</b>, p20 to p80: 0.219 ms to 0.223 ms",
        "<b>0.219 ms</b>, p20 to p80: 0.217 ms to 0.221 ms",
    ]
    assert new.name == "NVIDIA H200, torch 2.13.0, triton 3.7.1"
    assert old.marker.symbol != new.marker.symbol
    assert old.marker.color == new.marker.color == theme.HARDWARE


def test_devices_are_colours_and_distant_ones_share_a_logarithmic_axis():
    for time, kind in ((1.5, "linear"), (9.0, "log")):
        figure = history_figure([past_runs([1.0] * 3, [0, 2, 4]), past_runs([time] * 2, [1, 3], device="H100")])
        first, second = points(figure)
        assert first.marker.color != second.marker.color
        assert first.marker.symbol == second.marker.symbol
        assert list(second.x) == [1, 3]
        assert figure.layout.yaxis.type == kind


@pytest.mark.parametrize(
    ("runs", "x", "color", "side"), [(SLOWER, 3.5, theme.WRONG, "right"), (FASTER, 2.5, theme.HARDWARE, "left")]
)
def test_a_change_is_a_line_with_its_label_where_no_point_is_between_two_levels(runs, x, color, side):
    figure = history_figure([runs])
    (line,), (label,) = figure.layout.shapes, figure.layout.annotations
    assert (line.x0, line.x1, line.line.color) == (x, x, color)
    assert label.text.startswith("<b>1.10 × ")
    assert (label.xanchor, label.y) == (side, 1)
    before, after = (trace for trace in figure.data if trace.mode == "lines")
    assert [*before.x, *after.x] == [-0.4, x - 0.1, x + 0.1, len(runs) - 0.6]
    assert [before.y[0], after.y[0]] == pytest.approx([ms for _, _, ms in runs.levels])


@pytest.mark.parametrize(("ms", "unit", "value"), [(0.01, "µs", 10), (0.2, "ms", 0.2)])
def test_short_times_are_in_microseconds(ms, unit, value):
    figure = history_figure([past_runs([ms])])
    assert figure.layout.yaxis.title.text == f"{unit}, median; whiskers p20 to p80"
    assert list(points(figure)[0].y) == pytest.approx([value])


def test_few_dates_are_labelled_and_the_year_once():
    axis = history_figure([past_runs(noisy(0.2, 60), every=datetime.timedelta(hours=6))]).layout.xaxis
    assert (axis.title.text, axis.ticktext[-1]) == ("runs, oldest first, 2026", "Nov 1")
    assert 2 <= len(set(axis.ticktext)) == len(axis.ticktext) <= 5
    for place, words in zip(axis.tickvals, axis.ticktext, strict=True):
        day = START + datetime.timedelta(hours=6) * place
        assert words == f"{day:%b} {day.day}"
    assert axis.range[0] < 0
    assert axis.range[1] > 59
    yearly = history_figure([past_runs([0.2] * 3, every=datetime.timedelta(days=300))])
    assert yearly.layout.xaxis.title.text == "runs, oldest first, 2026 to 2028"


def words(markup):
    return html.unescape(" ".join(re.sub(r"<[^>]*>", " ", str(markup)).split()))


@pytest.fixture(scope="module")
def sweep():
    return swept(Strategy("grid"), FakeDevice(), within=grid({"BLOCK_M": [16, 32], "num_warps": [4, 8]}))


def predict_times(sweep, *times):
    """Return the same sweep with these predicted times alone."""
    remaining = iter(times)
    return predict_only(sweep, lambda _: next(remaining))


@pytest.mark.parametrize(
    ("times", "unit", "best", "third", "cells"),
    [
        ((0.009996, 0.012, 1.5, 0.2), "µs", "10.00 µs", "1,500 µs", ["9.996", "12.00", "1,500", "200.0"]),
        ((0.2, 0.3, 0.4, 0.5), "ms", "0.200 ms", "0.400 ms", ["0.2000", "0.3000", "0.4000", "0.5000"]),
    ],
)
def test_the_best_time_sets_the_unit_of_headline_labels_table_and_picture(sweep, times, unit, best, third, cells):
    predicted = predict_times(sweep, *times)
    assert words(text.sweep_headline(predicted)).startswith(f"{best} predicted for the best config")
    assert f"{third} predicted" in text.point_label(predicted.rows[2], predicted)
    table = words(text.ranking_table(predicted).render(predicted.rows, STATE))
    assert f"Time, {unit} predicted" in table
    assert [cell for cell in cells if cell in table] == cells
    (heatmap,) = heatmap_figure(predicted, "BLOCK_M", "num_warps").data
    assert heatmap.colorbar.title.text == f"{unit}, predicted"
    assert np.nanmin(heatmap.z) == pytest.approx(times[0] * (1000 if unit == "µs" else 1))


def test_predictions_within_one_percent_are_ties(sweep):
    tie, none = (words(text.sweep_headline(predict_times(sweep, 0.2, second, 0.21, 0.3))) for second in (0.2019, 0.203))
    assert "2 configs are predicted within 1 % of the best" in tie
    assert "of the best" not in none


def test_a_compilers_message_is_one_escaped_line(sweep):
    message = "error:\n<a href='//x'>here</a>\n" + "x " * 500
    row = replace(sweep.rows[0], status="set aside", median_ms=None, reason=message)
    label = text.point_label(row, sweep)
    assert "\n" not in label
    assert "set aside: error: &lt;a href=" in label
    assert len(label) < 400
    table = text.ranking_table(sweep).render([row], STATE)
    assert "set aside" in table
    assert "<a href='//x'" not in table


def test_the_lines_to_copy_are_the_best_configs_in_order(sweep):
    lines = re.findall(r"triton\.Config\((.*?)\),", words(text.config_lines(sweep, "", "")))
    for line, row in zip(lines, sweep.ranked, strict=True):
        assert f'"BLOCK_M": {row.experiment.config.BLOCK_M}, ' in line
        assert f"num_warps={row.experiment.config.num_warps}, " in line
