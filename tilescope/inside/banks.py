"""Count the wavefronts of accesses to shared memory.

Shared memory has 32 banks of 4 bytes. In each wavefront a bank serves one word, which any number of lanes may share
(CUDA C++ Programming Guide 13.0, "Shared Memory").
"""

import functools
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tilescope.evaluate.sectors import (
    BANKS,
    LANES,
    LINE_BYTES,
    SECTOR_BYTES,
    WORD_BYTES,
    count_passes,
)
from tilescope.sass.instructions import find_opcode

_ROW_BYTES = 16  # of an 8 × 8 matrix
_BYTES = {"64": 8, "128": 16}
# Since compute capability 9.0, the first KiB of a program's shared memory is reserved for the system.
SYSTEM_BYTES = 1 << 10


class Wavefronts(NamedTuple):
    """Passes through the banks, with and without bank conflicts."""

    actual: int
    ideal: int

    @property
    def conflicts(self) -> int:
        return self.actual - self.ideal


@dataclass(frozen=True)
class BankAccess:
    """An instruction's access to shared memory.

    Attributes:
        opcode: with its suffixes.
        address: (programs, warps, 32) int64, bytes.
        active: (programs, warps, 32) bool.
    """

    opcode: str
    address: np.ndarray
    active: np.ndarray

    @property
    def fullest(self) -> "BankAccess":
        """The access of the program with the most active lanes."""
        program = int(self.active.sum(axis=(1, 2)).argmax())
        return BankAccess(self.opcode, self.address[[program]], self.active[[program]])

    @property
    def parts(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return addresses and masks of lanes that are served together, and the bytes per lane.

        An access of more than 128 bytes is split: half a warp at 8 bytes per lane, a quarter at 16, or the 8 rows of
        a matrix.
        """
        name, *suffixes = self.opcode.split(".")
        traits = find_opcode(name)
        if traits.widths == "matrices":
            matrices = int(suffixes[-1]) if suffixes[-1].isdigit() else 1
            lanes = slice(8 * matrices)
            # All rows are accessed if any lane is active
            active = np.broadcast_to(self.active.any(axis=2, keepdims=True), self.active.shape)
            return (
                self.address[..., lanes].reshape(-1, 8),
                active[..., lanes].reshape(-1, 8),
                _ROW_BYTES,
            )
        width = next((_BYTES[each] for each in suffixes if each in _BYTES), WORD_BYTES)
        together = BANKS * WORD_BYTES // width
        if traits.smem == "load" and width > WORD_BYTES:
            return self._pair_loads(width, together)
        return self.address.reshape(-1, together), self.active.reshape(-1, together), width

    def _pair_loads(self, width: int, together: int) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the parts of a wide load. Two parts merge if each lane and its neighbour have the same address.

        The neighbour is one lane away for all lanes, or two lanes away for all.
        """
        address = self.address.reshape(-1, 2 * together)
        active = self.active.reshape(-1, 2 * together)
        lane = np.arange(2 * together)
        agree = np.zeros(len(address), bool)
        for step in (1, 2):
            other = lane ^ step
            agree |= (address == address[:, other]).all(axis=1)
        agree &= active.all(axis=1)
        first = np.where(agree[:, None], active, active & (lane < together))
        second = active & (lane >= together) & ~agree[:, None]
        return np.concatenate([address, address]), np.concatenate([first, second]), width


@functools.cache
def _hash_factors(threads: int) -> np.ndarray:
    random = np.random.default_rng(1)
    return random.integers(1, 1 << 63, (2, threads), np.uint64) | np.uint64(1)


def group_equal_accesses(
    opcode: str, address: np.ndarray, active: np.ndarray, threads: int
) -> tuple[BankAccess, np.ndarray]:
    """Return an access of each group of programs with equal accesses, and the size of each group.

    Accesses whose addresses and masks have the same random hash count as equal.

    Args:
        address, active: (programs or 1, threads or 1).
    """
    # Shifting all addresses by a multiple of 128 bytes does not change the banks.
    base = address.min(axis=1, keepdims=True) // LINE_BYTES * LINE_BYTES
    code = 0
    for part, factors in zip((address - base, active), _hash_factors(threads), strict=True):
        code = code + part.astype(np.uint64) @ factors[: part.shape[1]]
    _, first, sizes = np.unique(code, return_index=True, return_counts=True)
    chosen = (
        np.broadcast_to(each[first % len(each)], (len(first), threads))
        for each in (address, active)
    )
    return BankAccess(opcode, *(each.reshape(len(first), -1, LANES) for each in chosen)), sizes


def count_wavefronts(access: BankAccess) -> Wavefronts:
    """Count the wavefronts of an access."""
    return Wavefronts(*count_by_warp(access).sum(axis=1).tolist())


def count_by_warp(access: BankAccess) -> np.ndarray:
    """Count the wavefronts of each warp, with and without bank conflicts: (2, programs × warps) int64.

    Without bank conflicts, a wavefront serves 128 bytes of a warp's active lanes, or more if lanes load the same words.
    """
    address, active, width = access.parts
    warps = access.address.size // LANES
    rows_of_warp = len(address) // warps
    copies = max(1, rows_of_warp * address.shape[1] // LANES)
    warp = np.arange(len(address)) // (rows_of_warp // copies) % warps
    some = active.any(axis=1)
    address = address[some]
    active = active[some]
    warp = warp[some]
    words = address[:, :, None] // WORD_BYTES + np.arange(width // WORD_BYTES)
    words = np.where(active[:, :, None], words, -1).reshape(len(address), -1)
    actual = np.bincount(warp, count_passes(words), warps).astype(np.int64)
    used = np.bincount(warp, width * active.sum(axis=1), warps).astype(np.int64)
    ideal = np.minimum(actual, -(-used // (BANKS * WORD_BYTES)))
    return np.stack([actual, ideal])


def serve_words(access: BankAccess) -> np.ndarray:
    """Return which lane's word each bank serves in each wavefront of one warp.

    Lanes that are served together are in several wavefronts only if their words conflict. Those wavefronts come last.

    Returns:
        (wavefronts, 32, 3) int64: the first lane with the word, the word's byte, and the number of lanes with it. An
        idle bank has -1.
    """
    rows = dict[tuple[int, int], np.ndarray]()
    addresses, masks, width = access.parts
    for part, (address, active) in enumerate(zip(addresses, masks, strict=True)):
        lanes = dict[int, list[int]]()
        for lane in np.flatnonzero(active).tolist():
            word = int(address[lane]) // WORD_BYTES
            for each in range(word, word + width // WORD_BYTES):
                lanes.setdefault(each, []).append((part * len(address) + lane) % LANES)
        served = Counter[int]()
        for word, holders in lanes.items():
            bank = word % BANKS
            row = rows.setdefault((served[bank], part), np.full((BANKS, 3), -1))
            row[bank] = holders[0], word * WORD_BYTES, len(holders)
            served[bank] += 1
    return np.array([rows[key] for key in sorted(rows)]).reshape(-1, BANKS, 3)


def count_copy_wavefronts(
    source: np.ndarray, is_read: np.ndarray, access: BankAccess
) -> Wavefronts:
    """Return the wavefronts with which one execution of LDGSTS writes to shared memory.

    LDGSTS.BYPASS writes the data of each 128-byte line separately. In a wavefront, all 32-byte sectors move by the same
    distance, by the same exclusive or, or so that their old and new places have the same sum. If only some lanes of a
    warp read, LDGSTS.BYPASS writes zeros for all lanes first. The rules follow from counts of 766 patterns on an H200:
    they give the counts of all regular patterns of LDGSTS.BYPASS, and of 97 % of those without BYPASS.

    Args:
        source: (warps, 32) int64, the first byte in global memory of each lane.
        is_read: (warps, 32) bool; other lanes write zeros.
    """
    target, active, width = access.parts
    is_bypass = ".BYPASS" in access.opcode
    is_read = is_read.reshape(target.shape) & active
    by_warp = is_read.reshape(-1, LANES)
    is_mixed = by_warp.any(axis=1) & (active.reshape(-1, LANES) & ~by_warp).any(axis=1) & is_bypass
    read_bytes = width * by_warp[is_mixed].sum(axis=1)
    ideal = active.any(axis=1).sum() + -(-read_bytes // (BANKS * WORD_BYTES)).sum()
    source = source.reshape(target.shape)
    first = source[:, :1] // LINE_BYTES * LINE_BYTES
    starts = np.where(is_read, source - first, -1)
    parts = np.repeat(is_mixed, len(target) // len(is_mixed))
    rows = np.column_stack([parts, starts, np.where(active, target, -1)])
    patterns, times = np.unique(rows, axis=0, return_counts=True)
    total = 0
    for (is_zeroed, *pattern), count in zip(patterns.tolist(), times.tolist(), strict=True):
        half = len(pattern) // 2
        lanes = list(zip(pattern[:half], pattern[half:], strict=True))
        total += count * _count_pattern(lanes, width, is_bypass, is_zeroed)
    return Wavefronts(total, int(ideal))


def _count_pattern(
    lanes: list[tuple[int, int]], width: int, is_bypass: bool, is_zeroed: bool
) -> int:
    """Return the wavefronts of lanes that are served together.

    Args:
        lanes: where each lane reads and writes; −1 for nowhere.
        is_zeroed: whether LDGSTS.BYPASS writes zeros first.
    """
    words = {
        to // WORD_BYTES + word for _, to in lanes if to >= 0 for word in range(width // WORD_BYTES)
    }
    conflicts = max(Counter(word % BANKS for word in words).values(), default=0)
    moved = [(start, to) for start, to in lanes if start >= 0]
    needed = _count_moves(moved) if is_bypass else _count_transfers(moved)
    if is_zeroed:
        rows = {(start // LINE_BYTES, start % LINE_BYTES // _ROW_BYTES) for start, _ in moved}
        together = Counter(bank for _, bank in rows)
        needed += max(conflicts, *together.values(), 0)
    return max(conflicts, needed)


def _count_transfers(moved: list[tuple[int, int]]) -> int:
    """Return the number of wavefronts that copy from banks of the L1 to banks of shared memory.

    In each, a bank is read once and written once. Lanes take turns in the order of their banks, from the first lane's
    on. A lane that has to wait reserves the bank that it will write.
    """
    waiting = sorted(
        ((start - moved[0][0]) // WORD_BYTES % BANKS, to // WORD_BYTES % BANKS)
        for start, to in moved
    )
    count = 0
    while waiting:
        count += 1
        read = set[int]()
        written = set[int]()
        rest = []
        for start, to in waiting:
            if start in read or to in written:
                rest.append((start, to))
            else:
                read.add(start)
            written.add(to)
        waiting = rest
    return count


def _count_moves(moved: list[tuple[int, int]]) -> int:
    """Return the number of wavefronts that move the lanes' 16 bytes from their lines."""
    lines = defaultdict[int, tuple[set[tuple[int, int]], ...]](lambda: (set(), set(), set()))
    for start, to in moved:
        sector = start % LINE_BYTES // SECTOR_BYTES
        granule = to % LINE_BYTES // SECTOR_BYTES
        half = (start ^ to) % SECTOR_BYTES
        distances, sums, exclusive = lines[start // LINE_BYTES]
        distances.add(((granule - sector) % 4, half))
        sums.add(((granule + sector) % 4, half))
        exclusive.add((granule ^ sector, half))
    return sum(min(map(len, ways)) for ways in lines.values())
