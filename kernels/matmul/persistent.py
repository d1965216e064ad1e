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
from kernels.spec import DTYPE_BYTES, Kernel, Launch, Preset

# Of a tile that is stored whole, at most: beside it, four stages of 128 × 256 × 128 in float8 take 192 of the 227 KiB
# that a program may have on Hopper.
_WHOLE_BYTES = 32 * 1024


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
    WHOLE_GROUPS: tl.constexpr,
    IN_HALVES: tl.constexpr,
    RIGHT_LATER: tl.constexpr,
    A_TRANSPOSED: tl.constexpr,
    B_TRANSPOSED: tl.constexpr,
):
    num_pid_m = tl.cdiv(M, BLOCK_M)
    num_pid_n = tl.cdiv(N, BLOCK_N)
    num_tiles = num_pid_m * num_pid_n
    first, programs = tl.program_id(0), tl.num_programs(0)
    if USE_TMA:
        # One loop over the steps of all tiles, so that the next tile's loads start before this tile is stored.
        steps = tl.cdiv(K, BLOCK_K)
        end = tl.cdiv(num_tiles - first, programs) * steps
        # One step before the first tile.
        place, step = first - programs, steps - 1
        row, column = 0, 0
        # Zero, but not a constant: for a constant ptxas emits two moves per register of the accumulator.
        zero = (end < 0).to(tl.float32)
        accumulator = tl.full((BLOCK_M, BLOCK_N), zero, tl.float32)
        if RIGHT_LATER:
            # Both halves share a buffer: the right one waits three steps, in which the left one is written out. It is
            # stored at once where a tile has four steps or fewer.
            due = min(3, steps - 1)
            waiting = tl.zeros((BLOCK_M, BLOCK_N // 2), c.dtype)
            waiting_row, waiting_column = 0, 0
        for i in range(0, end):
            step = tl.where(step == steps - 1, 0, step + 1)
            if step == 0:
                place += programs
                pid_m, pid_n = grouped(place, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS)
                row, column = tile_start(pid_m, BLOCK_M), tile_start(pid_n, BLOCK_N)
            a_tile, b_tile = tile.load_tma(a, b, row, column, tile_start(step, BLOCK_K), A_TRANSPOSED, B_TRANSPOSED)
            accumulator = tile.add_product(a_tile, b_tile, accumulator, PRECISION)
            if step == steps - 1:
                left = accumulator
                if IN_HALVES:
                    left, right = tile.halves(accumulator, BLOCK_M, BLOCK_N)
                c.store([row, column], left.to(c.dtype))
                if RIGHT_LATER:
                    waiting = right.to(c.dtype)
                    waiting_row, waiting_column = row, column + BLOCK_N // 2
                elif IN_HALVES:
                    c.store([row, column + BLOCK_N // 2], right.to(c.dtype))
                accumulator = tl.full((BLOCK_M, BLOCK_N), zero, tl.float32)
            if RIGHT_LATER:
                is_due = (step == due) & ((i >= steps) | (due == steps - 1))
                if is_due | (i == end - 1):
                    c.store([waiting_row, waiting_column], waiting)
    else:
        for place in range(first, num_tiles, programs):
            pid_m, pid_n = grouped(place, num_pid_m, num_pid_n, GROUP_SIZE, WHOLE_GROUPS)
            accumulator = tile.multiply(
                a, b, pid_m, pid_n, 0, tl.cdiv(K, BLOCK_K), M, N, K,
                stride_am, stride_ak, stride_bk, stride_bn, BLOCK_M, BLOCK_N, BLOCK_K, PRECISION,
            )  # fmt: skip
            tile.store(c, accumulator, pid_m, pid_n, M, N, stride_cm, stride_cn, BLOCK_M, BLOCK_N)


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    if note(launch):
        return family.accesses(launch)
    m, n, _ = family.axes(launch)
    whole_or_left, right_at_once, right_later = memory_lines(matmul_persistent)
    lines = whole_or_left, right_later if _is_right_later(launch) else right_at_once
    pieces = zip(half_columns(launch), lines, strict=True) if _is_in_halves(launch) else [(n, whole_or_left)]
    stores = (Access("descriptor", "C", m, columns, ("m", "n"), line) for columns, line in pieces)
    return *family.tma_loads(launch), *stores


def arguments(tensors: Mapping[str, Any], launch: Launch[Problem, Config]) -> dict[str, Any]:
    is_in_halves = _is_in_halves(launch)
    pieces = {"C": 2 if is_in_halves else 1}
    shared = persistent_tiles.arguments(tensors, FAMILY.tensors(launch.problem), pieces, launch)
    return {**shared, "IN_HALVES": is_in_halves, "RIGHT_LATER": _is_right_later(launch)}


def _is_in_halves(launch: Launch[Problem, Config]) -> bool:
    """Whether a tile is stored in two halves, which share a buffer of half its size."""
    config = launch.config
    return config.BLOCK_M * config.BLOCK_N * DTYPE_BYTES[launch.problem.dtype] > _WHOLE_BYTES


def _is_right_later(launch: Launch[Problem, Config]) -> bool:
    """Whether the right half waits in registers until the next tile. One of float32 needs too many."""
    return _is_in_halves(launch) and DTYPE_BYTES[launch.problem.dtype] <= 2


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
