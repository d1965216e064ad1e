"""What the compiled kernel asks of memory: layouts and widths from the compiler, addresses from the declared accesses.

Counted as Nsight Compute counts: a request is one instruction of one warp with at least one active lane, its sectors
are the distinct 32-byte units of its lanes' addresses. Loads are issued by every warp and lane; stores, atomics and
asynchronous copies by those that hold no copy. `traffic.bypassing` counts the sectors of those past L1, and `boxes` the
sectors of a descriptor's copy, which takes no request.
An atomic that the GPU can't do by itself is a load, and a loop that compares and swaps until nobody came in between:
its first turn is counted, and how many follow depends on values and on time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.knobs import ConfigError
from kernels.lanes import MemoryOperation
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch, TensorSpec
from visualize.predict import boxes
from visualize.predict import traffic as counting
from visualize.predict.lane_vectors import vectors
from visualize.predict.traffic import (
    LINE_BYTES,
    Operation,
    Requests,
    Tile,
    Traffic,
    at_places,
    of_run,
    over_blocks,
    over_runs,
)


def operations(kernel: Kernel, launch: Launch, compiled: tuple[MemoryOperation, ...]) -> tuple[Operation, ...]:
    """Count every operation of a launch.

    Args:
        compiled: each of the kernel's accesses as compiled.
    """
    found = []
    for number, (access, operation) in enumerate(zip(kernel.accesses(launch), compiled, strict=True)):
        if operation.swaps:
            found.append(_counted(number, kernel, launch, replace(access, op="load"), operation))
        found.append(replace(_counted(number, kernel, launch, access, operation), is_lower_bound=operation.swaps))
    return tuple(found)


def _counted(
    number: int, kernel: Kernel, launch: Launch, access: Access | FlatAccess, operation: MemoryOperation
) -> Operation:
    tensor = kernel.family.tensors(launch.problem)[access.tensor]
    shape, size = tensor.stored, DTYPE_BYTES[launch.problem.dtype]

    def one(first: tuple[int, ...]) -> Traffic:
        return cost(access, operation, tensor, first, size)

    if isinstance(access, FlatAccess):
        one_run = requests(replace(access, transposed=False), operation, (1, access.run.block), (0,), size)
        total, start = over_runs(access, shape, size, access.run.block, one_run), one((0,))
    else:
        total = over_blocks(access, shape, kernel.extents(launch), size, LINE_BYTES, one)
        start = one(tuple(int(axis.start(0, axis.block)) for axis in (access.rows, access.columns)))
    return Operation(number, access, operation.width_bytes, total, start, operation)


def cost(
    access: Access | FlatAccess, operation: MemoryOperation, tensor: TensorSpec, first: tuple[int, ...], size: int
) -> Traffic:
    """What one execution costs.

    Args:
        tensor: the one that it addresses.
        first, size: as of `requests`.
    """
    if operation.layout is None:
        return boxes.cost(_block(access), operation, tensor.stored, first, size, loads=tensor.is_input)
    count = counting.bypassing if operation.bypasses_l1 else counting.traffic
    return count(requests(access, operation, tensor.stored, first, size))


def requests(
    access: Access | FlatAccess, operation: MemoryOperation, shape: tuple[int, int], first: tuple[int, ...], size: int
) -> Requests:
    """Every lane of every request of one execution. A descriptor's block is one request, with 16 bytes for each lane.

    Args:
        shape: rows and columns of the tensor as it is stored, row-major, its start aligned to a line.
        first: row and column of the block's first element; of a run the number of its first element.
        size: bytes of an element.
    """
    if operation.layout is None:
        return boxes.block(_block(access), shape, first, size)
    lanes = vectors(operation.layout, operation.width_bytes // operation.element_bytes)
    owner = lanes.owner if operation.issued_by_owners else True
    if isinstance(access, FlatAccess):
        row, column = of_run(access, shape, first[0] + lanes.place[0])
    else:
        row, column = (lanes.place[access.dims.index(axis.index)] for axis in (access.rows, access.columns))
        row, column = row + first[0], column + first[1]
    return at_places(row, column, owner, shape, size, operation.width_bytes)


def tile(
    access: Access | FlatAccess, operation: MemoryOperation, shape: tuple[int, int], first: tuple[int, ...], size: int
) -> Tile:
    """The elements of one execution. A descriptor's have no lane; its request is the whole block."""
    if operation.layout is None:
        block = boxes.block(_block(access), shape, first, size)
        within = np.arange(boxes.GRANULE_BYTES // size, dtype=np.int64)
        row, column = (part[0][:, None] + step for part, step in ((block.row, 0 * within), (block.column, within)))
        active = np.repeat(block.active[0], len(within))
        none = np.zeros(active.shape, dtype=np.int64)
        address = (row * shape[1] + column) * size
        return Tile(row.ravel(), column.ravel(), address.ravel(), active, none, none, none, none)
    length = operation.width_bytes // operation.element_bytes
    one = vectors(operation.layout, 1)
    lanes = requests(access, replace(operation, width_bytes=size), shape, first, size)
    # A warp's registers are whole vectors, so vectors are counted through all warps.
    request = np.arange(len(one.register)) // length
    held_by = np.broadcast_arrays(
        request[:, None], one.warp[:, None], np.arange(one.owner.shape[1]), one.register[:, None]
    )
    parts = (lanes.row, lanes.column, lanes.address, lanes.active, *held_by)
    return Tile(*(part[one.owner] for part in parts))


def _block(access: Access | FlatAccess) -> Access:
    if isinstance(access, FlatAccess):
        raise ConfigError("not_compiled", "A descriptor copies blocks, not runs.")
    return access
