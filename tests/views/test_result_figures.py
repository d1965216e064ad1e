"""Figures of a run: colours of the error map, bars of times, and places below the roofline."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels.results.run import Check, Closeup, Diff
from tests.views.test_result_text import measured
from visualize.views import theme
from visualize.views.result.figures import closeup_figure, error_figure, time_figure
from visualize.views.result.text import ENQUEUED, SYNCHRONIZED, THIS_KERNEL


def check_of(cells, passed=False, cell=1):
    row, column = (int(place) * cell for place in np.unravel_index(np.argmax(cells), cells.shape))
    return Check(passed, 0.1, 0.01, 1.0, 0.1, 1, 0, cells.size, (row, column), 2.0, 1.0, float(cells.max()))


def error_map(cells, exact=False):
    cells = np.array(cells, dtype=np.float32)
    return error_figure(Diff(cells, (1, 1), cells.shape, exact), check_of(cells), "C").data[0]


def test_one_wrong_cell_is_beyond_the_limit_and_ringed():
    cells = np.full((128, 128), 0.8, dtype=np.float32)
    cells[78, 19] = 1.5
    figure = error_figure(Diff(cells, (64, 64), (8192, 8192), exact=False), check_of(cells, cell=64), "C")
    heatmap, ring = figure.data
    assert np.argwhere(heatmap.z > 0).tolist() == [[78, 19]]
    assert (ring.y[0], ring.x[0]) == (78 * 64, 19 * 64)
    assert (heatmap.y0, heatmap.dy) == (31.5, 64)


def test_a_result_without_any_error_such_as_a_race_on_zeros_has_no_ring():
    cells = np.zeros((4, 4), dtype=np.float32)
    assert len(error_figure(Diff(cells, (8, 8), (32, 32), exact=False), check_of(cells, passed=True), "C").data) == 1


@pytest.mark.parametrize(
    ("cell", "exact", "title"),
    [((1, 1), False, "Error of C, × the limit"), ((4, 8), True, "Error of C (largest of each 4 × 8)")],
)
def test_the_maps_title_has_its_unit_and_its_cells(cell, exact, title):
    cells = np.full((2, 2), 200, dtype=np.float32)
    figure = error_figure(Diff(cells, cell, (2 * cell[0], 2 * cell[1]), exact), check_of(cells), "C")
    assert figure.layout.title.text == title


def test_a_result_that_is_wrong_everywhere_has_colours_from_its_smallest_to_its_largest_error():
    """A lost race: with a scale that ends at 100 × the limit, it would have one colour everywhere."""
    picture = error_map(np.geomspace(133, 348, 64).reshape(8, 8))
    assert (10**picture.zmin, 10**picture.zmax) == (pytest.approx(133), pytest.approx(348))
    assert (np.diff(picture.z.ravel()) > 0).all()
    assert {color for _, color in picture.colorscale} == {"#fcd29f", "#e2691b", "#6d1602"}, "no colour of right cells"
    assert list(picture.colorbar.ticktext) == ["150 ×", "200 ×", "300 ×"]


def test_the_colour_jumps_at_the_limit_and_the_scale_ends_at_the_largest_error():
    picture = error_map([[0.2, 0.9], [1.0, 261]])
    assert (picture.zmin, 10**picture.zmax) == (-2, pytest.approx(261))
    limit = 2 / (picture.zmax - picture.zmin)
    assert [color for at, color in picture.colorscale if at == pytest.approx(limit)] == ["#cfe0f3", "#fcd29f"]
    labels = dict(zip(picture.colorbar.tickvals, picture.colorbar.ticktext, strict=True))
    assert labels == {-2: "≤ 0.01 ×", -1: "0.1 ×", 0: "the limit", 1: "10 ×", 2: "100 ×"}


def test_a_result_that_passed_has_no_colour_of_wrong_cells():
    picture = error_map([[0, 0.3]])
    assert (picture.zmin, picture.zmax) == (-2, 0)
    assert picture.colorbar.ticktext[-1] == "the limit"
    assert {color for _, color in picture.colorscale} == {"#0b2a5b", "#cfe0f3"}


def test_a_map_and_its_closeup_share_one_scale_and_the_closeup_names_programs_and_has_borders():
    cells, got = np.full((2, 2), 200, dtype=np.float32), np.zeros((1, 1), dtype=np.float32)
    near = Closeup(np.array([[0.5, 700]], dtype=np.float32), (2, 2), (2, 2), (2, 4), (0, 0), got, got, got)
    diff = Diff(cells, (4, 4), (8, 8), exact=False, tile=(2, 2), closeup=near)
    whole, (heatmap, borders, labels, ring) = (
        error_figure(diff, check_of(cells), "C").data[0],
        closeup_figure(diff, near, check_of(cells), "C", {(1, 1): [7, 8], (1, 2): [5]}).data,
    )
    assert [(each.zmin, 10**each.zmax) for each in (whole, heatmap)] == [(-2, pytest.approx(700))] * 2
    assert (heatmap.x0, heatmap.y0) == (2.5, 2.5)
    assert list(zip(labels.y, labels.x, labels.text, strict=True)) == [(2, 2, "pid 7 +1"), (2, 4, "pid 5")]
    assert list(borders.x)[:2] == [1.5, 5.5], "a line between rows of tiles spans the columns of the closeup"
    assert list(borders.y)[:2] == [1.5, 1.5]
    assert list(borders.x)[3:] == [1.5, 1.5, None, 3.5, 3.5, None]
    assert list(borders.y)[3:5] == [1.5, 3.5]
    assert (ring.y[0], ring.x[0]) == check_of(cells).worst_index


def test_an_element_that_is_not_finite_is_above_all_errors_and_labelled():
    picture = error_map([[0.5, 40, np.nan]])
    assert picture.z[0, 2] == pytest.approx(picture.zmax)
    assert picture.z[0, 2] > picture.z[0, 1]
    assert picture.colorbar.ticktext[-1] == "not finite"


def test_all_wrong_cells_of_an_exact_result_look_alike_and_infinity_is_wrong():
    (right, tiny), (half, infinite) = error_map([[0.0, 1e-6], [0.5, np.inf]], exact=True).z
    assert right < tiny == half == infinite


def test_the_time_figure_has_a_bar_per_call_and_another_colour_for_the_host():
    figure = time_figure(measured())
    (bars,) = figure.data
    assert list(bars.y) == [THIS_KERNEL, "torch.matmul", "torch.matmul, cuBLASLt", ENQUEUED, SYNCHRONIZED]
    assert list(bars.x) == pytest.approx([7.0, 6.825, 6.825, 31.0, 44.0])
    kernel, library, _, *host = bars.marker.color
    assert kernel == theme.HARDWARE
    assert library not in host
    assert host[0] == host[1]
    assert list(bars.error_x.array)[-2:] == list(bars.error_x.arrayminus)[-2:] == [0, 0]
    assert all(error > 0 for error in bars.error_x.array[:-2])
    assert ["7.00 µs" in bars.text[0], "31.0 µs" in bars.text[3]] == [True, True], "three digits, zeros included"
    assert max(map(len, figure.layout.xaxis.title.text.split("<br>"))) <= 20, "a phone has no room for more"
    (bars,) = time_figure(measured(baselines=(), launch_overhead=None)).data
    assert list(bars.y) == [THIS_KERNEL, "torch.matmul"], "an older recording"
    with pytest.raises(ValueError, match="timed"):
        time_figure(replace(measured(), timing=None))
