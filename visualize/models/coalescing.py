"""What the compiled kernel asks of memory: layouts and widths from the compiler, addresses from the declared accesses.

Counted as Nsight Compute counts: a request is one instruction of one warp with at least one active lane, its sectors
are the distinct 32-byte units of its lanes' addresses. Loads are issued by every warp and lane; stores, atomics and
asynchronous copies by those that hold no copy. A descriptor's copy takes no request; its sectors are those of its box.
An atomic that the GPU can't do by itself is a load, and a loop that compares and swaps until nobody came in between:
its first turn is counted, and how many follow depends on values and on time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.knobs import ConfigError
from kernels.lanes import MemoryOperation
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch
from visualize.models import traffic as counting
from visualize.models.lane_vectors import vectors
from visualize.models.traffic import (
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

# The tensor memory accelerator wants rows that are multiples of so many bytes, so boxes consist of them.
_GRANULE_BYTES = 16


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
    shape = kernel.family.tensors(launch.problem)[access.tensor].stored
    size = DTYPE_BYTES[launch.problem.dtype]

    def one(first: tuple[int, ...]) -> Traffic:
        return _traffic(requests(access, operation, shape, first, size), operation)

    if isinstance(access, FlatAccess):
        one_run = requests(replace(access, transposed=False), operation, (1, access.run.block), (0,), size)
        total, start = over_runs(access, shape, size, access.run.block, one_run), one((0,))
    else:
        total = over_blocks(access, shape, kernel.extents(launch), size, LINE_BYTES, one)
        start = one(tuple(int(axis.start(0, axis.block)) for axis in (access.rows, access.columns)))
    return Operation(number, access, operation.width_bytes, total, start, operation)


def _traffic(lanes: Requests, operation: MemoryOperation) -> Traffic:
    found = counting.traffic(lanes)
    return replace(found, requests=0) if operation.layout is None else found


def requests(
    access: Access | FlatAccess, operation: MemoryOperation, shape: tuple[int, int], first: tuple[int, ...], size: int
) -> Requests:
    """Every lane of every request of one execution.

    Args:
        shape: rows and columns of the tensor as it is stored, row-major, its start aligned to a line.
        first: row and column of the block's first element; of a run the number of its first element.
        size: bytes of an element.
    """
    if operation.layout is None:
        return _box(access, shape, first, size)
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
    """The elements of one execution. A descriptor's have no lane; its request is the whole box."""
    if operation.layout is None:
        box = _box(access, shape, first, size)
        within = np.arange(_GRANULE_BYTES // size, dtype=np.int64)
        row, column = (part[0][:, None] + step for part, step in ((box.row, 0 * within), (box.column, within)))
        active = np.repeat(box.active[0], len(within))
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


def _box(access: Access | FlatAccess, shape: tuple[int, int], first: tuple[int, ...], size: int) -> Requests:
    """A descriptor's block in pieces of 16 bytes, as if one warp had a lane for each."""
    if isinstance(access, FlatAccess):
        raise ConfigError("not_compiled", "A descriptor copies blocks, not runs.")
    step = _GRANULE_BYTES // size
    row, column = np.divmod(np.arange(access.elements // step, dtype=np.int64), access.columns.block // step)
    return at_places(first[0] + row[None], first[1] + column[None] * step, True, shape, size, _GRANULE_BYTES)
