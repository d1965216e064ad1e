"""Blocks copied by descriptor against plain counting: every block, box row and byte, one by one.

What the compiler really chooses, and what hardware counted, is in tests/oracle.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.accesses import Access, Axis
from kernels.gpus import GPUS
from kernels.lanes import MemoryOperation
from kernels.spec import DTYPE_BYTES, Launch, TensorSpec
from visualize.predict import coalescing
from visualize.predict.coalescing import operations
from visualize.predict.traffic import NO_COST, Cost

COPY = MemoryOperation("descriptor", ("", 0), None, 0, 0, "", 1, ())


def counted(access, made, tensor, extents, size):
    """Every byte of every box row of every execution, as sets of sectors and lines."""
    (rows, columns), total = tensor.stored, NO_COST
    row_bytes = min(made.swizzle_bytes or 128, access.columns.block * size)
    for place in itertools.product(*(range(extents[index]) for index in access.over)):
        index = dict(zip(access.over, place, strict=True))
        top, left = (int(axis.start(index[axis.index], axis.block)) for axis in (access.rows, access.columns))
        for row in range(top, top + access.rows.block):
            for begin in range(left * size, (left + access.columns.block) * size, row_bytes):
                inside = [
                    row * columns * size + byte
                    for byte in range(begin, begin + row_bytes)
                    if row < rows and byte < columns * size
                ]
                outside = -(-(row_bytes - len(inside)) // 32) if tensor.is_input else 0
                touched = [len({byte // unit for byte in inside}) for unit in (32, 128)]
                ideal = -(-len(inside) // 32)
                total += Cost(0, touched[0] + outside, touched[1], ideal, len(inside), outside)
    return total


@st.composite
def launches(draw):
    """A small launch with descriptors, and for each copy a swizzle that its block has room for."""
    kernel = discover()[draw(st.sampled_from(("matmul.persistent", "matmul.fused_add_relu")))]
    dtype = draw(st.sampled_from(kernel.problem_knobs()["dtype"].choices))
    layout = draw(st.sampled_from(("NN", "NT", "TN", "TT")))
    size = DTYPE_BYTES[dtype]
    step = {"M": layout[0] == "T", "N": True, "K": layout[0] == "N" or layout[1] == "T"}
    sizes = {name: draw(st.integers(1, 5)) * 16 // size if whole else draw(st.integers(1, 40))
             for name, whole in step.items()}  # fmt: skip
    config = kernel.config(
        BLOCK_M=draw(st.sampled_from((16, 32))), BLOCK_N=32, BLOCK_K=draw(st.sampled_from((32, 64, 128)))
    )
    launch = Launch(kernel.family.problem(**sizes, dtype=dtype, layout=layout), config, GPUS["H200"])
    widths = [[0, *(w for w in (32, 64, 128) if w <= a.columns.block * size)] for a in kernel.accesses(launch)]
    return kernel, launch, tuple(replace(COPY, swizzle_bytes=draw(st.sampled_from(one))) for one in widths)


@given(launches())
def test_a_launch_costs_what_counting_every_box_row_gives(case):
    kernel, launch, made = case
    extents, tensors = kernel.extents(launch), kernel.family.tensors(launch.problem)
    size = DTYPE_BYTES[launch.problem.dtype]
    for op, operation in zip(operations(kernel, launch, made), made, strict=True):
        assert op.access.op == "descriptor"
        assert op.launch == counted(op.access, operation, tensors[op.access.tensor], extents, size), op.access


def block(rows, columns):
    start = lambda index, length: index * length  # noqa: E731
    return Access("descriptor", "A", Axis("m", rows, start), Axis("n", columns, start), ("m", "n"), ("", 0))


def one(access, shape, first=(0, 0), size=2, swizzle_bytes=128, loads=True):
    tensor = TensorSpec(shape, is_input=loads)
    return coalescing.cost(access, replace(COPY, swizzle_bytes=swizzle_bytes), tensor, first, size)


@pytest.mark.parametrize("loads", [True, False])
def test_whole_rows_cost_their_bytes_and_no_request(loads):
    assert one(block(64, 64), (64, 64), loads=loads) == Cost(0, 256, 64, 256, 8192)


def test_a_row_that_begins_inside_a_sector_costs_one_more():
    # Rows of 72 elements take 4.5 sectors: every second one begins inside a sector.
    assert one(block(2, 64), (2, 72)).sectors == 4 + 5


def test_two_rows_in_one_sector_cost_two():
    assert one(block(16, 16), (16, 8), swizzle_bytes=32, loads=False).sectors == 16


def test_what_lies_past_the_edge_is_counted_where_it_is_loaded_and_not_where_it_is_stored():
    # 16 of a row's 128 bytes are inside: 1 sector, and 112 bytes past the edge make 3.5.
    loaded, stored = (one(block(4, 64), (4, 8), loads=loads) for loads in (True, False))
    assert (loaded.sectors, loaded.extra_sectors) == (4 * (1 + 4), 4 * 4)
    assert (stored.sectors, stored.extra_sectors) == (4, 0)
    below, nothing = (one(block(4, 64), (3, 64), loads=loads) for loads in (True, False))
    assert (below.sectors, below.extra_sectors) == (16, 4)
    assert (nothing.sectors, nothing.extra_sectors) == (12, 0)


def test_a_block_past_the_edge_costs_all_of_it_loaded_and_nothing_stored():
    loaded, stored = (one(block(8, 16), (8, 8), (0, 16), swizzle_bytes=32, loads=loads) for loads in (True, False))
    assert (loaded.sectors, loaded.ideal_sectors, loaded.bytes_wanted) == (8, 0, 0)
    assert stored == NO_COST


@pytest.mark.parametrize(("swizzle_bytes", "sectors"), [(32, 8 + 8), (64, 8 + 4), (128, 8 + 2)])
def test_narrower_boxes_pay_at_more_seams(swizzle_bytes, sectors):
    # Two rows of 264 bytes' pitch, 256 of which are copied: the second begins inside a sector, as do its seams.
    access = block(2, 128)
    assert one(access, (2, 136), swizzle_bytes=swizzle_bytes).sectors == 8 + sectors
    assert coalescing.box_count(access, replace(COPY, swizzle_bytes=swizzle_bytes), 2) == 256 // swizzle_bytes


def test_a_box_has_at_most_256_rows():
    assert coalescing.box_count(block(512, 64), COPY, 2) == 2
    assert coalescing.row_bytes(block(512, 64), COPY, 1) == 64
