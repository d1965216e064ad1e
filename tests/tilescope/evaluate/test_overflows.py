"""Offsets that overflow 32 bits: the line, the first program, the smallest shape, and what 64 bits change."""

import pytest

from tests.tables import read_table

# One worker prepares what all tests use
pytestmark = [pytest.mark.xdist_group("overflows"), pytest.mark.usefixtures("no_options")]

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def wide_rows(x, out, stride, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if IS_WIDE:
        row = row.to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + row * stride + i))


@triton.jit
def plane(x, out, height, width, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    z = tl.program_id(0)
    if IS_WIDE:
        z = z.to(tl.int64)
    i = tl.arange(0, BLOCK)
    place = z * height * width + tl.program_id(1) * width + i
    tl.store(out + i, tl.load(x + place, mask=i < width))


@triton.jit
def loop(x, out, rows, cols, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.int32)
    for row in range(tl.program_id(0), rows, 64):
        start = row.to(tl.int64) * cols if IS_WIDE else row * cols
        total += tl.load(x + start + i)
    tl.store(out + tl.program_id(0) * BLOCK + i, total)


@triton.jit
def packed(x, out, stride, cols, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if IS_WIDE:
        row = row.to(tl.int64)
    i = tl.arange(0, BLOCK)
    offsets = row * stride + i
    tl.store(out + i, tl.load(x + offsets, mask=i < cols))


@triton.jit
def tiled(x, out, rows, cols, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    y = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if IS_WIDE:
        y = y.to(tl.int64)
    inside = (y[:, None] < rows) & (i[None, :] < cols)
    place = y[:, None] * cols + i[None, :]
    tl.store(out + tl.arange(0, BLOCK), tl.sum(tl.load(x + place, mask=inside, other=0), 0))


out = torch.zeros(1 << 16, device="cuda")
huge = torch.empty((1 << 31) + (1 << 16), dtype=torch.int8, device="cuda")

wide_rows[((1 << 16) + 2,)](huge, out, 1 << 15, IS_WIDE=False, BLOCK=1024)  # 0
wide_rows[((1 << 16) + 2,)](huge, out, 1 << 15, IS_WIDE=True, BLOCK=1024)
plane[((1 << 12) + 1, 4)](huge, out, 512, 1024, IS_WIDE=False, BLOCK=1024)  # 2
plane[((1 << 12) + 1, 4)](huge, out, 512, 1024, IS_WIDE=True, BLOCK=1024)
loop[(64,)](huge, out, (1 << 15) + 1, 1 << 16, IS_WIDE=False, BLOCK=1024)  # 4
loop[(64,)](huge, out, (1 << 15) + 1, 1 << 16, IS_WIDE=True, BLOCK=1024)
plane[(22_140, 1)](huge, out, 97, 1000, IS_WIDE=False, BLOCK=1024)  # 6
plane[(22_140, 1)](huge, out, 97, 1000, IS_WIDE=True, BLOCK=1024)
long_rows = huge[: 71_584 * 30_000].view(-1, 30_000)
for rows in (71_583, 71_582):  # 8, 9
    packed[(rows,)](long_rows[:rows], out, 30_000, 30_000, IS_WIDE=False, BLOCK=32768, num_warps=32)
for rows in (71_584, 71_583):  # 10, 11
    packed[(rows,)](long_rows[:rows, :3000], out, 30_000, 3000, IS_WIDE=False, BLOCK=4096)
packed[(71_584,)](long_rows[:, :3000], out, 30_000, 3000, IS_WIDE=True, BLOCK=4096)
square = huge[: 46341**2].view(46341, 46341)
tiled[(363, 363)](square, out, 46341, 46341, IS_WIDE=False, BLOCK=128, num_warps=16)  # 13
"""


def find(launch, kind, op=""):
    return next(each for each in launch.findings if each.kind == kind and op in each.op)


OVERFLOWS = """
0 | 65536 | tl.load(x + row * stride + i)
2 | 4096 | place = z * height * width
4 | 0 | else row * cols
6 | 22139 | place = z * height * width
"""


@pytest.mark.parametrize(("number", "program", "statement"), read_table(OVERFLOWS))
def test_an_overflow_is_named_with_its_line_program_and_size_and_64_bits_cure_it(
    launches, number, program, statement
):
    finding = find(launches[number], "overflow", "load")
    line = SCRIPT[: SCRIPT.index(statement)].count("\n") + 1
    assert f"script.py:{line} overflows 32 bits" in finding.text
    assert f"from program {program:,} on, the offset {1 << 31:,} wraps" in finding.text
    assert f"The smallest x that wraps has {(1 << 31) + 1:,} elements" in finding.text
    assert f"On line {line}, convert an operand" in finding.change
    assert ".to(tl.int64)" in finding.change
    fixed = next(op for op in launches[number + 1].ops if op.op == "load")
    assert finding.after["requests"] == fixed.requests
    assert finding.after["sectors"] == fixed.sectors
    assert finding.before["overflowing_programs"] > finding.after["overflowing_programs"] == 0
    assert not any(each.kind in ("overflow", "outside") for each in launches[number + 1].findings)


SMALLEST = """
8 | 71_582 | 0x80000000 | 71,583 × 30,000
10 | 71_583 | 2_147_490_000 | 71,584 × 3,000
13 | 118_337 | 0x80000000 | 46,341 × 46,341
"""


@pytest.mark.parametrize(("number", "program", "offset", "size"), read_table(SMALLEST))
def test_the_smallest_shape_that_wraps_is_named_even_if_rows_and_columns_share_a_number(
    launches, number, program, offset, size
):
    text = find(launches[number], "overflow", "load").text
    assert f"from program {program:,} on, the offset {offset:,} wraps" in text
    assert f"The smallest x that wraps has {size} elements." in text


@pytest.mark.parametrize("number", [9, 11, 12])
def test_one_row_less_or_64_bits_do_not_wrap(launches, number):
    assert not any(each.kind in ("overflow", "outside") for each in launches[number].findings)
