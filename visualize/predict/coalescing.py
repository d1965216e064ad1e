"""Requests of the compiled kernel: layouts and widths from the compiler, addresses from the declared accesses.

Counts follow Nsight Compute. A request is one instruction of one warp with at least one active lane. Its sectors are
the distinct 32-byte units that its lanes address. All warps and lanes issue loads. Only owners, i.e. lanes and warps
without replicas, issue stores, atomics and async copies. For copies that bypass L1, see `traffic.count_bypassing`.

An atomic without a GPU instruction is a load and a compare-and-swap loop. Only its first iteration is counted, because
the number of retries depends on values and timing.

The tensor memory accelerator (TMA) copies a descriptor's block without a request: see `kernels.sectors`.
"""

import functools
from dataclasses import replace

import numpy as np

from kernels.accesses import MemoryOperation, vectors
from kernels.sectors import GRANULE_BYTES, box_row_bytes, count_padding
from kernels.spec import DTYPE_BYTES, Access, FlatAccess, Kernel, Launch, TensorSpec
from visualize.predict import traffic
from visualize.predict.traffic import Cost, First, Matrix, Operation, Requests, Tile

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
    result = list[Operation]()
    for number, (access, operation) in enumerate(zip(kernel.all_accesses(launch), compiled, strict=True)):
        tensor = tensors[access.tensor]
        width_bytes = operation.width_bytes
        requests_at = functools.partial(requests, operation=operation)
        cost_of = functools.partial(cost, access=access, operation=operation, tensor=tensor)
        matrix = Matrix(*tensor.stored, DTYPE_BYTES[tensor.dtype_in(launch.problem)])
        whole, tile = traffic.count_access(access, matrix, kernel.extents(launch), requests_at, cost_of)
        if operation.swaps:
            result.append(Operation(number, replace(access, op="load"), width_bytes, whole, tile, operation))
            whole = replace(whole, is_lower_bound=access.op == "atomic")
        result.append(Operation(number, access, width_bytes, whole, tile, operation))
    return tuple(result)


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


def requests(access: Access | FlatAccess, matrix: Matrix, first: First, operation: MemoryOperation) -> Requests:
    """Return the warp requests of one execution. A descriptor's block is one request, with one lane per 16 bytes.

    Args:
        first: (row, column) of the block's first element, which may be past the edge; (element,) for a run.
    """
    if operation.layout is None:
        step = GRANULE_BYTES // matrix.element_bytes
        place = np.divmod(np.arange(access.elements // step)[None], _columns(access) // step)
        return matrix.requests(first[0] + place[0], first[1] + step * place[1], True, GRANULE_BYTES)
    lanes = vectors(operation.layout, operation.width_bytes // operation.element_bytes)
    owner = True if operation.op == "load" else lanes.owner  # all lanes issue plain loads
    if isinstance(access, FlatAccess):
        row, column = matrix.run_elements(access, first[0] + lanes.place[0])
    else:
        row, column = (lanes.place[access.dims.index(axis.index)] for axis in (access.rows, access.columns))
        row, column = row + first[0], column + first[1]
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
