"""The map of shared memory shows the compiler's own allocation, so it ends at the size that the compiler reports."""

import itertools
import sys
from dataclasses import replace

import pytest

from tests.experiments import experiment_of
from tilescope.captures.reader import Capture
from tilescope.inside.report import SharedMap
from tilescope.inside.shared import map_memory

# One worker compiles the kernels once
pytestmark = pytest.mark.xdist_group("allocations")

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(a, b, c, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, STEP)
    total = tl.zeros((M, N), tl.float32)
    for first in range(0, K, STEP):
        x = tl.load(a + m[:, None] * K + first + k[None, :])
        y = tl.load(b + (first + k[:, None]) * N + n[None, :])
        total = tl.dot(x, y, total)
    tl.store(c + m[:, None] * N + n[None, :], total.to(tl.float16))


@triton.jit
def copied_product(a, b, c, K, M: tl.constexpr, N: tl.constexpr, STEP: tl.constexpr):
    left = tl.make_tensor_descriptor(a, [M, K], [K, 1], [M, STEP])
    right = tl.make_tensor_descriptor(b, [K, N], [N, 1], [STEP, N])
    out = tl.make_tensor_descriptor(c, [M, N], [N, 1], [M, N])
    total = tl.zeros((M, N), tl.float32)
    for first in tl.range(0, K, STEP, warp_specialize=True):
        total = tl.dot(left.load([0, first]), right.load([first, 0]), total)
    out.store([0, 0], total.to(tl.float16))


