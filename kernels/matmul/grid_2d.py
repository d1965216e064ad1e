"""C = A @ B, one program per tile on a 2-D grid: pid_m on axis 0, pid_n on axis 1, strides as arguments."""

from dataclasses import dataclass

from kernels.matmul import tile
from kernels.matmul.problem import FAMILY, accesses, arguments, block_k, block_m, block_n, extents
from tilescope.declare.jit import tl, triton
from tilescope.declare.knobs import num_stages, num_warps
from tilescope.declare.spec import Kernel, grid_of, preset, tiles_on_grid


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = block_m()
    BLOCK_N: int = block_n()
    BLOCK_K: int = block_k()
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def matmul_grid_2d(
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
    PRECISION: tl.constexpr,
):
    pid_m = tl.program_id(0)
    pid_n = tl.program_id(1)
    accumulator = tile.multiply(
        a, b, pid_m, pid_n, (0, tl.cdiv(K, BLOCK_K)), (M, N, K), a_strides, b_strides,
        (BLOCK_M, BLOCK_N, BLOCK_K), PRECISION,
    )  # fmt: skip
    tile.store(c, accumulator, pid_m, pid_n, M, N, c_strides, BLOCK_M, BLOCK_N)


KERNEL = Kernel(
    id="matmul.grid_2d",
    title="2-D grid",
    headline="One program per tile of C. Axis 0 of the grid varies fastest, so programs start down the columns of C.",
    family=FAMILY,
    config=Config,
    jitted=matmul_grid_2d,
    grid=lambda launch: grid_of(extents(launch)),
    extents=extents,
    tiles=lambda pids, launch: tiles_on_grid(pids, extents(launch)),
    accesses=accesses,
    arguments=arguments,
    presets=(
        preset("Ragged edges: 1000 × 1000 × 1000", "M=1000&N=1000&K=1000", "", "tab=result"),
        preset("Large: 4096³", "M=4096&N=4096&K=4096", "BLOCK_M=128&BLOCK_N=128&BLOCK_K=64"),
    ),
)
