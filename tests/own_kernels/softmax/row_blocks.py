"""Softmax of whole rows, BLOCK_M of them per program."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels import orders
from kernels.orders import tile_offsets
from tilescope.declare.jit import memory_lines, on_arrays, tl, triton
from tilescope.declare.knobs import knob, num_stages, num_warps, powers
from tilescope.declare.spec import Access, Axis, Kernel, Launch, preset, tiles_on_grid

from .problem import FAMILY, Problem


@dataclass(frozen=True)
class Config:
    BLOCK_M: int = knob(4, "Tile", "Rows per program.", choices=powers(1, 32))
    BLOCK_N: int = knob(
        1024, "Tile", "Columns that a program has room for.", choices=powers(256, 4096)
    )
    num_warps: int = num_warps()
    num_stages: int = num_stages()


@triton.jit
def softmax_row_blocks(a, b, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    rows = tile_offsets(tl.program_id(0), BLOCK_M)
    columns = tile_offsets(0, BLOCK_N)
    place = rows[:, None] * N + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    values = tl.load(a + place, mask=inside, other=0.0).to(tl.float32)
    values = tl.where(columns[None, :] < N, values, float("-inf"))
    exponentials = tl.exp(values - tl.max(values, axis=1)[:, None])
    result = exponentials / tl.sum(exponentials, axis=1)[:, None]
    tl.store(b + place, result.to(b.dtype.element_ty), mask=inside)


def extents(launch: Launch[Problem, Config]) -> dict[str, int]:
    return {"m": -(-launch.problem.M // launch.config.BLOCK_M), "n": 1}


def grid(launch: Launch[Problem, Config]) -> tuple[int]:
    return (extents(launch)["m"],)


def accesses(launch: Launch[Problem, Config]) -> tuple[Access, ...]:
    start, config = on_arrays(orders.tile_start), launch.config
    m, n = Axis("m", config.BLOCK_M, start), Axis("n", config.BLOCK_N, start)
    load, store = memory_lines(softmax_row_blocks)
    return Access("load", "A", m, n, ("m", "n"), load), Access(
        "store", "B", m, n, ("m", "n"), store
    )


def arguments(tensors: Mapping[str, Any], launch: Launch[Problem, Config]) -> dict[str, Any]:
    return {
        "a": tensors["A"],
        "b": tensors["B"],
        "M": launch.problem.M,
        "N": launch.problem.N,
        **vars(launch.config),
    }


KERNEL = Kernel(
    id="softmax.row_blocks",
    title="blocks of rows",
    headline="A program holds whole rows, so each element is read once.",
    family=FAMILY,
    config=Config,
    jitted=softmax_row_blocks,
    grid=grid,
    extents=extents,
    tiles=lambda pids, launch: tiles_on_grid(pids, extents(launch)),
    accesses=accesses,
    arguments=arguments,
    presets=(preset("Wide rows", "N=4096", "BLOCK_M=1&BLOCK_N=4096", "tab=requests"),),
)
