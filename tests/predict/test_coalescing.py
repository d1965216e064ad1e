"""The compiled model against plain counting: every program, warp, lane, register and byte, one by one.

Layouts are drawn at random; what the compiler really chooses, and what hardware counted, is in tests/oracle.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels import discover
from kernels.evaluate.declared import count_accesses, make_pattern
from kernels.gpus import GPUS
from kernels.instructions import Instruction
from kernels.layouts import Layout
from kernels.spec import DTYPE_BYTES, FlatAccess, Launch
from tests.predict.plain_counting import (
    element,
    executions,
    has_copies,
    locate,
    plain_count,
    small_launches,
)

OPS = {"load": ("load", "async copy"), "store": ("store",), "atomic": ("atomic",)}


@st.composite
def layouts(draw, shape, fast, vector):
    """A layout of a block: `vector` neighbours along dimension `fast` first, all other bits anywhere, copies too."""
    bits = [[tuple((1 << b) * (d == dim) for d in range(len(shape))) for b in range(size.bit_length() - 1)]
            for dim, size in enumerate(shape)]  # fmt: skip
    first = bits[fast][:vector]
    bits[fast] = bits[fast][vector:]
    rest = draw(st.permutations([base for bases in bits for base in bases]))
    zero = (0,) * len(shape)
    warps = draw(st.integers(0, 3))
    extra = draw(st.integers(0, 2))
    rest += [zero] * max(0, 5 + warps + extra - len(rest))
    rest = draw(st.permutations(rest))
    return Layout(shape, (*first, *rest[5 + warps :]), tuple(rest[:5]), tuple(rest[5 : 5 + warps]))


# An old GPU: without descriptors.
LAUNCHES = small_launches(
    [kernel for kernel in discover().values() if kernel.id != "matmul.persistent"],
    [GPUS["A100-40GB"]],
)


@st.composite
def launches(draw):
    """A small launch of any kernel with pointers, and for each access an operation with a layout drawn at random."""
    kernel, launch = draw(LAUNCHES)
    made = []
    for access in kernel.accesses(launch):
        tensor = kernel.tensors(launch)[access.tensor]
        size = DTYPE_BYTES[tensor.dtype_in(launch.problem)]
        shape = tensor.stored
        if isinstance(access, FlatAccess):
            block = (access.run.block,)
            fast = 0
            pitch = 1 if access.transposed else shape[0] * shape[1]
        else:
            lengths = {axis.index: axis.block for axis in (access.rows, access.columns)}
            block = tuple(lengths[i] for i in access.dims)
            fast = access.dims.index(access.columns.index)
            pitch = shape[1]
        # A vector must be aligned, wholly in the tensor or wholly out of it, and no longer than the block.
        widest = min(
            block[fast].bit_length() - 1,
            (pitch & -pitch).bit_length() - 1,
            4 - (size.bit_length() - 1),
        )
        vector = draw(st.integers(0, widest))
        # A run is copied by no loop, and Triton copies asynchronously in loops alone.
        op = access.op if isinstance(access, FlatAccess) else draw(st.sampled_from(OPS[access.op]))
        width = size << vector
        instruction = "cp.async.cg.shared.global" if op == "async copy" and width == 16 else ""
        made.append(
            Instruction(op, ("", 0), draw(layouts(block, fast, vector)), size, width, instruction)
        )
    return kernel, launch, tuple(made)


@given(launches())
def test_a_launch_costs_what_counting_every_lane_gives(case):
    kernel, launch, _ = case
    for op in count_accesses(*case):
        starts = executions(op.access, kernel.extents(launch))
        assert op.launch == plain_count(op.pattern, starts), op.access


@pytest.mark.parametrize("lane", [((1,), (2,), (4,), (8,), (16,)), ((16,), (8,), (4,), (2,), (1,))])
def test_a_run_costs_what_counting_every_lane_gives_wherever_the_tensor_ends(kernels, lane):
    """All small shapes: they end inside a sector, at its end, or in the middle of a request."""
    kernel = kernels["transpose.flat"]
    layout = Layout((32,), (), lane, ())
    made = [Instruction(op, ("", 0), layout, 4, 4) for op in ("load", "store")]
    for rows, columns in itertools.product(range(1, 15), repeat=2):
        problem = kernel.family.problem(M=rows, N=columns)
        launch = Launch(problem, kernel.config(BLOCK=32), GPUS["H200"])
        for op in count_accesses(kernel, launch, made):
            starts = executions(op.access, kernel.extents(launch))
            assert op.launch == plain_count(op.pattern, starts), (rows, columns, op.op)


@given(launches())
def test_the_pictured_tile_has_each_element_once(case):
    kernel, launch, made = case
    for access, operation in zip(kernel.accesses(launch), made, strict=True):
        pattern = make_pattern(kernel, launch, access, operation)
        matrix = pattern.matrix
        first = (0,) * len(access.axes)
        drawn = pattern.tile(first)
        begins = pattern.requests(first).address[drawn.request, drawn.lane]
        assert ((begins <= drawn.address) & (drawn.address < begins + operation.width_bytes)).all()
        assert len(drawn.row) == access.elements
        assert len({*zip(drawn.row.tolist(), drawn.column.tolist(), strict=True)}) == len(drawn.row)
        for place in range(0, access.elements, 7):
            register = int(drawn.register[place])
            at = element(operation.layout, register, drawn.lane[place], drawn.warp[place])
            expected = locate(access, first, at, (matrix.rows, matrix.columns))
            assert (drawn.row[place], drawn.column[place]) == expected
            assert not has_copies(operation.layout.register, register)


def test_the_textbooks_requests_of_a_block_need_not_fill_the_compiled_instructions():
    """32 elements in 4 registers of 8 lanes: 4 compiled instructions, and one textbook request."""
    lane = ((4,), (8,), (16,), (0,), (0,))
    layout = Layout((32,), ((1,), (2,)), lane, ())
    assigned = Instruction("load", ("", 0), layout, 4, 4, "ld.global.b32").textbook
    place, owner = assigned.lanes()
    assert place.tolist() == [[list(range(32))]]
    assert owner.all()
    assert assigned.count == 1
