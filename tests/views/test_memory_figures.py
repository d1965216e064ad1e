"""The Memory view's figures show the models' results: each byte's state, each lane's target, each element."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import discover
from kernels.accesses import Layout, MemoryOperation
from kernels.gpus import GPUS
from kernels.spec import Launch
from visualize.predict import coalescing, textbook
from visualize.predict.request_lines import request_lines
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Matrix, Requests
from visualize.views.memory.figures import (
    flow_figure,
    request_frames,
    request_title,
    tile_figure,
)

ROWS = Matrix(1 << 32, 64, 4)


def lanes_of(addresses, width=4, active=True):
    address = np.atleast_2d(np.array(addresses, dtype=np.int64))
    mask = np.broadcast_to(active, address.shape)
    return Requests(address // width // 64, address // width % 64, address, mask, width, ROWS)


def lay_out(addresses, **kwargs):
    lanes = lanes_of(addresses, **kwargs)
    return request_lines(lanes, np.arange(len(lanes.row)))


def test_the_title_says_which_bytes_are_used():
    assert "not issued" in request_title(lay_out([0], active=False), 0, "request {}")
    assert "1 sector: 4 of 32 bytes used" in request_title(lay_out([0]), 0, "request {}")
    assert "4 sectors: all 128 bytes used" in request_title(lay_out(range(0, 128, 4)), 0, "request {}")


def flow(addresses, holder="lane", **kwargs):
    """The flow of the last request: its figure's bytes, lanes, and each line's start and end."""
    lanes, lines = lanes_of(addresses, **kwargs), lay_out(addresses, **kwargs)
    figure = flow_figure(lines, lanes, len(lanes.row) - 1, "request {}", holder, "B")
    heatmap, links, nodes = figure.data
    points = np.stack([links.x, links.y], axis=1).reshape(-1, 22, 2)  # 21 points and a gap
    return figure, heatmap, nodes, points[:, 0], points[:, -2]


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16])
def test_each_lanes_line_ends_at_the_first_byte_that_it_accesses(width):
    rng = np.random.default_rng(width)
    addresses = rng.integers(0, 4096 // width, (3, 32)) * width  # some lanes share bytes
    figure, heatmap, _, start, end = flow(addresses, width=width)
    lines = sorted(set((addresses[-1] // 128).tolist()))
    rows = heatmap.z.shape[0]
    assert np.allclose(start[:, 1], (np.arange(32) + 0.5) / 32)
    assert np.allclose(end[:, 0], addresses[-1] % 128 / 128)
    assert [lines[row] for row in np.floor(end[:, 1] * rows).astype(int)] == (addresses[-1] // 128).tolist()
    assert len(set(map(tuple, end.tolist()))) == 32, "no two lines end at one point"
    assert figure.layout.yaxis.range == (1, 0), "lines run down"
    assert "B" in figure.layout.yaxis.title.text
    assert [border.x0 for border in figure.layout.shapes] == [0, 0.25, 0.5, 0.75, 1]


def test_an_inactive_lane_has_no_line_and_untouched_lines_below_are_left_out():
    _, heatmap, nodes, _, end = flow([[0, 4, 8]], active=[True, False, True])
    assert heatmap.z.shape == (4, 32)
    assert np.isnan(end[:, 0]).tolist() == [False, True, False]
    assert len(set(nodes.marker.color)) == 2
    assert nodes.marker.color[0] == nodes.marker.color[2]


def test_a_box_flows_from_one_node_to_each_of_its_rows():
    figure, heatmap, nodes, start, end = flow([range(0, 80 * 128, 16)], holder="16-byte piece", width=16)
    assert nodes.text == ("TMA",)
    assert heatmap.z.shape == (64, 8)
    assert (start[:, 1] == 0.5).all()
    assert np.allclose(end[:, 1], (np.arange(64) + 0.5) / 64)
    assert figure.layout.xaxis.title.text == "first 64 of 80 lines"


@pytest.mark.parametrize("width", [1, 4, 16])
def test_the_browser_gets_every_request_as_the_figure_shows_it(width):
    addresses = np.arange(0, 4096, width).reshape(8, -1)[:, ::-1]
    lanes, lines = lanes_of(addresses, width=width), lay_out(addresses, width=width)
    frames = request_frames(lines, lanes, "request {}", 3, 8)["requests"]
    assert (frames["place"], frames["first"], frames["total"], len(frames["titles"])) == (3, 0, 8, 8)
    rows, cells = frames["rows"], lines.cells
    assert np.array_equal(frames["lane"].reshape(8, rows, cells).astype(int) - 1, lines.lane[:, :rows])
    row, cell = np.divmod(frames["target"].astype(int) - 1, cells)
    line = np.take_along_axis(frames["line"].reshape(8, -1).astype(int), row, axis=1) - 1
    assert np.array_equal(line * 128 + cell * width, addresses)
    for request in range(8):
        figure = flow_figure(lines, lanes, request, "request {}")
        assert np.array_equal(frames["state"][request].reshape(rows, cells), figure.data[0].z)
        assert frames["titles"][request] == figure.layout.title.text


def test_a_tiles_elements_have_their_requests_colours_and_those_outside_none():
    board = Textbook(warp_size=4, line_bytes=16)
    kernel = discover()["transpose.tiled"]
    problem = kernel.family.problem(M=7, N=6)
    access = kernel.accesses(Launch(problem, kernel.config(4, 4), GPUS["H200"]))[0]
    lanes = textbook.requests(access, board.matrix((7, 6), problem.dtype), (4, 4), board)
    (picture,) = tile_figure(textbook.tile(lanes), "A", "request", board.sector_bytes).data
    expected = np.array([[0, 0, np.nan, np.nan], [1, 1, np.nan, np.nan], [2, 2, np.nan, np.nan], [np.nan] * 4])
    assert np.array_equal(picture.z, expected, equal_nan=True)
    assert (picture.x0, picture.y0) == (4, 4)
    chosen, request, _, lane, _, byte, sector = picture.customdata[1, 1]
    assert chosen == request
    assert (request, lane, byte, sector) == (1, 1, (5 * 6 + 5) * 4, (5 * 6 + 5) * 4 // 16)


@pytest.mark.parametrize("color", ["request", "warp", "lane", "register"])
def test_the_compilers_tile_shows_where_each_element_is(color):
    """Two warps take a 4 × 8 tile of floats in pairs: columns by register and lane, rows by lane and warp."""
    layout = Layout((4, 8), register=((0, 1),), lane=((0, 2), (0, 4), (1, 0), (0, 0), (0, 0)), warp=((2, 0),))
    operation = MemoryOperation("store", ("", 0), layout, 4, 8, "", 1, ())
    kernel = discover()["transpose.tiled"]
    launch = Launch(kernel.family.problem(M=4, N=8), kernel.config(4, 8), GPUS["H200"])
    tile = coalescing.tile(kernel.accesses(launch)[0], Matrix(4, 8, 4), (0, 0), operation)
    (picture,) = tile_figure(tile, "A", color).data
    row, column = np.indices((4, 8))
    lane = column // 2 + 4 * (row % 2)
    expected = {"request": row // 2, "warp": row // 2, "lane": lane, "register": column % 2}[color]
    assert np.array_equal(picture.customdata[..., 0], expected)
    assert np.array_equal(picture.z, expected % 8)
