"""The Memory view's figures show the models' results: each byte's state, each lane's target, each element."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import discover
from kernels.accesses import Axis, FlatAccess, MemoryOperation
from kernels.gpus import GPUS
from kernels.spec import Launch, TensorSpec
from tests.figure_values import decode
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Matrix, Requests
from visualize.views.memory.flow import Flow, flow_plot, make_flow, tile_figure

SHAPE = (1 << 20, 64)
BOX = MemoryOperation("descriptor", ("", 0), None, 0, 0, "", 1, ())


def flow_of(addresses, width=4, active=True, code=None):
    """A flow of requests at these byte addresses of a tensor of 4-byte elements."""
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    mask, row, column = np.broadcast_to(active, address.shape), address // 256, address % 256 // 4
    lanes = Requests(row, column, address, mask, width, Matrix(*SHAPE, 4))
    access = FlatAccess("load", "B", Axis("m", address.size, lambda index, block: index * block), ("m",), ("", 1))
    return Flow(access, (0,), TensorSpec(SHAPE, is_input=True), lanes, code)


def figure_of(flow, request=0):
    figure = decode(flow_plot(flow, request, "about"))
    return figure["layout"], figure["layout"]["meta"]["requests"]


def test_the_title_says_which_bytes_are_used():
    for flow, expected in (
        (flow_of([0], active=False), "not issued"),
        (flow_of([0]), "1 sector: 4 of 32 bytes used"),
        (flow_of(range(0, 128, 4)), "4 sectors: all 128 bytes used"),
    ):
        assert expected in figure_of(flow)[1]["titles"][0]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_a_figure_carries_the_first_byte_of_each_lane_and_the_state_of_each_cell(width):
    rng = np.random.default_rng(width)
    addresses = rng.integers(0, 4096 // width, (3, 32)) * width  # some lanes share bytes
    layout, requests = figure_of(flow_of(addresses, width), request=2)
    assert (requests["place"], requests["first"], requests["total"], requests["model"]) == (2, 0, 3, "textbook")
    assert requests["titles"][2].startswith("<b>Blackboard: request 3 of 3</b>")
    count, rows, cells = requests["state"].shape
    assert (count, cells) == (3, 128 // width)
    row, cell = np.divmod(requests["target"] - 1, cells)
    line = np.take_along_axis(requests["line"], row, axis=1) - 1
    assert np.array_equal(line * 128 + cell * width, addresses)
    at = np.arange(3)[:, None], row, cell
    used = np.zeros((3, rows, cells), dtype=bool)
    used[at] = True
    assert np.array_equal(requests["state"] == 3, used)
    first = np.array([[addresses[i].tolist().index(byte) for byte in addresses[i]] for i in range(3)])
    assert np.array_equal(requests["lane"][at] - 1, first), "of lanes that share bytes, the first is named"
    sector = 32 // width
    fetched = used.reshape(3, rows, -1, sector).any(axis=3).repeat(sector, axis=2)
    assert np.array_equal(requests["state"] >= 2, fetched)
    assert layout["yaxis"]["range"] == [1, 0], "lines run down"
    assert "B" in layout["yaxis"]["title"]["text"]
    assert [border["x0"] for border in layout["shapes"]] == [0, 0.25, 0.5, 0.75, 1]


def test_an_inactive_lane_has_no_target_and_untouched_lines_below_are_left_out():
    _, requests = figure_of(flow_of([[0, 4, 8]], active=[True, False, True]))
    assert requests["state"].shape == (1, 4, 32)
    assert requests["target"].tolist() == [[1, 0, 3]]


def test_a_box_flows_from_one_node_to_each_of_its_rows():
    flow = make_flow(*persistent(M=1024), 0, BOX)
    figure = decode(flow_plot(flow, 0, "about"))
    _, _, node = figure["data"]
    requests = figure["layout"]["meta"]["requests"]
    assert node["text"] == ["TMA"]
    assert node["y"].tolist() == [0.5]
    rows, cells = requests["state"].shape[1:]
    assert (rows, cells) == (64, 8)
    assert np.array_equal(requests["target"], [1 + cells * np.arange(rows)])
    assert requests["holder"] == "16-byte piece"
    assert figure["layout"]["xaxis"]["title"]["text"] == "first 64 of 128 lines"


def persistent(**sizes):
    kernel = discover()["matmul.persistent"]
    return kernel, Launch(kernel.family.problem(**sizes), kernel.config(), GPUS["H200"])


@pytest.mark.parametrize("color", ["request", "warp", "lane", "register"])
def test_a_tiles_elements_have_their_colours_and_those_outside_none(color):
    board = Textbook(warp_size=4, line_bytes=16)
    kernel = discover()["transpose.tiled"]
    launch = Launch(kernel.family.problem(M=7, N=6), kernel.config(4, 4), GPUS["H200"])
    flow = make_flow(kernel, launch, 0, board, program=3)
    (picture,) = tile_figure(flow.tile, "A", color, board.sector_bytes).data
    row, column = np.indices((4, 4))
    expected = {"request": row, "warp": row, "lane": column, "register": 0 * row}[color]
    assert np.array_equal(picture.z, np.where((row < 3) & (column < 2), expected, np.nan), equal_nan=True)
    assert (picture.x0, picture.y0) == (4, 4)
    byte = (5 * 6 + 5) * 4
    assert picture.customdata[1, 1].tolist() == [expected[1, 1], 1, 1, 1, 0, byte, byte // 16]
