"""Which program computes which tile, in which order, and what the first n of them must load.

Left out here: how long a program runs. Waves are those of an ideal machine in which all programs take the same
time, and `programs_per_sm` of them are resident on every SM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

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
class TensorMap:
    """How a tensor's tiles lie: by pid_m down and pid_n to the right, or `transposed`."""

    name: str
    is_input: bool
    transposed: bool


@dataclass(frozen=True)
class Schedule:
    """One launch.

    Attributes:
        programs: programs in the launch.
        tiles: program → tile, in launch order.
        extents: (num_pid_m, num_pid_n), tiles of the output along each side.
        panels: the inputs that several tiles read again, by tile row and by tile column; None where none are.
        maps: how the tiles of each tensor lie, inputs first.
        k_blocks: blocks along the loop index "k" that one tile reads; 0 where there is none.
        slices: programs that share a tile, each with its part of "k".
        sms: SMs of the GPU.
        resident_programs: programs that all SMs hold at once.
        resident_source: "assumed", or "compiled" where registers and shared memory are known.
    """

    programs: int
    tiles: Tiles
    extents: tuple[int, int]
    panels: tuple[str, str] | None
    maps: tuple[TensorMap, ...]
    k_blocks: int
    slices: int
    sms: int
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
    def tail_idle(self) -> float:
        """The share of the last wave that no program fills, 0 to 1."""
        return -self.programs % self.resident_programs / self.resident_programs

    @property
    def idle(self) -> float:
        """The share of all waves that no program fills, 0 to 1."""
        return 1 - self.programs / (self.waves * self.resident_programs)

    @cached_property
    def wave(self) -> np.ndarray:
        """The wave that the program of each tile belongs to, from 0."""
        return self.tiles.program // self.resident_programs

    @cached_property
    def turn(self) -> np.ndarray:
        """Which of its program's tiles each one is, from 0: all 0 but where a program loops over tiles."""
        program = self.tiles.program
        if len(program) == self.programs:
            return np.zeros_like(program)
        return np.arange(len(program)) - np.searchsorted(program, np.arange(self.programs))[program]

    @cached_property
    def turns(self) -> int:
        """Most tiles that one program computes."""
        return int(self.turn.max(initial=0)) + 1

    @cached_property
    def step(self) -> np.ndarray:
        """When each tile is computed, from 0, where all tiles take the same time: its wave, or its turn in the wave."""
        return self.wave if self.turns == 1 else self.wave * self.turns + self.turn

    def sm_of(self, program: np.ndarray) -> np.ndarray:
        """The SM that runs each program, where they are dealt out one per SM, round after round.

        Assumed: a real GPU gives a program to whichever SM has room first.
        """
        return program % self.sms

    @cached_property
    def place(self) -> np.ndarray:
        """Slice, pid_m and pid_n of each tile as one number, pid_n fastest."""
        place = self.tiles.pid_m * self.extents[1] + self.tiles.pid_n
        return place if self.slices == 1 else place + self.tiles.pid_k * (self.extents[0] * self.extents[1])

    @cached_property
    def entry(self) -> np.ndarray:
        """(slices, num_pid_m, num_pid_n): the one entry of `tiles` that computes each slice of each tile."""
        entry = np.empty(len(self.place), dtype=np.int32)
        entry[self.place] = np.arange(len(self.place), dtype=np.int32)
        return entry.reshape(self.slices, *self.extents)

    @property
    def first_of_tile(self) -> np.ndarray:
        """(num_pid_m, num_pid_n): the entry of `tiles` that computes each tile, the first where several do."""
        return self.entry.min(axis=0)

    @cached_property
    def pieces(self) -> tuple[np.ndarray, np.ndarray]:
        """The piece of a row panel, and of a column panel, that each tile needs: pid times slices, plus its slice."""
        sides = self.tiles.pid_m, self.tiles.pid_n
        rows, columns = sides if self.slices == 1 else (pid * self.slices + self.tiles.pid_k for pid in sides)
        return rows, columns

    @cached_property
    def first_of_piece(self) -> tuple[np.ndarray, np.ndarray]:
        """The entry that reads each piece of a panel first in launch order: (num_pid_m, slices), (num_pid_n, slices).

        A row of tiles needs one row panel, a column of tiles one column panel, and a slice of K a piece of either.
        """
        return self.entry.min(axis=2).T, self.entry.min(axis=1).T


