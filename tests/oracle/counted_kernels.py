"""Kernels of which Nsight Compute's counts are in h200_requests_sectors.csv, declared as ours are.

The counts were taken on one H200 (driver 580, torch 2.11.0, triton 3.6.0, 2026-11-20).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from kernels import orders
from kernels.jit import memory_lines, on_arrays, tl, triton
from kernels.matmul import problem as matmul
from kernels.spec import Access, Axis, FlatAccess, Kernel
from kernels.transpose import problem as transpose


@triton.jit
def tr_tiled(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    v = tl.load(a + r[:, None] * N + c[None, :], mask=(r[:, None] < M) & (c[None, :] < N))
    tl.store(b + c[:, None] * M + r[None, :], tl.trans(v), mask=(c[:, None] < N) & (r[None, :] < M))


@triton.jit
def tr_naive(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    r = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    for first in range(0, N, BLOCK_N):
        c = first + tl.arange(0, BLOCK_N)
        inside = (r[:, None] < M) & (c[None, :] < N)
        v = tl.load(a + r[:, None] * N + c[None, :], mask=inside)
        tl.store(b + c[None, :] * M + r[:, None], v, mask=inside)


@triton.jit
def tr_flat(a, b, M, N, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < M * N
    r = i // N
    c = i % N
    v = tl.load(a + i, mask=inside)
    tl.store(b + c * M + r, v, mask=inside)


@triton.jit
def mm(a, b, c, M, N, K, sam, sak, sbk, sbn, scm, scn, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
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
    ap = a + om[:, None] * sam + ok[None, :] * sak
    bp = b + ok[:, None] * sbk + on[None, :] * sbn
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        if EVEN:
            x = tl.load(ap)
            y = tl.load(bp)
        else:
            x = tl.load(ap, mask=ok[None, :] < K - k * BLOCK_K, other=0.0)
            y = tl.load(bp, mask=ok[:, None] < K - k * BLOCK_K, other=0.0)
        acc = tl.dot(x, y, acc)
        ap += BLOCK_K * sak
        bp += BLOCK_K * sbk
    om = pm * BLOCK_M + tl.arange(0, BLOCK_M)
    on = pn * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = (om[:, None] < M) & (on[None, :] < N)
    tl.store(c + om[:, None] * scm + on[None, :] * scn, acc.to(c.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class Config:
    """Whatever a row of the file names."""

    BLOCK_M: int = 0
    BLOCK_N: int = 0
    BLOCK_K: int = 0
    BLOCK: int = 0
    GROUP_SIZE: int = 0
    num_warps: int = 4
    num_stages: int = 3


def _options(launch, *names: str) -> dict[str, Any]:
    config = dataclasses.asdict(launch.config)
    return {name: config[name] for name in (*names, "num_warps", "num_stages")}


def _transpose_arguments(*names: str):
    def arguments(tensors, launch):
        sizes = {"M": launch.problem.M, "N": launch.problem.N}
        return {"a": tensors["A"], "b": tensors["B"], **sizes, **_options(launch, *names)}

    return arguments


def _mm_arguments(tensors, launch):
    given = matmul.arguments(tensors, launch)
    strides = {short: given[name] for short, name in zip(
        ("sam", "sak", "sbk", "sbn", "scm", "scn"),
        ("stride_am", "stride_ak", "stride_bk", "stride_bn", "stride_cm", "stride_cn"), strict=True)}  # fmt: skip
    sizes = {name: given[name] for name in ("a", "b", "c", "M", "N", "K")}
    even = launch.problem.K % launch.config.BLOCK_K == 0
    return {**sizes, **strides, "EVEN": even, **_options(launch, "BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_SIZE")}


def _mm_accesses(launch):
    m, n, k = matmul.axes(launch)
    even_a, even_b, odd_a, odd_b, store = memory_lines(mm)
    even = launch.problem.K % launch.config.BLOCK_K == 0
    return (
        Access("load", "A", m, k, ("m", "n", "k"), even_a if even else odd_a),
        Access("load", "B", k, n, ("m", "n", "k"), even_b if even else odd_b),
        Access("store", "C", m, n, ("m", "n"), store),
    )


def _flat_extents(launch):
    return {"m": -(-launch.problem.M * launch.problem.N // launch.config.BLOCK), "n": 1}


def _flat_accesses(launch):
    run = Axis("m", launch.config.BLOCK, on_arrays(orders.tile_start))
    load, store = memory_lines(tr_flat)
    return FlatAccess("load", "A", run, ("m",), load), FlatAccess("store", "B", run, ("m",), store, transposed=True)


def _kernel(jitted, family, grid, extents, accesses, arguments) -> Kernel:
    return Kernel(
        id=f"truth.{jitted.fn.__name__}", title="", headline="", family=family, config=Config, jitted=jitted, grid=grid,
        extents=extents, tiles=lambda pids, launch: None, accesses=accesses, arguments=arguments,
    )  # fmt: skip


def _both(launch):
    extents = transpose.extents(launch)
    return extents["m"], extents["n"]


KERNELS = {
    "tr_tiled": _kernel(
        tr_tiled, transpose.FAMILY, _both, transpose.extents,
        lambda launch: transpose.accesses(tr_tiled, launch), _transpose_arguments("BLOCK_M", "BLOCK_N"),
    ),
    "tr_naive": _kernel(
        tr_naive, transpose.FAMILY, lambda launch: (transpose.extents(launch)["m"],), transpose.extents,
        lambda launch: transpose.accesses(tr_naive, launch, stored=("m", "n")),
        _transpose_arguments("BLOCK_M", "BLOCK_N"),
    ),
    "tr_flat": _kernel(
        tr_flat, transpose.FAMILY, lambda launch: (_flat_extents(launch)["m"],), _flat_extents, _flat_accesses,
        _transpose_arguments("BLOCK"),
    ),
    "mm": _kernel(
        mm, matmul.FAMILY, lambda launch: (matmul.extents(launch)["m"] * matmul.extents(launch)["n"],),
        matmul.extents, _mm_accesses, _mm_arguments,
    ),
}  # fmt: skip
