"""Wavefronts of instructions on shared memory, against the rules of the banks."""

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.evaluate.shared_memory import wavefronts
from kernels.instructions import SharedInstruction


def operation(width, lane, warp=(), matrices=0):
    kind = "load matrix" if matrices else "load"
    return SharedInstruction(kind, ("", 0), "", width, matrices, lane, warp, 1)


@pytest.mark.parametrize(
    ("width", "lane", "matrices", "expected", "ideal"),
    [
        (4, (4, 8, 16, 32, 64), 0, 1, 1),  # neighbours
        (4, (128, 256, 512, 1024, 2048), 0, 32, 1),  # one bank for all
        (2, (2, 4, 8, 16, 32), 0, 1, 1),  # halves of words
        (16, (16, 32, 64, 144, 288), 0, 4, 4),  # a swizzle
        (16, (16, 32, 64, 128, 256), 4, 4, 4),  # four matrices
        (16, (128, 256, 512, 16, 32), 4, 32, 4),  # whose rows share banks
        (16, (128, 256, 512), 1, 8, 1),
    ],
)
def test_an_instruction_takes_as_many_wavefronts_as_its_worst_bank(
    width, lane, matrices, expected, ideal
):
    for warp_bases in ((), (4096, 8192)):
        assert wavefronts(operation(width, lane, warp_bases, matrices)) == (expected, ideal)


@given(
    st.sampled_from((4, 8, 16)),
    st.lists(st.integers(0, 255).map(lambda n: 16 * n), min_size=5, max_size=5),
)
def test_wavefronts_are_those_of_plain_counting(width, lane):
    together = 128 // width
    total = 0
    for first in range(0, 32, together):
        banks = collections.defaultdict(set)
        for number in range(first, first + together):
            address = 0
            for bit, base in enumerate(lane):
                address ^= base if number >> bit & 1 else 0
            for word in range(address // 4, (address + width) // 4):
                banks[word % 32].add(word)
        total += max(map(len, banks.values()))
    assert wavefronts(operation(width, tuple(lane))) == (total, 32 // together)