def schedule(kernel: Kernel, launch: Launch, programs_per_sm: int = 1, source: str = "assumed") -> Schedule:
    """Predict the schedule of one launch.

    Args:
        programs_per_sm: how many programs an SM holds.
        source: where that is from: "assumed", or "compiled" (`occupancy` of the compiled kernel).

    Raises:
        ConfigError: where the GPU can't hold that many, or the problem has more than MOST_TILES tiles.
    """
    extents, gpu, config = kernel.extents(launch), launch.gpu, launch.config
    slices = extents.get("slice", 1)
    if extents["m"] * extents["n"] * slices > MOST_TILES:
        split = f" × {slices:,}" if slices > 1 else ""
        raise ConfigError(
            "too_many_tiles",
            f"{extents['m']:,} × {extents['n']:,}{split} tiles are too many to schedule here; "
            f"at most {MOST_TILES:,} are allowed. Make the tile larger or the shape smaller.",
            next(iter(knobs(type(config)))),
        )
    held = held_programs(gpu, config.num_warps)
    if programs_per_sm > held:
        raise ConfigError(
            "out_of_range",
            f"programs_per_sm is {programs_per_sm}; "
            f"an SM of {gpu.name} holds at most {held} of {config.num_warps} warps.",
            "programs_per_sm",
        )
    pids = np.arange(kernel.programs(launch), dtype=np.int64)
    return Schedule(
        programs=len(pids),
        tiles=kernel.tiles(pids, launch),
        extents=(extents["m"], extents["n"]),
        panels=kernel.family.panels,
        maps=_maps(kernel, launch),
        k_blocks=extents.get("k", 0),
        slices=slices,
        sms=gpu.sms,
        resident_programs=gpu.sms * programs_per_sm,
        resident_source=source,
    )


def _maps(kernel: Kernel, launch: Launch) -> tuple[TensorMap, ...]:
    tensors = kernel.family.tensors(launch.problem)
    first = {access.tensor: access for access in reversed(kernel.accesses(launch))}
    return tuple(TensorMap(name, tensors[name].is_input, first[name].transposed) for name in tensors)


def held_programs(gpu: Gpu, num_warps: int) -> int:
    """Most programs of `num_warps` warps that one SM's warp slots and program slots hold."""
    return max(1, min(gpu.max_programs_per_sm, gpu.max_warps_per_sm // num_warps))


def row_major(like: Schedule) -> Schedule:
    """The same tiles in row-major order: what `like` is compared with.

    Of tiles with panels, by the same programs with the same number of tiles and the same slices each; else one tile per
    program.
    """
    tiles, num_pid_n = like.tiles, like.extents[1]
    if like.panels is None:
        pids = np.arange(like.extents[0] * num_pid_n, dtype=np.int64)
        pid_m, pid_n = on_arrays(orders.row_major)(pids, num_pid_n)
        return replace(like, programs=len(pids), tiles=Tiles(pids, pid_m, pid_n, np.zeros_like(pids), group=pid_m))
    place = np.arange(len(tiles.program))
    if like.turns > 1:
        # Entries in the order in which they are started, slice by slice.
        place[ordered_by(tiles.pid_k * like.turns + like.turn)] = np.arange(len(place))
    if like.slices > 1:
        place %= like.extents[0] * num_pid_n
    pid_m, pid_n = on_arrays(orders.row_major)(place, num_pid_n)
    return replace(like, tiles=Tiles(tiles.program, pid_m, pid_n, tiles.pid_k, group=pid_m))


def ordered_by(key: np.ndarray) -> np.ndarray:
    """Entries by their key, those of the same key as they are."""
    return np.argsort(key.astype(np.min_scalar_type(int(key.max()))), kind="stable")  # the smaller, the quicker


def tile_map(schedule: Schedule, of_tile: np.ndarray, stride: int = 1) -> np.ndarray:
    """Lay a value of each entry of `schedule.tiles` on its tile: (num_pid_m, num_pid_n), or every `stride`th of them.

    Where several programs share a tile (split-K), the first one's value.
    """
    return of_tile[schedule.first_of_tile[::stride, ::stride]]


def slice_blocks(schedule: Schedule) -> np.ndarray:
    """Blocks along K that each slice sums: (slices,). The last ones may sum none."""
    start, end = on_arrays(orders.slice_of_k)(np.arange(schedule.slices), schedule.k_blocks, schedule.slices)
    return end - start


def loads_at(schedule: Schedule, counts: np.ndarray) -> np.ndarray | None:
    """Distinct blocks of panels, BLOCK_K deep, that the first n programs load, for each n of `counts`.

    A program that computes tile (pid_m, pid_n) loads the blocks of row panel pid_m and of column panel pid_n, those of
    its slice of K. None where each input is read once.
    """
    if schedule.panels is None:
        return None
    first_program = np.concatenate([schedule.tiles.program[first.ravel()] for first in schedule.first_of_piece])
    blocks = np.tile(slice_blocks(schedule), sum(schedule.extents))
    order = np.argsort(first_program)
    total = np.concatenate([[0], np.cumsum(blocks[order])])
    return total[np.searchsorted(first_program[order], counts)]


def loads(schedule: Schedule, first: int = COMPARED_PROGRAMS) -> np.ndarray | None:
    """`loads_at` n = 1 … min(programs, first)."""
    return loads_at(schedule, np.arange(1, min(schedule.programs, first) + 1))
