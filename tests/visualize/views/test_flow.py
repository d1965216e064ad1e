"""The picture of requests: exactly the used bytes are drawn, and costs equal the counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experiments import launch_from
from tests.messages import decode
from tilescope.evaluate.counts import OperationCounts, Tally
from tilescope.evaluate.declared import Matrix, Requests, count_accesses
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import count_requests
from visualize.views.memory.flow import (
    ABSENT,
    UNTOUCHED,
    USED,
    WASTED,
    Flow,
    flow_plot,
    lay_out,
    make_flow,
    matching_requests,
)

BOX = MemoryInstruction("descriptor", ("", 0), None, 0, 0)


def requests_of(addresses, width=4, active=True, columns=64, tensor_bytes=1 << 40):
    """Requests at these byte addresses of a tensor of 4-byte elements."""
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    mask = np.broadcast_to(active, address.shape)
    return Requests(address, mask, width, Matrix(tensor_bytes // 4 // columns, columns, 4))


def flow_of(*arguments, **changes):
    load = OperationCounts("load", "ld", ("", 0), ("B",), None, Tally())
    return Flow(load, requests_of(*arguments, **changes), is_compiled=False)


def figure_of(flow):
    figure = decode(flow_plot(flow, 0, "about"))
    return figure["layout"], figure["layout"]["meta"]["requests"]


@pytest.mark.parametrize("width", [1, 16])
def test_a_figure_carries_the_first_byte_of_each_lane_and_the_state_of_each_cell(width):
    rng = np.random.default_rng(width)
    addresses = rng.integers(0, 4096 // width, (3, 32)) * width  # some lanes share bytes
    flow = flow_of(addresses, width)
    _, requests = figure_of(flow)
    assert requests["total"] == 3
    assert requests["titles"][2].startswith("<b>Textbook: request 3 of 3</b>")
    drawn = flow.lines(np.arange(3))
    rows = requests["state"].shape[1]
    assert np.array_equal(requests["state"], drawn.state[:, :rows])
    assert np.array_equal(requests["lane"] - 1, drawn.lane[:, :rows])
    assert np.array_equal(requests["byte"], addresses)
    row = (requests["end"] * rows).astype(int)
    line = np.take_along_axis(requests["line"], row, axis=1) - 1
    assert np.array_equal(line, np.array(addresses) // 128)


def test_an_inactive_lane_has_no_target_and_untouched_lines_below_are_left_out():
    _, requests = figure_of(flow_of([[0, 4, 8]], active=[True, False, True]))
    assert requests["state"].shape == (1, 8, 32)
    assert requests["byte"].tolist() == [[0, -1, 8]]
    assert np.array_equal(requests["end"], np.float32([[1 / 32, np.nan, 3 / 32]]), equal_nan=True)
    for addresses, active, expected in (
        ([0], False, "not issued"),
        ([0], True, "1 sector: 4 of 32 bytes used"),
        (range(0, 128, 4), True, "4 sectors: all 128 bytes used"),
    ):
        assert expected in figure_of(flow_of(addresses, active=active))[1]["titles"][0]


def test_the_most_wasteful_request_is_drawn_unless_another_is_chosen():
    flow = flow_of([[0, 4, 8], [0, 64, 96], [0, 32, 64]])
    shown = [
        decode(flow_plot(flow, request, "about"))["layout"]["meta"]["requests"]["shown"]
        for request in (-1, 0, 9)
    ]
    assert shown == [1, 0, 2]


def test_a_box_flows_from_one_node_to_each_of_its_rows():
    kernel, launch = launch_from("matmul.persistent M=1024")
    load, *_ = count_accesses(kernel, launch, [BOX] * 3)
    flow = make_flow(load)
    figure = decode(flow_plot(flow, 0, "about"))
    _, _, node = figure["data"]
    requests = figure["layout"]["meta"]["requests"]
    assert node["text"] == ["TMA"]
    assert node["y"].tolist() == [0.5]
    rows, cells = requests["state"].shape[1:]
    assert rows == 64
    assert cells == 8
    assert np.array_equal(requests["end"], np.float32([(np.arange(rows) + 0.5) / rows]))
    assert np.array_equal(requests["byte"] // 128, requests["line"] - 1)
    assert requests["holder"] == "16-byte piece"
    assert figure["layout"]["xaxis"]["title"]["text"] == "first 64 of 128 lines"


def lay_out_all(lanes):
    return lay_out(lanes, np.arange(len(lanes.address)))


def test_the_first_of_several_lanes_with_the_same_bytes_is_shown():
    drawn = lay_out_all(requests_of([8, 8, 4, 4]))
    assert drawn.lane[0, 0, :4].tolist() == [-1, 2, 0, -1]
    assert drawn.used_bytes[0] == 8


@pytest.mark.parametrize(
    ("touched", "tensor_lines", "lines"),
    [
        ([5], 7, [*range(7), -1]),  # a small tensor is laid out whole
        ([66], 70, [66, 67, 68, 69, *[-1] * 4]),
        ([5, 6], 90, range(5, 13)),
        (range(100), 1 << 20, range(64)),
    ],
)
def test_rows_hold_the_touched_lines_and_the_following_ones_up_to_the_tensors_end(
    touched, tensor_lines, lines
):
    drawn = lay_out_all(
        requests_of([128 * line for line in touched], columns=32, tensor_bytes=128 * tensor_lines)
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
    lanes = requests_of(
        width * np.array(units).reshape(shape), width, np.array(mask).reshape(shape)
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
    narrow = requests_of(np.arange(0, 256, 4).reshape(16, 4))
    assert matching_requests(wide, np.arange(4), narrow).tolist() == [0, 4, 8, 12]
    assert (
        matching_requests(narrow, np.arange(16), wide).tolist()
        == np.repeat(np.arange(4), 4).tolist()
    )
