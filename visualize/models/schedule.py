"""Which program computes which tile, in which order, and what the first n of them must load.

Left out here: how long a program runs. Waves are those of an ideal machine in which all programs take the same
time, and `programs_per_sm` of them are resident on every SM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels import orders
from kernels.gpus import Gpu
from kernels.jit import on_arrays
from kernels.spec import ConfigError, Kernel, Tiles

COMPARED_PROGRAMS = 1024

# Tiles of one schedule at most: arrays of this many stay within a few hundred megabytes and a second.
MOST_TILES = 1 << 21


@dataclass(frozen=True)
class Schedule:
    """One launch.

    Attributes:
        tiles: program → tile, in launch order.
        group: (programs,) int64, each program's group.
        extents: (num_pid_m, num_pid_n), tiles of the output along each side.
        k_blocks: blocks along the reduction that one tile sums; 0 where there is none.
        resident_programs: programs that all SMs hold at once.
        resident_source: "assumed", or "compiled" where registers and shared memory are known.
    """

    tiles: Tiles
    group: np.ndarray
    extents: tuple[int, int]
    k_blocks: int
    resident_programs: int
    resident_source: str

    @property
    def programs(self) -> int:
        return len(self.group)

    @property
    def waves(self) -> int:
        return -(-self.programs // self.resident_programs)

    @property
    def tail_programs(self) -> int:
        """Programs of the last wave, 0 when it is full."""
        return self.programs % self.resident_programs

    @property
    def wave(self) -> np.ndarray:
        """(programs,) int64, the wave that each program belongs to, from 0."""
        return np.arange(self.programs) // self.resident_programs


def schedule(kernel: Kernel, problem: Any, config: Any, gpu: Gpu, programs_per_sm: int = 1) -> Schedule:
    """Predict the schedule of one launch.

    Args:
        programs_per_sm: how many programs a SM holds, assumed.

    Raises:
        ConfigError: where `gpu` can't hold that many, or the problem has more than MOST_TILES tiles.
    """
    extents = kernel.extents(problem, config)
    if extents["m"] * extents["n"] > MOST_TILES:
        raise ConfigError(
            "too_many_tiles",
            f"{extents['m']:,} × {extents['n']:,} tiles are too many to schedule here; "
            f"at most {MOST_TILES:,} are allowed. Make the tile larger or the shape smaller.",
            "BLOCK_M",
        )
    held = held_programs(gpu, config.num_warps)
    if programs_per_sm > held:
        raise ConfigError(
            "out_of_range",
            f"programs_per_sm is {programs_per_sm}; "
            f"a SM of {gpu.name} holds at most {held} of {config.num_warps} warps.",
            "programs_per_sm",
        )
    pids = np.arange(kernel.programs(problem, config), dtype=np.int64)
    return Schedule(
        tiles=kernel.tiles(pids, problem, config),
        group=kernel.group(pids, problem, config),
        extents=(extents["m"], extents["n"]),
        k_blocks=extents.get("k", 0),
        resident_programs=gpu.sms * programs_per_sm,
        resident_source="assumed",
    )


def held_programs(gpu: Gpu, num_warps: int) -> int:
    """Most programs of `num_warps` warps that one SM's warp slots and program slots hold."""
    return max(1, min(gpu.max_programs_per_sm, gpu.max_warps_per_sm // num_warps))


def row_major(like: Schedule) -> Schedule:
    """The same tiles, one a program, in row-major order: what `like` is compared with."""
    num_pid_m, num_pid_n = like.extents
    pids = np.arange(num_pid_m * num_pid_n, dtype=np.int64)
    pid_m, pid_n = on_arrays(orders.row_major)(pids, num_pid_n)
    return Schedule(
        tiles=Tiles(pids, pid_m, pid_n, np.zeros_like(pids)),
        group=pid_m,
        extents=like.extents,
        k_blocks=like.k_blocks,
        resident_programs=like.resident_programs,
        resident_source=like.resident_source,
    )


def tile_map(schedule: Schedule, of_program: np.ndarray) -> np.ndarray:
    """Lay a value of each program on the tiles that it computes: (num_pid_m, num_pid_n).

    Where several programs share a tile (split-K), the first one's value.
    """
    tiles = schedule.tiles
    laid = np.full(schedule.extents, -1, dtype=np.int64)
    laid[tiles.pid_m[::-1], tiles.pid_n[::-1]] = of_program[tiles.program[::-1]]
    return laid


def loads(schedule: Schedule, first: int = COMPARED_PROGRAMS) -> np.ndarray | None:
    """Distinct blocks of A and B, BLOCK_K deep, that the first n programs load, for n = 1 … min(programs, first).

    A program that computes tile (pid_m, pid_n) loads the blocks of row pid_m of A and of column pid_n of B. None for a
    kernel without a reduction.
    """
    if not schedule.k_blocks:
        return None
    count = min(schedule.programs, first)
    within = schedule.tiles.program < count
    program = schedule.tiles.program[within]
    slices = int(schedule.tiles.pid_k.max()) + 1
    new = np.zeros(count, dtype=np.int64)
    for pid in (schedule.tiles.pid_m, schedule.tiles.pid_n):
        _, seen_first = np.unique(pid[within] * slices + schedule.tiles.pid_k[within], return_index=True)
        np.add.at(new, program[seen_first], 1)
    # Each row (column) and slice of K brings its share of the blocks along K.
    return np.cumsum(new) * schedule.k_blocks // slices
