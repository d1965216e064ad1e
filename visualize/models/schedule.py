"""Which program computes which tile, in which order, and what the first n of them must load.

Left out here: how long a program runs. Waves are those of an ideal machine in which all programs take the same
time, and `programs_per_sm` of them are resident on every SM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kernels import orders
from kernels.gpus import Gpu
from kernels.jit import on_arrays
from kernels.knobs import ConfigError, knobs
from kernels.spec import Kernel, Launch, Tiles

COMPARED_PROGRAMS = 1024

# Tiles of one schedule at most: arrays of this many stay within a few hundred megabytes and a second.
MOST_TILES = 1 << 21


@dataclass(frozen=True)
class Schedule:
    """One launch.

    Attributes:
        programs: programs in the launch.
        tiles: program → tile, in launch order.
        extents: (num_pid_m, num_pid_n), tiles of the output along each side.
        k_blocks: blocks along the reduction that one tile sums; 0 where there is none.
        slices: programs that share a tile, each with its part of the reduction.
        resident_programs: programs that all SMs hold at once.
        resident_source: "assumed", or "compiled" where registers and shared memory are known.
    """

    programs: int
    tiles: Tiles
    extents: tuple[int, int]
    k_blocks: int
    slices: int
    resident_programs: int
    resident_source: str

    @property
    def waves(self) -> int:
        return -(-self.programs // self.resident_programs)

    @property
    def tail_programs(self) -> int:
        """Programs of the last wave, 0 when it is full."""
        return self.programs % self.resident_programs

    @property
    def wave(self) -> np.ndarray:
        """The wave that the program of each tile belongs to, from 0."""
        return self.tiles.program // self.resident_programs

    @property
    def turn(self) -> np.ndarray:
        """Which of its program's tiles each one is, from 0: all 0 but where a program loops over tiles."""
        return np.arange(len(self.tiles.program)) - np.searchsorted(self.tiles.program, self.tiles.program)

    @property
    def step(self) -> np.ndarray:
        """When each tile is computed, from 0, where all tiles take the same time: its wave, or its turn in the wave."""
        turn = self.turn
        return self.wave * (turn.max(initial=0) + 1) + turn


def schedule(kernel: Kernel, launch: Launch, programs_per_sm: int = 1, source: str = "assumed") -> Schedule:
    """Predict the schedule of one launch.

    Args:
        programs_per_sm: how many programs a SM holds.
        source: where that is from: "assumed", or "compiled" (`occupancy` of the compiled kernel).

    Raises:
        ConfigError: where the GPU can't hold that many, or the problem has more than MOST_TILES tiles.
    """
    extents, gpu, config = kernel.extents(launch), launch.gpu, launch.config
    slices = extents.get("slice", 1)
    if extents["m"] * extents["n"] * slices > MOST_TILES:
        cut = f" × {slices:,}" if slices > 1 else ""
        raise ConfigError(
            "too_many_tiles",
            f"{extents['m']:,} × {extents['n']:,}{cut} tiles are too many to schedule here; "
            f"at most {MOST_TILES:,} are allowed. Make the tile larger or the shape smaller.",
            next(iter(knobs(type(config)))),
        )
    held = held_programs(gpu, config.num_warps)
    if programs_per_sm > held:
        raise ConfigError(
            "out_of_range",
            f"programs_per_sm is {programs_per_sm}; "
            f"a SM of {gpu.name} holds at most {held} of {config.num_warps} warps.",
            "programs_per_sm",
        )
    pids = np.arange(kernel.programs(launch), dtype=np.int64)
    return Schedule(
        programs=len(pids),
        tiles=kernel.tiles(pids, launch),
        extents=(extents["m"], extents["n"]),
        k_blocks=extents.get("k", 0),
        slices=slices,
        resident_programs=gpu.sms * programs_per_sm,
        resident_source=source,
    )


def held_programs(gpu: Gpu, num_warps: int) -> int:
    """Most programs of `num_warps` warps that one SM's warp slots and program slots hold."""
    return max(1, min(gpu.max_programs_per_sm, gpu.max_warps_per_sm // num_warps))


def row_major(like: Schedule) -> Schedule:
    """The same tiles in row-major order: what `like` is compared with.

    Of a reduction, by the same programs with the same number of tiles and the same slices each; else one a program.
    """
    tiles, num_pid_n = like.tiles, like.extents[1]
    if not like.k_blocks:
        pids = np.arange(like.extents[0] * num_pid_n, dtype=np.int64)
        pid_m, pid_n = on_arrays(orders.row_major)(pids, num_pid_n)
        return replace(like, programs=len(pids), tiles=Tiles(pids, pid_m, pid_n, np.zeros_like(pids), group=pid_m))
    # Entries in the order in which they are started, slice by slice.
    started = np.lexsort((tiles.program, like.turn, tiles.pid_k))
    place = np.empty_like(tiles.program)
    place[started] = np.arange(len(started)) % (like.extents[0] * num_pid_n)
    pid_m, pid_n = on_arrays(orders.row_major)(place, num_pid_n)
    return replace(like, tiles=Tiles(tiles.program, pid_m, pid_n, tiles.pid_k, group=pid_m))


def tile_map(schedule: Schedule, of_tile: np.ndarray) -> np.ndarray:
    """Lay a value of each entry of `schedule.tiles` on its tile: (num_pid_m, num_pid_n).

    Where several programs share a tile (split-K), the first one's value.
    """
    place = schedule.tiles.pid_m * schedule.extents[1] + schedule.tiles.pid_n
    if schedule.slices > 1:
        place, first = np.unique(place, return_index=True)
        of_tile = of_tile[first]
    laid = np.full(schedule.extents, -1, dtype=np.int64)
    laid.ravel()[place] = of_tile
    return laid


def loads(schedule: Schedule, first: int = COMPARED_PROGRAMS) -> np.ndarray | None:
    """Distinct blocks of A and B, BLOCK_K deep, that the first n programs load, for n = 1 … min(programs, first).

    A program that computes tile (pid_m, pid_n) loads the blocks of row pid_m of A and of column pid_n of B, those of
    its slice of K. None for a kernel without a reduction.
    """
    if not schedule.k_blocks:
        return None
    tiles, slices = schedule.tiles, schedule.slices
    start, end = on_arrays(orders.slice_of_k)(np.arange(slices), schedule.k_blocks, slices)
    count = min(schedule.programs, first)
    within = tiles.program < count
    program, pid_k = tiles.program[within], tiles.pid_k[within]
    new = np.zeros(count, dtype=np.int64)
    for pid in (tiles.pid_m, tiles.pid_n):
        _, seen_first = np.unique(pid[within] * slices + pid_k, return_index=True)
        np.add.at(new, program[seen_first], (end - start)[pid_k[seen_first]])
    return np.cumsum(new)
