"""Requests drawn on memory: the lines and sectors that each touches, and the bytes that each lane accesses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from visualize.predict.traffic import LINE_BYTES, SECTOR_BYTES, Requests

# State of a cell: past the tensor's end; in a sector that is not fetched; fetched, but accessed by no lane; accessed.
ABSENT, UNTOUCHED, WASTED, WANTED = range(4)


@dataclass(frozen=True)
class RequestLines:
    """Requests of one execution on the lines that they touch. A cell is as wide as a lane's access.

    Attributes:
        number: (requests,) int64, index of each request in the execution.
        line: (requests, rows) int64, line numbers from the tensor's start, ascending: touched lines, then the following
            ones while there are rows left; -1 past the tensor's end.
        state: (requests, rows, cells) uint8: ABSENT, UNTOUCHED, WASTED or WANTED.
        lane: (requests, rows, cells) int64, the first lane that accesses these bytes; -1 for none.
        lines, sectors: (requests,) int64, number that each touches, including those without a row here. A block copied
            by descriptor may take more sectors than it touches.
        wanted_bytes: (requests,) int64, distinct bytes that its lanes access.
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
        """Cells per line."""
        return self.line_bytes // self.cell_bytes


def request_lines(
    lanes: Requests,
    numbers: np.ndarray,
    rows_allowed: tuple[int, int],
    tensor_bytes: int,
    sector_bytes: int = SECTOR_BYTES,
    line_bytes: int = LINE_BYTES,
) -> RequestLines:
    """Lay requests out on the lines that they touch.

    Args:
        numbers: (requests,) int64, requests of the execution. Repetitions are allowed.
        rows_allowed: fewest and most lines per request. If it touches more, those with the lowest addresses are kept. A
            tensor of at most that many lines is laid out whole.
        tensor_bytes: size of the tensor.
    """
    active, width = lanes.active[numbers], lanes.width_bytes
    request, lane = np.nonzero(active)
    # If several lanes access the same bytes, the first one, written last, is shown.
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
        # Free rows show the lines after the last touched one.
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
    """Return the follower's request that moves the first element of each of the leader's: (requests,) int64.

    Args:
        numbers: (requests,) int64, requests of the leader. Without an active lane, its first lane's element is used.
        columns: of the tensor that both address.
    """
    at = numbers, leader.active[numbers].argmax(axis=1)
    element = leader.row[at] * columns + leader.column[at]
    places = np.where(follower.active, follower.row * columns + follower.column, -1).ravel()
    # Each lane moves consecutive elements, so an element belongs to the lane with the last start that is not after it.
    starts, where = np.unique(places, return_index=True)
    lane = np.clip(np.searchsorted(starts, element, side="right") - 1, 0, None)
    return np.asarray(where[lane] // follower.row.shape[1])
