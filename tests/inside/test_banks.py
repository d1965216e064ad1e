"""Wavefronts of instructions on shared memory, against the rules of the banks."""

import collections

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.inside.banks import Access, count_wavefronts

SUFFIXES = {4: "", 8: ".64", 16: ".128"}


def access(opcode, lane, warp=()):
    """Return an access whose address is linear in the bits of the lane and the warp."""
    address = np.zeros((1, 1 << len(warp), 32), np.int64)
    for number in np.ndindex(address.shape):
        for bases, index in ((lane, number[2]), (warp, number[1])):
            for bit, base in enumerate(bases):
                address[number] ^= base * (index >> bit & 1)
    return Access(opcode, address, np.ones(address.shape, bool))


@pytest.mark.parametrize(
    ("opcode", "lane", "expected", "ideal"),
    [
        ("LDS", (4, 8, 16, 32, 64), 1, 1),  # neighbours
        ("LDS", (128, 256, 512, 1024, 2048), 32, 1),  # one bank for all
        ("LDS.U16", (2, 4, 8, 16, 32), 1, 1),  # halves of words
        ("STS.128", (16, 32, 64, 144, 288), 4, 4),  # a swizzle
        ("LDSM.16.M88.4", (16, 32, 64, 128, 256), 4, 4),
        ("LDSM.16.M88.4", (128, 256, 512, 16, 32), 32, 4),  # whose rows share banks
        ("LDSM.16.M88", (128, 256, 512, 0, 0), 8, 1),
        ("LDS.128", (0, 16, 32, 64, 128), 2, 2),  # neighbours load the same words
    ],
)
def test_an_instruction_takes_as_many_wavefronts_as_its_worst_bank(opcode, lane, expected, ideal):
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
