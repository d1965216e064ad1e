"""Requests, sectors and lines of each memory operation: the textbook model.

Textbook: lane i of a warp takes element i of the tile, row-major in the tensor that the operation addresses. What
the compiler really chooses (layout, width) is left out here; so are the caches behind the L1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels.knobs import ConfigError, checked_fields, knob, powers
from kernels.spec import DTYPE_BYTES, Access, Axis, FlatAccess, Kernel, Launch


@dataclass(frozen=True)
class Textbook:
    """The blackboard's machine. A real GPU has 32 lanes, lines of 128 bytes, and sectors of 32."""

    warp_size: int = knob(32, "Blackboard", "Lanes of a warp.", choices=powers(2, 64))
    line_bytes: int = knob(128, "Blackboard", "Bytes of a cache line.", choices=powers(8, 512))
    element_bytes: str = knob(
        "dtype", "Blackboard", "Bytes of an element; dtype takes the problem's.",
        choices=("dtype", "1", "2", "4", "8", "16"),
    )  # fmt: skip
    lanes: str = knob(
        "tile", "Blackboard",
        "tile: lane i takes element i of the addressed tile. loaded: the lane that loaded an element stores it.",
        choices=("tile", "loaded"),
    )  # fmt: skip

    @property
    def sector_bytes(self) -> int:
        """A line has four sectors of 32 bytes on a GPU; the small lines of a blackboard have one."""
        return min(32, self.line_bytes)

    def bytes_of(self, dtype: str) -> int:
        size = DTYPE_BYTES[dtype] if self.element_bytes == "dtype" else int(self.element_bytes)
        if size > self.line_bytes:
            raise ConfigError(
                "out_of_range",
                f"element_bytes is {size}; an element must fit in a line of {self.line_bytes} bytes.",
                "element_bytes",
            )
        return size


def textbook(options: object) -> Textbook:
    """A blackboard from JSON: any of its fields, or None for a GPU's own numbers."""
    if options is None:
        return Textbook()
    if not isinstance(options, Mapping):
        raise ConfigError("not_an_object", f"The textbook options are {options!r}; they must be a JSON object.")
    return checked_fields(Textbook, options, "the textbook")


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
    """One execution of an operation, lane by lane, in the order in which the warps take the tile.

    Attributes:
        row, column: (lanes,) int64, the element of the tensor that each lane addresses.
        address: (lanes,) int64, its first byte from the tensor's start.
        active: (lanes,) bool, inside the tensor.
        request: (lanes,) int64, the warp request that moves it.
        width_bytes: bytes a lane moves.
    """

    row: np.ndarray
    column: np.ndarray
    address: np.ndarray
    active: np.ndarray
    request: np.ndarray
    width_bytes: int


def requests(
    access: Access | FlatAccess, shape: tuple[int, int], first: tuple[int, ...], size: int, board: Textbook
) -> Requests:
    """Give every element of one block, or of one run, to a lane.

    Args:
        shape: rows and columns of the tensor as it is stored, row-major, its start aligned to a line.
        first: row and column of the block's first element; of a run the number of its first element.
        size: bytes of an element.
    """
    element = np.arange(access.elements, dtype=np.int64)
    if isinstance(access, FlatAccess):
        row, column = _of_run(access, shape, first[0] + element)
    else:
        rows, columns = access.rows.block, access.columns.block
        if access.turned and board.lanes == "loaded":
            row, column = element % rows, element // rows
        else:
            row, column = element // columns, element % columns
        row, column = row + first[0], column + first[1]
    return Requests(
        row=row,
        column=column,
        address=(row * shape[1] + column) * size,
        active=(row < shape[0]) & (column < shape[1]),
        request=element // board.warp_size,
        width_bytes=size,
    )


