"""Count the sectors and lines that requests to global memory touch, as Nsight Compute does.

The tensor memory accelerator (TMA) copies a descriptor's block without a request, in boxes no wider than their swizzle
in shared memory, box row by box row. A box row costs the sectors that its bytes touch, counted for this row alone: two
rows of 16 bytes in one sector cost two sectors. Bytes past the tensor's edge arrive as zeros. A load still counts one
sector per 32 such bytes of a row, rounded up. A store omits them. These counts equal
`l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld.sum` and
`l1tex__m_l1tex2xbar_write_sectors_mem_global_op_tma_st.sum` for every recorded launch on H200 and H100.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

# Units of a GPU's L1 (CUDA C++ Best Practices Guide 13.0, "Coalesced Access to Global Memory").
SECTOR_BYTES = 32
LINE_BYTES = 128
# Lanes of a warp.
LANES = 32
# Banks of the L1 and of shared memory, which serve words of this size. Lines that one pass looks up, as for atomics.
BANKS = 32
WORD_BYTES = 4
_LINES_AT_ONCE = 4
# The fewest bytes that a lane's asynchronous copy moves (PTX ISA 9.0, "cp.async").
LEAST_COPY_BYTES = 4
# TMA requires row sizes that are multiples of 16 bytes, so box rows consist of 16-byte granules.
GRANULE_BYTES = 16
# The widest swizzle is also the widest box row.
_WIDEST_BYTES = 128

# The bank of an atomic's cache line is the XOR of these values over the set bits of the line's number. Higher bits were
# not measured; they would only permute the banks of a whole tensor.
_BANKS = (1, 2, 1, 2, 3, 1, 2, 3, 2, 1, 2, 1, 3, 1, 3, 2, 1, 3, 2, 3, 2, 3)

# The sectors of atomics depend on addresses modulo this.
ADDRESS_RANGE = LINE_BYTES << len(_BANKS)

# Maximum number of an atomic's requests to simulate at once.
_CHUNK = 1 << 12


class RequestCosts(NamedTuple):
    """The costs of requests, (requests,) int64 each, or their sums.

    The first fields are those of `counts.Cost`, in order.

    Attributes:
        loaded: sectors that a load would touch.
        wavefronts: passes through the banks of the L1.
    """

    requests: Any = 0
    sectors: Any = 0
    lines: Any = 0
    ideal_sectors: Any = 0
    bytes_wanted: Any = 0
    extra_sectors: Any = 0
    repeated_sectors: Any = 0
    loaded: Any = 0
    wavefronts: Any = 0


# Costs that depend on where the bytes lie.
_PLACED = [
    RequestCosts._fields.index(name)
    for name in ("sectors", "lines", "extra_sectors", "repeated_sectors")
]
# Bytes between lanes with different unknown addresses, while their distinct bytes are counted.
_FAR = 1 << 24

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
    wavefronts = np.maximum(_count_wavefronts(address, width_bytes), -(-lines // _LINES_AT_ONCE))
    return RequestCosts(
        issued, sectors + extra, lines, ideal, used, extra, repeated, loaded, wavefronts
    )


def _distinct(ordered: ndarray, unit_bytes: int) -> ndarray:
    """Return the number of distinct units in each row of sorted addresses."""
    units = ordered // unit_bytes
    return np.count_nonzero(units[:, 1:] != units[:, :-1], axis=1) + (ordered[:, 0] != _NOWHERE)


def _count_wavefronts(address: ndarray, width_bytes: int) -> ndarray:
    """Count the passes of each request through the banks of the L1.

    Lanes whose words would fill all banks take turns: quarters of a warp, if each lane moves 16 bytes.
    """
    requests, lanes = address.shape
    words = max(1, width_bytes // WORD_BYTES)
    turns = math.gcd(words, lanes)
    first = address.reshape(requests * turns, lanes // turns, 1)
    word = np.where(first == _NOWHERE, -1, first // WORD_BYTES + np.arange(words))
    passes = count_passes(word.reshape(requests * turns, lanes // turns * words))
    return passes.reshape(requests, turns).sum(axis=1)


def count_passes(words: ndarray) -> ndarray:
    """Count the passes in which banks serve the distinct words of each row: (rows,). In a pass, each serves one word.

    Args:
        words: (rows, words) int64; -1 for none.
    """
    words = np.sort(words, axis=1)
    row, place = np.nonzero((np.diff(words, axis=1, prepend=-1) > 0) & (words >= 0))
    cells = row * BANKS + words[row, place] % BANKS
    return np.bincount(cells, minlength=len(words) * BANKS).reshape(-1, BANKS).max(axis=1)


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


def count_box_rows(
    block: Sequence[int],
    element_bytes: int,
    swizzle_bytes: int | None,
    is_load: bool,
    first: int,
    limits: Any,
) -> tuple[int, int, int]:
    """Count the sectors of a block's copy, those that it touches in the tensor, and the elements.

    Args:
        first: the address of the block's first element.
        limits: (3, dimensions), the first and the last place in the block inside the tensor, and the strides in
            elements.
    """
    low, high, strides = np.reshape(limits, (3, len(block), 1, 1))
    places = box_lanes(block, element_bytes, swizzle_bytes)
    address = first + (places * strides).sum(axis=0) * element_bytes
    inside = ((places >= low) & (places < high)).all(axis=0)
    instruction = "cp.async.bulk" + ".global.shared" * (not is_load)
    costs = count_requests(address, np.asarray(inside), GRANULE_BYTES, instruction)
    elements = int(inside.sum()) * GRANULE_BYTES // element_bytes
    return costs.sectors.sum(), (costs.sectors - costs.extra_sectors).sum(), elements


def count_most(
    count: Callable[[ndarray, ndarray], RequestCosts],
    address: ndarray,
    active: ndarray,
    number: ndarray,
    step: int,
) -> tuple[ndarray, bool]:
    """Return the largest costs of requests whose addresses lack unknown integers, and whether all are equal.

    Args:
        number: (requests, lanes), which unknown integer each lane's address lacks.
        step: the integers and the addresses are multiples of it.
    """
    total = np.array(count(address + number * _FAR, active))
    total[_PLACED] = 0
    is_exact = True
    while active.any():
        lowest = np.where(active, number, number.max()).min(axis=1, keepdims=True)
        own = active & (number == lowest)
        # A single lane touches one sector, wherever it is.
        end = LINE_BYTES if np.count_nonzero(own, axis=1).max() > 1 else 1
        costs = np.array([count(address + shift, own) for shift in range(0, end, step)])[:, _PLACED]
        total[_PLACED] += costs.max(axis=0)
        active = active & ~own
        sectors = costs[:, 0]
        is_exact = is_exact and bool((sectors == sectors[0]).all()) and not active.any()
    return total, is_exact


def atomic_sectors(address: ndarray, active: ndarray) -> ndarray:
    """Return the sectors of each request of an atomic, including conflicts between lanes.

    The hardware serves a request in passes. Each line maps to one of four banks. In a pass, a bank serves one line, and
    each element of that line serves one lane. Lanes are assigned to passes in order. A lane takes the earliest pass
    that comes after every pass that used the same bank and offset, and in which its bank serves its line or no line
    yet. A sector counts once per pass that touches it.

    The rule was derived on an H100 from 1,332 requests with chosen and random addresses. It then predicted 240 others
    (int32, int64 and float32, with and without a result) exactly.

    Args:
        address: (requests, lanes) int64, first byte of each lane's element.
        active: (requests, lanes) bool, whether each lane is active.

    Returns:
        (requests,) int64.
    """
    line = address // LINE_BYTES
    lanes = address.shape[1]
    bank = np.zeros_like(line)
    for bit, number in enumerate(_BANKS):
        bank ^= (line >> bit & 1) * number
    place = np.where(
        active, bank * LINE_BYTES + address % LINE_BYTES, 4 * LINE_BYTES + np.arange(lanes)
    )
    ordered = np.sort(place, axis=1)
    is_contended = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    passes = np.zeros(address.shape, np.int64)
    for some in np.array_split(
        np.flatnonzero(is_contended), -(-np.count_nonzero(is_contended) // _CHUNK) or 1
    ):
        passes[some] = _passes(line[some], np.where(active[some], bank[some], 4), place[some])
    served = np.where(active, address // SECTOR_BYTES * (lanes + 1) + passes, _NOWHERE)
    return _distinct(np.sort(served, axis=1), 1)


def _passes(line: ndarray, bank: ndarray, place: ndarray) -> ndarray:
    """Return the pass of each lane, from 0. Inactive lanes use a separate bank."""
    request = np.arange(len(line))
    passes = np.zeros_like(line)
    lanes = line.shape[1]
    next_pass = np.zeros((len(line), place.max(initial=0) + 1), np.int64)  # of each place
    # Each bank's line in each pass
    served = np.full((len(line), bank.max(initial=0) + 1, lanes + 1), -1)
    for lane in range(lanes):
        own = bank[:, lane]
        at = next_pass[request, place[:, lane]]
        its_line = line[:, lane]
        while True:
            other = served[request, own, at]
            is_taken = (other >= 0) & (other != its_line) & (own < 4)
            if not is_taken.any():
                break
            at = at + is_taken
        served[request, own, at] = its_line
        next_pass[request, place[:, lane]] = at + 1
        passes[:, lane] = at
    return passes
