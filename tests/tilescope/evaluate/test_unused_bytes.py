"""Findings about bytes that no request of a launch uses, and about blocks that lie outside a descriptor's tensor."""

import pytest

# One worker compiles the kernels once
pytestmark = pytest.mark.xdist_group("unused")

SCRIPT = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def halve(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i * 2))


@triton.jit
def fold(x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) // 2 * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.program_id(0) * BLOCK + i, tl.load(x + i * 2 + tl.program_id(0) % 2))


@triton.jit
def copy(x, y, BLOCK: tl.constexpr):
    first = tl.program_id(0) * BLOCK
    y.store([first, 0], x.load([first, 0]))


x = torch.ones(4096, device="cuda")
for block in (128, 256, 1024):
    halve[(2048 // block,)](x, torch.empty(2048, device="cuda"), BLOCK=block)
fold[(8,)](x, torch.empty(8192, device="cuda"), BLOCK=256)
for rows in (96, 80):
    tensors = torch.ones(rows, 64, device="cuda"), torch.empty(rows, 64, device="cuda")
    copy[(4,)](*(TensorDescriptor.from_tensor(each, [32, 64]) for each in tensors), BLOCK=32)
"""
HALVES, FOLD, COPIES = slice(0, 3), 3, slice(4, 6)


def test_bytes_that_no_program_uses_are_named_for_each_block_size(facts):
    for launch in facts[HALVES]:
        text = launch.ops[0].why
        assert "50% of the fetched bytes are used by no request of any program" in text
        assert "Other requests" not in text


def test_bytes_that_another_program_uses_are_not_called_unused(facts):
    text = facts[FOLD].ops[0].why
    assert "Other requests use the remaining bytes" in text
    assert "no request of any program" not in text


def test_blocks_outside_a_descriptors_tensor_are_a_fact_with_their_first_program(facts):
    for launch in facts[COPIES]:
        load, store = launch.ops
        assert load.why.startswith("Blocks outside x: 1 of 4, the first in program 3.")
        assert store.why.startswith("Blocks outside y: 1 of 4, the first in program 3.")
        # Nsight Compute also counts a sector for each 32 bytes that a load fills with zeros.
        rows = 96 if launch is facts[COPIES.start] else 80
        assert (load.sectors, store.sectors) == (128 * 8, rows * 8)