def _of_run(access: FlatAccess, shape: tuple[int, int], place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the elements that a run counts as `place`; past the tensor's end, outside of it."""
    if access.turned:
        column, row = np.divmod(place, shape[0])
    else:
        row, column = np.divmod(place, shape[1])
    return row, column


def traffic(lanes: Requests, board: Textbook) -> Traffic:
    """Count one execution. A request with no active lane is not issued."""
    request, address = lanes.request[lanes.active], lanes.address[lanes.active]
    sector = address // board.sector_bytes
    # Elements are powers of two, aligned to themselves, and no larger than a sector: none crosses one.
    wanted = np.bincount(request) * lanes.width_bytes
    return Traffic(
        requests=int(np.count_nonzero(wanted)),
        sectors=_distinct(request, sector),
        lines=_distinct(request, address // board.line_bytes),
        ideal_sectors=int((-(-wanted // board.sector_bytes)).sum()),
        bytes_wanted=int(wanted.sum()),
    )


def _distinct(request: np.ndarray, unit: np.ndarray) -> int:
    """Distinct units of each request, summed over requests."""
    if not len(request):
        return 0
    return len(np.unique(request * (int(unit.max()) + 1) + unit))


@dataclass(frozen=True)
class Operation:
    """One memory operation: its cost over the whole launch, and of one execution, on the first tile."""

    access: Access | FlatAccess
    width_bytes: int
    launch: Traffic
    tile: Traffic


def operations(kernel: Kernel, launch: Launch, board: Textbook) -> tuple[Operation, ...]:
    """Count every operation of a launch.

    A launch has many programs but few classes of them: blocks that begin at the same place in a line, with as much of
    them in bounds, cost the same. One of each class is counted and multiplied.
    """
    size = board.bytes_of(launch.problem.dtype)
    extents = kernel.extents(launch)
    tensors = kernel.family.tensors(launch.problem)
    counted = []
    for access in kernel.accesses(launch):
        shape = tensors[access.tensor].stored
        if isinstance(access, FlatAccess):
            total = _traffic_of_runs(access, shape, size, board)
            first = traffic(requests(access, shape, (0,), size, board), board)
        else:
            outer = math.prod(extents[i] for i in access.over if i not in (access.rows.index, access.columns.index))
            total = _traffic_of_blocks(access, shape, extents, size, board).times(outer)
            start = tuple(int(axis.start(0, axis.block)) for axis in (access.rows, access.columns))
            first = traffic(requests(access, shape, start, size, board), board)
        counted.append(Operation(access, size, total, first))
    return tuple(counted)


def _traffic_of_blocks(
    access: Access, shape: tuple[int, int], extents: dict[str, int], size: int, board: Textbook
) -> Traffic:
    row_classes = _classes(access.rows, extents, shape[0], shape[1] * size, board.line_bytes)
    column_classes = _classes(access.columns, extents, shape[1], size, board.line_bytes)
    total = NOTHING
    seen: dict[tuple[int, int, int], Traffic] = {}
    for row_key, (row, row_count) in row_classes.items():
        for column_key, (column, column_count) in column_classes.items():
            key = ((row_key[0] + column_key[0]) % board.line_bytes, row_key[1], column_key[1])
            if key not in seen:
                seen[key] = traffic(requests(access, shape, (row, column), size, board), board)
            total = total.plus(seen[key].times(row_count * column_count))
    return total


def _traffic_of_runs(access: FlatAccess, shape: tuple[int, int], size: int, board: Textbook) -> Traffic:
    """Count all runs of a launch, request by request: one run follows the other, so requests do.

    As many elements on as fill whole lines on the way, everything repeats one line (or row of lines) further. So only
    the requests of one such period are counted, and the last ones, which the tensor's end may cut.
    """
    length = math.prod(shape)
    lanes = min(board.warp_size, access.run.block)
    elements_a_line = board.line_bytes // size
    period = math.lcm(lanes, (shape[0] if access.turned else 1) * elements_a_line)
    rest = length % period or period
    total = NOTHING
    for first, count, times in ((0, period, (length - rest) // period), (length - rest, rest, 1)):
        if times:
            place = first + np.arange(count, dtype=np.int64)
            row, column = _of_run(access, shape, place)
            address = (row * shape[1] + column) * size
            one = Requests(row, column, address, np.ones(count, dtype=bool), (place - first) // lanes, size)
            total = total.plus(traffic(one, board).times(times))
    return total


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
