"""C = A @ B, one program per tile on a 1-D grid, in grouped order: concurrent programs share blocks in L2."""

from dataclasses import dataclass

from kernels.matmul import problem as family
from kernels.matmul import tile
from kernels.matmul.problem import (
    FAMILY,
    Problem,
    block_k,
    block_m,
    block_n,
    extents,
    group_size,
    grouped_tiles,
)
from kernels.orders import grouped
from tilescope.declare.jit import tl, triton
from tilescope.declare.knobs import num_stages, num_warps
from tilescope.declare.spec import Kernel, Launch, preset


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m()
    BLOCK_N: int = block_n(128)
    BLOCK_K: int = block_k()
    GROUP_SIZE: int = group_size(4)
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def matmul_grouped(
    a,
    b,
    c,
    M,
    N,
    K,
    a_strides,
    b_strides,
    c_strides,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    pid_m, pid_n = grouped(tl.program_id(0), tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_SIZE)
    accumulator = tile.multiply(
        a, b, pid_m, pid_n, (0, tl.cdiv(K, BLOCK_K)), (M, N, K), a_strides, b_strides,
        (BLOCK_M, BLOCK_N, BLOCK_K), PRECISION,
    )  # fmt: skip
    tile.store(c, accumulator, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)


def grid(launch: Launch[Problem, Config]) -> tuple[int]:
    return (extents(launch)["m"] * extents(launch)["n"],)


_LARGE_TILES = "BLOCK_M=128&BLOCK_N=256&BLOCK_K=64&GROUP_SIZE=8&num_warps=8"

KERNEL = Kernel(
    id="matmul.grouped",
    title="grouped order",
    headline="Programs fill GROUP_SIZE rows of tiles column by column, so the tiles in flight share blocks of A and B.",
    family=FAMILY,
    config=Config,
    jitted=matmul_grouped,
    grid=grid,
    extents=extents,
    tiles=lambda pids, launch: grouped_tiles(pids, launch, grid(launch)[0]),
    accesses=family.accesses,
    arguments=family.arguments,
    presets=(
        preset(
            "Where order matters: 16384 × 16384 × 4096",
            "M=16384&N=16384&K=4096",
            _LARGE_TILES,
            "tab=program-order&first=132",
        ),
        preset("Large: 4096³", "M=4096&N=4096&K=4096", _LARGE_TILES),
        preset(
            "A tail group: 7 rows of tiles in groups of 4",
            "M=448&N=1024&K=256",
            "BLOCK_M=64&BLOCK_N=128",
            "tab=program-order",
        ),
    ),
)
