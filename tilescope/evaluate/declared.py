"""Count the declared accesses of our kernels.

Layouts and widths come from the compiler or the textbook, addresses from the declarations. A request is one instruction
of one warp with at least one active lane. All warps and lanes issue loads. Only owners, i.e. lanes and warps without
replicas, issue stores, atomics and async copies. A launch has many requests, but few classes of equal cost.

An atomic without a GPU instruction is a load and a compare-and-swap loop. Only its first iteration is counted, because
the number of retries depends on values and timing.

The tensor memory accelerator (TMA) copies a descriptor's block without a request: see `tilescope.evaluate.sectors`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy import ndarray

from tilescope.declare.spec import TYPE_BYTES, Access, AnyAccess, FlatAccess, Kernel, Launch
from tilescope.evaluate.counts import RETRIES, Cost, OperationCounts, Tally
from tilescope.evaluate.instructions import MemoryInstruction
from tilescope.evaluate.sectors import (
    GRANULE_BYTES,
    LINE_BYTES,
    SECTOR_BYTES,
    box_lanes,
    count_requests,
)
from tilescope.evaluate.values import group_equal

# Maximum number of elements along each axis of a box (CUDA driver API, cuTensorMapEncodeTiled: boxDim).
_MOST_ROWS = 256

# The counter of each kind of access except boxes.
_COUNTERS = {"load": "ld", "store": "st", "atomic": "atom"}


@dataclass(frozen=True)
class Matrix:
    """A tensor as stored: row-major, its start aligned to a line. Requests to it cost whole sectors and lines."""

    rows: int
    columns: int
    element_bytes: int
    sector_bytes: int = SECTOR_BYTES
    line_bytes: int = LINE_BYTES

    @property
    def line_elements(self) -> int:
        return self.line_bytes // self.element_bytes

    def address(self, row: ndarray, column: ndarray) -> tuple[ndarray, ndarray]:
        """Return the first byte of elements, from the tensor's start, and whether they are inside the tensor."""
        inside = (row < self.rows) & (column < self.columns)
        return (row * self.columns + column) * self.element_bytes, inside


@dataclass(frozen=True)
class Requests:
    """Warp requests of one execution of an operation, lane by lane.

    Attributes:
        address: (requests, lanes) int64, first byte of each lane, from the tensor's start.
        active: (requests, lanes) bool, lanes that issue the access and are inside the tensor.
        width_bytes: bytes per lane.
        matrix: the tensor that the requests address.
    """

    address: ndarray
    active: ndarray
    width_bytes: int
    matrix: Matrix


