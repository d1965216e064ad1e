"""The cost of memory operations: requests, sectors and lines of a tile and of a launch; wavefronts of shared memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy import ndarray

from kernels.accesses import MemoryOperation, SharedOperation, expand_bases
from kernels.sectors import LINE_BYTES, SECTOR_BYTES, count_requests
from kernels.spec import Access, FlatAccess

# Shared memory has 32 banks of 4 bytes, each of which serves one word per wavefront. Any number of lanes may share a
# word (CUDA C++ Programming Guide 13.0, "Shared Memory"). Wider accesses are split into parts of 128 bytes: half a warp
# at 8 bytes per lane, a quarter warp at 16, or the 8 rows of 16 bytes of a matrix.
_BANKS = 32
_WORD_BYTES = 4
_LANES = 32
_WAVEFRONT_BYTES = _BANKS * _WORD_BYTES


@dataclass(frozen=True)
class Cost:
    """Cost of a memory operation over one tile or the whole launch, predicted or counted.

    Attributes:
        requests: warp-wide instructions with at least one active lane; 0 for descriptor (TMA) copies.
        sectors: as the launch's hardware counter counts them.
        lines: 128-byte lines per request, summed; for descriptor copies, lines per box row.
        ideal_sectors: each request's distinct bytes / sector size, rounded up, summed.
        bytes_wanted: bytes of all active lanes, duplicates included.
        extra_sectors: sectors counted beyond those that requests touch. A descriptor load also counts sectors past the
            tensor's edge. For a copy that bypasses L1, see `count_bypassing`; the number may be negative.
        repeated_sectors: sectors that Nsight Compute counts repeatedly for one instruction: for a copy that bypasses
            L1, sectors that several pairs of lanes touch.
        executed: counted warp instructions, including those without an active lane; 0 if predicted.
        has_requests: false if the request counter also includes other operations; `requests` is then 0.
        is_lower_bound: whether the cost omits retries of an atomic's compare-and-swap loop.
        opcodes: counted SASS opcodes; empty if predicted.
        agreement: how a counted cost agrees with the prediction for the counted code; see `agreement.agreement`.
    """

    requests: int
    sectors: int
    lines: int
    ideal_sectors: int
    bytes_wanted: int = 0
    extra_sectors: int = 0
    repeated_sectors: int = 0
    executed: int = 0
    sector_bytes: int = SECTOR_BYTES
    has_requests: bool = True
    is_lower_bound: bool = False
    opcodes: tuple[str, ...] = ()
    agreement: str = ""

    @property
    def touched_sectors(self) -> int:
        """The number of distinct sectors of each request or box row, summed."""
        return self.sectors - self.extra_sectors

    @property
    def wasted_sectors(self) -> int:
        return self.sectors - self.ideal_sectors

    @property
    def efficiency(self) -> float:
        """ideal_sectors / sectors, 0 to 1."""
        return self.ideal_sectors / self.sectors if self.sectors else 1.0

    def __add__(self, other: Cost) -> Cost:
        return replace(
            self,
            **{name: getattr(self, name) + getattr(other, name) for name in (*_AMOUNTS, "opcodes")},
            sector_bytes=other.sector_bytes,
            has_requests=self.has_requests and other.has_requests,
            is_lower_bound=self.is_lower_bound or other.is_lower_bound,
        )

    def __mul__(self, count: int) -> Cost:
        return replace(self, **{name: getattr(self, name) * count for name in _AMOUNTS})


# The additive fields: all from `requests` to `executed`.
_AMOUNTS = tuple(field.name for field in fields(Cost))[:8]
NO_COST = Cost(0, 0, 0, 0)


@dataclass(frozen=True)
class Operation:
    """One memory operation of a launch, and its cost.

    Attributes:
        number: index into the kernel's accesses. A compare-and-swap atomic has two operations: load and loop.
        width_bytes: bytes that a lane moves with one instruction; 0 for a descriptor copy.
        launch, tile: cost of the whole launch, and of one execution on the first tile.
        compiled: layout and instruction as compiled; None for the textbook model.
    """

    number: int
    access: Access | FlatAccess
    width_bytes: int
    launch: Cost
    tile: Cost
    compiled: MemoryOperation | None = None

    @property
    def is_box(self) -> bool:
        """Whether the operation was compiled to a tensor-descriptor (TMA) copy, which no lane issues."""
        return self.compiled is not None and self.compiled.layout is None


@dataclass(frozen=True)
class Requests:
    """Warp requests of one or several executions of an operation, lane by lane.

    Attributes:
        row, column: (requests, lanes) int64, first element that each lane addresses.
        address: (requests, lanes) int64, first byte of each lane, from the tensor's start.
        active: (requests, lanes) bool, lanes that issue the access and are inside the tensor.
        width_bytes: bytes per lane.
        matrix: the tensor that the requests address.
    """

    row: ndarray
    column: ndarray
    address: ndarray
    active: ndarray
    width_bytes: int
    matrix: Matrix


@dataclass(frozen=True)
class Matrix:
    """A tensor as stored: row-major, its start aligned to a line. Requests to it cost whole sectors and lines."""

    rows: int
    columns: int
    element_bytes: int
    sector_bytes: int = SECTOR_BYTES
    line_bytes: int = LINE_BYTES

    def requests(self, row: ndarray, column: ndarray, owner: ndarray | bool, width_bytes: int) -> Requests:
        """Return requests for elements, masked at the matrix's edges.

        Args:
            owner: whether each lane issues the access.
        """
        active = owner & (row < self.rows) & (column < self.columns)
        address = (row * self.columns + column) * self.element_bytes
        return Requests(row, column, address, active, width_bytes, self)

    def run_elements(self, access: FlatAccess, place: ndarray) -> tuple[ndarray, ndarray]:
        """Return the row and column of a run's elements. Elements past the end get positions outside the matrix."""
        if access.transposed:
            column, row = np.divmod(place, self.rows)
            return row, column
        return np.divmod(place, self.columns)


