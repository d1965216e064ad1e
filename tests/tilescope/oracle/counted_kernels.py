"""Kernels whose Nsight Compute counts are in h200_requests_sectors.csv.

The counts were taken on one H200 (driver 580, torch 2.11.0, triton 3.6.0, 2026-11-20). The kernels `tr_tiled` and
`tr_flat` of that file compile to the same PTX as transpose.tiled and transpose.flat.
"""

from dataclasses import replace

from kernels.matmul.problem import axes
from kernels.transpose.problem import accesses
from tilescope.declare.discovery import discover
from tilescope.declare.jit import memory_lines, tl, triton
from tilescope.declare.spec import Access


@triton.jit
def tr_naive(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    for first in range(0, N, BLOCK_N):
        c = first + tl.arange(0, BLOCK_N)
        inside = (r[:, None] < M) & (c[None, :] < N)
        v = tl.load(a + r[:, None] * N + c[None, :], mask=inside)
        tl.store(b + c[None, :] * M + r[:, None], v, mask=inside)


@triton.jit
def mm(a, b, c, M, N, K, a_strides, b_strides, c_strides, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
       BLOCK_K: tl.constexpr, GROUP_SIZE: tl.constexpr, EVEN: tl.constexpr):  # fmt: skip
    pid = tl.program_id(0)
    nm, nn = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N)
    first = pid // (GROUP_SIZE * nn) * GROUP_SIZE
    size = min(nm - first, GROUP_SIZE)
    pm = first + (pid % (GROUP_SIZE * nn)) % size
    pn = (pid % (GROUP_SIZE * nn)) // size
    om = (pm * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    on = (pn * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    ok = tl.arange(0, BLOCK_K)
    ap = a + om[:, None] * a_strides[0] + ok[None, :] * a_strides[1]
    bp = b + ok[:, None] * b_strides[0] + on[None, :] * b_strides[1]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN:
            x = tl.load(ap)
            y = tl.load(bp)
        else:
            x = tl.load(ap, mask=ok[None, :] < K - k * BLOCK_K, other=0.0)
            y = tl.load(bp, mask=ok[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(x, y, acc)
        ap += BLOCK_K * a_strides[1]
        bp += BLOCK_K * b_strides[0]
    om = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    on = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (om[:, None] < M) & (on[None, :] < N)
    tl.store(
        c + om[:, None] * c_strides[0] + on[None, :] * c_strides[1],
        acc.to(c.dtype.element_ty),
        mask=inside,
    )


def _is_even(launch):
    return launch.problem.K % launch.config.BLOCK_K == 0


def _mm_arguments(tensors, launch):
    arguments = {**GROUPED.arguments(tensors, launch), "EVEN": _is_even(launch)}
    del arguments["PRECISION"]
    return arguments


def _mm_accesses(launch):
    m, n, k = axes(launch)
    even_a, even_b, odd_a, odd_b, store = memory_lines(mm)
    return (
        Access("load", "A", m, k, ("m", "n", "k"), even_a if _is_even(launch) else odd_a),
        Access("load", "B", k, n, ("m", "n", "k"), even_b if _is_even(launch) else odd_b),
        Access("store", "C", m, n, ("m", "n"), store),
    )


GROUPED = discover()["matmul.grouped"]
KERNELS = {
    "tr_tiled": discover()["transpose.tiled"],
    "tr_flat": discover()["transpose.flat"],
    "tr_naive": replace(
        discover()["transpose.row_strip"],
        jitted=tr_naive,
        accesses=lambda launch: accesses(tr_naive, launch, stored=("m", "n")),
    ),
    "mm": replace(GROUPED, jitted=mm, accesses=_mm_accesses, arguments=_mm_arguments),
}
