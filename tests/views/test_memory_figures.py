"""The Memory view's figures show what the models say: each byte's state, lanes' numbers, each cost, each element."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernels import discover
from kernels.accesses import Layout, MemoryOperation
from kernels.experiment import from_json
from kernels.gpus import GPUS
from kernels.measuring.counters import COUNTERS
from kernels.results import records
from kernels.spec import Launch
from visualize.predict import coalescing, textbook
from visualize.predict.agreement import Verdicts
from visualize.predict.request_lines import request_lines
from visualize.predict.textbook import Textbook
from visualize.predict.traffic import Matrix, Requests
from visualize.views.memory.figures import (
    flow_figure,
    lane_labels,
    memory_figure,
    request_frames,
    request_title,
    sectors_figure,
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


def numbers(lines):
    """The first request's labels, by row and cell."""
    text = memory_figure(lines, 0, "").data[0].text
    return {place: text[place] for place in zip(*np.nonzero(text != ""), strict=True)}


def test_a_request_stands_on_the_lines_that_it_touches():
    lines = lay_out([[0, 4, 8], [4096, 4100, 8192]])
    figure = memory_figure(lines, 1, "Compiled: request {} of 2", tensor="B")
    assert np.array_equal(figure.data[0].z, lines.state[1])
    assert figure.data[0].z.shape == (8, 32)
    layout = figure.layout
    assert layout.yaxis.ticktext[:2] == ("4,096", "8,192")
    assert layout.yaxis.range[0] > layout.yaxis.range[1], "lines run down"
    assert "B" in layout.yaxis.title.text
    assert layout.title.text == "<b>Compiled: request 2 of 2</b><br>2 sectors: 12 of 64 bytes used"
    assert [border.x0 for border in layout.shapes] == [0, 32, 64, 96, 128]


def test_the_title_says_which_bytes_are_used():
    assert "not issued" in request_title(lay_out([0], active=False), 0, "request {}")
    assert "1 sector: 4 of 32 bytes used" in request_title(lay_out([0]), 0, "request {}")
    assert "4 sectors: all 128 bytes used" in request_title(lay_out(range(0, 128, 4)), 0, "request {}")


