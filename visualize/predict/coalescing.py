"""Requests of the compiled kernel: layouts and widths from the compiler, addresses from the declared accesses.

Counts follow Nsight Compute. A request is one instruction of one warp with at least one active lane. Its sectors are
the distinct 32-byte units that its lanes address. All warps and lanes issue loads. Only owners, i.e. lanes and warps
without replicas, issue stores, atomics and async copies. For copies that bypass L1, see `traffic.count_bypassing`.

An atomic without a GPU instruction is a load and a compare-and-swap loop. Only its first iteration is counted, because
the number of retries depends on values and timing.

The tensor memory accelerator (TMA) copies a descriptor's block without a request: see `kernels.sectors`.
"""

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy import ndarray

from kernels.accesses import MemoryOperation, vectors
from kernels.sectors import GRANULE_BYTES, box_row_bytes, count_padding
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch, TensorSpec
from visualize.predict import traffic
from visualize.predict.traffic import NO_COST, Cost, First, Matrix, Operation, Requests, Tile, count

# Maximum number of elements along each axis of a box (CUDA driver API, cuTensorMapEncodeTiled: boxDim).
_MOST_ROWS = 256


def operations(kernel: Kernel, launch: Launch, compiled: tuple[MemoryOperation, ...]) -> tuple[Operation, ...]:
    """Return every operation of a launch with its cost.

    Args:
        compiled: the compiled operation of each access, those of a first launch included; () if unknown.
    """
    if not compiled:
        return ()
    tensors = kernel.tensors(launch)
    extents = kernel.extents(launch)
    result = list[Operation]()
    for number, (access, operation) in enumerate(zip(kernel.all_accesses(launch), compiled, strict=True)):
        tensor = tensors[access.tensor]
        width_bytes = operation.width_bytes
        matrix = Matrix(*tensor.stored, DTYPE_BYTES[tensor.dtype_in(launch.problem)])
        whole, tile = count_access(access, matrix, extents, operation, tensor)
        if operation.swaps:
            result.append(Operation(number, replace(access, op="load"), width_bytes, whole, tile, operation))
            whole = replace(whole, is_lower_bound=access.op == "atomic")
        result.append(Operation(number, access, width_bytes, whole, tile, operation))
    return tuple(result)


def count_access(
    access: Access | FlatAccess,
    matrix: Matrix,
    extents: dict[str, int],
    operation: MemoryOperation,
    tensor: TensorSpec,
) -> tuple[Cost, Cost]:
    """Return the cost of all executions of an access in a launch, and of the first one.

    Args:
        extents: number of values of each index of the launch.
        operation: the access as compiled, or on the textbook machine.
        tensor: the tensor that the access addresses.
    """

    def cost_at(first: First) -> Cost:
        return cost(requests(access, matrix, first, operation), access, operation, tensor)

    tile = cost_at(tuple(int(axis.start(0, axis.block)) for axis in access.axes))
    if isinstance(access, FlatAccess):
        return _count_runs(access, matrix, operation), tile
    return _count_blocks(access, matrix, extents, cost_at), tile


def _count_blocks(access: Access, matrix: Matrix, extents: dict[str, int], cost_at: Callable[[First], Cost]) -> Cost:
    """Count one block per program class and multiply.

    A launch has many programs but few program classes. Blocks with the same offset in a line and the same in-bounds
    size have the same cost.
    """
    line = matrix.line_bytes // matrix.element_bytes
    sides = []
    for axis, length, pitch in zip(access.axes, (matrix.rows, matrix.columns), (matrix.columns, 1), strict=True):
        starts = axis.start(np.arange(extents[axis.index]), axis.block)
        inside = np.clip(length - starts, 0, axis.block)
        classes = starts * pitch % line * (axis.block + 1) + inside
        _, where, times = np.unique(classes, return_index=True, return_counts=True)
        sides.append(np.stack([starts[where], inside[where], times], axis=1).tolist())
    blocks = Counter[tuple[int, ...]]()
    firsts = dict[tuple[int, ...], First]()
    for (row, rows, m), (column, columns, n) in itertools.product(*sides):
        block = (row * matrix.columns + column) % line, rows, columns
        firsts[block] = row, column
        blocks[block] += m * n
    total = sum((cost_at(firsts[block]) * times for block, times in blocks.items()), NO_COST)
    return total * math.prod(extents[i] for i in access.over if i not in (access.rows.index, access.columns.index))