# The block's first element, (row, column), or (element,) for a run.
First = tuple[int, ...]
RequestsAt = Callable[[Access | FlatAccess, Matrix, First], Requests]
CostOf = Callable[[Requests], Cost]


@dataclass(frozen=True)
class Tile:
    """One execution, element by element, for a picture. Arrays are flat, of equal length, and int64 except `active`.

    If several lanes hold an element, only its owner is listed.

    Attributes:
        row, column: position in the tensor.
        address: first byte, from the tensor's start.
        active: bool, whether the element is inside the tensor.
        request: index of the warp request that moves it.
        warp, lane, register: where the element is held.
    """

    row: ndarray
    column: ndarray
    address: ndarray
    active: ndarray
    request: ndarray
    warp: ndarray
    lane: ndarray
    register: ndarray


def count(lanes: Requests, times: ndarray | int = 1, instruction: str = "") -> Cost:
    """Count requests, and the sectors and lines of each. A request with no active lane is not issued.

    Args:
        times: (requests,) number of times that each request is issued.
        instruction: as for `count_requests`.
    """
    sector_bytes = lanes.matrix.sector_bytes
    line_bytes = lanes.matrix.line_bytes
    parts = lanes.address, lanes.active, lanes.width_bytes, instruction, sector_bytes, line_bytes
    counts = count_requests(*parts)
    by_lanes = np.count_nonzero(lanes.active, axis=1) * lanes.width_bytes
    amounts = (int((part * times).sum()) for part in (*counts.T, by_lanes))
    requests, sectors, lines, ideal_sectors, wanted = amounts
    return Cost(requests, sectors, lines, ideal_sectors, wanted, sector_bytes=sector_bytes)


def count_bypassing(lanes: Requests) -> Cost:
    """Count requests of 16-byte copies that bypass L1 (LDGSTS.BYPASS) as the hardware's sector counter does.

    Nsight Compute's count of the instruction counts the sectors of each pair of lanes 2i and 2i + 1. Both counts equal
    the touched sectors unless rows begin inside a sector, which float8 rows may. Four recorded launches have such rows;
    two were counted again (tests/oracle/load_sectors.csv).
    """
    touched = count(lanes)
    pairs = count(replace(lanes, address=lanes.address.reshape(-1, 2), active=lanes.active.reshape(-1, 2)))
    sectors = count(lanes, instruction="cp.async.cg").sectors
    repeated = pairs.sectors - touched.sectors
    extra = sectors - touched.sectors
    return replace(touched, sectors=sectors, extra_sectors=extra, repeated_sectors=repeated)


def count_access(
    access: Access | FlatAccess, matrix: Matrix, extents: dict[str, int], requests_at: RequestsAt, cost_of: CostOf
) -> tuple[Cost, Cost]:
    """Return the cost of all executions of an access in a launch, and of the first one.

    Args:
        extents: number of values of each index of the launch.
        requests_at: (access, matrix, first) → requests of the block or run that begins there.
        cost_of: requests → their cost.
    """

    def cost_at(first: First) -> Cost:
        return cost_of(requests_at(access, matrix, first))

    if isinstance(access, FlatAccess):
        alone = replace(matrix, rows=1, columns=access.run.block)
        first_run = requests_at(replace(access, transposed=False), alone, (0,))
        return _count_runs(access, matrix, first_run), cost_at((0,))
    first = tuple(int(axis.start(0, axis.block)) for axis in (access.rows, access.columns))
    return _count_blocks(access, matrix, extents, cost_at), cost_at(first)