@dataclass(frozen=True)
class AccessPattern:
    """A declared access to a matrix, as an instruction carries it out. A position has a coordinate per axis."""

    access: AnyAccess
    matrix: Matrix
    instruction: MemoryInstruction

    @cached_property
    def lanes(self) -> tuple[ndarray, ndarray]:
        """The lanes of one execution's requests, in the order of warps, then registers.

        The box rows of a descriptor's block count as requests, and 16 bytes as a lane.

        Returns:
            (axes, requests, lanes) int64, the position of each lane, and (requests, lanes) bool, participating lanes.
        """
        if self.instruction.layout is None:
            block = [axis.block for axis in self.access.axes]
            swizzle_bytes = self.instruction.swizzle_bytes
            places = box_lanes(block, self.matrix.element_bytes, swizzle_bytes)
            return places, np.ones(places.shape[1:], bool)
        places, owner = self.instruction.lanes()
        dims = [self.access.dims.index(axis.index) for axis in self.access.axes]
        return places[dims], owner

    @property
    def first(self) -> ndarray:
        """(axes, requests) int64, the position of the first lane of each request, from the block's start."""
        places, owner = self.lanes
        return places[:, owner.any(axis=1), 0]

    @property
    def start(self) -> list[int]:
        """The position of the first execution's first element."""
        return [axis.start(0, axis.block) for axis in self.access.axes]

    @property
    def width_bytes(self) -> int:
        """The bytes that a lane moves."""
        return self.instruction.width_bytes or GRANULE_BYTES

    @property
    def box_count(self) -> int:
        """The number of boxes in a descriptor's block."""
        rows = self.access.elements // self.access.axes[-1].block
        return self.lanes[0].shape[1] // rows * -(-rows // _MOST_ROWS)

    def count_launch(self, extents: Mapping[str, int]) -> ndarray:
        """Count the requests of all executions: (fields,) int64, the sums of `RequestCosts`."""
        first = self.first
        if isinstance(self.access, FlatAccess):
            return self._count(*self._classes_of_runs(self.access, first))
        starts, times = self._classes_of_blocks(self.access, extents)
        at = [np.add.outer(start, own).ravel() for start, own in zip(starts, first, strict=True)]
        return self._count(at, np.repeat(times, first.shape[1]))

    def count_execution(self) -> ndarray:
        """Count the requests of the first execution: (fields,) int64, sums of `RequestCosts`."""
        at = self.first + np.array(self.start)[:, None]
        return self._count(at, np.ones(at.shape[1]))

    @property
    def requests(self) -> Requests:
        """The requests of the first execution. A descriptor's block is one request, with one lane per 16 bytes."""
        places, owner = self.lanes
        shape = owner.shape if self.instruction.layout else (1, -1)
        at = [first + part.reshape(shape) for first, part in zip(self.start, places, strict=True)]
        address, inside = self.matrix.address(*self._locate(at))
        return Requests(address, owner.reshape(shape) & inside, self.width_bytes, self.matrix)

    @property
    def _limits(self) -> tuple[int, ...]:
        """The matrix's length along each axis."""
        rows = self.matrix.rows
        columns = self.matrix.columns
        return (rows * columns,) if isinstance(self.access, FlatAccess) else (rows, columns)

    def _locate(self, at: Sequence[ndarray]) -> tuple[ndarray, ndarray]:
        """Return the row and column at a position. Positions past the end are outside the matrix."""
        if isinstance(self.access, Access):
            row, column = at
        elif self.access.transposed:
            column, row = np.divmod(at[0], self.matrix.rows)
        else:
            row, column = np.divmod(at[0], self.matrix.columns)
        return row, column

    def _count(self, at: Sequence[ndarray], times: ndarray) -> ndarray:
        """Count requests by classes of equal cost.

        All requests of an operation have the same lanes, relative to their first element: see `Layout.is_permutation`.
        Requests with the same offset in a line, the same distance to the tensor's edges and, for a transposed run,
        the same distance to its next wrap around the tensor have the same cost.

        Args:
            at: the position of each request's first element.
            times: how often each request is issued.
        """
        places, owner = self.lanes
        matrix = self.matrix
        lane = places[:, 0] - places[:, 0, :1]
        spans = lane.max(axis=1) + 1
        row, column = self._locate(at)
        keys = [
            np.clip(limit - first, 0, span)
            for limit, first, span in zip(self._limits, at, spans, strict=True)
        ]
        keys.append((row * matrix.columns + column) % matrix.line_elements)
        if isinstance(self.access, FlatAccess) and self.access.transposed:
            # Below the tensor's last row, a run continues at the top of the next column.
            keys.append(np.minimum(matrix.rows - row, spans[0]))
        some, times = group_equal(keys, times)
        lanes = [first[some, None] + part for first, part in zip(at, lane, strict=True)]
        address, inside = matrix.address(*self._locate(lanes))
        units_bytes = matrix.sector_bytes, matrix.line_bytes
        name = self.instruction.instruction
        active = owner[0] & inside
        costs = count_requests(address, active, self.width_bytes, name, *units_bytes)
        return np.array(costs) @ times

    def _classes_of_blocks(
        self, access: Access, extents: Mapping[str, int]
    ) -> tuple[list[ndarray], ndarray]:
        """Return the starts of blocks, one of each class of equal cost, and how often each class occurs.

        Blocks with the same offset in a line and the same in-bounds size have the same cost.
        """
        starts = []
        times = np.full(1, math.prod(extents[index] for index in access.over))
        pitches = self.matrix.columns, 1
        for axis, limit, pitch in zip(access.axes, self._limits, pitches, strict=True):
            start = axis.start(np.arange(extents[axis.index]), axis.block)
            inside = np.clip(limit - start, 0, axis.block)
            some, members = group_equal([start * pitch % self.matrix.line_elements, inside])
            times = np.outer(times, members) // len(start)
            starts.append(start[some])
        return [grid.ravel() for grid in np.meshgrid(*starts, indexing="ij")], times.ravel()

    def _classes_of_runs(self, access: FlatAccess, first: ndarray) -> tuple[list[ndarray], ndarray]:
        """Return the requests of runs in one period and after the last full period, and how often each occurs.

        Runs are consecutive, and the tensor's end truncates the last run. A period fills whole lines.

        Args:
            first: (1, requests) int64, the first element of each request in a run.
        """
        block = access.run.block
        step = max(1, block // first.size)
        if np.array_equal(np.sort(first[0]), np.arange(0, block, step)):
            # A run of adjacent requests costs the same as separate runs of one request, whose period is shorter.
            block = step
            first = np.zeros((1, 1), np.int64)
        (length,) = self._limits
        rows = self.matrix.rows if access.transposed else 1
        period = math.lcm(block, rows * self.matrix.line_elements)
        periods = length // period
        whole = periods * (period // block)  # runs in whole periods
        early = np.arange(min(whole, period // block))
        run = np.concatenate([early, np.arange(whole, -(-length // block))])
        times = np.where(run < whole, periods, 1)
        return [np.add.outer(run * block, first[0]).ravel()], np.repeat(times, first.size)


@dataclass(frozen=True, kw_only=True)
class DeclaredCounts(OperationCounts):
    """A declared access of a launch, and its cost.

    Attributes:
        number: index into the kernel's accesses. A compare-and-swap atomic has two operations: load and loop.
        is_textbook: whether the instruction is the textbook's, not the compiler's.
    """

    number: int
    pattern: AccessPattern
    is_textbook: bool

    @property
    def access(self) -> AnyAccess:
        return self.pattern.access

    @cached_property
    def tile(self) -> Cost:
        """The cost of one execution, on the first tile."""
        return replace(self, tally=Tally(counts=self.pattern.count_execution())).launch

    @property
    def compiled(self) -> MemoryInstruction | None:
        """The instruction as compiled; None for the textbook model."""
        return None if self.is_textbook else self.instruction


def make_pattern(
    kernel: Kernel,
    launch: Launch,
    access: AnyAccess,
    instruction: MemoryInstruction,
    *units_bytes: int,
) -> AccessPattern:
    """Return how an instruction carries out an access.

    Args:
        units_bytes: bytes of a sector and of a line; a GPU's by default.
    """
    tensor = kernel.tensors(launch)[access.tensor]
    element_bytes = instruction.element_bytes or TYPE_BYTES[tensor.dtype_in(launch.problem)]
    matrix = Matrix(*tensor.stored, element_bytes, *units_bytes)
    return AccessPattern(access, matrix, instruction)


def count_accesses(
    kernel: Kernel, launch: Launch, instructions: Sequence[MemoryInstruction]
) -> tuple[DeclaredCounts, ...]:
    """Return every operation of a launch with its cost.

    Args:
        instructions: the instruction of each access; () if unknown.
    """
    accesses = kernel.accesses(launch) if instructions else ()
    pairs = zip(accesses, instructions, strict=True)
    patterns = [make_pattern(kernel, launch, *pair) for pair in pairs]
    return count_patterns(kernel, launch, patterns)


def count_patterns(
    kernel: Kernel,
    launch: Launch,
    patterns: Iterable[AccessPattern],
    is_textbook: bool = False,
) -> tuple[DeclaredCounts, ...]:
    """Return every operation of a launch with its cost. An atomic that swaps has two: the load and the loop."""
    tensors = kernel.tensors(launch)
    extents = kernel.extents(launch)
    result = []
    for number, pattern in enumerate(patterns):
        access = pattern.access
        box = "tma_ld" if tensors[access.tensor].is_input else "tma_st"
        counts = DeclaredCounts(
            op=access.op,
            counter=_COUNTERS.get(access.op, box),
            source=access.source,
            tensors=(access.tensor,),
            instruction=pattern.instruction,
            tally=Tally(counts=pattern.count_launch(extents)),
            sector_bytes=pattern.matrix.sector_bytes,
            number=number,
            pattern=pattern,
            is_textbook=is_textbook,
        )
        if pattern.instruction.swaps:
            load = replace(pattern, access=replace(access, op="load"))
            result.append(replace(counts, op="load", counter="ld", pattern=load))
            counts = replace(counts, tally=replace(counts.tally, refused=RETRIES))
        result.append(counts)
    return tuple(result)
