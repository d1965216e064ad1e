"""Requests laid on the lines that they touch: every wanted byte is drawn, and no other; costs are as counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from visualize.predict.request_lines import ABSENT, UNTOUCHED, WANTED, WASTED, request_lines, same_place
from visualize.predict.traffic import Requests, count


def of_addresses(addresses, active=None, width=4, columns=64):
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    element = address // width
    mask = np.ones(address.shape, dtype=bool) if active is None else np.atleast_2d(active)
    return Requests(element // columns, element % columns, address, mask, width)


def laid(lanes, tensor_bytes=1 << 40, rows=(1, 64)):
    return request_lines(lanes, np.arange(len(lanes.row)), rows, tensor_bytes)


def test_a_strided_request_wants_four_bytes_of_each_sector_and_wastes_the_rest():
    drawn = laid(of_addresses([0, 4096, 8192]))
    assert drawn.line.tolist() == [[0, 32, 64]]
    assert (drawn.state[0, :, 0] == WANTED).all()
    assert (drawn.state[0, :, 1:8] == WASTED).all()
    assert (drawn.state[0, :, 8:] == UNTOUCHED).all()
    assert drawn.lane[0, :, 0].tolist() == [0, 1, 2]
    assert (drawn.sectors[0], drawn.wanted_bytes[0], drawn.lines[0]) == (3, 12, 3)


def test_of_several_lanes_that_want_the_same_bytes_the_first_is_shown():
    drawn = laid(of_addresses([8, 8, 4, 4]))
    assert drawn.lane[0, 0, :4].tolist() == [-1, 2, 0, -1]
    assert drawn.wanted_bytes[0] == 8


def test_lanes_that_take_no_part_want_nothing():
    drawn = laid(of_addresses([[0, 4], [256, 260]], active=[[True, False], [False, False]]))
    assert drawn.wanted_bytes.tolist() == [4, 0]
    assert drawn.sectors.tolist() == [1, 0]
    assert not (drawn.state[1] == WANTED).any()


def test_lines_after_the_last_touched_one_fill_the_room_up_to_the_tensors_end():
    drawn = laid(of_addresses([640]), tensor_bytes=128 * 7, rows=(4, 4))
    assert drawn.line.tolist() == [[5, 6, -1, -1]]
    assert (drawn.state[0, 1] == UNTOUCHED).all()
    assert (drawn.state[0, 2:] == ABSENT).all()


def test_the_room_is_filled_from_the_last_of_several_touched_lines_on():
    drawn = laid(of_addresses([640, 768]), tensor_bytes=128 * 9, rows=(4, 4))
    assert drawn.line.tolist() == [[5, 6, 7, 8]]


def test_a_small_tensor_is_laid_out_whole():
    drawn = laid(of_addresses([640]), tensor_bytes=128 * 7, rows=(4, 16))
    assert drawn.line.tolist() == [list(range(7))]
    assert drawn.state[0, 5, 0] == WANTED
    assert (np.delete(drawn.state[0], 5, axis=0) == UNTOUCHED).all()


def test_lines_past_the_most_are_counted_and_not_drawn():
    drawn = laid(of_addresses([128 * line for line in range(10)]), rows=(1, 4))
    assert drawn.line.shape == (1, 4)
    assert (drawn.lines[0], drawn.sectors[0], drawn.wanted_bytes[0]) == (10, 10, 40)


@given(st.data(), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_costs_are_those_of_the_counts_and_every_wanted_byte_is_drawn(data, width):
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 32)))
    units = data.draw(st.lists(st.integers(0, 400), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    mask = data.draw(st.lists(st.booleans(), min_size=len(units), max_size=len(units)))
    lanes = of_addresses(width * np.array(units).reshape(shape), np.array(mask).reshape(shape), width)
    drawn = laid(lanes)
    counted = count(lanes)
    assert (drawn.sectors.sum(), drawn.lines.sum()) == (counted.sectors, counted.lines)
    for request in range(shape[0]):
        row, cell = np.nonzero(drawn.state[request] == WANTED)
        found = drawn.line[request, row] * 128 + cell * width
        assert sorted(found) == sorted(set(lanes.address[request][lanes.active[request]]))
        for place, lane in zip(found, drawn.lane[request, row, cell], strict=True):
            assert lanes.address[request, lane] == place
        moved = (drawn.state[request] >= WASTED).sum() * width
        assert moved == 32 * drawn.sectors[request]


def test_the_same_place_is_in_the_request_that_moves_it():
    """Four lanes of 16 bytes beside sixteen of 4: the first moves what four of the others do."""
    wide = of_addresses(np.arange(0, 256, 16).reshape(4, 4), width=16)
    wide = Requests(wide.row, wide.address // 4, wide.address, wide.active, 16)
    narrow = of_addresses(np.arange(0, 256, 4).reshape(16, 4))
    assert same_place(wide, np.arange(4), narrow, 64).tolist() == [0, 4, 8, 12]
    assert same_place(narrow, np.arange(16), wide, 64).tolist() == np.repeat(np.arange(4), 4).tolist()


@pytest.mark.parametrize("width", [4, 16])
def test_a_request_may_stand_there_several_times(width):
    lanes = of_addresses(np.arange(0, 512, width).reshape(4, -1), width=width)
    drawn = request_lines(lanes, np.array([2, 2, 0]), (1, 64), 1 << 40)
    assert drawn.number.tolist() == [2, 2, 0]
    assert (drawn.state[0] == drawn.state[1]).all()
    assert drawn.line[2, 0] == 0
