"""What memory operations cost: requests, sectors and lines of one block, and of all blocks of a launch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kernels.lanes import MemoryOperation
from kernels.spec import Access, Axis, FlatAccess

# Units of a GPU's L1 (CUDA C++ Best Practices Guide 13.0, "Coalesced Access to Global Memory").
SECTOR_BYTES, LINE_BYTES = 32, 128


@dataclass(frozen=True)
class Traffic:
    """What one operation costs over some of its executions: one tile, or the whole launch.

    `bytes_wanted` are the bytes of all active lanes; `ideal_sectors` is the sum over requests of their distinct bytes
    / sector size, rounded up. For a descriptor's copy, which has no requests, box rows stand in for them.

    `sectors` are what the hardware's counter of the launch holds. Where these are others than are touched, the
    difference is in `extra_sectors`: of a descriptor's load those past the tensor's edge; of a copy that bypasses L1
    what `bypassing` says, which may be below zero. `repeated_sectors` are those that ncu's count of an instruction
    holds once more: of such a copy, a sector that several pairs of lanes touch.
    """

    requests: int
    sectors: int
    lines: int
    ideal_sectors: int
    bytes_wanted: int
    extra_sectors: int = 0
    repeated_sectors: int = 0

    @property
    def touched_sectors(self) -> int:
        """The different sectors of each request, or of each box row."""
        return self.sectors - self.extra_sectors

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
        compiled: the operation as compiled; None on the blackboard.
        is_lower_bound: the counts are the fewest: how many more there are depends on who comes first.
    """

    number: int
    access: Access | FlatAccess
    width_bytes: int
    launch: Traffic
    tile: Traffic
    compiled: MemoryOperation | None = None
    is_lower_bound: bool = False

    @property
    def has_lanes(self) -> bool:
        """Whether it was compiled to instructions that lanes issue."""
        return self.compiled is not None and self.compiled.layout is not None

    @property
    def is_box(self) -> bool:
        """Whether it was compiled to a copy by tensor descriptor, which no lane issues."""
        return self.compiled is not None and self.compiled.layout is None


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
    return _sum(_of_each(lanes, sector_bytes, line_bytes))


def bypassing(lanes: Requests) -> Traffic:
    """Count requests of 16-byte copies that bypass L1 (LDGSTS.BYPASS), as the counter of sectors does.

    It counts the lines that each pair of lanes 2i and 2i + 1 touches, and ncu's count of the instruction the sectors
    of each pair: both as many as sectors, but where rows begin inside one, as float8's may. Four such launches are in
    the atlas, two of them counted elsewhere, too (tests/oracle/load_sectors.csv).
    """
    found = traffic(lanes)
    sectors, of_pairs = _by_pairs(lanes, LINE_BYTES), _by_pairs(lanes, SECTOR_BYTES)
    return replace(
        found,
        sectors=sectors,
        extra_sectors=sectors - found.sectors,
        repeated_sectors=of_pairs - found.sectors,
    )


