"""B = A.T, one strip of BLOCK_M rows per program, moved BLOCK_N columns at a time: rows become columns of B."""

from dataclasses import dataclass

import numpy as np

from kernels.orders import tile_offsets
from kernels.transpose.problem import FAMILY, Problem, accesses, arguments, extents
from tilescope.declare.jit import tl, triton
from tilescope.declare.knobs import knob, num_stages, num_warps, powers
from tilescope.declare.spec import Kernel, Launch, Tiles, preset


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = knob(2, "Tile", "Rows of A in a program's strip.", choices=powers(1, 64))
    BLOCK_N: int = knob(
        512, "Tile", "Columns of the strip that a program moves per step.", choices=powers(1, 1024)
    )
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def transpose_row_strip(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tile_offsets(tl.program_id(0), BLOCK_M)
    for step in range(0, tl.cdiv(N, BLOCK_N)):
        columns = tile_offsets(step, BLOCK_N)
        inside = (rows[:, None] < M) & (columns[None, :] < N)
        strip = tl.load(a + rows[:, None] * N + columns[None, :], mask=inside)
        tl.store(b + columns[None, :] * M + rows[:, None], strip, mask=inside)


def tiles_of(pids: np.ndarray, launch: Launch[Problem, Config]) -> Tiles:
    """Return the tiles of each program: all tiles of row pid, from left to right."""
    steps = extents(launch)["n"]
    program = np.repeat(pids, steps)
    pid_n = np.tile(np.arange(steps), len(pids))
    return Tiles(program, program, pid_n, np.zeros_like(program))


KERNEL = Kernel(
    id="transpose.row_strip",
    title="row strips",
    headline="A program reads rows and writes columns: with few rows per strip, most of each written sector is wasted.",
    family=FAMILY,
    config=Config,
    jitted=transpose_row_strip,
    grid=lambda launch: (extents(launch)["m"],),
    extents=extents,
    tiles=tiles_of,
    accesses=lambda launch: accesses(transpose_row_strip, launch, stored=("m", "n")),
    arguments=arguments,
    presets=(
        preset(
            "Textbook: 8 × 8, strips of 2 rows",
            "M=8&N=8&dtype=float32",
            "BLOCK_M=2&BLOCK_N=8",
            "tab=requests&model=textbook&warp_size=4&line_bytes=16",
        ),
        preset("Large: 8192²", "M=8192&N=8192"),
    ),
)
