"""Requests, sectors and lines against plain counting: every program, warp, lane and element, one by one."""

from __future__ import annotations

import collections
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.gpus import GPUS
from kernels.knobs import ConfigError, knobs
from kernels.matmul.problem import LAYOUTS
from kernels.spec import Access, Axis, FlatAccess, Launch
from visualize.predict.textbook import Textbook, operations, requests, textbook
from visualize.predict.traffic import NO_COST, Cost, count

BLACKBOARD = Textbook(warp_size=4, line_bytes=16)


def element_of(access, shape, first, lane, board):
    """Row and column of the element that a lane takes."""
    if isinstance(access, FlatAccess):
        place = first[0] + lane
        return (place % shape[0], place // shape[0]) if access.transposed else (place // shape[1], place % shape[1])
    if access.transposed and board.lanes == "loaded":
        return first[0] + lane % access.rows.block, first[1] + lane // access.rows.block
    return first[0] + lane // access.columns.block, first[1] + lane % access.columns.block


def axes_of(access):
    return (access.run,) if isinstance(access, FlatAccess) else (access.rows, access.columns)


def counted(access, shape, first, size, board):
    """One execution, lane by lane: lanes, addresses and distinct units as sets."""
    warps = collections.defaultdict(set)
    for lane in range(access.elements):
        row, column = element_of(access, shape, first, lane, board)
        if row < shape[0] and column < shape[1]:
            start = (row * shape[1] + column) * size
            warps[lane // board.warp_size] |= set(range(start, start + size))
    sector = min(32, board.line_bytes)
    return Cost(
        requests=len(warps),
        sectors=sum(len({byte // sector for byte in touched}) for touched in warps.values()),
        lines=sum(len({byte // board.line_bytes for byte in touched}) for touched in warps.values()),
        ideal_sectors=sum(-(-len(touched) // sector) for touched in warps.values()),
        bytes_wanted=sum(len(touched) for touched in warps.values()),
        sector_bytes=sector,
    )


def counted_launch(kernel, launch, board):
    """Each operation over the whole launch, executed as often as its kernel executes it."""
    extents, tensors = kernel.extents(launch), kernel.family.tensors(launch.problem)
    size = board.bytes_of(launch.problem.dtype)
    for access in kernel.accesses(launch):
        total = NO_COST
        for place in itertools.product(*(range(extents[index]) for index in access.over)):
            index = dict(zip(access.over, place, strict=True))
            first = tuple(int(axis.start(np.array([index[axis.index]]), axis.block)[0]) for axis in axes_of(access))
            total += counted(access, tensors[access.tensor].stored, first, size, board)
        yield total


BOARDS = st.builds(
    Textbook,
    warp_size=st.sampled_from((2, 4, 8, 32, 64)),
    line_bytes=st.sampled_from((16, 32, 64, 128, 512)),
    element_bytes=st.sampled_from(("dtype", "1", "2", "8", "16")),
    lanes=st.sampled_from(("tile", "loaded")),
)


@st.composite
def launches(draw):
    """A kernel with small tiles, and a problem that they don't divide."""
    kernel = draw(st.sampled_from(list(discover().values())))
    sizes = {name: draw(st.integers(1, 37)) for name in "MNK" if name in knobs(kernel.family.problem)}
    dtype = draw(st.sampled_from(kernel.problem_knobs()["dtype"].choices))
    others = {"layout": draw(st.sampled_from(LAYOUTS))} if "layout" in knobs(kernel.family.problem) else {}
    tile = {name: knob for name, knob in knobs(kernel.config).items() if knob.group == "Tile"}
    config = {name: draw(st.sampled_from((knob.choices or (1, 2, 3))[:4])) for name, knob in tile.items()}
    # Many more lanes than elements would be counted one by one, to no end.
    config = {name: value if value <= 32 else knobs(kernel.config)[name].choices[0] for name, value in config.items()}
    problem = kernel.family.problem(**sizes, dtype=dtype, **others)
    return kernel, Launch(problem, kernel.config(**config), draw(st.sampled_from((GPUS["A100-40GB"], GPUS["H200"]))))


@given(launches(), BOARDS)
def test_a_launch_costs_what_counting_every_lane_gives(launch, board):
    got = [operation.launch for operation in operations(*launch, board)]
    assert got == list(counted_launch(*launch, board))


def test_hostile_shapes_cost_what_counting_every_lane_gives(kernel, configs, launch_of):
    for shape in ((1, 1, 1), (1, 129, 33), (129, 1, 17), (67, 77, 1)):
        for config in (configs["unequal"], configs["default"]):
            launch = launch_of(shape, config, "float16")
            got = [operation.launch for operation in operations(kernel, launch, Textbook())]
            assert got == list(counted_launch(kernel, launch, Textbook())), launch


@pytest.mark.parametrize("shape", [(7, 129), (129, 7), (33, 64), (64, 33), (100, 100), (1, 577), (577, 1)], ids=str)
def test_runs_that_go_round_the_matrix_cost_what_counting_every_lane_gives(kernels, shape):
    kernel = kernels["transpose.flat"]
    for block in (32, 256):
        launch = Launch(kernel.family.problem(*shape, "float16"), kernel.config(block), GPUS["H200"])
        got = [operation.launch for operation in operations(kernel, launch, Textbook())]
        assert got == list(counted_launch(kernel, launch, Textbook())), launch


@given(launches(), BOARDS)
def test_a_tile_is_one_execution_on_the_first_tile(launch, board):
    problem = launch[1].problem
    tensors = launch[0].family.tensors(problem)
    for operation in operations(*launch, board):
        shape, size = tensors[operation.access.tensor].stored, board.bytes_of(problem.dtype)
        first = tuple(int(axis.start(0, axis.block)) for axis in axes_of(operation.access))
        assert operation.tile == counted(operation.access, shape, first, size, board)
        assert operation.width_bytes == size


@given(launches(), BOARDS)
def test_no_operation_does_better_than_ideal(launch, board):
    for operation in operations(*launch, board):
        assert 0 < operation.launch.efficiency <= 1
        assert operation.launch.lines <= operation.launch.sectors
        assert operation.launch.requests <= operation.launch.lines


def moved(kernel, config, board=BLACKBOARD):
    """(loads, stores) of one tile of an 8 × 8 float32 matrix on the blackboard, and its elements."""
    problem = kernel.family.problem(M=8, N=8, dtype="float32")
    load, store = operations(kernel, Launch(problem, kernel.config(**config), GPUS["H200"]), board)
    assert (load.access.op, store.access.op) == ("load", "store")
    return load.tile.sectors, store.tile.sectors, load.tile.bytes_wanted // 4


def test_a_strip_of_two_rows_on_the_blackboard_loads_4_and_stores_8(kernels):
    loads, stores, elements = moved(kernels["transpose.row_strip"], {"BLOCK_M": 2, "BLOCK_N": 8})
    assert (loads, stores, elements) == (4, 8, 16)
    assert elements / (loads + stores) == pytest.approx(16 / 12)


def test_a_tile_of_4_by_4_on_the_blackboard_loads_4_and_stores_4(kernels):
    loads, stores, elements = moved(kernels["transpose.tiled"], {"BLOCK_M": 4, "BLOCK_N": 4})
    assert (loads, stores, elements) == (4, 4, 16)
    assert elements / (loads + stores) == 2.0


def test_a_strip_stored_by_the_lanes_that_loaded_it_stores_16(kernels):
    board = replace(BLACKBOARD, lanes="loaded")
    assert moved(kernels["transpose.row_strip"], {"BLOCK_M": 2, "BLOCK_N": 8}, board)[:2] == (4, 16)


def block(rows, columns, transposed=False):
    def start(index, length):
        return index * length

    return Access("load", "A", Axis("m", rows, start), Axis("n", columns, start), ("m", "n"), ("", 0), transposed)


def one(access, shape, first, size=4, board=Textbook()):  # noqa: B008, a frozen dataclass
    return count(requests(access, shape, first, size, board), board.sector_bytes, board.line_bytes)


def test_a_row_of_32_floats_is_one_request_of_four_sectors():
    assert one(block(1, 32), (2, 32), (0, 0)) == Cost(1, 4, 1, 4, 128)


def test_misaligned_start_costs_one_more_sector():
    # Row 1 of a matrix of 33 columns begins at byte 132, 4 bytes into a sector.
    assert one(block(1, 32), (2, 33), (0, 0)).sectors == 4
    assert one(block(1, 32), (2, 33), (1, 0)) == Cost(1, 5, 2, 4, 128)
    for columns in range(33, 40):
        assert one(block(1, 32), (2, columns), (1, 0)).sectors == (5 if columns * 4 % 32 else 4)


def test_a_column_of_32_floats_is_32_sectors():
    assert one(block(32, 1), (32, 1000), (0, 0)) == Cost(1, 32, 32, 4, 128)


def test_lanes_of_one_sector_share_it():
    assert one(block(32, 1), (32, 1), (0, 0), size=1) == Cost(1, 1, 1, 1, 32)


def test_requests_that_are_masked_off_are_not_issued():
    assert one(block(1, 64), (1, 32), (0, 0)) == Cost(1, 4, 1, 4, 128)
    assert one(block(64, 1), (1, 1), (0, 0)) == Cost(1, 1, 1, 1, 4)
    assert one(block(4, 32), (3, 32), (2, 0)) == Cost(1, 4, 1, 4, 128)
    assert one(block(4, 32), (3, 32), (3, 0)) == NO_COST


def test_a_request_with_one_lane_is_issued():
    assert one(block(1, 64), (1, 33), (0, 0)).requests == 2


def test_nothing_is_as_good_as_ideal():
    assert NO_COST.efficiency == 1.0


def test_an_element_larger_than_a_line_is_refused():
    with pytest.raises(ConfigError) as caught:
        Textbook(line_bytes=8, element_bytes="16").bytes_of("float32")
    assert (caught.value.kind, caught.value.field) == ("out_of_range", "element_bytes")
    assert "element_bytes is 16;" in str(caught.value)
    assert "8 bytes" in str(caught.value)


def test_a_blackboard_from_json_takes_a_gpus_numbers_for_what_is_left_out():
    assert textbook(None) == textbook({}) == Textbook(32, 128, "dtype", "tile")
    assert textbook({"warp_size": "4", "line_bytes": 16.0}) == BLACKBOARD
    for options in (
        [],
        "abc",
        1,
        True,
        {"warp_size": 3},
        {"warp_size": None},
        {"lanes": ["tile"]},
        {"element_bytes": 4.5},
        {"lane": 1},
    ):
        with pytest.raises(ConfigError):
            textbook(options)


def test_an_element_that_is_wider_than_a_line_is_refused(kernels):
    problem = kernels["transpose.tiled"].family.problem()
    Textbook(line_bytes=16, element_bytes="16").refuse(problem)
    with pytest.raises(ConfigError, match="element_bytes is 16; an element must fit in a line of 8 bytes") as error:
        Textbook(line_bytes=8, element_bytes="16").refuse(problem)
    assert error.value.field == "element_bytes"
