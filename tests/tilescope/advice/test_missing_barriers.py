"""Findings about two warps of a program that access the same address, one of them writing, without a barrier."""

import pytest

# One worker prepares what all tests use
pytestmark = pytest.mark.xdist_group("missing barriers")

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def transpose(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    r = tl.arange(0, N)[:, None]
    c = tl.arange(0, N)[None, :]
    tl.store(t + r * N + c, tl.load(x + r * N + c))
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + r * N + c, tl.load(t + c * N + r))  # read the transpose


@triton.jit
def reverse(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(t + i, tl.load(x + i))
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + i, tl.load(t + N - 1 - i))  # read back


@triton.jit
def reverse_in_place(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + N - 1 - i)
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + i, value)  # overwrite


@triton.jit
def scale(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(t, tl.sum(value))
    if BARRIER:
        tl.debug_barrier()
    tl.store(x + i, value / tl.load(t))  # read the sum


@triton.jit
def alternate(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    for step in range(9):
        value = tl.load(t + step % 2 * N + N - 1 - i)  # of the last step
        tl.store(t + (step + 1) % 2 * N + i, value + 1)
        if BARRIER:
            tl.debug_barrier()


@triton.jit
def shift_rows(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.program_id(0) * N + tl.arange(0, N)
    tl.store(x + i, tl.load(x + i + N) + 1)  # other programs store what it loads


@triton.jit
def decrement(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    if tl.load(t) > 0:
        tl.store(t, tl.load(t) - 1)  # warp 0 alone


@triton.jit
def count_sums(x, t, BARRIER: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    count = tl.load(t)
    total = 0.0
    for step in range(tl.num_programs(0) - 1):  # runs, so all warps wait at barriers
        total += tl.sum(tl.load(x + step * N + i))
    tl.store(t, count + 1)
    tl.store(x + tl.program_id(0) * N + i, total * count + i)


CASES = [
    (transpose, 64), (reverse, 512), (reverse_in_place, 512), (scale, 512), (scale, 32), (alternate, 512),
    (shift_rows, 512), (decrement, 1), (count_sums, 512),
]
for kernel, n in CASES:
    for warps, barrier in ((4, False), (4, True), (1, False)):
        x = torch.ones(1 << 14, device="cuda")
        kernel[(3,)](x, x.clone(), BARRIER=barrier, N=n, num_warps=warps)
"""

# Of each case without a barrier, with four warps: the kind, the line's comment, and a part of the text.
FOUND = """
unordered | read the transpose | It is correct only because of the layouts that the compiler chose.
barrier | read back | in program 0, warp 0, lane 0 loads element 511, which warp 3, lane 31 stores. Put
barrier | overwrite | warp 0, lane 0 stores element 0, which warp 3, lane 31 loads.
barrier | read the sum | warp 1, lane 0 loads element 0, which warp 0, lane 0 stores.

barrier | of the last step | warp 0, lane 0 loads element 1,023, which warp 3, lane 31 stores.



"""


@pytest.mark.parametrize("number", range(27))
def test_only_two_warps_of_a_program_without_a_barrier_conflict(facts, number):
    row = "" if number % 3 else FOUND.splitlines()[1 + number // 3]
    kinds = {"barrier", "unordered"}
    findings = [each for each in facts[number].findings if each.kind in kinds]
    if not row:
        assert not findings
        return
    kind, comment, text = row.split(" | ")
    (finding,) = findings
    assert (finding.kind, finding.is_fault) == (kind, kind == "barrier")
    assert SCRIPT.splitlines()[finding.line - 1].endswith(f"# {comment}")
    assert text in finding.text