def test_lanes_have_numbers_where_there_is_room():
    wide = lay_out(range(0, 512, 16), width=16)
    assert numbers(wide) == {(lane // 8, lane % 8): str(lane) for lane in range(32)}
    assert numbers(lay_out(range(0, 128, 4))) == {(0, lane): str(lane) for lane in range(0, 32, 4)}
    spread = lay_out(range(0, 128, 16))
    assert numbers(spread) == {(0, 4 * lane + 2): str(lane) for lane in range(8)}, "beside the lane, without an arrow"
    runs = lay_out([32 * sector + byte for sector in range(4) for byte in range(0, 16, 4)])
    assert numbers(runs) == {(0, 8 * sector): str(4 * sector) for sector in range(4)}, "on the lanes' own bytes"
    alone = numbers(lay_out([0, 4096 + 28, 8192]))
    assert list(alone.values()) == ["◂ 0", "1 ▸", "◂ 2"]
    assert all(0 < cell < 8 for _, cell in alone), "inside the sector"
    thin = numbers(lay_out(range(0, 32 * 4096, 4096)))
    assert {row for row, _ in thin} == set(range(2, 31, 4)), "every fourth line, none at the edge"
    assert numbers(lay_out(range(0, 64 * 128, 16), width=16)) == {}


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_the_browser_gets_every_request_as_the_figure_shows_it(width):
    lines = lay_out(np.arange(0, 4096, width).reshape(8, -1), width=width)
    frames = request_frames(lines, 3, "request {}", 0, 8, width, 64)["requests"]
    assert (frames["place"], frames["first"], frames["total"], len(frames["titles"])) == (3, 0, 8, 8)
    assert np.array_equal(frames["label"].reshape(lines.state.shape), lane_labels(lines))
    assert np.array_equal(frames["lane"].reshape(lines.lane.shape).astype(int) - 1, lines.lane)
    assert np.array_equal(frames["line"].astype(int) - 1, lines.line)
    for request in range(8):
        figure = memory_figure(lines, request, "request {}")
        assert np.array_equal(frames["state"][request].reshape(lines.state.shape[1:]), figure.data[0].z)
        assert frames["titles"][request] == figure.layout.title.text


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
    figure, heatmap, nodes, start, end = flow(addresses, width=width)
    lines = sorted(set((addresses[-1] // 128).tolist()))
    rows = heatmap.z.shape[0]
    assert np.allclose(start[:, 1], (np.arange(32) + 0.5) / 32)
    assert np.allclose(end[:, 0], addresses[-1] % 128 / 128)
    assert [lines[row] for row in np.floor(end[:, 1] * rows).astype(int)] == (addresses[-1] // 128).tolist()
    assert all(
        f"bytes {address:,} to" in text for address, text in zip(addresses[-1].tolist(), nodes.hovertext, strict=True)
    )
    assert len(set(map(tuple, end.tolist()))) == 32, "no two lines end at one point"
    assert figure.layout.yaxis.range == (1, 0)


def test_an_inactive_lane_has_no_line_and_untouched_lines_below_are_left_out():
    _, heatmap, nodes, _, end = flow([[0, 4, 8]], active=[True, False, True])
    assert heatmap.z.shape == (4, 32)
    assert np.isnan(end[:, 0]).tolist() == [False, True, False]
    assert nodes.hovertext == ("lane 0<br>bytes 0 to 3", "lane 1", "lane 2<br>bytes 8 to 11")


def test_a_box_flows_from_one_node_to_each_of_its_rows():
    figure, heatmap, nodes, start, end = flow([range(0, 80 * 128, 16)], holder="16-byte piece", width=16)
    assert (nodes.text, nodes.hovertext) == (("TMA",), ("copies 640 pieces of 16 bytes",))
    assert heatmap.z.shape == (64, 8)
    assert (start[:, 1] == 0.5).all()
    assert np.allclose(end[:, 1], (np.arange(64) + 0.5) / 64)
    assert figure.layout.xaxis.title.text == "first 64 of 80 lines"


def test_the_flows_frames_carry_each_lanes_target():
    addresses = np.arange(0, 2048, 4).reshape(4, -1)[:, ::-1]
    lanes, lines = lanes_of(addresses), lay_out(addresses)
    frames = request_frames(lines, 1, "request {}", 0, 4, 4, 64, lanes)["requests"]
    assert "label" not in frames
    row, cell = np.divmod(frames["target"].astype(int) - 1, 32)
    line = np.take_along_axis(frames["line"].reshape(4, -1).astype(int), row, axis=1) - 1
    assert np.array_equal(line * 128 + cell * 4, addresses)
    assert frames["state"].shape == (4, frames["rows"] * 32)


def recorded(kernel_id):
    experiment = from_json({"kernel": kernel_id, "gpu": "H200"})
    counters = records.find(COUNTERS.form, experiment, "H200")
    launch = Launch(experiment.problem, experiment.config, GPUS["H200"])
    return Verdicts(discover()[kernel_id], launch, counters.compiled, counters)


def test_bars_of_used_and_wasted_bytes_have_one_scale_and_their_sources():
    found = recorded("transpose.flat")
    figure = sectors_figure(found, 1, {})
    used, wasted = figure.data
    moved = [op.launch.sectors * 32 for op in (found.board[1], found.compiled[1])]
    assert (used.name, wasted.name) == ("used", "wasted")
    assert [u + w for u, w in zip(used.x, wasted.x, strict=True)][:2] == moved
    assert set(used.x) == {moved[0] // 8}
    assert figure.layout.xaxis.range == (0, moved[0])
    texts = [note.text for note in figure.layout.annotations]
    assert texts[1].startswith("<b>compiled</b> (predicted)<br>")
    assert texts[2].startswith("<b>counted</b> ✓ (recorded, H200)<br>")
    assert all("× 32 sectors, 12.5 % used" in text for text in texts)
    early = replace(found, code=None, counters=None)
    figure = sectors_figure(early, 1, {"compiled": "Compiling", "counted": "not counted yet"})
    assert [note.text for note in figure.layout.annotations][1:] == [
        "<b>compiled</b><br>Compiling",
        "<b>counted</b><br>not counted yet",
    ]


def test_counts_that_differ_are_marked_in_the_bars():
    found = recorded("transpose.flat")
    more = tuple(replace(row, sectors=row.sectors + 1) for row in found.counters.ops)
    found = replace(found, counters=replace(found.counters, ops=more))
    assert "≠" in sectors_figure(found, 1, {}).layout.annotations[2].text


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
