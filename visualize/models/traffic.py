"""What memory operations cost: requests, sectors and lines of one block, and of all blocks of a launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.lanes import MemoryOperation
from kernels.spec import Access, Axis, FlatAccess

# Units of a GPU's L1 (CUDA C++ Best Practices Guide 13.0, "Coalesced Access to Global Memory").
SECTOR_BYTES, LINE_BYTES = 32, 128

# Elements of runs that are counted at a time, so that memory stays small.
_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Traffic:
    """What one operation costs over some of its executions: one tile, or the whole launch.

    `bytes_wanted` are the bytes of all active lanes; `ideal_sectors` is the sum over requests of their distinct bytes
    / sector size, rounded up.
    """

    requests: int
    sectors: int
    lines: int
    ideal_sectors: int
    bytes_wanted: int

    @property
    def efficiency(self) -> float:
        """ideal / sectors, 0 to 1."""
        return self.ideal_sectors / self.sectors if self.sectors else 1.0

    def times(self, count: int) -> Traffic:
        return Traffic(*(count * value for value in vars(self).values()))

    def plus(self, other: Traffic) -> Traffic:
        return Traffic(*(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True)))


NOTHING = Traffic(0, 0, 0, 0, 0)


@dataclass(frozen=True)
class Requests:
    """One execution of an operation, or several: each warp request, lane by lane.

    Attributes:
        row, column: (requests, lanes) int64, the element of the tensor that each lane addresses first.
        address: (requests, lanes) int64, its first byte from the tensor's start.
        active: (requests, lanes) bool: the lane takes part, and is inside the tensor.
        width_bytes: bytes that a lane moves.
    """

    row: np.ndarray
    column: np.ndarray
    address: np.ndarray
    active: np.ndarray
    width_bytes: int


@dataclass(frozen=True)
class Tile:
    """One execution element by element, for a picture: who takes which. Flat int64 arrays of one length.

    Of several that take an element, the owner stands for all.

    Attributes:
        row, column: the element of the tensor.
        address: its first byte from the tensor's start.
        active: bool, whether it is inside the tensor.
        request: the number of the warp request that moves it.
        warp, lane, register: who holds it.
    """

    row: np.ndarray
    column: np.ndarray
    address: np.ndarray
    active: np.ndarray
    request: np.ndarray
    warp: np.ndarray
    lane: np.ndarray
    register: np.ndarray


@dataclass(frozen=True)
class Operation:
    """One memory operation: its cost over the whole launch, and of one execution, on the first tile.

    Attributes:
        number: that of its access among the kernel's. An atomic may have two operations.
        made: what the compiler made of it; None on the blackboard.
        at_least: the counts are the fewest: how many more there are depends on who comes first.
    """

    number: int
    access: Access | FlatAccess
    width_bytes: int
    launch: Traffic
    tile: Traffic
    made: MemoryOperation | None = None
    at_least: bool = False


def at_places(
    row: np.ndarray, column: np.ndarray, owner: np.ndarray | bool, shape: tuple[int, int], size: int, width_bytes: int
) -> Requests:
    """Requests for elements of a tensor that is stored row by row, masked at its edges.

    Args:
        owner: which lanes take part at all.
        shape: rows and columns of the tensor.
        size: bytes of an element.
    """
    active = owner & (row < shape[0]) & (column < shape[1])
    return Requests(row, column, (row * shape[1] + column) * size, active, width_bytes)


def traffic(lanes: Requests, sector_bytes: int = SECTOR_BYTES, line_bytes: int = LINE_BYTES) -> Traffic:
    """Count requests. One with no active lane is not issued."""
    active = lanes.active
    address = np.where(active, lanes.address, -1)  # which is in sector and line -1, too
    address.sort(axis=1)
    # What a lane moves is aligned to itself, and no larger than a sector: nothing crosses one.
    wanted = _distinct(address) * lanes.width_bytes
    return Traffic(
        requests=int(np.count_nonzero(wanted)),
        sectors=int(_distinct(address // sector_bytes).sum()),
        lines=int(_distinct(address // line_bytes).sum()),
        ideal_sectors=int((-(-wanted // sector_bytes)).sum()),
        bytes_wanted=int(np.count_nonzero(active)) * lanes.width_bytes,
    )


def _distinct(units: np.ndarray) -> np.ndarray:
    """How many different units from 0 on stand in each row of an array, whose rows are sorted."""
    return np.count_nonzero(units[:, 1:] != units[:, :-1], axis=1) + (units[:, 0] >= 0)


def over_blocks(
    access: Access,
    shape: tuple[int, int],
    extents: dict[str, int],
    size: int,
    line_bytes: int,
    one: Callable[[tuple[int, int]], Traffic],
) -> Traffic:
    """The cost of all executions of an operation in a launch.

    A launch has many programs but few classes of them: blocks that begin at the same place in a line, with as much of
    them in bounds, cost the same. One of each class is counted and multiplied.

    Args:
        shape: rows and columns of the tensor as it is stored, row-major, its start aligned to a line.
        size: bytes of an element.
        one: counts the execution whose block begins at a (row, column).
    """
    row_classes = _classes(access.rows, extents, shape[0], shape[1] * size, line_bytes)
    column_classes = _classes(access.columns, extents, shape[1], size, line_bytes)
    total = NOTHING
    seen: dict[tuple[int, int, int], Traffic] = {}
    for row_key, (row, row_count) in row_classes.items():
        for column_key, (column, column_count) in column_classes.items():
            key = ((row_key[0] + column_key[0]) % line_bytes, row_key[1], column_key[1])
            if key not in seen:
                seen[key] = one((row, column))
            total = total.plus(seen[key].times(row_count * column_count))
    outer = math.prod(extents[i] for i in access.over if i not in (access.rows.index, access.columns.index))
    return total.times(outer)


def _classes(
    axis: Axis, extents: dict[str, int], length: int, pitch_bytes: int, line_bytes: int
) -> dict[tuple[int, int], tuple[int, int]]:
    """Classes of an axis' blocks: (start address modulo the line, elements in bounds) → (a start, how many)."""
    starts = axis.start(np.arange(extents[axis.index], dtype=np.int64), axis.block)
    keys = np.stack([starts * pitch_bytes % line_bytes, np.minimum(axis.block, length - starts)])
    distinct, where, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
    return {
        (int(distinct[0, i]), int(distinct[1, i])): (int(starts[where[i]]), int(counts[i])) for i in range(len(where))
    }


