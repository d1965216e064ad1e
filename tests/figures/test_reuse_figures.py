"""The figures of the Reuse tab hold what was predicted and measured, with units and where things stand."""

from dataclasses import replace

import pytest

from visualize.figures.bounds_figure import TAIL, bounds_figure
from visualize.figures.reuse_figure import Measured, bytes_figure, times_figure
from visualize.predict.bounds import Bound
from visualize.predict.reuse import Reuse
from visualize.views.numbers import bytes_of

GB = 1_000_000_000
PREDICTED = {
    size: Reuse(size * GB, 0.9 * size * GB, 1.2 * size * GB, otherwise * GB, GB // 2, 9 * GB, GB)
    for size, otherwise in ((1, 1.0), (2, 2.1), (3, 3.9), (4, 2.0))
}
MEASURED = [
    Measured(1, (GB, 2 * GB, 4 * GB), (1.0, 2.0, 9.0)),
    Measured(4, (), (3.0, 3.0, 3.0)),
]
BOUNDS = (Bound("DRAM", 1.0, "d"), Bound("L2", 2.0, "l"), Bound("arithmetic", 3.0, "a"), Bound(TAIL, 0.5, "t"))


def trace(figure, name):
    return next(one for one in figure.data if one.name == name)


def test_predicted_reads_are_a_line_in_gigabytes_with_a_band():
    figure = bytes_figure(PREDICTED, MEASURED, 2, "counted")
    line, band = trace(figure, "predicted"), trace(figure, "uncertainty")
    assert (list(line.x), list(line.y)) == ([1, 2, 3, 4], [1, 2, 3, 4])
    assert list(band.x) == [1, 2, 3, 4, 4, 3, 2, 1]
    assert list(band.y) == pytest.approx([0.9, 1.8, 2.7, 2.0, 4.8, 3.9, 2.4, 1.2])
    assert set(trace(figure, "each input once").y) == {0.5}


def test_counted_reads_are_medians_with_bars_to_the_least_and_the_most():
    points = trace(bytes_figure(PREDICTED, MEASURED, 2, "counted"), "counted")
    assert (list(points.x), list(points.y)) == ([1], [2.0])
    assert (points.error_y.arrayminus[0], points.error_y.array[0]) == (1.0, 2.0)


def test_without_counts_there_are_no_points():
    assert "counted" not in {one.name for one in bytes_figure(PREDICTED, [], 2, "counted").data}


def test_the_group_size_that_is_set_is_marked_where_it_stands_on_a_logarithmic_axis():
    figure = bytes_figure(PREDICTED, [], 4, "counted")
    assert figure.layout.shapes[0].x0 == figure.layout.shapes[0].x1 == 4
    assert figure.layout.annotations[0].x == pytest.approx(0.60206)
    assert "4" in figure.layout.annotations[0].text


def test_axes_say_what_they_count():
    figure = bytes_figure(PREDICTED, MEASURED, 2, "counted")
    assert figure.layout.xaxis.title.text == "GROUP_SIZE (rows of tiles)"
    assert (figure.layout.yaxis.title.text, figure.layout.yaxis.type) == ("read from DRAM (log scale)", "log")
    assert list(figure.layout.xaxis.tickvals) == [1, 2, 4]
    times = times_figure(MEASURED, 1, "measured")
    assert (times.layout.yaxis.title.text, times.layout.yaxis.type) == ("milliseconds, p20 to p80", "linear")


def test_the_axis_writes_bytes_as_the_text_does():
    axis = bytes_figure(PREDICTED, MEASURED, 2, "counted").layout.yaxis
    for tick, text in zip(axis.tickvals, axis.ticktext, strict=True):
        number, unit = bytes_of(tick * 1e9 * (1 + 1e-9)).split()
        given, given_unit = text.split()
        assert (float(given), given_unit) == (float(number.replace(",", "")), unit)


def test_reads_that_hardly_differ_are_drawn_alike_and_an_axis_names_them():
    alike = {size: Reuse(GB, GB, GB, GB, GB, 9 * GB, GB) for size in (1, 2)}
    figure = bytes_figure(alike, [], 1, "counted")
    axis, (low, high) = figure.layout.yaxis, trace(figure, "least span").y
    assert high / low == pytest.approx(3)
    assert sum(low < tick < high for tick in axis.tickvals) >= 2


def test_times_are_medians_from_the_20th_to_the_80th_percentile():
    points = trace(times_figure(MEASURED, 1, "measured"), "measured")
    assert list(points.y) == [2.0, 3.0]
    assert points.error_y.arrayminus[0] == pytest.approx(0.6)
    assert points.error_y.array[0] == pytest.approx(4.2)


def test_the_longest_resource_is_named_and_the_rest_of_the_time_is_what_it_and_the_tail_leave():
    figure = bounds_figure(BOUNDS, 5.0, "recorded")
    needed, time = figure.data
    assert list(needed.y) == ["DRAM", "L2", "arithmetic"]
    assert [text for text in needed.text if "binding" in text] == ["3.00 ms (binding)"]
    assert list(time.x) == [3.0, 0.5, 1.5]
    assert list(time.customdata) == ["arithmetic", TAIL, "not explained by these"]
    assert figure.layout.xaxis.title.text == "ms"


def test_what_takes_less_than_a_tenth_of_a_millisecond_is_drawn_in_microseconds():
    short = [replace(bound, ms=bound.ms / 100) for bound in BOUNDS]
    figure = bounds_figure(short, 0.05, "recorded")
    assert figure.layout.xaxis.title.text == "µs"
    assert list(figure.data[1].x) == pytest.approx([30.0, 5.0, 15.0])


def test_a_time_below_its_bound_leaves_no_rest():
    assert list(bounds_figure(BOUNDS, 2.5, "measured").data[1].x) == [3.0, 0.5, 0.0]


def test_without_a_time_there_are_the_bounds_alone():
    assert len(bounds_figure(BOUNDS, None, "measured").data) == 1
