"""Blocks copied by descriptor against plain counting: every block, box row and byte.

What the compiler really chooses, and what hardware counted, is in tests/oracle.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.accesses import Access, Axis, MemoryOperation
from kernels.gpus import GPUS
from kernels.spec import DTYPE_BYTES, Launch, TensorSpec
from tests.predict.plain_counting import executions, plain_cost
from visualize.predict.coalescing import box_count, cost, operations, requests, row_bytes
from visualize.predict.traffic import NO_COST, Cost, Matrix

COPY = MemoryOperation("descriptor", ("", 0), None, 0, 0, "", 1, ())


def plain_box_rows(access, made, tensor, extents, size):
    """The cost of every box row of every execution."""
    (rows, columns), width, total = tensor.stored, row_bytes(access, made, size), NO_COST
    for top, left in executions(access, extents):
        for row in range(top, top + access.rows.block):
            for begin in range(left * size, (left + access.columns.block) * size, width):
                inside = max(0, min(columns * size - begin, width)) if row < rows else 0
                outside = -(-(width - inside) // 32) if tensor.is_input else 0
                inner = plain_cost([[(0, row * columns * size + begin, inside)]] if inside else [])
                total += replace(inner, requests=0) + Cost(0, outside, 0, 0, extra_sectors=outside)
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
    return kernel, launch, tuple(replace(COPY, swizzle_bytes=draw(st.sampled_from(some))) for some in widths)


@given(launches())
def test_a_launch_costs_what_counting_every_box_row_gives(case):
    kernel, launch, made = case
    extents, tensors = kernel.extents(launch), kernel.family.tensors(launch.problem)
    size = DTYPE_BYTES[launch.problem.dtype]
    for op, operation in zip(operations(kernel, launch, made), made, strict=True):
        assert op.access.op == "descriptor"
        assert op.launch == plain_box_rows(op.access, operation, tensors[op.access.tensor], extents, size), op.access


def block(rows, columns):
    start = lambda index, length: index * length  # noqa: E731
    return Access("descriptor", "A", Axis("m", rows, start), Axis("n", columns, start), ("m", "n"), ("", 0))


@pytest.mark.parametrize(
    ("sides", "shape", "first", "swizzle_bytes", "loads", "expected"),
    [
        # Whole rows cost their bytes and no request.
        ((64, 64), (64, 64), (0, 0), 128, True, Cost(0, 256, 64, 256, 8192)),
        ((64, 64), (64, 64), (0, 0), 128, False, Cost(0, 256, 64, 256, 8192)),
        # Rows of 72 elements take 4.5 sectors: every second one begins inside a sector.
        ((2, 64), (2, 72), (0, 0), 128, True, Cost(0, 4 + 5, 1 + 2, 8, 256)),
        # Two rows in one sector cost two.
        ((16, 16), (16, 8), (0, 0), 32, False, Cost(0, 16, 16, 16, 256)),
        # 16 of a row's 128 bytes are inside: 1 sector. The 112 bytes past the edge make 3.5, which a store omits.
        ((4, 64), (4, 8), (0, 0), 128, True, Cost(0, 4 * (1 + 4), 4, 4, 64, 4 * 4)),
        ((4, 64), (4, 8), (0, 0), 128, False, Cost(0, 4, 4, 4, 64)),
        ((4, 64), (3, 64), (0, 0), 128, True, Cost(0, 16, 3, 12, 384, 4)),
        ((4, 64), (3, 64), (0, 0), 128, False, Cost(0, 12, 3, 12, 384)),
        # A block past the edge is loaded as a whole, and not stored.
        ((8, 16), (8, 8), (0, 16), 32, True, Cost(0, 8, 0, 0, 0, 8)),
        ((8, 16), (8, 8), (0, 16), 32, False, NO_COST),
        # Two rows of 264 bytes' pitch, 256 of which are copied: the second begins inside a sector, as do its boxes.
        ((2, 128), (2, 136), (0, 0), 32, True, Cost(0, 8 + 8 + 8, 8 + 10, 16, 512)),
        ((2, 128), (2, 136), (0, 0), 64, True, Cost(0, 8 + 8 + 4, 4 + 6, 16, 512)),
        ((2, 128), (2, 136), (0, 0), 128, True, Cost(0, 8 + 8 + 2, 2 + 4, 16, 512)),
    ],
)
def test_a_block_costs_what_is_worked_out_by_hand(sides, shape, first, swizzle_bytes, loads, expected):
    operation, tensor = replace(COPY, swizzle_bytes=swizzle_bytes), TensorSpec(shape, is_input=loads)
    access = block(*sides)
    assert cost(requests(access, Matrix(*shape, 2), first, operation), access, operation, tensor) == expected


def test_a_box_is_as_wide_as_its_swizzle_and_has_at_most_256_rows():
    wide = block(2, 128)
    assert [box_count(wide, replace(COPY, swizzle_bytes=width), 2) for width in (32, 64, 128)] == [8, 4, 2]
    assert box_count(block(512, 64), COPY, 2) == 2
    assert row_bytes(block(512, 64), COPY, 1) == 64