@triton.jit
def rows(x, out, bins, lock, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    block = tl.load(x + i * N + j)
    block -= tl.sum(block, axis=0)[None, :]
    block = tl.cumsum(block, axis=0)
    tl.store(out + j * N + i, block)
    flat = tl.arange(0, N * N)
    tl.store(x + flat, tl.gather(tl.load(x + flat), flat * 7 % (N * N), axis=0))
    counts = tl.histogram(tl.max(block, axis=0).to(tl.int32), 64)
    old = tl.atomic_cas(lock, 0, 1)
    tl.store(bins + tl.arange(0, 64), counts + old)


def random(*shape, dtype=torch.float16):
    return torch.zeros(shape, device="cuda", dtype=dtype)


for kernel, stages in ((product, 1), (product, 2), (product, 3), (copied_product, 3)):
    operands = random(128, 256), random(256, 64), random(128, 64)
    kernel[(1,)](*operands, 256, M=128, N=64, STEP=64, num_stages=stages)
large = random(128, 512), random(512, 256), random(128, 256)
product[(1,)](*large, 512, M=128, N=256, STEP=128, num_warps=8, num_stages=2)
triton.set_allocator(lambda *_: None)
rows[(1,)](random(64, 64, dtype=torch.float32), random(64, 64, dtype=torch.float32),
           random(64, dtype=torch.int32), random(1, dtype=torch.int32), N=64)
"""

PRODUCTS = 3
COPIED = 3
LARGE = 4
ROWS = 5


@pytest.fixture(scope="module")
def capture(captured):
    return Capture(captured)


@pytest.fixture(scope="module")
def maps(capture):
    return [map_memory(capture, launch)[0] for launch in capture.content.launches]


def end_of(shared_map):
    return max(each.offset_bytes + each.size_bytes for each in shared_map.buffers)


def meet(a, b):
    """Return whether two buffers are live at the same time and share bytes."""
    is_same_time = a.first <= b.last and b.first <= a.last
    a_end = a.offset_bytes + a.size_bytes
    b_end = b.offset_bytes + b.size_bytes
    return is_same_time and a.offset_bytes < b_end and b.offset_bytes < a_end


def test_the_last_buffer_ends_where_the_shared_memory_ends(capture, maps):
    sizes = [capture.content.kernels[n.kernel].shared_bytes for n in capture.content.launches]
    assert [end_of(each) for each in maps] == sizes
    assert min(sizes) > 0


def test_buffers_that_are_live_at_the_same_time_share_no_bytes(maps):
    pairs = [pair for each in maps for pair in itertools.combinations(each.buffers, 2)]
    assert not [pair for pair in pairs if meet(*pair)]
    assert any(a.offset_bytes == b.offset_bytes for a, b in pairs)


def test_each_stage_of_a_pipelined_operand_is_live_during_the_loop(maps):
    product = maps[2]
    (loop,) = product.loops
    assert loop.line == 11
    stages = [each for each in product.buffers if each.operation == "pipelined operand"]
    places = [(each.tensor, each.stage, each.offset_bytes, each.size_bytes) for each in stages]
    tile = 128 * 64 * 2
    slots = [("a", n, n * tile, tile) for n in range(3)]
    slots += [("b", n, 3 * tile + n * tile // 2, tile // 2) for n in range(3)]
    assert places == slots
    assert {(each.first, each.last) for each in stages} == {(0, loop.last)}


def test_a_layout_conversion_after_the_loop_reuses_the_bytes_of_the_operands(maps):
    product = maps[2]
    (conversion,) = (each for each in product.buffers if each.operation == "layout conversion")
    assert conversion.offset_bytes == 0
    assert conversion.first == conversion.last == product.loops[0].last + 1
    assert conversion.tensor == "c"
    assert product.steps[conversion.first].op == "ttg.convert_layout"


def test_other_numbers_of_stages_need_the_bytes_of_kernels_compiled_with_them(maps):
    needs = {each.num_stages: each.shared_bytes for each in maps[1].by_stages}
    assert needs == {n + 1: each.shared_bytes for n, each in enumerate(maps[:PRODUCTS])}
    fits = {each.num_stages: each.programs_per_sm for each in maps[2].by_stages}
    assert fits == {2: 4, 3: 3, 4: 2}
    fits = {each.num_stages: each.programs_per_sm for each in maps[LARGE].by_stages}
    assert fits == {1: 1, 2: 1, 3: 0}
    assert maps[2].limit_bytes == 227 << 10


def test_operations_and_tensors_are_named(maps):
    uses = {(each.operation, each.tensor) for each in maps[ROWS].buffers}
    assert uses == {
        ("reduction", ""),
        ("scan", ""),
        ("gather", ""),
        ("layout conversion", "out"),
        ("histogram", ""),
        ("atomic", ""),
    }


def test_warp_groups_share_the_memory_of_their_arguments_and_barriers(maps):
    uses = {(each.operation, each.tensor) for each in maps[COPIED].buffers}
    assert {
        ("pipelined operand", "a"),
        ("pipelined operand", "b"),
        ("store through shared memory", "c"),
        ("tensor map", ""),
        ("arguments of warp groups", ""),
        ("states of warp groups", ""),
    } <= uses


@pytest.fixture
def older_capture(captured):
    """Return a capture without allocations."""
    capture = Capture(captured)
    kernels = tuple(replace(each, allocation=None) for each in capture.content.kernels)
    capture.content = replace(capture.content, kernels=kernels)
    return capture


def test_the_installed_triton_allocates_for_an_older_capture(older_capture, maps):
    older = [map_memory(older_capture, each)[0] for each in older_capture.content.launches]
    # The other numbers of stages are compiled when a script is captured
    assert older == [replace(each, by_stages=()) for each in maps]


def test_without_triton_the_map_of_an_older_capture_says_why_it_is_empty(
    older_capture, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/missing/python")
    empty = map_memory(older_capture, older_capture.content.launches[0])[0]
    assert empty.why == (
        "The capture has no allocation of shared memory, and /missing/python could not compute it with Triton."
    )
    assert not empty.buffers


@pytest.mark.parametrize("gpu", ["H200", "A100-80GB", "B200"])
def test_the_map_of_our_own_kernel_ends_at_its_shared_memory(session, compile_kernel, gpu):
    experiment = experiment_of(f"matmul.grouped gpu={gpu} BLOCK_M=64 BLOCK_N=64 BLOCK_K=32")
    inside, _ = session.inspect(experiment).result()
    shared_map = inside.shared_map
    assert isinstance(shared_map, SharedMap), shared_map
    assert end_of(shared_map) == compile_kernel(experiment).shared_bytes
    assert {"a", "b", "c"} <= {each.tensor for each in shared_map.buffers}
