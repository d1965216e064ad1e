"""Requests of the compiled kernel: layouts and widths from the compiler, addresses from the declared accesses.

Counts follow Nsight Compute. A request is one instruction of one warp with at least one active lane. Its sectors are
the distinct 32-byte units that its lanes address. All warps and lanes issue loads. Only owners, i.e. lanes and warps
without replicas, issue stores, atomics and async copies. For copies that bypass L1, see `traffic.count`.

An atomic without a GPU instruction is a load and a compare-and-swap loop. Only its first iteration is counted, because
the number of retries depends on values and timing.

The tensor memory accelerator (TMA) copies a descriptor's block without a request: see `kernels.sectors`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy import ndarray

from kernels.accesses import AnyAccess, MemoryOperation, vectors
from kernels.evaluate.values import group
from kernels.sectors import GRANULE_BYTES, box_row_bytes
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch
from visualize.predict.traffic import Cost, First, Matrix, Operation, Requests, Tile, count

# Maximum number of elements along each axis of a box (CUDA driver API, cuTensorMapEncodeTiled: boxDim).
_MOST_ROWS = 256


@dataclass(frozen=True)
class Lanes:
    """The lanes of one execution's requests, in the order of warps, then registers.

    The box rows of a descriptor's block count as requests, and 16 bytes as a lane.

    Attributes:
        place: (axes, requests, lanes) int64, for each axis of the access the first element of each lane.
        owner: (requests, lanes) bool, lanes that issue the access.
        width_bytes: bytes per lane.
        instruction: as for `traffic.count`.
    """

    place: ndarray
    owner: ndarray
    width_bytes: int
    instruction: str

    @property
    def first(self) -> ndarray:
        """The first element of each request that any lane issues: (axes, requests) int64."""
        return self.place[:, self.owner.any(axis=1), 0]


def operations(
    kernel: Kernel, launch: Launch, compiled: tuple[MemoryOperation, ...], *units_bytes: int
) -> tuple[Operation, ...]:
    """Return every operation of a launch with its cost.

    Args:
        compiled: the compiled operation of each access, those of a first launch included; () if unknown.
        units_bytes: bytes of a sector and of a line; a GPU's by default.
    """
    if not compiled:
        return ()
    tensors = kernel.tensors(launch)
    extents = kernel.extents(launch)
    result = list[Operation]()
    for number, (access, operation) in enumerate(
        zip(kernel.all_accesses(launch), compiled, strict=True)
    ):
        tensor = tensors[access.tensor]
        element_bytes = operation.element_bytes or DTYPE_BYTES[tensor.dtype_in(launch.problem)]
        matrix = Matrix(*tensor.stored, element_bytes, *units_bytes)
        lanes = lanes_of(access, operation, element_bytes)
        if isinstance(access, FlatAccess):
            classes = _classes_of_runs(access, matrix, lanes)
        else:
            classes = _classes_of_blocks(access, matrix, lanes, extents)
        whole = _count(access, matrix, lanes, *classes)
        tile = count_execution(
            access, matrix, lanes, [axis.start(0, axis.block) for axis in access.axes]
        )
        if operation.swaps:
            load = replace(access, op="load")
            result.append(Operation(number, load, operation.width_bytes, whole, tile, operation))
            whole = replace(whole, is_lower_bound=access.op == "atomic")
        result.append(Operation(number, access, operation.width_bytes, whole, tile, operation))
    return tuple(result)


def lanes_of(access: AnyAccess, operation: MemoryOperation, element_bytes: int) -> Lanes:
    """Return the lanes of an access as compiled, or on the textbook machine."""
    if operation.layout is None:
        step = GRANULE_BYTES // element_bytes
        columns = access.axes[-1].block
        place = np.indices((access.elements // columns, columns // step))
        place[1] *= step
        place = place.reshape(2, -1, row_bytes(access, operation, element_bytes) // GRANULE_BYTES)
        return Lanes(place, np.ones(place.shape[1:], bool), GRANULE_BYTES, operation.instruction)
    lanes = vectors(operation.layout, operation.width_bytes // operation.element_bytes)
    place = lanes.place[[access.dims.index(axis.index) for axis in access.axes]]
    owner = lanes.owner | (operation.op == "load")  # all lanes issue plain loads
    return Lanes(place, owner, operation.width_bytes, operation.instruction)


def _classes_of_blocks(
    access: Access, matrix: Matrix, lanes: Lanes, extents: dict[str, int]
) -> tuple[list[ndarray], ndarray]:
    """Return the requests of a block of each class. A launch has many programs but few classes of equal cost.

    Blocks with the same offset in a line and the same in-bounds size have the same cost.

    Returns:
        For each axis, the first element of each request, and the number of times that each is issued.
    """
    first = list[ndarray]()
    times = np.full(1, math.prod(extents[index] for index in access.over))
    for axis, length, pitch in zip(
        access.axes, (matrix.rows, matrix.columns), (matrix.columns, 1), strict=True
    ):
        starts = axis.start(np.arange(extents[axis.index]), axis.block)
        keys = starts * pitch % matrix.line_elements, np.clip(length - starts, 0, axis.block)
        where, members = _group(keys, np.ones(len(starts)))
        times = np.outer(times, members) // len(starts)
        first.append(starts[where])
    grid = np.meshgrid(*first, indexing="ij")
    at = [np.add.outer(part, own).ravel() for part, own in zip(grid, lanes.first, strict=True)]
    return at, np.repeat(times, lanes.first.shape[1])


def _classes_of_runs(
    access: FlatAccess, matrix: Matrix, lanes: Lanes
) -> tuple[list[ndarray], ndarray]:
    """Return the requests of one period of runs, and of the remainder after the last full period.

    The result is as for `_classes_of_blocks`. Runs are consecutive, and the tensor's end truncates the last run. The
    pattern repeats after a period, which fills whole lines.
    """
    length = matrix.rows * matrix.columns
    block = access.run.block
    (first,) = lanes.first
    step = max(1, block // len(first))
    if np.array_equal(np.sort(first), np.arange(0, block, step)):
        # A run of adjacent requests costs the same as separate runs of one request, whose period is shorter.
        block = step
        first = np.zeros(1, np.int64)
    period = math.lcm(block, (matrix.rows if access.transposed else 1) * matrix.line_elements)
    periods = length // period
    whole = periods * (period // block)  # runs in whole periods
    run = np.concatenate(
        [np.arange(min(whole, period // block)), np.arange(whole, -(-length // block))]
    )
    times = np.where(run < whole, periods, 1)
    return [np.add.outer(run * block, first).ravel()], np.repeat(times, len(first))


def count_execution(access: AnyAccess, matrix: Matrix, lanes: Lanes, first: First) -> Cost:
    """Return the cost of the execution whose block or run begins at `first`."""
    at = lanes.first + np.array(first)[:, None]
    return _count(access, matrix, lanes, at, np.ones(at.shape[1]))


def _count(
    access: AnyAccess, matrix: Matrix, lanes: Lanes, at: Sequence[ndarray], times: ndarray
) -> Cost:
    """Count requests by classes of equal cost.

    All requests of an operation have the same lanes, relative to their first element: see `Layout.is_permutation`.
    Requests with the same offset in a line, the same distance to the tensor's edges and, for a transposed run,
    the same distance to its next wrap around the tensor have the same cost.

    Args:
        at, times: as `_classes_of_blocks` returns them.
    """
    lane = lanes.place[:, 0] - lanes.place[:, 0, :1]
    spans = lane.max(axis=1) + 1
    row, column = matrix.locate(access, *at)
    limits = (matrix.rows, matrix.columns) if len(at) == 2 else (matrix.rows * matrix.columns,)
    keys = [
        np.clip(limit - first, 0, span)
        for limit, first, span in zip(limits, at, spans, strict=True)
    ]
    keys.append((row * matrix.columns + column) % matrix.line_elements)
    if isinstance(access, FlatAccess) and access.transposed:
        # Below the tensor's last row, a run continues at the top of the next column.
        keys.append(np.minimum(matrix.rows - row, spans[0]))
    where, times = _group(keys, times)
    row, column = matrix.locate(
        access, *(first[where, None] + part for first, part in zip(at, lane, strict=True))
    )
    requests = matrix.requests(row, column, lanes.owner[0], lanes.width_bytes)
    return count(requests, times, lanes.instruction)


def _group(keys: Sequence[ndarray], times: ndarray) -> tuple[ndarray, ndarray]:
    """Return an example of each class with equal keys, and how often members of the class occur."""
    where, index = group(keys)
    numbers = np.zeros(len(times), np.int64) if index is None else index
    return where, np.bincount(numbers, times).astype(np.int64)


def requests(
    access: AnyAccess, matrix: Matrix, first: First, operation: MemoryOperation
) -> Requests:
    """Return the warp requests of one execution. A descriptor's block is one request, with one lane per 16 bytes.

    Args:
        first: (row, column) of the block's first element, which may be past the edge; (element,) for a run.
    """
    lanes = lanes_of(access, operation, matrix.element_bytes)
    shape = lanes.owner.shape if operation.layout else (1, -1)
    at = (start + part.reshape(shape) for start, part in zip(first, lanes.place, strict=True))
    row, column = matrix.locate(access, *at)
    return matrix.requests(row, column, lanes.owner.reshape(shape), lanes.width_bytes)


def tile(access: AnyAccess, matrix: Matrix, first: First, operation: MemoryOperation) -> Tile:
    """Return the elements of one execution. A descriptor's elements have no lane; one request moves the block."""
    if operation.layout is None:
        row, column = np.divmod(np.arange(access.elements), access.axes[-1].block)
        block = matrix.requests(first[0] + row, first[1] + column, True, matrix.element_bytes)
        return Tile(block.row, block.column, block.address, block.active, *[np.zeros_like(row)] * 4)
    single = vectors(operation.layout, 1)
    lanes = requests(access, matrix, first, replace(operation, width_bytes=operation.element_bytes))
    number, lane = np.nonzero(single.owner)
    # A warp's registers form whole vectors, so vectors can be numbered consecutively across warps.
    request = number * operation.element_bytes // operation.width_bytes
    at = number, lane
    position = lanes.row[at], lanes.column[at], lanes.address[at], lanes.active[at]
    return Tile(*position, request, single.warp[number], lane, single.register[number])


def row_bytes(access: AnyAccess, operation: MemoryOperation, size: int) -> int:
    """Return the bytes of a descriptor's box row: the width of the swizzle, or of the block if it is narrower."""
    return box_row_bytes(operation.swizzle_bytes, access.axes[-1].block * size)


def box_count(access: AnyAccess, operation: MemoryOperation, size: int) -> int:
    """Return the number of boxes in a descriptor's block."""
    columns = access.axes[-1].block
    across = columns * size // row_bytes(access, operation, size)
    return across * -(-access.elements // columns // _MOST_ROWS)
