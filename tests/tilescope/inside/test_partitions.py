"""Kernels whose warps do different work: a partition loads blocks that another one uses."""

from tilescope.captures.reader import Capture
from tilescope.declare.gpus import GPUS
from tilescope.reports.launch import make_report

ROWS, COLS, HEIGHT, WIDTH = 8192, 4096, 32, 64
PROGRAMS = ROWS // HEIGHT
BLOCKS = PROGRAMS * COLS // WIDTH
COPY = f"""
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


@gluon.jit
def load(x, row, steps, blocks, full, empty):
    for step in range(steps):
        mbarrier.wait(empty.index(step % 2), (step // 2 & 1) ^ 1)
        mbarrier.expect(full.index(step % 2), x.block_type.nbytes)
        tma.async_copy_global_to_shared(x, [row, step * {WIDTH}], full.index(step % 2), blocks.index(step % 2))


@gluon.jit
def store(out, row, steps, blocks, full, empty):
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [2, 16], [4, 1], [1, 0])
    result = gl.allocate_shared_memory(out.dtype, out.block_type.shape, out.layout)
    for step in range(steps):
        mbarrier.wait(full.index(step % 2), step // 2 & 1)
        value = blocks.index(step % 2).load(layout)
        mbarrier.arrive(empty.index(step % 2), count=1)
        tma.store_wait(0)
        result.store(value)
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [row, step * {WIDTH}], result)
    tma.store_wait(0)


@gluon.jit
def copy(x, out, steps, WARPS: gl.constexpr):
    row = gl.program_id(0) * {HEIGHT}
    blocks = gl.allocate_shared_memory(x.dtype, [2] + x.block_type.shape, x.layout)
    full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for number in gl.static_range(2):
        mbarrier.init(full.index(number), count=1)
        mbarrier.init(empty.index(number), count=1)
    gl.warp_specialize(
        [(store, (out, row, steps, blocks, full, empty)), (load, (x, row, steps, blocks, full, empty))],
        [WARPS], [24])


def describe(tensor):
    layout = gl.NVMMASharedLayout.get_default_for([{HEIGHT}, {WIDTH}], gl.float32)
    return TensorDescriptor.from_tensor(tensor, [{HEIGHT}, {WIDTH}], layout)


x, out = (describe(torch.empty({ROWS}, {COLS}, device="cuda")) for _ in range(2))
for warps in (1, 4):  # with one warp, the compiler adds partitions that do nothing
    copy[{PROGRAMS},](x, out, {COLS // WIDTH}, warps, num_warps=4)
"""
PRODUCT = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def product(a, b, c, tiles, steps):
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), warp_specialize=True):
        total = tl.zeros((128, 128), tl.float32)
        for step in range(steps):
            total = tl.dot(a.load([tile * 128, step * 64]), b.load([0, step * 64]).T, total)
        c.store([tile * 128, 0], total.to(tl.float16))


def describe(rows, cols, width):
    return TensorDescriptor.from_tensor(
        torch.empty(rows, cols, device="cuda", dtype=torch.float16), [128, width])


product[3,](describe(1024, 256, 64), describe(128, 256, 64), describe(1024, 128, 128), 8, 4)
"""


def test_a_copy_by_two_partitions_has_exact_counts_and_at_least_the_time_of_its_bytes(
    capture_script,
):
    bytes_moved = 2 * ROWS * COLS * 4
    waves_of_block = HEIGHT * WIDTH * 4 // 128
    for launch in make_report(Capture(capture_script(COPY))).launches:
        assert [(op.sectors, op.why) for op in launch.ops] == [(ROWS * COLS * 4 // 32, "")] * 2
        by_line = {
            (each.line, each.opcode): (each.executed, each.wavefronts, each.conflicts)
            for each in launch.shared
        }
        # Four warps move a block with four instructions of 16 bytes per lane.
        block = BLOCKS * 16, BLOCKS * waves_of_block, 0
        moved = [row for row in by_line.values() if row[0] >= BLOCKS]
        assert moved == [block, block]
        # Four further warps load the numbers of their two partitions: the first one, and the end.
        assert 8 * PROGRAMS in [row[0] for row in by_line.values()]
        assert launch.instructions_executed
        dram_us = bytes_moved / GPUS["H200"].dram_gbps / 1e3
        assert dram_us < launch.predicted_us < 1.5 * dram_us


def test_a_loop_that_triton_specializes_for_a_b200_has_executions_of_each_program(capture_script):
    (launch,) = make_report(Capture(capture_script(PRODUCT, "B200"))).launches
    assert launch.not_executed == ""
    # Eight tiles of float16, 128 bytes per wavefront
    stored = max(each.wavefronts for each in launch.shared if each.opcode == "STS")
    assert stored == 8 * 128 * 128 * 2 // 128
    assert launch.predicted_us
