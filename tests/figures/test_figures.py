"""Figures hold their data: what a cell shows is what the model says there, and axes say which way they run."""

from __future__ import annotations

import numpy as np
import pytest

from kernels.results.run import Check, Closeup, Diff
from visualize.figures.diff_figure import closeup_figure, diff_figure
from visualize.views import theme


def check_of(cells, passed=False):
    worst = np.unravel_index(np.argmax(cells), cells.shape)
    place = int(worst[0]) * 64, int(worst[1]) * 64
    return Check(passed, 0.1, 0.01, 1.0, 0.1, 1, 0, cells.size, place, 2.0, 1.0, float(cells.max()))


def test_one_wrong_cell_is_on_the_far_side_of_the_limit_and_ringed():
    cells = np.full((128, 128), 0.8, dtype=np.float32)
    cells[78, 19] = 1.5
    figure = diff_figure(Diff(cells, (64, 64), (8192, 8192), exact=False), check_of(cells), "C")
    picture, ring = figure.data
    assert picture.z[78, 19] > 0
    assert np.count_nonzero(picture.z > 0) == 1
    assert (ring.y[0], ring.x[0]) == (78 * 64, 19 * 64)
    assert "64 × 64" in figure.layout.title.text
    assert (picture.y0, picture.dy) == (31.5, 64)


def test_where_there_is_no_error_nothing_is_ringed():
    """As of a race whose inputs are zeros."""
    cells = np.zeros((4, 4), dtype=np.float32)
    assert len(diff_figure(Diff(cells, (8, 8), (32, 32), exact=False), check_of(cells, passed=True), "C").data) == 1


def test_a_map_of_errors_says_what_its_numbers_are_of():
    cells = np.full((2, 2), 200, dtype=np.float32)
    for cell, exact, said in (((1, 1), False, "Error of C, × the limit"),
                              ((4, 8), False, "Error of C, × the limit (largest of each 4 × 8)"),
                              ((4, 8), True, "Error of C (largest of each 4 × 8)")):  # fmt: skip
        drawn = diff_figure(Diff(cells, cell, (2 * cell[0], 2 * cell[1]), exact=exact), check_of(cells), "C")
        assert drawn.layout.title.text == said


def map_of(cells, **more):
    """The drawn map of some cells."""
    return diff_figure(Diff(cells, (1, 1), cells.shape, exact=False, **more), check_of(cells), "C").data[0]


def test_a_result_that_is_wrong_everywhere_is_drawn_from_its_least_to_its_largest_error():
    """As a lost race: a scale that ended at 100 × the limit would have one colour for all of it."""
    cells = np.geomspace(133, 348, 64, dtype=np.float32).reshape(8, 8)
    picture = map_of(cells)
    assert (10**picture.zmin, 10**picture.zmax) == (pytest.approx(133), pytest.approx(348))
    assert (np.diff(picture.z.ravel()) > 0).all()
    assert {color for _, color in picture.colorscale} == {"#fcd29f", "#e2691b", "#6d1602"}, "nothing in it is right"
    assert list(picture.colorbar.ticktext) == ["150 ×", "200 ×", "300 ×"]


def test_the_colour_jumps_at_the_limit_and_the_scale_ends_at_the_largest_error():
    cells = np.array([[0.2, 0.9], [1.0, 261]], dtype=np.float32)
    picture = map_of(cells)
    assert (picture.zmin, 10**picture.zmax) == (-2, pytest.approx(261))
    limit = 2 / (picture.zmax - picture.zmin)
    assert [color for at, color in picture.colorscale if at == pytest.approx(limit)] == ["#cfe0f3", "#fcd29f"]
    named = dict(zip(picture.colorbar.tickvals, picture.colorbar.ticktext, strict=True))
    assert named == {-2: "≤ 0.01 ×", -1: "0.1 ×", 0: "the limit", 1: "10 ×", 2: "100 ×"}


def test_a_result_that_passed_has_no_colour_of_what_is_wrong():
    picture = map_of(np.array([[0, 0.3]], dtype=np.float32))
    assert (picture.zmin, picture.zmax) == (-2, 0)
    assert picture.colorbar.ticktext[-1] == "the limit"
    assert {color for _, color in picture.colorscale} == {"#0b2a5b", "#cfe0f3"}


def test_a_map_and_its_closeup_have_one_scale():
    cells = np.full((2, 2), 200, dtype=np.float32)
    got = np.zeros((1, 1), dtype=np.float32)
    near = Closeup(np.array([[0.5, 700]], dtype=np.float32), (1, 1), (0, 0), (1, 2), (0, 0), got, got, got)
    diff = Diff(cells, (1, 1), (2, 2), exact=False, closeup=near)
    pictures = [diff_figure(diff, check_of(cells), "C").data[0]]
    pictures.append(closeup_figure(diff, near, check_of(cells), "C", {}).data[0])
    assert [(one.zmin, 10**one.zmax) for one in pictures] == [(-2, pytest.approx(700))] * 2


def test_what_is_not_finite_stands_above_all_errors_and_is_named():
    picture = map_of(np.array([[0.5, 40, np.nan]], dtype=np.float32))
    assert picture.z[0, 2] == pytest.approx(picture.zmax)
    assert picture.z[0, 2] > picture.z[0, 1]
    assert picture.colorbar.ticktext[-1] == "not finite"


def test_where_a_result_must_be_exact_each_wrong_cell_looks_alike_however_small_its_error():
    cells = np.array([[0.0, 1e-6], [0.5, 2.0]])
    shown = diff_figure(Diff(cells, (1, 1), (2, 2), exact=True), check_of(cells), "B").data[0].z
    assert shown[0, 0] < shown[0, 1] == shown[1, 0] == shown[1, 1]


def test_an_element_that_is_not_finite_and_a_wrong_copy_are_as_wrong_as_can_be():
    cells = np.zeros((2, 2), dtype=np.float32)
    cells[1, 0] = np.inf
    for exact in (False, True):
        picture = diff_figure(Diff(cells, (1, 1), (2, 2), exact), check_of(cells), "B").data[0]
        assert picture.z[1, 0] >= picture.zmax
        assert picture.z[0, 0] == pytest.approx(picture.zmin)


def test_colours_of_groups_are_told_apart_and_repeat_every_eight():
    scale = theme.repeated(8)
    assert [colour for _, colour in scale[::2]] == list(theme.CATEGORIES)
    assert (scale[0][0], scale[-1][0]) == (0, 1)
