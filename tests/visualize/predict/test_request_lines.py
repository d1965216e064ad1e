"""Requests laid out on the lines that they touch: exactly the used bytes are drawn, and costs equal the counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescope.evaluate.declared import Matrix, Requests
from tilescope.evaluate.sectors import count_requests
from visualize.views.memory.flow import (
    ABSENT,
    UNTOUCHED,
    USED,
    WASTED,
    lay_out,
    matching_requests,
)


def of_addresses(addresses, active=None, width=4, columns=64, tensor_bytes=1 << 40):
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    mask = np.ones(address.shape, dtype=bool) if active is None else np.atleast_2d(active)
    matrix = Matrix(tensor_bytes // width // columns, columns, width)
    return Requests(address, mask, width, matrix)


def lay_out_all(lanes):
    return lay_out(lanes, np.arange(len(lanes.address)), fewest_rows=32)


def test_the_first_of_several_lanes_with_the_same_bytes_is_shown():
    drawn = lay_out_all(of_addresses([8, 8, 4, 4]))
    assert drawn.lane[0, 0, :4].tolist() == [-1, 2, 0, -1]
    assert drawn.used_bytes[0] == 8


@pytest.mark.parametrize(
    ("touched", "tensor_lines", "lines"),
    [
        ([5], 7, [*range(7), *[-1] * 25]),  # a small tensor is laid out whole
        ([66], 70, [66, 67, 68, 69, *[-1] * 28]),
        ([5, 6], 90, range(5, 37)),
        (range(100), 1 << 20, range(64)),
    ],
)
def test_rows_hold_the_touched_lines_and_the_following_ones_up_to_the_tensors_end(
    touched, tensor_lines, lines
):
    drawn = lay_out_all(
        of_addresses([128 * line for line in touched], columns=32, tensor_bytes=128 * tensor_lines)
    )
    assert drawn.line.tolist() == [list(lines)]
    states = {
        -1: ABSENT,
        **{line: UNTOUCHED for line in lines if line >= 0},
        **dict.fromkeys(touched, USED),
    }
    assert drawn.state[0, :, 0].tolist() == [states[line] for line in lines]
    assert (drawn.state[0, [line < 0 for line in lines]] == ABSENT).all()
    count = len(touched)
    assert drawn.lines[0] == count
    assert drawn.sectors[0] == count
    assert drawn.used_bytes[0] == 4 * count, "without a row, too"


@given(st.data(), st.sampled_from([1, 2, 4, 8, 16]))
def test_the_costs_are_those_of_the_counts_and_every_wanted_byte_is_drawn(data, width):
    shape = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 32)))
    units = data.draw(
        st.lists(st.integers(0, 400), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    )
    mask = data.draw(st.lists(st.booleans(), min_size=len(units), max_size=len(units)))
    lanes = of_addresses(
        width * np.array(units).reshape(shape), np.array(mask).reshape(shape), width
    )
    drawn = lay_out_all(lanes)
    counted = count_requests(lanes.address, lanes.active, width)
    assert drawn.sectors.tolist() == counted.sectors.tolist()
    assert drawn.lines.tolist() == counted.lines.tolist()
    for request in range(shape[0]):
        row, cell = np.nonzero(drawn.state[request] == USED)
        found = drawn.line[request, row] * 128 + cell * width
        assert sorted(found) == sorted(set(lanes.address[request][lanes.active[request]]))
        for place, lane in zip(found, drawn.lane[request, row, cell], strict=True):
            assert lanes.address[request, lane] == place
        moved = (drawn.state[request] >= WASTED).sum() * width
        assert moved == 32 * drawn.sectors[request]


def test_the_request_at_the_same_place_moves_the_same_element():
    """Four lanes of 16 bytes beside sixteen of 4: the first moves what four of the others do."""
    address = np.arange(0, 256, 16).reshape(4, 4)
    wide = Requests(address, np.ones((4, 4), bool), 16, Matrix(64, 64, 4))
    narrow = of_addresses(np.arange(0, 256, 4).reshape(16, 4))
    assert matching_requests(wide, np.arange(4), narrow).tolist() == [0, 4, 8, 12]
    assert (
        matching_requests(narrow, np.arange(16), wide).tolist()
        == np.repeat(np.arange(4), 4).tolist()
    )
