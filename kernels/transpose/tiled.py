"""B = A.T, one BLOCK_M × BLOCK_N tile per program, transposed on chip."""

from dataclasses import dataclass

from kernels.orders import tile_offsets
from kernels.transpose.problem import FAMILY, accesses, arguments, extents
from tilescope.declare.jit import tl, triton
from tilescope.declare.knobs import knob, num_stages, num_warps, powers
from tilescope.declare.spec import Kernel, grid_of, preset, tiles_on_grid


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = knob(64, "Tile", "Rows of A in a program's tile.", choices=powers(1, 256))
    BLOCK_N: int = knob(128, "Tile", "Columns of A in a program's tile.", choices=powers(1, 256))
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def transpose_tiled(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tile_offsets(tl.program_id(0), BLOCK_M)
    columns = tile_offsets(tl.program_id(1), BLOCK_N)
    inside_a = (rows[:, None] < M) & (columns[None, :] < N)
    tile = tl.load(a + rows[:, None] * N + columns[None, :], mask=inside_a)
    inside_b = (columns[:, None] < N) & (rows[None, :] < M)
    tl.store(b + columns[:, None] * M + rows[None, :], tl.trans(tile), mask=inside_b)


KERNEL = Kernel(
    id="transpose.tiled",
    title="tiles",
    headline="A tile is read along rows, transposed on chip, and written along rows: both sides move whole sectors.",
    family=FAMILY,
    config=Config,
    jitted=transpose_tiled,
    grid=lambda launch: grid_of(extents(launch)),
    extents=extents,
    tiles=lambda pids, launch: tiles_on_grid(pids, extents(launch)),
    accesses=lambda launch: accesses(transpose_tiled, launch),
    arguments=arguments,
    presets=(
        preset(
            "Textbook: 8 × 8, tiles of 4 × 4",
            "M=8&N=8&dtype=float32",
            "BLOCK_M=4&BLOCK_N=4",
            "tab=requests&model=textbook&warp_size=4&line_bytes=16",
        ),
        preset("Large: 8192²", "M=8192&N=8192"),
        preset("In measured time: 4096²", "M=4096&N=4096", "", "tab=program-order"),
    ),
)
