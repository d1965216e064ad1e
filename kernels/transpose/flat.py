"""B = A.T, BLOCK consecutive elements of A per program. A flat index forms no tile that could be transposed on chip."""

from dataclasses import dataclass

import numpy as np

from kernels.orders import tile_offsets, tile_start
from kernels.transpose.problem import FAMILY, Problem, arguments
from tilescope.declare.jit import memory_lines, on_arrays, tl, triton
from tilescope.declare.knobs import knob, num_stages, num_warps, powers
from tilescope.declare.spec import Axis, FlatAccess, Kernel, Launch, Tiles, preset


@dataclass(frozen=True)
class Config:
    BLOCK: int = knob(
        1024,
        "Tile",
        "Elements of A, in row-major order, that a program moves.",
        choices=powers(32, 8192),
    )
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def transpose_flat(a, b, M, N, BLOCK: tl.constexpr):
    index = tile_offsets(tl.program_id(0), BLOCK)
    inside = index < M * N
    row = index // N
    column = index % N
    run = tl.load(a + index, mask=inside)
    tl.store(b + column * M + row, run, mask=inside)


def extents(launch: Launch[Problem, Config]) -> dict[str, int]:
    """Return the number of runs of BLOCK elements, as one column of tiles."""
    return {"m": -(-launch.problem.M * launch.problem.N // launch.config.BLOCK), "n": 1}


def tiles_of(pids: np.ndarray, launch: Launch[Problem, Config]) -> Tiles:
    """Return the tile of each program: run number pid."""
    zeros = np.zeros_like(pids)
    return Tiles(pids, pids, zeros, zeros)


def accesses(launch: Launch[Problem, Config]) -> tuple[FlatAccess, ...]:
    """Return the load of a run of A and the store of its elements down a column of B."""
    run = Axis("m", launch.config.BLOCK, on_arrays(tile_start))
    load, store = memory_lines(transpose_flat)
    return FlatAccess("load", "A", run, ("m",), load), FlatAccess(
        "store", "B", run, ("m",), store, transposed=True
    )


KERNEL = Kernel(
    id="transpose.flat",
    title="flat index",
    headline="Lanes load consecutive elements of A, so each lane stores to another row of B and no stores coalesce.",
    family=FAMILY,
    config=Config,
    jitted=transpose_flat,
    grid=lambda launch: (extents(launch)["m"],),
    extents=extents,
    tiles=tiles_of,
    accesses=accesses,
    arguments=arguments,
    presets=(preset("Large: 8192²", "M=8192&N=8192"),),
)
