"""Requests, sectors and lines of textbook lanes against plain counting."""

import operator
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.evaluate.counts import Cost
from kernels.evaluate.declared import AccessPattern, Matrix
from kernels.gpus import GPUS
from kernels.instructions import Instruction
from kernels.knobs import ConfigError
from kernels.layouts import textbook_layout
from kernels.spec import Access, Axis, FlatAccess, Launch
from tests.predict.plain_counting import (
    executions,
    lane_bytes,
    plain_cost,
    run_element,
    small_launches,
)
from visualize.predict.textbook import Textbook, count_accesses, textbook

BLACKBOARD = Textbook(warp_size=4, line_bytes=16)


def place(access, shape, first, lane, board):
    """Row and column of the element that a lane takes."""
    if isinstance(access, FlatAccess):
        return run_element(access, shape, first[0] + lane)
    if access.transposed and board.lanes == "loaded":
        return first[0] + lane % access.rows.block, first[1] + lane // access.rows.block
    return first[0] + lane // access.columns.block, first[1] + lane % access.columns.block


def plain_costs(kernel, launch, board, first_only=False):
    """The cost of each operation over the launch, or of its first execution."""
    for access in kernel.accesses(launch):
        tensor = kernel.tensors(launch)[access.tensor]
        shape = tensor.stored
        size = board.bytes_of(tensor.dtype_in(launch.problem))
        begins = list(executions(access, kernel.extents(launch)))
        warps = (
            lane_bytes(
                {
                    lane: place(access, shape, first, lane, board)
                    for lane in range(start, min(start + board.warp_size, access.elements))
                },
                shape, size, size,
            )
            for first in begins[: 1 if first_only else None]
            for start in range(0, access.elements, board.warp_size)
        )  # fmt: skip
        yield plain_cost(warps, board.sector_bytes, board.line_bytes)


BOARDS = st.builds(
    Textbook,
    warp_size=st.sampled_from((2, 4, 8, 32, 64)),
    line_bytes=st.sampled_from((16, 32, 64, 128, 512)),
    element_bytes=st.sampled_from(("dtype", "1", "2", "8", "16")),
    lanes=st.sampled_from(("tile", "loaded")),
)


LAUNCHES = small_launches(list(discover().values()), (GPUS["A100-40GB"], GPUS["H200"]))


@given(LAUNCHES, BOARDS)
def test_a_launch_and_its_first_tile_cost_what_counting_every_lane_gives(launch, board):
    counted = count_accesses(*launch, board)
    assert [op.launch for op in counted] == list(plain_costs(*launch, board))
    assert [op.tile for op in counted] == list(plain_costs(*launch, board, first_only=True))
    for op in counted:
        assert op.width_bytes == board.bytes_of(launch[1].problem.dtype)
        assert 0 < op.launch.efficiency <= 1
        assert op.launch.requests <= op.launch.lines <= op.launch.sectors


def test_hostile_shapes_cost_what_counting_every_lane_gives(kernel, configs, launch_of):
    for shape in ((1, 1, 1), (1, 129, 33), (129, 1, 17), (67, 77, 1)):
        for config in (configs["unequal"], configs["default"]):
            launch = launch_of(shape, config, "float16")
            counted = [op.launch for op in count_accesses(kernel, launch, Textbook())]
            assert counted == list(plain_costs(kernel, launch, Textbook())), launch


@pytest.mark.parametrize(
    ("kernel_id", "tile", "lanes", "expected"),
    [
        ("transpose.row_strip", {"BLOCK_M": 2, "BLOCK_N": 8}, "tile", (4, 8)),
        ("transpose.tiled", {"BLOCK_M": 4, "BLOCK_N": 4}, "tile", (4, 4)),
        ("transpose.row_strip", {"BLOCK_M": 2, "BLOCK_N": 8}, "loaded", (4, 16)),
    ],
)
def test_the_blackboards_8_by_8_example_has_its_known_transactions(
    kernels, kernel_id, tile, lanes, expected
):
    kernel = kernels[kernel_id]
    launch = Launch(
        kernel.family.problem(M=8, N=8, dtype="float32"), kernel.config(**tile), GPUS["H200"]
    )
    load, store = count_accesses(kernel, launch, replace(BLACKBOARD, lanes=lanes))
    assert load.access.op == "load"
    assert store.access.op == "store"
    assert (load.tile.sectors, store.tile.sectors) == expected
    assert load.tile.bytes_wanted == 16 * 4


@pytest.mark.parametrize(
    ("block", "shape", "first", "expected"),
    [
        ((1, 32), (2, 32), (0, 0), Cost(1, 4, 1, 4, 128)),  # a row of 32 floats
        ((1, 32), (2, 33), (1, 0), Cost(1, 5, 2, 4, 128)),  # begins 4 bytes into a sector
        ((32, 1), (32, 1000), (0, 0), Cost(1, 32, 32, 4, 128)),  # a column
        ((1, 64), (1, 32), (0, 0), Cost(1, 4, 1, 4, 128)),  # the second request is masked off
        ((1, 64), (1, 33), (0, 0), Cost(2, 5, 2, 5, 132)),  # one lane is enough
    ],
)
def test_a_block_of_textbook_lanes_has_the_cost_worked_out_by_hand(block, shape, first, expected):
    axes = (Axis(name, side, operator.mul) for name, side in zip("mn", block, strict=True))
    access = Access("load", "A", *axes, ("m", "n"), ("", 0))
    assigned = Instruction("load", ("", 0), textbook_layout(block), 4, 4)
    counts = AccessPattern(access, Matrix(*shape, 4), assigned).count_execution(first)
    assert Cost(*counts) == expected


def test_an_element_larger_than_a_line_is_refused(kernels):
    problem = kernels["transpose.tiled"].family.problem()
    Textbook(line_bytes=16, element_bytes="16").refuse(problem)
    with pytest.raises(
        ConfigError, match=r"Element size \(element_bytes\) must be at most line_bytes, which is 8"
    ) as caught:
        Textbook(line_bytes=8, element_bytes="16").refuse(problem)
    assert caught.value.kind == "out_of_range"
    assert caught.value.field == "element_bytes"


def test_a_blackboard_from_json_defaults_to_a_gpus_numbers():
    assert textbook(None) == textbook({}) == Textbook(32, 128, "dtype", "tile")
    assert textbook({"warp_size": "4", "line_bytes": 16.0}) == BLACKBOARD


@pytest.mark.parametrize(
    "options", [[], "abc", True, {"warp_size": 3}, {"element_bytes": 4.5}, {"lane": 1}], ids=str
)
def test_a_blackboard_from_other_json_is_refused(options):
    with pytest.raises(ConfigError):
        textbook(options)


@pytest.mark.parametrize("kernel_id", ["transpose.flat", "transpose.tiled"])
def test_counting_takes_a_small_part_of_the_memory_that_all_lanes_would(kernels, kernel_id):
    """Program classes are counted, not programs."""
    kernel = kernels[kernel_id]
    launch = Launch(kernel.family.problem(M=16384, N=4096), kernel.config(), GPUS["H200"])
    tracemalloc.start()
    count_accesses(kernel, launch, Textbook())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 8 * 16384 * 4096 / 16
