"""What both split-K kernels share: the grid's third axis splits K into SPLIT_K slices, each a program of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels import orders
from kernels.accesses import Access, Tiles
from kernels.jit import on_arrays, tl, triton
from kernels.knobs import knob, num_stages, num_warps, powers
from kernels.matmul import problem as family
from kernels.matmul import tile
from kernels.matmul.problem import Problem, block_k, block_m, block_n
from kernels.orders import slice_of_k
from kernels.spec import Launch

# Atomic adds know these types only.
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m()
    BLOCK_N: int = block_n(128)
    BLOCK_K: int = block_k()
    SPLIT_K: int = knob(
        8, "Tile", "Slices that K is split into: programs that share a tile of C.", choices=powers(1, 16)
    )
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def partial_product(
    a,
    b,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """This program's tile of A @ B, summed over its slice of K, in float32."""
    first_step, last_step = slice_of_k(tl.program_id(2), tl.cdiv(K, BLOCK_K), SPLIT_K)
    return tile.multiply(
        a, b, tl.program_id(0), tl.program_id(1), first_step, last_step, M, N, K,
        stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
    )  # fmt: skip


def extents(launch: Launch[Problem, Config]) -> dict[str, int]:
    return {**family.extents(launch), "slice": launch.config.SPLIT_K}


def grid(launch: Launch[Problem, Config]) -> tuple[int, int, int]:
    tiles = extents(launch)
    return tiles["m"], tiles["n"], tiles["slice"]


def tiles_of(pids: np.ndarray, launch: Launch[Problem, Config]) -> Tiles:
    """A group is a slice of K."""
    grid_x, grid_y, _ = grid(launch)
    rest, pid_m = np.divmod(pids, grid_x)
    pid_k, pid_n = np.divmod(rest, grid_y)
    return Tiles(pids, pid_m, pid_n, pid_k, group=pid_k)


def adds(op: str, launch: Launch[Problem, Config], line: tuple[str, int]) -> Access:
    """One of the operations that bring a partial tile into C."""
    m, n, _ = family.axes(launch)
    return Access(op, "C", m, n, ("m", "n", "slice"), line)


def arguments(tensors: Mapping[str, Any], launch: Launch[Problem, Config]) -> dict[str, Any]:
    return {**family.arguments(tensors, launch), "SPLIT_K": launch.config.SPLIT_K}


def roundings(launch: Launch[Problem, Config]) -> int:
    """Slices that hold any of K: each rounds its partial tile, and the sum, to C's type."""
    tiles = extents(launch)
    first, last = on_arrays(orders.slice_of_k)(np.arange(tiles["slice"]), tiles["k"], tiles["slice"])
    return int(np.count_nonzero(last > first))
