"""The history's figure: a point per run where it is in time, with its interval, and a line where a change is."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from tests.kernels.results_made_up import START, noisy
from visualize.figures.history_figure import history_figure
from visualize.predict.history import PastRuns
from visualize.views import theme

OLD, NEW = ("2.11.0", "3.6.0"), ("2.13.0", "3.7.1")


def series(medians, places=None, versions=None, device="NVIDIA H200", spread=0.01, every=datetime.timedelta(days=1)):
    median_ms = np.array(medians)
    count = len(medians)
    placed = np.arange(count) if places is None else np.array(places)
    return PastRuns(
        device,
        placed,
        tuple(START + every * int(place) for place in placed),
        tuple(versions or [OLD] * count),
        (100,) * count,
        *(median_ms, median_ms * (1 - spread), median_ms * (1 + spread)),
    )


def drawn(*several, marked=()):
    return history_figure(several, [[f"{one.device} {place}" for place in range(len(one))] for one in several], marked)


def points(figure):
    return [trace for trace in figure.data if trace.mode == "markers"]


SLOWER = series([0.2, 0.201, 0.199, 0.2, 0.22, 0.221, 0.219], versions=[OLD] * 4 + [NEW] * 3)


def test_every_run_is_a_point_at_its_place_with_its_interval():
    old, new = points(drawn(SLOWER))
    assert list(old.x) == [0, 1, 2, 3]
    assert list(new.x) == [4, 5, 6]
    assert [*old.y, *new.y] == list(SLOWER.median_ms)
    assert np.allclose(new.y + new.error_y.array, SLOWER.p80_ms[4:])
    assert np.allclose(new.y - new.error_y.arrayminus, SLOWER.p20_ms[4:])
    assert list(new.text) == ["NVIDIA H200 4", "NVIDIA H200 5", "NVIDIA H200 6"]


def test_versions_are_symbols_and_devices_colours_and_the_legend_names_both():
    one = points(drawn(SLOWER))
    assert one[0].marker.symbol != one[1].marker.symbol
    assert {trace.marker.color for trace in one} == {theme.HARDWARE}
    assert [trace.name for trace in one] == [
        "NVIDIA H200, torch 2.11.0, triton 3.6.0",
        "NVIDIA H200, torch 2.13.0, triton 3.7.1",
    ]
    here, there = series([0.2] * 3, [0, 2, 4]), series([0.21] * 2, [1, 3], device="NVIDIA H100")
    both = points(drawn(here, there))
    assert len({trace.marker.color for trace in both}) == 2
    assert both[0].marker.symbol == both[1].marker.symbol
    assert list(both[1].x) == [1, 3]


def test_a_line_goes_through_the_runs_between_changes_at_their_median():
    levels = [trace for trace in drawn(SLOWER).data if trace.mode == "lines"]
    assert [trace.y[0] for trace in levels] == pytest.approx([0.2, 0.22])
    assert [list(trace.x) for trace in levels] == [[-0.4, 3.4], [3.6, 6.4]]


def test_a_change_is_a_line_between_two_runs_with_its_words_where_no_point_is():
    (change,) = SLOWER.changes
    figure = drawn(SLOWER, marked=[(SLOWER, change, "1.10 × slower")])
    (line,) = figure.layout.shapes
    assert line.x0 == line.x1 == 3.5
    assert line.line.color == theme.WRONG
    (words,) = figure.layout.annotations
    assert "1.10 × slower" in words.text
    assert (words.xanchor, words.y) == ("right", 1), "above the faster runs before it"


def test_a_change_to_faster_has_another_colour_and_its_words_on_the_other_side():
    faster = series([0.22, 0.221, 0.219, *[0.2, 0.201, 0.199] * 3])
    (change,) = faster.changes
    figure = drawn(faster, marked=[(faster, change, "faster")])
    assert figure.layout.shapes[0].line.color == theme.HARDWARE
    assert (figure.layout.annotations[0].xanchor, figure.layout.annotations[0].y) == ("left", 1)


def test_short_times_are_in_microseconds_and_the_axis_says_so():
    short = drawn(series([0.01, 0.011]))
    assert short.layout.yaxis.title.text == "µs, median; whiskers p20 to p80"
    assert list(points(short)[0].y) == pytest.approx([10, 11])
    assert drawn(series([0.2])).layout.yaxis.title.text.startswith("ms, ")


def test_devices_that_are_far_apart_share_a_logarithmic_axis():
    assert drawn(series([1.0]), series([1.5], [1], device="B")).layout.yaxis.type == "linear"
    assert drawn(series([1.0]), series([9.0], [1], device="B")).layout.yaxis.type == "log"


def test_few_days_are_named_each_at_its_first_run_and_the_year_once():
    hourly = drawn(series(noisy(0.2, 60), every=datetime.timedelta(hours=6)))
    axis = hourly.layout.xaxis
    assert axis.title.text == "runs, oldest first, 2026"
    assert axis.ticktext[0] == "Nov 1"
    assert 2 <= len(axis.ticktext) <= 6
    for place, words in zip(axis.tickvals, axis.ticktext, strict=True):
        day = START + datetime.timedelta(hours=6) * place
        assert words == f"{day:%b} {day.day}"
    yearly = drawn(series([0.2] * 3, every=datetime.timedelta(days=300)))
    assert yearly.layout.xaxis.title.text == "runs, oldest first, 2026 to 2028"
    assert axis.range[0] < 0
    assert axis.range[1] > 59
