"""Lay out requests on memory: the lines and sectors that each touches, and the bytes that each lane accesses."""

from dataclasses import dataclass

import numpy as np
from numpy import ndarray

from tilescope.evaluate.declared import Requests

# State of a cell: past the tensor's end; in a sector that is not fetched; fetched, but accessed by no lane; accessed.
ABSENT, UNTOUCHED, WASTED, USED = range(4)
# Maximum number of rows per request.
MOST_LINES = 64


@dataclass(frozen=True)
class RequestLines:
    """Requests of one execution on the lines that they touch. A cell is as wide as a lane's access.

    Attributes:
        number: (requests,) int64, index of each request in the execution.
        line: (requests, rows) int64, line numbers from the tensor's start, ascending: touched lines, then the following
            lines while there are free rows; -1 past the tensor's end.
        state: (requests, rows, cells) uint8: ABSENT, UNTOUCHED, WASTED or USED.
        lane: (requests, rows, cells) int64, the first lane that accesses these bytes; -1 for none.
        lines, sectors: (requests,) int64, number of lines and sectors that each request touches, including lines
            without a row. A block copied by descriptor may cost more sectors than it touches.
        used_bytes: (requests,) int64, distinct bytes that its lanes access.
    """

    number: ndarray
    line: ndarray
    state: ndarray
    lane: ndarray
    lines: ndarray
    sectors: ndarray
    used_bytes: ndarray
    cell_bytes: int
    sector_bytes: int
    line_bytes: int

    @property
    def rows(self) -> int:
        return self.line.shape[1]

    @property
    def cells(self) -> int:
        """Number of cells per line."""
        return self.line_bytes // self.cell_bytes


def request_lines(lanes: Requests, numbers: ndarray, fewest_rows: int) -> RequestLines:
    """Lay requests out on the lines that they touch.

    A request has `fewest_rows` to MOST_LINES rows. If it touches more lines, the lowest addresses are kept. A tensor of
    at most MOST_LINES lines is laid out from its start to the last line that any of the requests touches.

    Args:
        numbers: (requests,) int64, indices of requests in the execution. Duplicates are allowed.
    """
    matrix = lanes.matrix
    width = lanes.width_bytes
    count = len(numbers)
    line_bytes = matrix.line_bytes
    request, lane = np.nonzero(lanes.active[numbers])
    # If several lanes access the same bytes, the first lane is written last, so it is shown.
    request = request[::-1]
    lane = lane[::-1]
    address = lanes.address[numbers][request, lane]
    units = line_bytes, matrix.sector_bytes, width
    lines, sectors, wanted = (
        np.bincount(_touched(request, address, unit)[0], minlength=count) for unit in units
    )
    line, row = _place_lines(lanes, request, address, lines, fewest_rows)
    rows = line.shape[1]
    has_row = row < rows
    cell = address % line_bytes // width
    holder = np.full((count, rows, line_bytes // width), -1, dtype=np.int64)
    holder[request[has_row], row[has_row], cell[has_row]] = lane[has_row]
    return RequestLines(
        number=numbers,
        line=line,
        state=_cell_states(line, holder, matrix.sector_bytes // width),
        lane=holder,
        lines=lines,
        sectors=sectors,
        used_bytes=wanted * width,
        cell_bytes=width,
        sector_bytes=matrix.sector_bytes,
        line_bytes=line_bytes,
    )


def _touched(
    request: ndarray, address: ndarray, unit_bytes: int
) -> tuple[ndarray, ndarray, ndarray]:
    """Number the touched units by request, then address.

    Returns:
        The request and the number (from the tensor's start) of each touched unit, and the unit of each access.
    """
    span = int(address.max(initial=0)) // unit_bytes + 1
    units, unit_of = np.unique(request * span + address // unit_bytes, return_inverse=True)
    return *np.divmod(units, span), unit_of.ravel()


def _place_lines(
    lanes: Requests, request: ndarray, address: ndarray, lines: ndarray, fewest_rows: int
) -> tuple[ndarray, ndarray]:
    """Return the line in each row of each request, (requests, rows), and the row of each access.

    Args:
        lines: (requests,) int64, number of lines that each request touches.
    """
    matrix = lanes.matrix
    count = len(lines)
    existing = -(-matrix.rows * matrix.columns * matrix.element_bytes // matrix.line_bytes)
    owner, touched, line_of = _touched(request, address, matrix.line_bytes)
    if existing <= MOST_LINES:
        rows = max(fewest_rows, 1 + int(touched.max(initial=0)))
        row = touched
        line = np.broadcast_to(np.arange(rows), (count, rows))
    else:
        rows = max(fewest_rows, min(MOST_LINES, int(lines.max(initial=0))))
        row = np.arange(len(owner)) - np.searchsorted(owner, owner)
        kept = row < rows
        line = np.full((count, rows), -1, dtype=np.int64)
        line[owner[kept], row[kept]] = touched[kept]
        # Free rows show the lines after the last touched line.
        free = line.max(axis=1)[:, None] + np.arange(1, rows + 1) - lines[:, None]
        line = np.where(line < 0, free, line)
    return np.where(line < existing, line, -1), row[line_of]


def _cell_states(line: ndarray, holder: ndarray, cells_per_sector: int) -> ndarray:
    """Return the state of each cell: (requests, rows, cells) uint8.

    Args:
        holder: (requests, rows, cells) int64, the lane that accesses the cell, or -1.
    """
    is_used = holder >= 0
    by_sector = is_used.reshape(*line.shape, -1, cells_per_sector)
    is_fetched = np.repeat(by_sector.any(axis=3), cells_per_sector, axis=2)
    state = np.where(line[:, :, None] < 0, ABSENT, UNTOUCHED + is_fetched + is_used)
    return state.astype(np.uint8)


def matching_requests(leader: Requests, numbers: ndarray, follower: Requests) -> ndarray:
    """Return the follower's request that moves the first element of each leader request: (requests,) int64.

    Args:
        numbers: (requests,) int64, the leader's requests. For a request with no active lane, its first lane counts.
    """
    at = numbers, leader.active[numbers].argmax(axis=1)
    element = leader.address[at] // leader.matrix.element_bytes
    places = follower.address // follower.matrix.element_bytes
    places = np.where(follower.active, places, -1).ravel()
    # Each lane moves consecutive elements, so an element belongs to the lane with the last start at or before it.
    starts, where = np.unique(places, return_index=True)
    lane = np.clip(np.searchsorted(starts, element, side="right") - 1, 0, None)
    return np.asarray(where[lane] // follower.address.shape[1])