def over_runs(
    access: FlatAccess,
    shape: tuple[int, int],
    size: int,
    line_bytes: int,
    unit: int,
    some: Callable[[int, int], Traffic],
) -> Traffic:
    """The cost of all runs of a launch: one follows the other, and the last one is cut by the tensor's end.

    As many elements on as fill whole lines on the way, everything repeats one line (or row of lines) further. So only
    one such period is counted, and what is left after the last whole one.

    Args:
        unit: elements that belong together: of a request, or of a run.
        some: counts so many units from a unit on.
    """
    length = math.prod(shape)
    period = math.lcm(unit, (shape[0] if access.turned else 1) * (line_bytes // size))
    whole, rest = divmod(length, period)
    total, units = NOTHING, period // unit
    for first, count, times in ((0, units, whole), (whole * units, -(-rest // unit), 1)):
        for start in range(first, first + count if times else first, max(1, _AT_ONCE // unit)):
            piece = min(first + count - start, max(1, _AT_ONCE // unit))
            total = total.plus(some(start, piece).times(times))
    return total


def of_run(access: FlatAccess, shape: tuple[int, int], place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the elements that a run counts as `place`; past the tensor's end, outside of it."""
    if access.turned:
        column, row = np.divmod(place, shape[0])
    else:
        row, column = np.divmod(place, shape[1])
    return row, column
