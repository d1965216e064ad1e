"""Blocks copied by descriptor against plain counting: every block, box row and byte.

What the compiler really chooses, and what hardware counted, is in tests/oracle.
"""

import operator
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.accesses import Access, Axis
from kernels.evaluate.counts import NO_COST, Cost
from kernels.evaluate.declared import AccessPattern, Matrix, count_accesses
from kernels.gpus import GPUS
from kernels.instructions import Instruction
from kernels.spec import DTYPE_BYTES, Launch
from tests.predict.plain_counting import executions, plain_cost

LOAD = Instruction(
    "descriptor", ("", 0), None, 0, 0, "cp.async.bulk.tensor.2d.shared::cluster.global"
)
STORE = replace(LOAD, instruction="cp.async.bulk.tensor.2d.global.shared::cta")


def plain_box_rows(access, made, tensor, extents, size):
    """The cost of every box row of every execution."""
    (rows, columns) = tensor.stored
    width = min(made.swizzle_bytes or 128, access.columns.block * size)
    total = NO_COST
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
        BLOCK_M=draw(st.sampled_from((16, 32))),
        BLOCK_N=32,
        BLOCK_K=draw(st.sampled_from((32, 64, 128))),
    )
    launch = Launch(
        kernel.family.problem(**sizes, dtype=dtype, layout=layout), config, GPUS["H200"]
    )
    tensors = kernel.family.tensors(launch.problem)
    made = []
    for access in kernel.accesses(launch):
        widths = [0, *(w for w in (32, 64, 128) if w <= access.columns.block * size)]
        copy = LOAD if tensors[access.tensor].is_input else STORE
        made.append(replace(copy, swizzle_bytes=draw(st.sampled_from(widths))))
    return kernel, launch, tuple(made)


@given(launches())
def test_a_launch_costs_what_counting_every_box_row_gives(case):
    kernel, launch, made = case
    extents = kernel.extents(launch)
    tensors = kernel.family.tensors(launch.problem)
    size = DTYPE_BYTES[launch.problem.dtype]
    for op, operation in zip(count_accesses(kernel, launch, made), made, strict=True):
        assert op.access.op == "descriptor"
        assert op.launch == plain_box_rows(
            op.access, operation, tensors[op.access.tensor], extents, size
        ), op.access


def pattern(rows, columns, size, swizzle_bytes=0):
    axes = (Axis(name, side, operator.mul) for name, side in (("m", rows), ("n", columns)))
    access = Access("descriptor", "A", *axes, ("m", "n"), ("", 0))
    copy = replace(LOAD, swizzle_bytes=swizzle_bytes)
    return AccessPattern(access, Matrix(1 << 12, 1 << 12, size), copy)


def test_a_box_is_as_wide_as_its_swizzle_and_has_at_most_256_rows():
    assert [pattern(2, 128, 2, width).box_count for width in (32, 64, 128)] == [8, 4, 2]
    assert pattern(512, 64, 2).box_count == 2
