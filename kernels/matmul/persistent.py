"""C = A @ B, one program per SM that takes tile after tile in grouped order, copied by tensor descriptors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.accesses import Access
from kernels.jit import tl, triton
from kernels.knobs import num_stages, num_warps
from kernels.matmul import persistent_tiles, tile
from kernels.matmul import problem as family
from kernels.matmul.persistent_tiles import grid, half_columns, programs_per_sm, tiles_of, tma_fallback_reason
from kernels.matmul.problem import FAMILY, Problem, block_k, block_m, block_n, extents, group_size
from kernels.orders import grouped, tile_start
from kernels.source import memory_lines
from kernels.spec import Kernel, Launch, Preset


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m(128)
    BLOCK_N: int = block_n(128, low=32)
    BLOCK_K: int = block_k(64)
    GROUP_SIZE: int = group_size(8)
    num_warps: int = num_warps()
    num_stages: int = num_stages()
    PROGRAMS_PER_SM: int = programs_per_sm()


@triton.jit
def matmul_persistent(
    a,
    b,
    c,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
    USE_TMA: tl.constexpr,
    FLATTEN: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
):
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    # Flattened, the next tile's loads start while this tile is written.
    for place in tl.range(tl.program_id(0), num_pid_m * num_pid_n, tl.num_programs(0), flatten=FLATTEN):
        pid_m, pid_n = grouped(place, num_pid_m, num_pid_n, GROUP_SIZE)
        if USE_TMA:
            accumulator = tile.multiply_tma(
                a, b, pid_m, pid_n, K, A_TRANSPOSED, B_TRANSPOSED, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION
            )
            # In halves, so that the tile on its way to memory takes half the room.
            left, right = tile.halves(accumulator, BLOCK_M, BLOCK_N)
            row, column = tile_start(pid_m, BLOCK_M), tile_start(2 * pid_n, BLOCK_N // 2)
            c.store([row, column], left.to(c.dtype))
            c.store([row, column + BLOCK_N // 2], right.to(c.dtype))
        else:
            accumulator = tile.multiply(
                a, b, pid_m, pid_n, 0, tl.cdiv(K, BLOCK_K), M, N, K,
                stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
            tile.store(c, accumulator, pid_m, pid_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    if note(launch):
        return family.accesses(launch)
    m, _, _ = family.axes(launch)
    stores = zip(half_columns(launch), memory_lines(matmul_persistent), strict=True)
    halves = (Access("descriptor", "C", m, columns, ("m", "n"), line) for columns, line in stores)
    return *family.tma_loads(launch), *halves


def arguments(tensors: Mapping[str, Any], launch: Launch[Problem, Config]) -> dict[str, Any]:
    return persistent_tiles.arguments(tensors, FAMILY.tensors(launch.problem), ("C",), launch)


def note(launch: Launch[Problem, Config]) -> str:
    """Why there are no descriptors, where there are none."""
    return tma_fallback_reason(FAMILY.tensors(launch.problem), launch)


KERNEL = Kernel(
    id="matmul.persistent",
    title="persistent, descriptors",
    claim="One program per SM takes tile after tile; the tensor memory accelerator copies whole blocks by descriptors.",
    family=FAMILY,
    config=Config,
    jitted=matmul_persistent,
    grid=grid,
    extents=extents,
    tiles=tiles_of,
    accesses=accesses,
    arguments=arguments,
    note=note,
    presets=(
        Preset("Large: 4096³", {"M": 4096, "N": 4096, "K": 4096}, {"BLOCK_N": 256, "num_warps": 8}),
        Preset("No descriptor: K = 4095", {"M": 4096, "N": 4096, "K": 4095}, {"num_warps": 8}, {"tab": "result"}),
        Preset("More tiles than SMs: 2048³", {"M": 2048, "N": 2048, "K": 2048}, {}, {"tab": "schedule"}),
    ),
)
