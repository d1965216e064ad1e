"""The tiles that each step of a launch computes, and the input panels that the step's programs read.

A step is a wave or, if programs loop over tiles, a turn of the loop in a wave. It can also be a single program (or a
single tile of a loop), in start order. Omitted, as in `schedule`: program durations.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kernels.spec import DTYPE_BYTES, Access, Kernel, Launch, Tiles
from visualize.predict.schedule import Schedule, loads, slice_blocks, stable_order

# Values of `by`. "auto" steps through single programs if there are only a few or all fit in one wave.
STEPPING = ("auto", "program", "wave")
_FEW_PROGRAMS = 256

# Maximum number of tiles for which the blocks of all waves are added up. More would make a slider lag.
_MAX_TILES_ADDED = 1 << 15


@dataclass(frozen=True)
class Panels:
    """The input panels that the output's tiles read: as high or wide as a tile, as long as K.

    If K is split into slices, each panel is split into pieces, numbered `pid * slices + slice`.

    Attributes:
        row_bytes, column_bytes: bytes of each piece inside the tensor, (num_pid_m * slices,) and
            (num_pid_n * slices,).
    """

    row_bytes: np.ndarray
    column_bytes: np.ndarray

    @property
    def total_bytes(self) -> int:
        """The bytes of all pieces, each counted once."""
        return int(self.row_bytes.sum() + self.column_bytes.sum())

    def asked_bytes(self, schedule: Schedule) -> int:
        """Return the bytes that all tiles read in total."""
        rows, columns = schedule.pieces
        return int(self.row_bytes[rows].sum() + self.column_bytes[columns].sum())


def panels(kernel: Kernel, launch: Launch, schedule: Schedule) -> Panels | None:
    """Return the panels of a launch; None if each input is read once."""
    inputs = schedule.panels
    if inputs is None:
        return None
    accesses = [access for access in kernel.accesses(launch) if isinstance(access, Access) and access.tensor in inputs]
    block = {axis.index: axis.block for access in accesses for axis in (access.rows, access.columns)}
    row_panels, column_panels = (kernel.family.tensors(launch.problem)[name] for name in inputs)
    (height, depth), width = row_panels.shape, column_panels.shape[1]
    ends = np.minimum(np.cumsum(slice_blocks(schedule)) * block["k"], depth)
    slice_bytes = np.diff(ends, prepend=0) * DTYPE_BYTES[launch.problem.dtype]

    def pieces(extent: int, size: int, total: int) -> np.ndarray:
        return np.outer(np.minimum(size, total - np.arange(extent) * size), slice_bytes).reshape(-1)

    num_pid_m, num_pid_n = schedule.extents
    return Panels(pieces(num_pid_m, block["m"], height), pieces(num_pid_n, block["n"], width))


@dataclass(frozen=True)
class Steps:
    """A launch, step by step.

    Attributes:
        name: the unit of a step: "wave", "turn" (of the loop), "step" (a turn in a wave), "program", or "tile" (of a
            loop).
        entries: the entries of the schedule's tiles, step by step.
        timed: the launch as if each tile were a separate program, started when the tile is computed.
        tiles: number of tiles that each step computes: (steps,).
        slots: number of programs that run at once in a full step.
    """

    name: str
    entries: np.ndarray
    timed: Schedule
    tiles: np.ndarray
    slots: int

    @property
    def tail_idle(self) -> float:
        """The idle fraction of the last step's slots, 0 to 1."""
        return 1 - int(self.tiles[-1]) / self.slots

    @property
    def idle(self) -> float:
        """The idle fraction of all steps' slots, 0 to 1."""
        return 1 - int(self.tiles.sum()) / (len(self.tiles) * self.slots)

    @property
    def is_single(self) -> bool:
        """Whether a step is one program, or one tile of a loop."""
        return self.name in ("program", "tile")

    @cached_property
    def blocks(self) -> np.ndarray:
        """Number of distinct panel blocks, BLOCK_K deep, that each step reads: (steps,). Requires panels."""
        slices, depth = self.timed.slices, slice_blocks(self.timed)
        step, blocks = np.repeat(np.arange(len(self.tiles)), self.tiles), np.zeros(len(self.tiles))
        for piece, extent in zip(self.timed.pieces, self.timed.extents, strict=True):
            reader, piece_read = np.divmod(np.unique(step * extent * slices + piece), extent * slices)
            blocks += np.bincount(reader, depth[piece_read % slices], len(blocks))
        return blocks.astype(np.int64)


