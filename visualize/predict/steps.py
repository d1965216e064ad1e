"""What is computed in each step of a launch, and which panels of its inputs the programs of a step read.

A step is a wave, or, where programs loop over tiles, a turn of the loop in a wave. It can also be a single program (or
a single tile of a loop), in the order in which they start. Left out, as in `schedule`: how long a program runs.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from kernels.spec import DTYPE_BYTES, Access, Kernel, Launch, Tiles
from visualize.predict.schedule import Schedule, ordered_by, slice_blocks

# Steps × pieces that are looked at together: few enough to stay in a core's cache.
_MARKS = 1 << 20

# What a step is. "auto": single programs where they are few, or all in one wave.
STEPPING = ("auto", "program", "wave")
_FEW_PROGRAMS = 256


@dataclass(frozen=True)
class Panels:
    """The panels of its inputs that the tiles of the output need: as high or wide as a tile, as long as K.

    Where K is split into slices, so is a panel: piece `pid * slices + slice`.

    Attributes:
        row_bytes, column_bytes: of each piece, (num_pid_m * slices,) and (num_pid_n * slices,). Past an edge there is
            nothing.
        slice_blocks: blocks along K of each slice: (slices,).
    """

    row_bytes: np.ndarray
    column_bytes: np.ndarray
    slice_blocks: np.ndarray

    @property
    def total_bytes(self) -> int:
        """Each piece once."""
        return int(self.row_bytes.sum() + self.column_bytes.sum())

    def asked_bytes(self, schedule: Schedule) -> int:
        """What all tiles ask for together."""
        rows, columns = schedule.pieces
        return int(self.row_bytes[rows].sum() + self.column_bytes[columns].sum())


def panels(kernel: Kernel, launch: Launch, schedule: Schedule) -> Panels | None:
    """The panels of a launch; None where each input is read once."""
    inputs = schedule.panels
    if inputs is None:
        return None
    loads = [access for access in kernel.accesses(launch) if isinstance(access, Access) and access.tensor in inputs]
    block = {axis.index: axis.block for load in loads for axis in (load.rows, load.columns)}
    row_panels, column_panels = (kernel.family.tensors(launch.problem)[name] for name in inputs)
    (height, depth), width = row_panels.shape, column_panels.shape[1]
    ends = np.minimum(np.cumsum(slice_blocks(schedule)) * block["k"], depth)
    of_slice = np.diff(ends, prepend=0) * DTYPE_BYTES[launch.problem.dtype]

    def pieces(extent: int, size: int, total: int) -> np.ndarray:
        sides = np.minimum(size, total - np.arange(extent) * size)
        return np.outer(sides, of_slice).reshape(-1)

    num_pid_m, num_pid_n = schedule.extents
    rows, columns = pieces(num_pid_m, block["m"], height), pieces(num_pid_n, block["n"], width)
    return Panels(rows, columns, slice_blocks(schedule))


@dataclass(frozen=True)
class Steps:
    """A launch, step by step.

    Attributes:
        name: what a step is: "wave", "turn" (of the loop), "step" (a turn in a wave), "program", or "tile" (of a loop).
        entries: the entries of the schedule's tiles, step after step; None where launch order is that.
        timed: the launch as if each tile were a program of its own, started when the tile is computed.
        tiles: how many each step computes: (steps,).
        slots: programs that compute at once in a full step.
        read: its panels, where there are any.
    """

    name: str
    entries: np.ndarray | None
    timed: Schedule
    tiles: np.ndarray
    slots: int
    read: Panels | None

    @property
    def tail_idle(self) -> float:
        """The share of the last step's slots in which nothing is computed, 0 to 1."""
        return 1 - int(self.tiles[-1]) / self.slots

    @property
    def idle(self) -> float:
        """The share of all steps' slots in which nothing is computed, 0 to 1."""
        return 1 - int(self.tiles.sum()) / (len(self.tiles) * self.slots)

    @property
    def is_single(self) -> bool:
        """Whether a step is one program, or one tile of a loop."""
        return self.name in ("program", "tile")

    @cached_property
    def blocks(self) -> np.ndarray:
        """Distinct blocks of panels, BLOCK_K deep, that each step reads: (steps,)."""
        return self._of_panels[0]

    @cached_property
    def panel_bytes(self) -> np.ndarray:
        """Their bytes: (steps,)."""
        return self._of_panels[1]

    @cached_property
    def _of_panels(self) -> tuple[np.ndarray, np.ndarray]:
        assert self.read is not None, "only of a launch with panels"
        ends = np.cumsum(self.tiles)
        step = np.repeat(np.arange(len(self.tiles)), self.tiles)
        (row_blocks, row_bytes), (column_blocks, column_bytes) = (
            _distinct(step, ends, piece, np.tile(self.read.slice_blocks, len(of_piece) // self.timed.slices), of_piece)
            for piece, of_piece in zip(self.timed.pieces, (self.read.row_bytes, self.read.column_bytes), strict=True)
        )
        return row_blocks + column_blocks, row_bytes + column_bytes


def steps(schedule: Schedule, read: Panels | None, by: str = "wave") -> Steps:
    """A launch, step by step.

    Args:
        read: its panels, where there are any.
        by: "wave", "program", or "auto".
    """
    step, entries = schedule.step, None
    if schedule.turns > 1:
        entries = ordered_by(step)
        step = step[entries]
    timed = _in_time(schedule, entries)
    if by == "program" or (by == "auto" and (step[-1] == 0 or len(step) <= _FEW_PROGRAMS)):
        name = "program" if schedule.turns == 1 else "tile"
        return Steps(name, entries, timed, np.ones(len(step), dtype=np.int64), 1, read)
    # A launch that loops has as many programs as it wants at once, however many more an SM would hold.
    slots = schedule.resident_programs
    if schedule.turns > 1:
        slots = min(slots, -(-schedule.programs // schedule.sms) * schedule.sms)
    ends = np.searchsorted(step, np.arange(step[-1] + 1), side="right")
    name = "wave" if schedule.turns == 1 else "turn" if schedule.waves == 1 else "step"
    return Steps(name, entries, timed, np.diff(ends, prepend=0), slots, read)


def _distinct(step: np.ndarray, ends: np.ndarray, piece: np.ndarray, *weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """Weights of the distinct pieces of each step, summed: (steps,) each.

    Args:
        step, piece: (tiles,) the step that computes each tile, ascending, and the piece that the tile reads.
        ends: (steps,) tiles up to the end of each step.
        weights: (pieces,) each: say, the bytes of a piece.
    """
    count = len(weights[0])
    at_once = max(1, _MARKS // count)
    last = np.empty(at_once * count, dtype=np.int32)
    is_last = np.empty(len(piece), dtype=bool)
    for begin in range(0, len(ends), at_once):
        part = slice(ends[begin - 1] if begin else 0, ends[begin : begin + at_once][-1])
        key = (step[part] - begin) * count + piece[part]
        place = np.arange(len(key), dtype=np.int32)
        last[key] = place  # of several that are assigned, the last one stays: it alone counts
        is_last[part] = last.take(key) == place
    tiles = np.diff(ends, prepend=0)
    # Of a step without tiles, reduceat gives what the next tile reads.
    return tuple(
        np.add.reduceat(weight.take(piece) * is_last, ends - tiles, dtype=np.int64) * (tiles > 0) for weight in weights
    )


def _in_time(schedule: Schedule, entries: np.ndarray | None) -> Schedule:
    """The launch as if each of these entries, in this order, were a program of its own."""
    if entries is None:
        return schedule
    tiles = Tiles(*(getattr(schedule.tiles, field.name)[entries] for field in fields(Tiles)))
    return replace(schedule, programs=len(entries), tiles=replace(tiles, program=np.arange(len(entries))))


def first_reads(launch: Steps) -> tuple[np.ndarray, np.ndarray]:
    """The entry that reads each piece first in time: (num_pid_m, slices), (slices, num_pid_n)."""
    rows, columns = launch.timed.first_of_piece
    return (rows, columns.T) if launch.entries is None else (launch.entries[rows], launch.entries[columns.T])


def with_programs_per_sm(schedule: Schedule, programs_per_sm: int) -> Schedule:
    """The same launch on a GPU whose SMs hold so many programs."""
    return replace(schedule, resident_programs=schedule.sms * programs_per_sm)
