"""Requests on memory as it is: the lines that each touches, their sectors, and which lane wants which bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from visualize.predict.traffic import LINE_BYTES, SECTOR_BYTES, Requests

# What a cell of a row holds. No memory; bytes of a sector that is not moved; of one that is, which no lane wants; bytes
# that a lane wants.
ABSENT, UNTOUCHED, WASTED, WANTED = range(4)


@dataclass(frozen=True)
class RequestLines:
    """Requests of one execution on the lines that they touch. A cell holds the bytes that a lane moves.

    Attributes:
        number: (requests,) int64, what they are numbered in the execution.
        line: (requests, rows) int64, line numbers from the tensor's start, ascending: those that are touched, and the
            next ones where there is room; -1 past the tensor's end.
        state: (requests, rows, cells) uint8: ABSENT, UNTOUCHED, WASTED or WANTED.
        lane: (requests, rows, cells) int64, the first lane that wants these bytes; -1 where none does.
        lines, sectors: (requests,) int64, how many each touches, those included that have no row here. A block that is
            copied by descriptor may take more sectors than it touches.
        wanted_bytes: (requests,) int64, the distinct bytes that its lanes want.
    """

    number: np.ndarray
    line: np.ndarray
    state: np.ndarray
    lane: np.ndarray
    lines: np.ndarray
    sectors: np.ndarray
    wanted_bytes: np.ndarray
    cell_bytes: int
    sector_bytes: int
    line_bytes: int

    @property
    def rows(self) -> int:
        return self.line.shape[1]

    @property
    def cells(self) -> int:
        """Cells of a line."""
        return self.line_bytes // self.cell_bytes


def request_lines(
    lanes: Requests,
    numbers: np.ndarray,
    rows_allowed: tuple[int, int],
    tensor_bytes: int,
    sector_bytes: int = SECTOR_BYTES,
    line_bytes: int = LINE_BYTES,
) -> RequestLines:
    """Lay requests on the lines that they touch.

    Args:
        numbers: (requests,) int64, which requests of the execution; one may stand there several times.
        rows_allowed: the fewest and the most lines of a request; if it touches more, those with the lowest addresses.
            A tensor of no more lines than the most is laid out whole.
        tensor_bytes: where the tensor ends.
    """
    active, width = lanes.active[numbers], lanes.width_bytes
    request, lane = np.nonzero(active)
    # Of several lanes that want the same bytes, the first stands for all: the last that is written.
    request, lane = request[::-1], lane[::-1]
    address = lanes.address[numbers][request, lane]
    span = int(address.max(initial=0)) // line_bytes + 1
    keys, which = np.unique(request * span + address // line_bytes, return_inverse=True)
    owner = keys // span
    touched = np.bincount(owner, minlength=len(numbers))
    fewest, most = rows_allowed
    existing = -(-tensor_bytes // line_bytes)
    if existing <= most:
        rows, row_of = max(fewest, existing), keys % span
        line = np.broadcast_to(np.arange(rows), (len(numbers), rows)).copy()
    else:
        rows = max(fewest, min(most, int(touched.max(initial=0))))
        row_of = np.arange(len(keys)) - np.searchsorted(owner, owner)
        kept = row_of < rows
        line = np.full((len(numbers), rows), -1, dtype=np.int64)
        line[owner[kept], row_of[kept]] = keys[kept] % span
        # The lines after the last one that is touched, where there is room for some.
        line = np.where(line < 0, line.max(axis=1)[:, None] + np.arange(1, rows + 1) - touched[:, None], line)
    line = np.where(line < existing, line, -1)
    cells, per_sector = line_bytes // width, sector_bytes // width

    row, cell = row_of[which.ravel()], address % line_bytes // width
    drawn = row < rows
    place = request[drawn], row[drawn], cell[drawn]
    holder = np.full((len(numbers), rows, cells), -1, dtype=np.int64)
    holder[place] = lane[drawn]
    wanted = holder >= 0
    sectors = wanted.reshape(len(numbers), rows, -1, per_sector).any(axis=3)
    fetched = np.repeat(sectors, per_sector, axis=2)

    def distinct(unit: int) -> np.ndarray:
        """How many units each request touches."""
        units = np.unique(request * (span * line_bytes) + address // unit * unit)
        return np.bincount(units // (span * line_bytes), minlength=len(numbers))

    return RequestLines(
        number=numbers,
        line=line,
        state=(fetched.astype(np.uint8) + wanted + 1) * (line >= 0)[:, :, None].astype(np.uint8),
        lane=holder,
        lines=touched,
        sectors=distinct(sector_bytes),
        wanted_bytes=distinct(width) * width,
        cell_bytes=width,
        sector_bytes=sector_bytes,
        line_bytes=line_bytes,
    )


def same_place(leader: Requests, numbers: np.ndarray, follower: Requests, columns: int) -> np.ndarray:
    """The follower's request that moves the first element of each of the leader's: (requests,) int64.

    Args:
        numbers: (requests,) int64, requests of the leader. One without an active lane takes its first lane's element.
        columns: of the tensor that both address.
    """
    first = leader.active[numbers].argmax(axis=1)
    at = numbers, first
    element = leader.row[at] * columns + leader.column[at]
    places = np.where(follower.active, follower.row * columns + follower.column, -1).ravel()
    # Each lane moves some elements from its first on: the lane that moves one is the last that begins no later.
    begins, where = np.unique(places, return_index=True)
    found = np.clip(np.searchsorted(begins, element, side="right") - 1, 0, None)
    number: np.ndarray = where[found] // follower.row.shape[1]
    return number