def steps(schedule: Schedule, by: str = "wave") -> Steps:
    """Divide a launch into steps, each "wave", "program" or "auto"."""
    entries, timed, slots = np.arange(len(schedule.place)), schedule, schedule.resident_programs
    single, full = "program", "wave"
    if schedule.turns > 1:
        single, full = "tile", "turn" if schedule.waves == 1 else "step"
        by_time = stable_order(schedule.step)
        columns = {name: column[by_time] for name, column in vars(schedule.tiles).items()}
        timed = replace(schedule, programs=len(entries), tiles=Tiles(**{**columns, "program": entries}))
        entries = by_time
        # A persistent launch starts only as many programs as it needs, even if SMs could hold more.
        slots = min(slots, -(-schedule.programs // schedule.sms) * schedule.sms)
    tiles = np.bincount(schedule.step)
    if by == "program" or (by == "auto" and (len(tiles) == 1 or len(entries) <= _FEW_PROGRAMS)):
        return Steps(single, entries, timed, np.ones_like(entries), 1)
    return Steps(full, entries, timed, tiles, slots)


def first_reads(launch: Steps) -> tuple[np.ndarray, np.ndarray]:
    """Return the entry that is first in time to read each piece: (num_pid_m, slices), (slices, num_pid_n)."""
    rows, columns = launch.timed.first_of_piece
    return launch.entries[rows], launch.entries[columns.T]


@dataclass(frozen=True)
class FirstLoads:
    """The distinct panel blocks that the first programs (or tiles) load, in this order and in row-major order.

    Attributes:
        first: number of compared programs, or tiles of a loop.
        tiles: number of tiles in the launch.
        blocks, row_major_blocks: number of blocks that these programs load in this order and in row-major order.
        regions: number of rows and columns of tiles that these programs compute, in each order.
        is_same_order: whether this order is row-major.
        wave_blocks: the sum of all waves' distinct blocks in each order; None if a step is not a wave, or if there are
            too many tiles.
    """

    first: int
    tiles: int
    blocks: int
    row_major_blocks: int
    regions: tuple[tuple[int, int], tuple[int, int]]
    is_same_order: bool
    wave_blocks: tuple[int, int] | None


def first_programs(schedule: Schedule, launch: Steps, first: int) -> int:
    """Return the number of programs (or tiles of a loop) to compare: `first`, or all concurrent ones if it is 0."""
    resident = schedule.resident_programs if schedule.turns == 1 else schedule.programs
    return min(first or resident, len(launch.timed.place))


def first_loads(launch: Steps, reference: Steps, first: int) -> FirstLoads:
    """Compare the blocks that the first programs load with the row-major `reference`. Requires panels."""
    orders = own, row_major = launch.timed, reference.timed
    blocks, row_major_blocks = (int(loads(order, np.array([first]))[0]) for order in orders)
    near, far = (
        (len(np.unique(tiles.pid_m[:first])), len(np.unique(tiles.pid_n[:first])))
        for tiles in (own.tiles, row_major.tiles)
    )
    wave_blocks = None
    if not launch.is_single and len(own.place) <= _MAX_TILES_ADDED:
        wave_blocks = int(launch.blocks.sum()), int(reference.blocks.sum())
    is_same = np.array_equal(own.place, row_major.place)
    return FirstLoads(first, len(own.place), blocks, row_major_blocks, (near, far), is_same, wave_blocks)
