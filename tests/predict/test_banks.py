"""Wavefronts of instructions on shared memory, against what the rules of the banks say."""

from __future__ import annotations

import collections

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.lanes import SharedOperation
from visualize.predict.banks import wavefronts


def operation(width, lane, warp=(), matrices=0):
    kind = "load matrix" if matrices else "load"
    return SharedOperation(kind, ("", 0), "", width, matrices, lane, warp, 1)


@pytest.mark.parametrize(
    ("width", "lane", "expected", "ideal"),
    [
        (4, (4, 8, 16, 32, 64), 1, 1),  # neighbours
        (4, (0, 0, 0, 0, 0), 1, 1),  # one word for all
        (4, (128, 256, 512, 1024, 2048), 32, 1),  # one bank for all
        (4, (8, 16, 32, 64, 128), 2, 1),  # every second bank
        (2, (2, 4, 8, 16, 32), 1, 1),  # halves of words
        (8, (8, 16, 32, 64, 128), 2, 2),
        (16, (16, 32, 64, 128, 256), 4, 4),
        (16, (128, 256, 512, 1024, 2048), 32, 4),
        (16, (16, 32, 64, 144, 288), 4, 4),  # a swizzle
    ],
)
def test_an_instruction_takes_as_many_passes_as_its_worst_bank(width, lane, expected, ideal):
    found = wavefronts(operation(width, lane))
    assert (found.wavefronts, found.ideal, found.warps) == (expected, ideal, 1)


def test_matrices_take_a_pass_each_unless_their_rows_share_banks():
    assert wavefronts(operation(16, (16, 32, 64, 128, 256), matrices=4)).wavefronts == 4
    assert wavefronts(operation(16, (128, 256, 512, 16, 32), matrices=4)).wavefronts == 32
    assert wavefronts(operation(16, (128, 256, 512), matrices=1)).wavefronts == 8


def test_every_warp_counts():
    found = wavefronts(operation(4, (4, 8, 16, 32, 64), warp=(128, 256)))
    assert (found.wavefronts, found.warps) == (4, 4)


@given(st.sampled_from((4, 8, 16)), st.lists(st.integers(0, 255).map(lambda n: 16 * n), min_size=5, max_size=5))
def test_passes_are_those_of_plain_counting(width, lane):
    found = wavefronts(operation(width, tuple(lane)))
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
    assert found.wavefronts == total
    assert found.ideal <= found.wavefronts