def _count_blocks(access: Access, matrix: Matrix, extents: dict[str, int], cost_at: Callable[[First], Cost]) -> Cost:
    """Count one block per program class and multiply.

    A launch has many programs but few program classes. Blocks with the same offset in a line and the same in-bounds
    size have the same cost.
    """
    sides = []
    line_bytes = matrix.line_bytes
    for axis, length, pitch in ((access.rows, matrix.rows, matrix.columns), (access.columns, matrix.columns, 1)):
        starts = axis.start(np.arange(extents[axis.index], dtype=np.int64), axis.block)
        keys = np.stack([starts * pitch * matrix.element_bytes % line_bytes, np.clip(length - starts, 0, axis.block)])
        (offsets, inside), where, counts = np.unique(keys, axis=1, return_index=True, return_counts=True)
        sides.append(list(zip(*(part.tolist() for part in (offsets, inside, starts[where], counts)), strict=True)))
    total = NO_COST
    costs = dict[tuple[int, int, int], Cost]()
    for row, column in itertools.product(*sides):
        key = (row[0] + column[0]) % line_bytes, row[1], column[1]
        if key not in costs:
            costs[key] = cost_at((row[2], column[2]))
        total += costs[key] * (row[3] * column[3])
    return total * math.prod(extents[i] for i in access.over if i not in (access.rows.index, access.columns.index))


def _count_runs(access: FlatAccess, matrix: Matrix, lanes: Requests) -> Cost:
    """Count all runs of a launch. Runs are consecutive, and the tensor's end truncates the last run.

    Requests also fall into classes: requests with the same offset in a line, the same distance to the next wrap around
    the matrix, and the same distance to its end have the same cost. The pattern repeats with a period that fills whole
    lines. So the function examines only one period, and the remainder after the last full period.

    Args:
        lanes: the first run in a tensor of one long row: `column` is each lane's element, `active` whether it issues.
    """
    rows = matrix.rows
    length = rows * matrix.columns
    block = access.run.block
    line_elements = matrix.line_bytes // matrix.element_bytes
    first_of = lanes.column[:, 0]
    offsets = np.concatenate([lanes.column - first_of[:, None], lanes.active], axis=1)
    patterns, pattern_of = np.unique(offsets, axis=0, return_inverse=True)
    step = max(1, block // len(first_of))
    if len(patterns) == 1 and np.array_equal(np.sort(first_of), np.arange(0, block, step)):
        # A run of equal, adjacent requests costs the same as separate runs of one request, whose period is shorter.
        block = step
        first_of = np.zeros(1, np.int64)
        pattern_of = pattern_of[:1]
    period = math.lcm(block, (rows if access.transposed else 1) * line_elements)
    whole, rest = divmod(length, period)
    total = NO_COST
    runs = period // block
    offset, owner = np.split(patterns, 2, axis=1)
    span = int(offset.max()) + 1
    for first, count_of_runs, times in ((0, min(whole, 1) * runs, whole), (whole * runs, -(-rest // block), 1)):
        place = ((first + np.arange(count_of_runs, dtype=np.int64))[:, None] * block + first_of).ravel()
        row, column = matrix.run_elements(access, place)
        keys = (row * matrix.columns + column) % line_elements * (span + 1) + np.clip(length - place, 0, span)
        if access.transposed:  # below the last row of the tensor, the run continues at the top of the next column
            turn = np.minimum(rows - row, span) if rows >= span else row
            keys = keys * (span + 1) + turn
        keys = keys * len(patterns) + np.tile(pattern_of.ravel(), count_of_runs)
        # There are few distinct keys among very many places, and bincount needs no sorting.
        counts = np.bincount(keys)
        example = np.zeros(len(counts), dtype=np.int64)
        example[keys] = place
        used = np.flatnonzero(counts)
        row, column = matrix.run_elements(access, example[used][:, None] + offset[used % len(patterns)])
        is_owner = owner[used % len(patterns)] > 0
        requests = matrix.requests(row, column, is_owner, lanes.width_bytes)
        total += count(requests, counts[used]) * times
    return total


def wavefronts(operation: SharedOperation) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over the warps."""
    address = expand_bases(operation.warp, 1) ^ expand_bases(operation.lane, 1).T
    lanes_at_once = min(_LANES, _WAVEFRONT_BYTES // max(operation.width_bytes, _WORD_BYTES))
    parts = address.reshape(-1, lanes_at_once, 1) + np.arange(0, operation.width_bytes, _WORD_BYTES)
    total = sum(int(np.bincount(np.unique(part // _WORD_BYTES) % _BANKS).max()) for part in parts)
    return total / len(address), len(parts) / len(address)  # without conflicts: at most as many words as banks


def wavefronts_per_instruction(operations: Iterable[SharedOperation]) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over operations."""
    counts, passes = zip(*((operation.count, wavefronts(operation)) for operation in operations), strict=True)
    total, ideal = np.average(passes, axis=0, weights=counts).tolist()
    return total, ideal
