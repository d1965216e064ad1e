"""Blocks that the tensor memory accelerator (TMA) copies by descriptor: what they cost, and which bytes they hold.

A block is copied in boxes, each no wider than its swizzle in shared memory, and a box row by row. A box row costs the
sectors that its bytes touch, counted for this row alone: two rows of 16 bytes in one sector cost two. Bytes past the
tensor's edge are zeros that a load brings all the same, a sector for each 32 of a row, rounded up; a store leaves them
out. So count `l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum` and
`l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum` of every recorded launch, on an H200 and an H100.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kernels.lanes import MemoryOperation
from kernels.spec import Access
from visualize.predict import traffic as counting
from visualize.predict.traffic import SECTOR_BYTES, Requests, Traffic, at_places

# The accelerator wants tensors whose rows are multiples of so many bytes, so box rows consist of them.
GRANULE_BYTES = 16
# The widest swizzle; the widest box row.
_WIDEST_BYTES = 128
# Elements along each axis of a box at most (CUDA driver API, cuTensorMapEncodeTiled: boxDim).
_MOST_ROWS = 256


def cost(
    access: Access,
    operation: MemoryOperation,
    shape: tuple[int, int],
    first: tuple[int, ...],
    size: int,
    loads: bool,
) -> Traffic:
    """What copying one block costs: no request, and lines and sectors of its box rows.

    Args:
        shape: rows and columns of the tensor as it is stored, row-major, its start aligned to a line.
        first: row and column of the block's first element, which may lie past the edge.
        size: bytes of an element.
        loads: whether the block is loaded; else it is stored.
    """
    whole = block(access, shape, first, size)
    row = -1, row_bytes(access, operation, size) // GRANULE_BYTES
    rows = replace(
        whole,
        row=whole.row.reshape(row),
        column=whole.column.reshape(row),
        address=whole.address.reshape(row),
        active=whole.active.reshape(row),
    )
    inside, outside = counting.traffic(rows), 0
    if loads:
        past_bytes = GRANULE_BYTES * np.count_nonzero(~rows.active, axis=1)
        outside = int((-(-past_bytes // SECTOR_BYTES)).sum())
    return replace(inside, requests=0, sectors=inside.sectors + outside, extra_sectors=outside)


def block(access: Access, shape: tuple[int, int], first: tuple[int, ...], size: int) -> Requests:
    """A descriptor's block in granules of 16 bytes, as if one warp had a lane for each. Arguments: as of `cost`."""
    step = GRANULE_BYTES // size
    row, column = np.divmod(np.arange(access.elements // step, dtype=np.int64), access.columns.block // step)
    return at_places(first[0] + row[None], first[1] + column[None] * step, True, shape, size, GRANULE_BYTES)


def row_bytes(access: Access, operation: MemoryOperation, size: int) -> int:
    """Bytes of a box row: the width of the swizzle, or of a narrower block."""
    return min(operation.swizzle_bytes or _WIDEST_BYTES, access.columns.block * size)


def boxes(access: Access, operation: MemoryOperation, size: int) -> int:
    """The boxes of one block."""
    across = access.columns.block * size // row_bytes(access, operation, size)
    return across * -(-access.rows.block // _MOST_ROWS)
