"""Findings are experiments: what a change promises equals the numbers of the kernel that was changed by hand."""

import pytest

from kernels.capture.reader import Capture
from visualize.cli.show import show
from visualize.reports.launch import make_report
from visualize.reports.text import table

SCRIPT = """
import torch
import triton
import triton.language as tl


@triton.jit
def copy(x, out, n, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i * STEP, mask=i < n), mask=i < n)


@triton.jit
def rows(x, out, cols, BLOCK: tl.constexpr):
    i = tl.program_id(0) * cols + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < cols
    tl.store(out + i, tl.load(x + i, mask=inside), mask=inside)


@triton.jit
def rows_of_constant_length(x, out, cols: tl.constexpr, BLOCK: tl.constexpr):
    rows(x, out, cols, BLOCK)


@triton.jit
def bounded(x, out, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < N), mask=i < N)


@triton.jit
def unpack(left, words, out, depth, width, ONCE: tl.constexpr, WIDE: tl.constexpr):
    y, k, x = tl.arange(0, 16), tl.arange(0, 32), tl.program_id(0) * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((16, WIDE), tl.float32)
    for first in range(0, depth, 32):
        a = tl.load(left + y[:, None] * depth + first + k[None, :])
        if ONCE:
            few = tl.load(words + (first // 8 + tl.arange(0, 4)[:, None]) * width + x[None, :])
            word = tl.reshape(tl.broadcast_to(few[:, None, :], (4, 8, WIDE)), (32, WIDE))
        else:
            word = tl.load(words + (first // 8 + k[:, None] // 8) * width + x[None, :])
        total = tl.dot(a, (word >> k[:, None] % 8 * 4 & 15).to(tl.float16), total)
    tl.store(out + y[:, None] * width + x[None, :], total)


@triton.jit
def add(x, out, BLOCK: tl.constexpr, ORDER: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + i % 64, tl.load(x + i), sem=ORDER)


@triton.jit
def from_table(pointers, out, KNOWN: tl.constexpr, BLOCK: tl.constexpr):
    p = tl.load(pointers + tl.program_id(0)).to(tl.pointer_type(tl.float32))
    if KNOWN:
        p = tl.multiple_of(p, 16)
    i = tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0) * BLOCK + i, tl.load(p + i))


@triton.jit
def wide_rows(x, out, stride, IS_WIDE: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    if IS_WIDE:
        row = row.to(tl.int64)
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + row * stride + i))


@triton.jit
def twice(x, out, N: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)[None, :]
    a = tl.load(x + i)
    tl.store(out + tl.program_id(0) * N * N + i, a * tl.sum(a, 1)[:, None] * tl.sum(a, 0)[None, :])


@triton.jit
def reverse(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + n - 1 - i))


@triton.jit
def halve(source, target, rows, WIDTH: tl.constexpr, TALL: tl.constexpr):
    y = tl.program_id(0) * TALL + tl.arange(0, TALL)[:, None]
    x = tl.arange(0, WIDTH)[None, :]
    values = tl.load(source + y * WIDTH + x, mask=y < rows)
    tl.store(target + y * WIDTH + x, values * 0.5, mask=y < rows)


@triton.jit
def product(left, right, scales, out, depth, STEP: tl.constexpr):
    i = tl.arange(0, 64)
    total = tl.zeros((64, 64), tl.float32)
    for first in range(0, depth, 64):
        a = tl.load(left + i[:, None] * depth + first + i[None, :])
        b = tl.load(right + (first + i[:, None]) * 128 + i[None, :] * STEP)
        total += tl.dot(a, b) * tl.load(scales + first * 64 + i[:, None] * 64 + i[None, :])
    tl.store(out + i[:, None] * 64 + i[None, :], total)


@triton.jit
def product_of_constant_depth(left, right, scales, out, depth: tl.constexpr, STEP: tl.constexpr):
    product(left, right, scales, out, depth, STEP)


@triton.jit
def few(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i))


@triton.jit
def scalar(x, out, n):
    tl.store(out + tl.program_id(0), tl.load(x + tl.program_id(0) * n))


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
def limited(lengths, x, out, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    j = tl.arange(0, 16)
    limit = tl.min(tl.load(lengths + j, mask=j < COUNT, other=1 << 30))
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < limit), mask=i < limit)


@triton.jit
def steps(x, out, first, last, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for k in range(first, last, BLOCK):
        tl.store(out + k + i, tl.load(x + k + i))


@triton.jit
def tail(x, out, first, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + first + i, tl.load(x + first + i, mask=i >= first), mask=i >= first)


@triton.jit
def skip(x, out, first, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if tl.program_id(0) >= first:
        tl.store(out + i + first, tl.load(x + i + first))


@triton.jit
def once(x, out, first, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.load(x + first + i)
    if first < 16:
        total += tl.load(x + 1024 + first + i)
    tl.store(out + first + i, total)


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


@triton.jit
def gathered(left, indices, right, out, depth):
    i = tl.arange(0, 64)
    total = tl.zeros((64, 64), tl.float32)
    for first in range(0, depth, 64):
        a = tl.load(left + i[:, None] * depth + first + i[None, :])
        index = tl.load(indices + first + i)
        total += tl.dot(a, tl.load(right + index[:, None] * 64 + i[None, :]))
    tl.store(out + i[:, None] * 64 + i[None, :], total)


x = torch.zeros(1 << 16, device="cuda")
out = torch.zeros(1 << 16, device="cuda")
addresses = torch.tensor([x.data_ptr() + 4096 * k for k in range(4)], device="cuda")
words = torch.zeros(512, 1024, dtype=torch.int32, device="cuda")
left = torch.zeros(16, 4096, dtype=torch.float16, device="cuda")
huge = torch.empty((1 << 31) + (1 << 16), dtype=torch.int8, device="cuda")
small = torch.empty(64, 4096, dtype=torch.float16, device="cuda")
tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (256, 512)], key=[])(add)
reset = triton.autotune([triton.Config({"BLOCK": b}) for b in (256, 512)], key=[], reset_to_zero=["out"])(add)

copy[(2,)](x[1:], out, 1024, 1, BLOCK=512)  # 0
copy[(2,)](x, out, 1024, 1, BLOCK=512)
copy[(8,)](x, out, 1024, 8, BLOCK=128)  # 2
copy[(8,)](x, out, 1024, 1, BLOCK=128)
copy[(8,)](x, out, 1024, 2, BLOCK=128)  # 4
rows[(8,)](x, out, 1001, BLOCK=1024)  # 5
rows[(8,)](x, out, 1008, BLOCK=1024)
rows[(8,)](x, out, 1000, BLOCK=1024)  # 7
rows_of_constant_length[(8,)](x, out, 1000, BLOCK=1024)
bounded[(1,)](x, out, 1001, BLOCK=1024)  # 9
bounded[(1,)](x, out, 1008, BLOCK=1024)
unpack[(4,)](left, words, out, 4096, 1024, ONCE=False, WIDE=256)  # 11
unpack[(4,)](left, words, out, 4096, 1024, ONCE=True, WIDE=256)
add[(16,)](x, out, BLOCK=256, ORDER="acq_rel")  # 13
add[(16,)](x, out, BLOCK=256, ORDER="relaxed")
from_table[(4,)](addresses, out, KNOWN=False, BLOCK=1024)  # 15
from_table[(4,)](addresses, out, KNOWN=True, BLOCK=1024)
wide_rows[((1 << 21) + 2,)](huge, out, 1024, IS_WIDE=False, BLOCK=1024)  # 17
wide_rows[((1 << 21) + 2,)](huge, out, 1024, IS_WIDE=True, BLOCK=1024)
twice[(400,)](x, out, 128, num_warps=2)  # 19
twice[(400,)](x, out, 128, num_warps=4)
reverse[(16,)](x, out, 16384, BLOCK=1024)  # 21
halve[(1001,)](small, small.clone(), 4001, WIDTH=64, TALL=4)  # 22
tuned[(16,)](x, out, ORDER="relaxed")  # 23
reset[(16,)](x, out, ORDER="relaxed")
copy[(200,)](x[:1000].clone(), torch.zeros(1 << 18, device="cuda"), 1 << 18, 1, BLOCK=1024)  # 25
twice[(400,)](x, out, 128, num_warps=8)  # 26
halves = small.flatten()
product[(1,)](halves, halves.clone(), x, out, 1024, STEP=2)  # 27
product[(1,)](halves, halves.clone(), x, out, 1024, STEP=1)
few[(8,)](x, out, BLOCK=64, num_warps=8)  # 29
few[(8,)](x, out, BLOCK=64, num_warps=2)
rows[(8,)](halves, halves.clone(), 1004, BLOCK=1024)  # 31
rows_of_constant_length[(8,)](halves, halves.clone(), 1004, BLOCK=1024)
scalar[(200,)](x, out, 33)  # 33
plane[((1 << 12) + 1, 64)](huge, out, 512, 1024, IS_WIDE=False, BLOCK=1024)  # 34
plane[((1 << 12) + 1, 64)](huge, out, 512, 1024, IS_WIDE=True, BLOCK=1024)
loop[(64,)](huge, out, (1 << 15) + 1, 1 << 16, IS_WIDE=False, BLOCK=1024)  # 36
loop[(64,)](huge, out, (1 << 15) + 1, 1 << 16, IS_WIDE=True, BLOCK=1024)
plane[(100_004, 1)](huge, out, 1, 21_474, IS_WIDE=False, BLOCK=32768)  # 38
plane[(100_004, 1)](huge, out, 1, 21_474, IS_WIDE=True, BLOCK=32768)
lengths = torch.tensor([1000] * 6 + [16] * 10, dtype=torch.int32, device="cuda")
limited[(2,)](lengths, x, out, 6, BLOCK=1024)  # 40
steps[(1,)](x, out, 7, 8200, BLOCK=1024)  # 41
tail[(1,)](x, out, 7, BLOCK=1024)  # 42
skip[(32,)](x, out, 7, BLOCK=1024)  # 43
once[(1,)](x, out, 7, BLOCK=1024)  # 44
long_rows = huge[: 214_750 * 10_000].view(-1, 10_000)
for rows in (214_749, 214_748):  # 45, 46
    packed[(rows,)](long_rows[:rows], out, 10_000, 10_000, IS_WIDE=False, BLOCK=16384)
for rows in (214_750, 214_749):  # 47, 48
    packed[(rows,)](long_rows[:rows, :3000], out, 10_000, 3000, IS_WIDE=False, BLOCK=16384)
packed[(214_750,)](long_rows[:, :3000], out, 10_000, 3000, IS_WIDE=True, BLOCK=16384)
tiled[(725, 725)](huge[: 46341**2].view(46341, 46341), out, 46341, 46341, IS_WIDE=False, BLOCK=64)  # 50
indices = torch.randint(0, 1024, (1024,), dtype=torch.int32, device="cuda")
gathered[(400,)](halves, indices, halves.clone(), x, 1024, num_stages=2)  # 51
gathered[(400,)](halves, indices, halves.clone(), x, 1024, num_stages=3)
to_halves = halves.clone()
copy[(2,)](halves[1:], to_halves, 1024, 1, BLOCK=512)  # 53
copy[(2,)](halves, to_halves, 1024, 1, BLOCK=512)
copy[(8,)](halves, to_halves, 1024, 8, BLOCK=128)  # 55
copy[(8,)](halves, to_halves, 1024, 1, BLOCK=128)
bounded[(1,)](halves, to_halves, 1004, BLOCK=1024)  # 57
bounded[(1,)](halves, to_halves, 1008, BLOCK=1024)
add[(16,)](halves, to_halves, BLOCK=256, ORDER="acq_rel")  # 59
add[(16,)](halves, to_halves, BLOCK=256, ORDER="relaxed")
few[(8,)](halves, to_halves, BLOCK=64, num_warps=8)  # 61
few[(8,)](halves, to_halves, BLOCK=64, num_warps=2)
product[(1,)](halves, halves.clone(), x, out, 1000, STEP=1)  # 63
product_of_constant_depth[(1,)](halves, halves.clone(), x, out, 1000, STEP=1)
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory, compiled_before):
    folder = tmp_path_factory.mktemp("findings")
    script = folder / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(compiled_before))
        capture = folder / "script.tilescope"
        show([str(script), "--text", "--gpu", "H200", "--out", str(capture)])
    return capture


@pytest.fixture(scope="module")
def launches(path):
    return make_report(Capture(path)).launches


def find(launch, kind, op=""):
    return next(each for each in launch.findings if each.kind == kind and op in each.op)


@pytest.mark.parametrize(
    ("number", "kind", "op", "cause", "needs"),
    [
        (0, "misaligned", "load", "x starts 4 bytes after a multiple of 16", ""),
        (
            2,
            "strided",
            "load",
            "lane 1 is 32 bytes after lane 0",
            "All users of x must expect that order.",
        ),
        (
            5,
            "divisibility",
            "load",
            "cols = 1001 is not a multiple of 16",
            "only if x has memory for the extra elements",
        ),
        (
            5,
            "divisibility",
            "store",
            "cols = 1001 is not a multiple of 16",
            "only if out has memory for",
        ),
        (7, "divisibility", "load", "cols = 1000 is not a multiple of 16", ""),
        (7, "divisibility", "store", "cols = 1000 is not a multiple of 16", ""),
        (
            9,
            "mask",
            "load",
            "The mask's bound 1001 is not a multiple of 16",
            "only if x has memory",
        ),
        (
            9,
            "mask",
            "store",
            "The mask's bound 1001 is not a multiple of 16",
            "only if out has memory",
        ),
        (11, "repeated", "async copy", "8 × in total", ""),
        (13, "ordering", "atomic", "acq_rel", "only if no other program synchronizes"),
        (
            15,
            "table",
            "load",
            "alignment of the addresses in a table",
            "all addresses in the table are multiples",
        ),
        (29, "repeated", "load", "warps load the same sectors 4 times", ""),
        (31, "divisibility", "load", "A lane moves 2 bytes per request", ""),
        (31, "divisibility", "store", "A lane moves 2 bytes per request", ""),
        (53, "misaligned", "load", "x starts 2 bytes after a multiple of 16", ""),
        (55, "strided", "load", "lane 1 is 16 bytes after lane 0", "All users of x must expect"),
        (57, "mask", "load", "The mask's bound 1004 is not a multiple", "only if x has memory"),
        (57, "mask", "store", "A lane moves 8 bytes per request", "only if out has memory"),
        (59, "ordering", "atomic", "acq_rel", "only if no other program synchronizes"),
        (61, "repeated", "load", "warps load the same sectors 4 times", ""),
    ],
)
def test_a_change_promises_the_numbers_of_the_kernel_changed_by_hand(
    launches, number, kind, op, cause, needs
):
    finding = find(launches[number], kind, op)
    assert cause in finding.text
    assert needs in finding.needs
    pairs = zip(launches[number].ops, launches[number + 1].ops, strict=True)
    before, after = next(
        pair for pair in pairs if pair[0].op == op and pair[0].line == finding.line
    )
    for unit in ("requests", "sectors"):
        assert finding.before[unit] == getattr(before, unit)
        assert finding.after[unit] == getattr(after, unit)
    assert finding.after != finding.before


def test_a_ratio_of_exactly_two_is_reported(launches):
    finding = find(launches[4], "strided", "load")
    assert "This operation touches 2 × its ideal sectors" in finding.text
    for unit in ("requests", "sectors"):
        assert finding.before[unit] == getattr(launches[4].ops[0], unit)
        assert finding.after[unit] == getattr(launches[3].ops[0], unit)


def test_bytes_loaded_more_than_once_are_compared_with_the_size_of_the_tensor(launches):
    words = 512 * 1024 * 4 // 32
    finding = find(launches[11], "repeated")
    assert f"{8 * words:,} sectors; {words:,} would suffice" in finding.text
    assert finding.after["sectors"] == words


@pytest.mark.parametrize(
    ("number", "program", "statement"),
    [
        (17, 1 << 21, "tl.load(x + row * stride + i)"),
        (34, 1 << 12, "place = z * height * width"),
        (36, 0, "else row * cols"),
        (38, 100_003, "place = z * height * width"),
    ],
)
def test_an_overflow_is_named_with_its_line_program_and_size_and_64_bits_cure_it(
    launches, number, program, statement
):
    finding = find(launches[number], "overflow", "load")
    line = SCRIPT[: SCRIPT.index(statement)].count("\n") + 1
    assert f"script.py:{line} overflows 32 bits" in finding.text
    assert f"from program {program:,} on, the offset {1 << 31:,} wraps" in finding.text
    assert f"The smallest x that wraps has {(1 << 31) + 1:,} elements" in finding.text
    assert f"In line {line}, convert an operand" in finding.change
    assert ".to(tl.int64)" in finding.change
    fixed = next(op for op in launches[number + 1].ops if op.op == "load")
    assert finding.after["requests"] == fixed.requests
    assert finding.after["sectors"] == fixed.sectors
    assert finding.before["overflowing_programs"] > finding.after["overflowing_programs"] == 0
    assert not any(each.kind in ("overflow", "outside") for each in launches[number + 1].findings)


@pytest.mark.parametrize(
    ("number", "program", "offset", "size"),
    [
        (45, 214_748, 1 << 31, "214,749 × 10,000"),
        (47, 214_749, 2_147_490_000, "214,750 × 3,000"),
        (50, 724 + 651 * 725, 1 << 31, "46,341 × 46,341"),
    ],
)
def test_the_smallest_shape_that_wraps_is_named_even_if_rows_and_columns_share_a_number(
    launches, number, program, offset, size
):
    text = find(launches[number], "overflow", "load").text
    assert f"from program {program:,} on, the offset {offset:,} wraps" in text
    assert f"The smallest x that wraps has {size} elements." in text


@pytest.mark.parametrize("number", [46, 48, 49])
def test_one_row_less_or_64_bits_do_not_wrap(launches, number):
    assert not any(each.kind in ("overflow", "outside") for each in launches[number].findings)


@pytest.mark.parametrize("number", range(40, 45))
def test_a_change_that_only_accesses_fewer_elements_is_not_advised(launches, number):
    assert not any(each.change for each in launches[number].findings)


@pytest.mark.parametrize(
    ("number", "kind", "changed", "warps"),
    [(19, "spills", 20, 4), (20, "occupancy", 26, 8)],
)
def test_an_option_promises_the_resources_of_the_kernel_launched_with_it(
    launches, number, kind, changed, warps
):
    finding = find(launches[number], kind)
    assert finding.change == f"Pass num_warps = {warps}."
    for name in ("registers", "spilled_bytes", "shared_bytes"):
        assert finding.before[name] == getattr(launches[number], name)
        assert finding.after[name] == getattr(launches[changed], name)


def test_a_load_beside_asynchronous_copies_is_named_with_its_reason(launches):
    reasons = {
        finding.tensor: finding.text
        for finding in launches[27].findings
        if finding.kind == "synchronous"
    }
    assert "a lane has 2 consecutive bytes, and a copy needs 4" in reasons["right"]
    assert "no tl.dot uses its values" in reasons["scales"]
    fixed = [op for op in launches[28].ops if op.tensor == "left"]
    assert {op.op for op in fixed} == {"async copy"}


@pytest.mark.parametrize(
    ("number", "kind", "tensor", "cause", "change"),
    [
        (51, "synchronous", "indices", "num_stages is only 2", "Pass num_stages = 3."),
        (63, "divisibility", "left", "depth = 1000 is not", "Declare depth as tl.constexpr."),
    ],
)
def test_the_cure_of_a_synchronous_load_promises_the_copies_of_the_kernel_changed_by_hand(
    launches, number, kind, tensor, cause, change
):
    (finding,) = (
        each for each in launches[number].findings if (each.kind, each.tensor) == (kind, tensor)
    )
    assert cause in finding.text
    assert finding.change == change
    for numbers, launch, kind in (
        (finding.before, launches[number], "load"),
        (finding.after, launches[number + 1], "async copy"),
    ):
        ops = [op for op in launch.ops if op.tensor == tensor]
        assert {op.op for op in ops} == {kind}
        for unit in ("requests", "sectors"):
            assert numbers[unit] == sum(getattr(op, unit) for op in ops)
        synchronous = sum(op.requests for op in ops if op.op == "load")
        assert numbers["synchronous_requests"] == synchronous


def test_scalar_accesses_have_no_findings(launches):
    assert launches[33].findings == ()


def test_the_size_of_the_grid_comes_last(launches):
    assert [each.kind for each in launches[0].findings] == ["misaligned", "grid"]


def test_a_reversed_access_names_the_order_and_advises_nothing(launches):
    finding = find(launches[21], "reversed", "load")
    assert "16 bytes before lane 0" in finding.text
    assert finding.change == ""


def test_an_argument_that_limits_nothing_is_not_blamed(launches):
    assert launches[22].findings == ()


def test_an_autotuned_kernel_that_adds_needs_reset_to_zero(launches):
    assert "reset_to_zero=['out']" in find(launches[23], "autotuner").text
    assert not any(each.kind == "autotuner" for each in launches[24].findings)


def test_two_programs_that_store_to_one_address_are_named(launches):
    assert (
        "Programs 0 and 1, warp 0, lane 0 store to the same address of out"
        in find(launches[17], "race").text
    )


def test_an_access_outside_its_tensor_is_a_fact_without_advice(launches):
    finding = find(launches[25], "outside")
    assert (
        "Program 0, warp 3, lane 26: element (1000) of the block lies outside x, 0 bytes after its end."
        in finding.text
    )
    assert finding.change == ""


def test_a_small_grid_leaves_sms_idle(launches):
    assert (
        find(launches[0], "grid").text == "130 of 132 SMs stay idle, because the grid's size is 2."
    )


def test_findings_are_kept_in_the_file_and_a_file_without_them_says_that_nothing_was_tried(
    path, launches
):
    again = make_report(Capture(path))
    assert [launch.findings for launch in again.launches] == [
        launch.findings for launch in launches
    ]
    assert again.untried == ""
    capture = Capture(path)
    capture.findings = None
    untried = make_report(capture)
    assert "no change was compiled" in table(untried)
    assert not any(
        each.change
        for launch in untried.launches
        for each in launch.findings
        if each.kind != "overflow"
    )
