"""The cost of memory operations: requests, sectors and lines of a tile and of a launch; wavefronts of shared memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy import ndarray

from kernels.accesses import AnyAccess, MemoryOperation, SharedOperation, expand_bases
from kernels.sectors import LANES, LINE_BYTES, SECTOR_BYTES, SECTORS, count_padding, count_requests
from kernels.spec import Access

# Shared memory has 32 banks of 4 bytes, each of which serves one word per wavefront. Any number of lanes may share a
# word (CUDA C++ Programming Guide 13.0, "Shared Memory"). Wider accesses are split into parts of 128 bytes: half a warp
# at 8 bytes per lane, a quarter warp at 16, or the 8 rows of 16 bytes of a matrix.
_BANKS = 32
_WORD_BYTES = 4
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
    access: AnyAccess
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

    def requests(
        self, row: ndarray, column: ndarray, owner: ndarray | bool, width_bytes: int
    ) -> Requests:
        """Return requests for elements, masked at the matrix's edges.

        Args:
            owner: whether each lane issues the access.
        """
        active = owner & (row < self.rows) & (column < self.columns)
        address = (row * self.columns + column) * self.element_bytes
        return Requests(row, column, address, active, width_bytes, self)

    @property
    def line_elements(self) -> int:
        return self.line_bytes // self.element_bytes

    def locate(self, access: AnyAccess, *at: ndarray) -> tuple[ndarray, ...]:
        """Return the row and column of elements of an access. Elements past the end are outside the matrix."""
        if isinstance(access, Access):
            return at
        (element,) = at
        if access.transposed:
            column, row = np.divmod(element, self.rows)
            return row, column
        return np.divmod(element, self.columns)


# The block's first element, (row, column), or (element,) for a run.
First = Sequence[int]


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

    The hardware's sector counter counts a copy that bypasses L1 (LDGSTS.BYPASS) by its own rule: see `kernels.sectors`.
    Nsight Compute's count of the instruction counts the sectors of each pair of lanes 2i and 2i + 1. Both counts equal
    the touched sectors unless rows begin inside a sector, which float8 rows may. Four recorded launches have such rows;
    two were counted again (tests/oracle/load_sectors.csv).

    Args:
        times: (requests,) number of times that each request is issued.
        instruction: PTX instruction. Of a descriptor's copy, each box row counts as a request.
    """
    address = lanes.address
    active = lanes.active
    width = lanes.width_bytes
    sector_bytes = lanes.matrix.sector_bytes
    counts = count_requests(address, active, width, "", sector_bytes, lanes.matrix.line_bytes)
    requests, sectors, lines, ideal_sectors = counts.T
    extra = np.zeros_like(sectors)
    repeated = extra
    if instruction.startswith("cp.async.cg"):
        extra = count_requests(address, active, width, instruction)[:, SECTORS] - sectors
        pairs = count_requests(address.reshape(-1, 2), active.reshape(-1, 2), width)[:, SECTORS]
        repeated = pairs.reshape(len(sectors), -1).sum(axis=1) - sectors
    elif instruction.startswith("cp.async.bulk"):
        requests = np.zeros_like(sectors)
        if ".global.shared" not in instruction:
            extra = count_padding(active)
    used = np.count_nonzero(active, axis=1) * width
    amounts = [requests, sectors + extra, lines, ideal_sectors, used, extra, repeated]
    totals = np.sum(np.stack(amounts) * times, axis=1).tolist()
    return Cost(**dict(zip(_AMOUNTS, totals, strict=False)), sector_bytes=sector_bytes)


def wavefronts(operation: SharedOperation) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over the warps."""
    address = expand_bases(operation.warp, 1) ^ expand_bases(operation.lane, 1).T
    lanes_at_once = min(LANES, _WAVEFRONT_BYTES // max(operation.width_bytes, _WORD_BYTES))
    parts = address.reshape(-1, lanes_at_once, 1) + np.arange(0, operation.width_bytes, _WORD_BYTES)
    total = sum(int(np.bincount(np.unique(part // _WORD_BYTES) % _BANKS).max()) for part in parts)
    # Without conflicts: at most as many words as banks
    return total / len(address), len(parts) / len(address)


def wavefronts_per_instruction(operations: Iterable[SharedOperation]) -> tuple[float, float]:
    """Return the wavefronts of one warp's instruction with and without bank conflicts, averaged over operations."""
    counts, passes = zip(
        *((operation.count, wavefronts(operation)) for operation in operations), strict=True
    )
    total, ideal = np.average(passes, axis=0, weights=counts).tolist()
    return total, ideal
