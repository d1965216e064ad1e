"""Wavefronts of instructions on shared memory, against the rules of the banks."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilescope.inside.banks import BankAccess, count_copy_wavefronts, count_wavefronts

SUFFIXES = {4: "", 8: ".64", 16: ".128"}


def access(opcode, lane, warp=()):
    """Return an access whose address is linear in the bits of the lane and the warp."""
    address = np.zeros((1, 1 << len(warp), 32), np.int64)
    for number in np.ndindex(address.shape):
        for bases, index in ((lane, number[2]), (warp, number[1])):
            for bit, base in enumerate(bases):
                address[number] ^= base * (index >> bit & 1)
    return BankAccess(opcode, address, np.ones(address.shape, bool))


# An opcode, how far each bit of a lane's number moves its address, and the wavefronts: needed and ideal.
CONFLICTS = """
LDS            4   8   16   32   64    1  1   neighbours
LDS            128 256 512  1024 2048  32 1   one bank for all
LDS.U16        2   4   8    16   32    1  1   halves of words
STS.128        16  32  64   144  288   4  4   a swizzle
LDSM.16.M88.4  16  32  64   128  256   4  4
LDSM.16.M88.4  128 256 512  16   32    32 4   whose rows share banks
LDSM.16.M88    128 256 512  0    0     8  1
LDS.128        0   16  32   64   128   2  2   neighbours load the same words
"""


@pytest.mark.parametrize("row", CONFLICTS.strip().splitlines())
def test_an_instruction_takes_as_many_wavefronts_as_its_worst_bank(row):
    opcode, *numbers = row.split()[:8]
    *lane, expected, ideal = map(int, numbers)
    for warp in ((), (4096, 8192)):
        warps = 1 << len(warp)
        assert count_wavefronts(access(opcode, lane, warp)) == (expected * warps, ideal * warps)


@given(
    st.sampled_from((4, 8, 16)),
    st.lists(st.integers(0, 255).map(lambda n: 16 * n), min_size=5, max_size=5),
)
def test_wavefronts_of_stores_are_those_of_plain_counting(width, lane):
    together = 128 // width
    stored = access(f"STS{SUFFIXES[width]}", lane)
    total = 0
    for first in range(0, 32, together):
        banks = collections.defaultdict(set)
        for address in stored.address[0, 0, first : first + together].tolist():
            for word in range(address // 4, (address + width) // 4):
                banks[word % 32].add(word)
        total += max(map(len, banks.values()))
    assert count_wavefronts(stored) == (total, 32 // together)


def test_conflicts_are_counted_against_the_bytes_of_the_active_lanes():
    loaded = access("LDS.64", (8, 16, 32, 64, 128))
    assert count_wavefronts(loaded) == (2, 2)
    half = BankAccess(loaded.opcode, loaded.address, loaded.active & (np.arange(32) % 2 == 0))
    assert count_wavefronts(half) == (2, 1)


LANE = np.arange(32)


def copy(target, source, is_read, opcode="LDGSTS.E.BYPASS.128"):
    """Return the wavefronts of a warp's copy, of which some lanes read and all write."""
    written = BankAccess(opcode, target.reshape(1, 1, 32), np.ones((1, 1, 32), bool))
    return count_copy_wavefronts(source[None], is_read[None], written)


def test_a_copy_of_some_lanes_first_writes_zeros_for_all():
    for reading, expected in ((32, 4), (0, 4), (16, 6), (12, 6), (8, 5)):
        assert copy(16 * LANE, 16 * LANE, reading > LANE) == (expected, expected)


def test_copies_of_words_do_not_depend_on_the_bank_of_the_first_lane():
    """Of two columns with 16 words each, the first words of both are in one bank of the L1."""
    target = LANE % 16 * 128 + LANE // 16 * 4
    for start in range(0, 128, 4):
        source = start + LANE % 16 * 4 + LANE // 16 * 96
        assert copy(target, source, LANE >= 0, "LDGSTS.E") == (17, 1)


@pytest.mark.parametrize(("pitch", "expected"), [(64, 6), (128, 10)])
def test_zeros_take_longer_if_lanes_read_the_same_bytes_of_several_lines(pitch, expected):
    """16 lanes read rows of 64 bytes. Rows that are 128 bytes apart begin at the same place of a line."""
    source = LANE % 4 * 16 + LANE // 4 * pitch
    assert copy(16 * LANE, source, LANE < 16) == (expected, 6)


@pytest.mark.parametrize(
    ("start", "lanes_per_row", "expected"),
    [
        (0, 8, (7, 4)),  # most rows span two lines, and some sectors are mirrored
        (384, 2, (8, 5)),  # zeros for all lanes, then each row's 32 bytes
        (384, 0, (4, 4)),  # only zeros
    ],
)
def test_a_partial_copy_takes_additional_wavefronts_to_write_zeros(start, lanes_per_row, expected):
    """Four rows are copied to swizzled rows. The counts are of a multiplication with block pointers."""
    row = LANE // 8
    column = LANE % 8
    target = 128 * row + 16 * (column ^ row)
    source = start + 416 * row + 16 * column
    assert copy(target, source, column < lanes_per_row) == expected