def _by_pairs(lanes: Requests, unit_bytes: int) -> int:
    """The different units that each pair of lanes touches, added up."""
    pairs = lanes.row.shape[1] // 2
    pair = np.arange(lanes.row.shape[1], dtype=np.int64) // 2
    keys = np.where(lanes.active, lanes.address // unit_bytes * pairs + pair, -1)
    keys.sort(axis=1)
    return int(_distinct(keys).sum())


def _of_each(lanes: Requests, sector_bytes: int, line_bytes: int) -> np.ndarray:
    """The fields of Traffic for each request: (5, requests) int64."""
    active = lanes.active
    address = np.where(active, lanes.address, -1)  # which is in sector and line -1, too
    address.sort(axis=1)
    # What a lane moves is aligned to itself, and no larger than a sector: nothing crosses one.
    wanted = _distinct(address) * lanes.width_bytes
    return np.stack(
        [
            wanted > 0,
            _distinct(address // sector_bytes),
            _distinct(address // line_bytes),
            -(-wanted // sector_bytes),
            np.count_nonzero(active, axis=1) * lanes.width_bytes,
        ]
    ).astype(np.int64)


def _sum(of_each: np.ndarray, times: np.ndarray | int = 1) -> Traffic:
    return Traffic(*(int(total) for total in (of_each * times).sum(axis=1)))


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
    rows = _classes(access.rows, extents, shape[0], shape[1] * size, line_bytes)
    columns = _classes(access.columns, extents, shape[1], size, line_bytes)
    # A block's class: where it begins in a line, and the elements in bounds, of every pair of a row and a column.
    begins = (rows.begins[:, None] + columns.begins) % line_bytes
    pairs = [np.broadcast_to(part, begins.shape) for part in (begins, rows.inside[:, None], columns.inside)]
    keys = (pairs[0] * (access.rows.block + 1) + pairs[1]) * (access.columns.block + 1) + pairs[2]
    _, where, which = np.unique(keys, return_index=True, return_inverse=True)
    counts = np.zeros(len(where), dtype=np.int64)
    np.add.at(counts, which.ravel(), np.multiply.outer(rows.count, columns.count).ravel())
    total = NOTHING
    for place, count in zip(where, counts, strict=True):
        row, column = divmod(int(place), len(columns.begins))
        total = total.plus(one((int(rows.start[row]), int(columns.start[column]))).times(int(count)))
    outer = math.prod(extents[i] for i in access.over if i not in (access.rows.index, access.columns.index))
    return total.times(outer)


@dataclass(frozen=True)
class _Classes:
    """Classes of an axis' blocks, an int64 array each.

    Attributes:
        begins: the bytes from a line's start to the block's.
        inside: elements in bounds.
        start: the first element of one of them.
        count: how many there are.
    """

    begins: np.ndarray
    inside: np.ndarray
    start: np.ndarray
    count: np.ndarray


def _classes(axis: Axis, extents: dict[str, int], length: int, pitch_bytes: int, line_bytes: int) -> _Classes:
    starts = axis.start(np.arange(extents[axis.index], dtype=np.int64), axis.block)
    keys = np.stack([starts * pitch_bytes % line_bytes, np.clip(length - starts, 0, axis.block)])
    (begins, inside), where, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
    return _Classes(begins, inside, starts[where], counts)


def over_runs(
    access: FlatAccess,
    shape: tuple[int, int],
    size: int,
    block: int,
    lanes: Requests,
    sector_bytes: int = SECTOR_BYTES,
    line_bytes: int = LINE_BYTES,
) -> Traffic:
    """The cost of all runs of a launch: one follows the other, and the last one is truncated by the tensor's end.

    Requests fall into classes, too: those that begin at the same place in a line, as far from where the run goes round
    the matrix, and from its end. As many elements on as fill whole lines on the way, everything repeats one line (or
    row of lines) further, so that one such period is looked at, and what is left after the last whole one.

    Args:
        shape: rows and columns of the tensor as it is stored.
        size: bytes of an element.
        block: elements of a run.
        lanes: the first run, in a tensor of one long row: `column` is the place of each lane in the run, `active`
            whether it takes part.
    """
    length = math.prod(shape)
    period = math.lcm(block, (shape[0] if access.transposed else 1) * (line_bytes // size))
    whole, rest = divmod(length, period)
    total, runs = NOTHING, period // block
    first_of = lanes.column[:, 0]
    patterns = np.concatenate([lanes.column - first_of[:, None], lanes.active], axis=1)
    different, which = np.unique(patterns, axis=0, return_inverse=True)
    for number, pattern in enumerate(different):
        offset, takes_part = pattern[: len(pattern) // 2], pattern[len(pattern) // 2 :] > 0
        begins = first_of[which.ravel() == number]
        for first, count, times in ((0, runs, whole), (whole * runs, -(-rest // block), 1)):
            if not (times and count):
                continue
            place = ((first + np.arange(count, dtype=np.int64))[:, None] * block + begins).ravel()
            keys = _run_keys(access, shape, size, line_bytes, place, int(offset.max()) + 1)
            # Few different numbers among very many: without sorting.
            counts = np.bincount(keys)
            example = np.zeros(len(counts), dtype=np.int64)
            example[keys] = place
            met = np.flatnonzero(counts)
            row, column = of_run(access, shape, example[met][:, None] + offset)
            some = at_places(row, column, takes_part, shape, size, lanes.width_bytes)
            total = total.plus(_sum(_of_each(some, sector_bytes, line_bytes), counts[met]).times(times))
    return total


def _run_keys(
    access: FlatAccess, shape: tuple[int, int], size: int, line_bytes: int, place: np.ndarray, span: int
) -> np.ndarray:
    """A number for each request that begins at a place: those of one number cost the same.

    Args:
        span: elements from a request's first to its last.
    """
    row, column = of_run(access, shape, place)
    start = (row * shape[1] + column) * size % line_bytes
    before_end = np.clip(math.prod(shape) - place, 0, span)
    if not access.transposed:
        return start * (span + 1) + before_end
    # Where the run has gone down a column of the tensor it goes on at the top of the next.
    before_turn = np.minimum(shape[0] - row, span) if shape[0] >= span else row
    return (start * (span + 1) + before_end) * (span + 1) + before_turn


def of_run(access: FlatAccess, shape: tuple[int, int], place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the elements that a run counts as `place`; past the tensor's end, outside of it."""
    if access.transposed:
        column, row = np.divmod(place, shape[0])
    else:
        row, column = np.divmod(place, shape[1])
    return row, column
