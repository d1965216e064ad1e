"""Count the sectors and lines that requests to global memory touch, as Nsight Compute does.

The tensor memory accelerator (TMA) copies a descriptor's block without a request, in boxes no wider than their swizzle
in shared memory, box row by box row. A box row costs the sectors that its bytes touch, counted for this row alone: two
rows of 16 bytes in one sector cost two sectors. Bytes past the tensor's edge arrive as zeros. A load still counts one
sector per 32 such bytes of a row, rounded up. A store omits them. These counts equal
`l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum` and
`l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum` for every recorded launch on H200 and H100.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from tilescope.evaluate.atomics import LINE_BYTES, SECTOR_BYTES, atomic_sectors

# Lanes of a warp.
LANES = 32
# TMA requires row sizes that are multiples of 16 bytes, so box rows consist of 16-byte granules.
GRANULE_BYTES = 16
# The widest swizzle is also the widest box row.
_WIDEST_BYTES = 128


class RequestCosts(NamedTuple):
    """The costs of requests, (requests,) int64 each, or their sums.

    The first fields are those of `counts.Cost`, in order. The last one counts the sectors that a load would touch.
    """

    requests: Any = 0
    sectors: Any = 0
    lines: Any = 0
    ideal: Any = 0
    used: Any = 0
    extra: Any = 0
    repeated: Any = 0
    loaded: Any = 0


_NOWHERE = np.iinfo(np.int64).min


def count_requests(
    address: ndarray,
    active: ndarray,
    width_bytes: int,
    instruction: str = "",
    sector_bytes: int = SECTOR_BYTES,
    line_bytes: int = LINE_BYTES,
) -> RequestCosts:
    """Count the sectors and lines of each request. A request with no active lane is not issued.

    The hardware counts copies that bypass L1 (LDGSTS.BYPASS) by its own rule: see `_bypassing_sectors`. For the
    instruction, Nsight Compute counts the sectors of each pair of lanes 2i and 2i + 1. Both counts equal the touched
    sectors unless rows begin inside a sector, which float8 rows may. Four recorded launches have such rows; two were
    counted again (tests/tilescope/oracle/load_sectors.csv).

    Args:
        address: (requests, lanes) int64, first byte of each lane.
        active: (requests, lanes) bool.
        width_bytes: bytes per lane. A lane's access is aligned to it, so it never crosses a sector's boundary.
        instruction: PTX instruction. Atomics, copies that bypass L1 and boxes are counted differently. Of a box, each
            row is a request, and each granule a lane.
    """
    address = np.where(active, address, _NOWHERE)
    ordered = np.sort(address, axis=1)
    distinct = _distinct(ordered, 1) * width_bytes
    issued = distinct > 0
    loaded = _distinct(ordered, sector_bytes)
    sectors = loaded
    extra = np.zeros_like(sectors)
    repeated = extra
    if instruction.startswith(("red", "atom")):
        sectors = atomic_sectors(address, active)
    elif instruction.startswith("cp.async.cg"):
        extra = _bypassing_sectors(address) - sectors
        pairs = _distinct(np.sort(address.reshape(-1, 2), axis=1), sector_bytes)
        repeated = pairs.reshape(len(sectors), -1).sum(axis=1) - sectors
    elif instruction.startswith("cp.async.bulk"):
        issued = extra
        if ".global.shared" not in instruction:  # a load
            extra = -(-GRANULE_BYTES * np.count_nonzero(~active, axis=1) // SECTOR_BYTES)
    used = np.count_nonzero(active, axis=1) * width_bytes
    lines = _distinct(ordered, line_bytes)
    ideal = -(-distinct // sector_bytes)
    return RequestCosts(issued, sectors + extra, lines, ideal, used, extra, repeated, loaded)


def _distinct(ordered: ndarray, unit_bytes: int) -> ndarray:
    """Return the number of distinct units in each row of sorted addresses."""
    units = ordered // unit_bytes
    return np.count_nonzero(units[:, 1:] != units[:, :-1], axis=1) + (ordered[:, 0] != _NOWHERE)


def _bypassing_sectors(address: ndarray) -> ndarray:
    """Count the sectors of 16-byte copies that bypass L1, as the hardware's counter does, pair of lanes by pair.

    A pair's 32 consecutive bytes count once per line that they touch. Other pairs count their sectors.
    """
    first, second = np.moveaxis(address.reshape(len(address), -1, 2), 2, 0)
    unit = np.where(second - first == 16, LINE_BYTES, SECTOR_BYTES)
    shares = (first != _NOWHERE) & (first // unit == second // unit)
    return np.count_nonzero(address != _NOWHERE, axis=1) - np.count_nonzero(shares, axis=1)


def box_lanes(block: Sequence[int], element_bytes: int, swizzle_bytes: int | None) -> ndarray:
    """Return the first element of each granule of each box row of a block: (dimensions, rows, granules) int64.

    A box row is as wide as the swizzle, or as the block's row if that is narrower.
    """
    step = GRANULE_BYTES // element_bytes
    row_bytes = min(swizzle_bytes or _WIDEST_BYTES, block[-1] * element_bytes)
    places = np.indices((*block[:-1], block[-1] // step))
    places[-1] *= step
    return places.reshape(len(block), -1, row_bytes // GRANULE_BYTES)