def _count_runs(access: FlatAccess, matrix: Matrix, operation: MemoryOperation) -> Cost:
    """Count all runs of a launch. Runs are consecutive, and the tensor's end truncates the last run.

    Requests also fall into classes: requests with the same offset in a line, the same distance to the next wrap around
    the matrix, and the same distance to its end have the same cost. The pattern repeats with a period that fills whole
    lines. So the function examines only one period, and the remainder after the last full period.
    """
    rows = matrix.rows
    length = rows * matrix.columns
    block = access.run.block
    line = matrix.line_bytes // matrix.element_bytes
    # All requests have the same lanes, relative to their first element.
    place, owner = issued_lanes(operation)
    first = place[0, owner.any(axis=1), 0]
    lane = place[0, 0] - place[0, 0, 0]
    step = max(1, block // len(first))
    if np.array_equal(np.sort(first), np.arange(0, block, step)):
        # A run of adjacent requests costs the same as separate runs of one request, whose period is shorter.
        block = step
        first = first[:1] * 0
    period = math.lcm(block, (rows if access.transposed else 1) * line)
    whole = length // period * (period // block)  # runs in whole periods
    run = np.concatenate([np.arange(min(whole, period // block)), np.arange(whole, -(-length // block))])
    times = np.repeat(np.where(run < whole, length // period, 1), len(first))
    element = np.add.outer(run * block, first).ravel()
    row, column = matrix.run_elements(access, element)
    span = int(lane.max()) + 1
    keys = (row * matrix.columns + column) % line * (span + 1) + np.clip(length - element, 0, span)
    if access.transposed:  # below the last row of the tensor, the run continues at the top of the next column
        keys = keys * (span + 1) + (np.minimum(rows - row, span) if rows >= span else row)
    # There are few distinct keys among very many places, and bincount needs no sorting.
    counts = np.bincount(keys, times)
    example = np.zeros(len(counts), dtype=np.int64)
    example[keys] = element
    used = np.flatnonzero(counts)
    row, column = matrix.run_elements(access, example[used][:, None] + lane)
    return count(matrix.requests(row, column, owner[0], operation.width_bytes), counts[used].astype(np.int64))


def cost(lanes: Requests, access: Access | FlatAccess, operation: MemoryOperation, tensor: TensorSpec) -> Cost:
    """Count the cost of one execution's requests.

    Args:
        tensor: the tensor that the access addresses.
    """
    if operation.layout is not None:
        bypasses_l1 = operation.instruction.startswith("cp.async.cg")
        return traffic.count_bypassing(lanes) if bypasses_l1 else traffic.count(lanes)
    granules = row_bytes(access, operation, lanes.matrix.element_bytes) // GRANULE_BYTES
    address = lanes.address.reshape(-1, granules)
    active = lanes.active.reshape(-1, granules)
    inside = traffic.count(replace(lanes, address=address, active=active))
    outside = int(count_padding(active).sum()) if tensor.is_input else 0
    return replace(inside, requests=0, sectors=inside.sectors + outside, extra_sectors=outside)


def issued_lanes(operation: MemoryOperation) -> tuple[ndarray, ndarray]:
    """Return each lane's first element, (dimensions, requests, lanes), and whether it issues the access."""
    lanes = vectors(operation.layout, operation.width_bytes // operation.element_bytes)
    return lanes.place, lanes.owner | (operation.op == "load")  # all lanes issue plain loads


def requests(access: Access | FlatAccess, matrix: Matrix, first: First, operation: MemoryOperation) -> Requests:
    """Return the warp requests of one execution. A descriptor's block is one request, with one lane per 16 bytes.

    Args:
        first: (row, column) of the block's first element, which may be past the edge; (element,) for a run.
    """
    if operation.layout is None:
        step = GRANULE_BYTES // matrix.element_bytes
        place = np.divmod(np.arange(access.elements // step)[None], _columns(access) // step)
        return matrix.requests(first[0] + place[0], first[1] + step * place[1], True, GRANULE_BYTES)
    place, owner = issued_lanes(operation)
    at = [start + place[access.dims.index(axis.index)] for axis, start in zip(access.axes, first, strict=True)]
    row, column = matrix.run_elements(access, *at) if isinstance(access, FlatAccess) else at
    return matrix.requests(row, column, owner, operation.width_bytes)


def tile(access: Access | FlatAccess, matrix: Matrix, first: First, operation: MemoryOperation) -> Tile:
    """Return the elements of one execution. A descriptor's elements have no lane; one request moves the block."""
    if operation.layout is None:
        row, column = np.divmod(np.arange(access.elements), _columns(access))
        block = matrix.requests(first[0] + row, first[1] + column, True, matrix.element_bytes)
        return Tile(block.row, block.column, block.address, block.active, *[np.zeros_like(row)] * 4)
    length = operation.width_bytes // operation.element_bytes
    single = vectors(operation.layout, 1)
    lanes = requests(access, matrix, first, replace(operation, width_bytes=operation.element_bytes))
    # A warp's registers form whole vectors, so vectors can be numbered consecutively across warps.
    request = np.arange(len(single.register)) // length
    indices = request[:, None], single.warp[:, None], np.arange(single.owner.shape[1]), single.register[:, None]
    holders = np.broadcast_arrays(*indices)
    parts = (lanes.row, lanes.column, lanes.address, lanes.active, *holders)
    return Tile(*(part[single.owner] for part in parts))


def row_bytes(access: Access | FlatAccess, operation: MemoryOperation, size: int) -> int:
    """Return the bytes of a descriptor's box row: the width of the swizzle, or of the block if it is narrower."""
    return box_row_bytes(operation.swizzle_bytes, _columns(access) * size)


def box_count(access: Access | FlatAccess, operation: MemoryOperation, size: int) -> int:
    """Return the number of boxes in a descriptor's block."""
    rows = access.elements // _columns(access)
    across = _columns(access) * size // row_bytes(access, operation, size)
    return across * -(-rows // _MOST_ROWS)


def _columns(access: Access | FlatAccess) -> int:
    return access.elements if isinstance(access, FlatAccess) else access.columns.block
