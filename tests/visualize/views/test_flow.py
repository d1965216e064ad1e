"""The picture of requests: exactly the used bytes are drawn, and costs equal the counts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.experiments import launch_from
from tests.messages import decode
from tilescope.evaluate.counts import OperationCounts, Tally
from tilescope.evaluate.declared import Matrix, Requests, count_accesses
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import count_requests
from visualize.views.memory.flow import (
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


# The lines that a request touches, and those of its tensor.
TOUCHED = {
    "a small tensor is laid out whole": ([5], 7),
    "lines up to the tensor's end": ([66], 70),
    "the lines that follow": ([5, 6], 90),
    "more lines than rows": (range(100), 1 << 20),
}


def test_the_pictures_are_the_approved_ones(approve):
    """Some lanes share bytes, are inactive or scattered; a box flows from one node to each of its rows."""
    kernel, launch = launch_from("matmul.persistent M=1024")
    box, *_ = count_accesses(kernel, launch, [BOX] * 3)
    addresses = [[0, 16, 16, 144], [0, 4096, 8192, 64], [160, 176, 192, 208]]
    shared = flow_of(addresses, 16, [True, True, True, False])
    figures = {
        "the most wasteful request": flow_plot(shared, -1, "about", most_cells=96),
        "a chosen request": flow_plot(shared, 0, "about", shared, "Compiling"),
        "a request after the last one": flow_plot(shared, 9, "about"),
        "all bytes used": flow_plot(flow_of(range(0, 128, 4)), 0, "about"),
        "not issued": flow_plot(flow_of([0], active=False), 0, "about"),
        "a box": flow_plot(make_flow(box), 0, "about"),
    }
    for name, (lines, count) in TOUCHED.items():
        flow = flow_of(128 * np.array(lines), 16, columns=32, tensor_bytes=128 * count)
        figures[name] = flow_plot(flow, 0, "about")
    shown = {name: decode(figure) for name, figure in figures.items()}
    for figure in shown.values():
        requests = figure["layout"]["meta"]["requests"]
        requests["skips"] = str(requests["skips"])  # of different lengths
    approve("flow", shown)


def lay_out_all(lanes):
    return lay_out(lanes, np.arange(len(lanes.address)))


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
