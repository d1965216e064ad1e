"""Findings are experiments: what a change promises equals the numbers of the kernel that was changed by hand."""

from dataclasses import replace

import pytest

from tests.tables import read_table
from tilescope.captures.content import TIME
from tilescope.captures.reader import Capture
from tilescope.reports.launch import make_report
from tilescope.reports.text import table

# One worker compiles the kernels once
pytestmark = pytest.mark.xdist_group("findings")

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
def gathered(left, indices, right, out, depth):
    i = tl.arange(0, 64)
    total = tl.zeros((64, 64), tl.float32)
    for first in range(0, depth, 64):
        a = tl.load(left + i[:, None] * depth + first + i[None, :])
        index = tl.load(indices + first + i)
        total += tl.dot(a, tl.load(right + index[:, None] * 64 + i[None, :]))
    tl.store(out + i[:, None] * 64 + i[None, :], total)


@triton.jit
def center(x, out, stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * stride + i, mask=i < n, other=0.0)
    mean = tl.sum(values) / n
    tl.store(out + tl.program_id(0) * stride + i, values - mean, mask=i < n)


@triton.jit
def strided_rows(x, out, x_stride, out_stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + tl.program_id(0) * x_stride + i, mask=i < n, other=0.0)
    tl.store(out + tl.program_id(0) * out_stride + i, values, mask=i < n)


@triton.jit
def rescale(x, out, stride, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    most = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, n, BLOCK):
        most = tl.maximum(most, tl.load(x + tl.program_id(0) * stride + k + i, mask=k + i < n))
    scale = tl.max(most)
    for k in range(0, n, BLOCK):
        again = tl.load(x + tl.program_id(0) * stride + k + i, mask=k + i < n)
        tl.store(out + tl.program_id(0) * stride + k + i, again / scale, mask=k + i < n)


@triton.jit
def rescale_constant_rows(x, out, stride: tl.constexpr, n: tl.constexpr, BLOCK: tl.constexpr):
    rescale(x, out, stride, n, BLOCK)


@triton.jit
def look_up(starts, indices, x, out, BLOCK: tl.constexpr):
    start = tl.load(starts + tl.program_id(0))
    index = tl.load(indices + start + tl.arange(0, BLOCK))
    tl.store(out + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.load(x + index))


@triton.jit
def share(scales, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + tl.program_id(0), tl.sum(tl.load(scales + i // 32)))


@triton.jit
def single_product(left, right, out, depth, down, along):
    i = tl.arange(0, 64)
    k = tl.arange(0, 32)
    total = tl.zeros((64, 64), tl.float32)
    for first in range(0, depth, 32):
        a = tl.load(left + i[:, None] * depth + first + k[None, :])
        b = tl.load(right + (first + k[:, None]) * down + i[None, :] * along)
        total = tl.dot(a, b, total)
    tl.store(out + tl.program_id(0) * 4096 + i[:, None] * 64 + i[None, :], total)


@triton.jit
def sum_columns(x, out):
    i = tl.arange(0, 64)
    tl.store(out + tl.program_id(0) * 64 + i, tl.sum(tl.load(x + i[:, None] * 64 + i[None, :]), 0))


@triton.jit
def move(x, out, down, along):
    i = tl.arange(0, 64)
    tile = tl.load(x + i[:, None] * 64 + i[None, :])
    tl.store(out + tl.program_id(0) * 4096 + i[:, None] * down + i[None, :] * along, tile)


@triton.jit
def turn(x, out):
    i = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(out + i, tl.load(x + i % 1024 * 1024 + i // 1024))


x = torch.zeros(1 << 22, device="cuda")
out = torch.zeros(1 << 22, device="cuda")
addresses = torch.tensor([x.data_ptr() + 4096 * k for k in range(1000)], device="cuda")
words = torch.zeros(512, 1024, dtype=torch.int32, device="cuda")
left = torch.zeros(16, 4096, dtype=torch.float16, device="cuda")
small = torch.empty(64, 4096, dtype=torch.float16, device="cuda")
tuned = triton.autotune([triton.Config({"BLOCK": b}) for b in (256, 512)], key=[])(add)
reset = triton.autotune([triton.Config({"BLOCK": b}) for b in (256, 512)], key=[], reset_to_zero=["out"])(add)

wide = torch.zeros(1 << 22, dtype=torch.float16, device="cuda")
to_wide = wide.clone()
copy[(500,)](wide[1:], to_wide, 4000000, 1, BLOCK=8192)  # 0
copy[(500,)](wide, to_wide, 4000000, 1, BLOCK=8192)
copy[(4096,)](x, out, 1 << 19, 8, BLOCK=128)  # 2
copy[(4096,)](x, out, 1 << 19, 1, BLOCK=128)
copy[(4096,)](x, out, 1 << 19, 2, BLOCK=128)  # 4
rows[(500,)](wide, to_wide, 8001, BLOCK=8192)  # 5
rows[(500,)](wide, to_wide, 8016, BLOCK=8192)
rows[(500,)](wide, to_wide, 8008, BLOCK=8192)  # 7
rows_of_constant_length[(500,)](wide, to_wide, 8008, BLOCK=8192)
bounded[(4000,)](x, out, 1001, BLOCK=1024)  # 9
bounded[(4000,)](x, out, 1008, BLOCK=1024)
unpack[(4,)](left, words, out, 1024, 1024, ONCE=False, WIDE=256)  # 11
unpack[(4,)](left, words, out, 1024, 1024, ONCE=True, WIDE=256)
add[(16,)](x, out, BLOCK=256, ORDER="acq_rel")  # 13
add[(16,)](x, out, BLOCK=256, ORDER="relaxed")
from_table[(500,)](addresses, out, KNOWN=False, BLOCK=8192)  # 15
from_table[(500,)](addresses, out, KNOWN=True, BLOCK=8192)
twice[(400,)](x, out, 128, num_warps=4)
reverse[(16,)](x, out, 16384, BLOCK=1024)  # 18
halve[(1001,)](small, small.clone(), 4001, WIDTH=64, TALL=4)  # 19
tuned[(16,)](x, out, ORDER="relaxed")  # 20
reset[(16,)](x, out, ORDER="relaxed")
copy[(200,)](x[:1000].clone(), torch.zeros(1 << 18, device="cuda"), 1 << 18, 1, BLOCK=1024)  # 22
twice[(400,)](x, out, 128, num_warps=8)  # 23
halves = small.flatten()
product[(1,)](halves, halves.clone(), x, out, 256, STEP=2)  # 24
product[(1,)](halves, halves.clone(), x, out, 256, STEP=1)
few[(8,)](x, out, BLOCK=64, num_warps=8)  # 26
rows[(500,)](wide, to_wide, 8004, BLOCK=8192)  # 27
rows_of_constant_length[(500,)](wide, to_wide, 8004, BLOCK=8192)
scalar[(200,)](x, out, 33)  # 29
lengths = torch.tensor([1000] * 6 + [16] * 10, dtype=torch.int32, device="cuda")
limited[(2,)](lengths, x, out, 6, BLOCK=1024)  # 30
steps[(1,)](x, out, 7, 8200, BLOCK=1024)  # 31
tail[(1,)](x, out, 7, BLOCK=1024)  # 32
skip[(32,)](x, out, 7, BLOCK=1024)  # 33
once[(1,)](x, out, 7, BLOCK=1024)  # 34
indices = torch.randint(0, 1024, (1024,), dtype=torch.int32, device="cuda")
gathered[(400,)](halves, indices, halves.clone(), x, 256, num_stages=2)  # 35
gathered[(400,)](halves, indices, halves.clone(), x, 256, num_stages=3)
to_halves = halves.clone()
bounded[(4000,)](halves, to_halves, 1004, BLOCK=1024)  # 37
bounded[(4000,)](halves, to_halves, 1008, BLOCK=1024)
product[(1,)](halves, halves.clone(), x, out, 200, STEP=1)  # 39
product_of_constant_depth[(1,)](halves, halves.clone(), x, out, 200, STEP=1)
center[(8,)](x, out, 1001, 1001, BLOCK=1024)  # 41
strided_rows[(500,)](wide, to_wide, 8001, 8001, 8001, BLOCK=8192)  # 42
strided_rows[(500,)](wide, to_wide, 8016, 8016, 8016, BLOCK=8192)
strided_rows[(8,)](x, out, 1008, 1001, 1008, BLOCK=1024)  # 44
rescale[(8,)](halves, to_halves, 1000, 1000, BLOCK=1024)  # 45
rescale_constant_rows[(8,)](halves, to_halves, 1000, 1000, BLOCK=1024)
copy[(16384,)](x[1:], out, 1 << 21, 1, BLOCK=128)  # 47
look_up[(8,)](indices * 64, (torch.randperm(1 << 16, device="cuda")).int(), x, out, BLOCK=64, num_warps=2)  # 48
share[(16,)](x, out, BLOCK=4096)  # 49
single_product[(4,)](x, x.clone(), out, 128, 64, 1)  # 50
single_product[(4,)](x, x.clone(), out, 128, 1, 128)
sum_columns[(8,)](x, out, num_warps=4)  # 52
move[(8,)](x, out, 1, 64)  # 53
move[(8,)](x, out, 64, 1)
product[(4000,)](halves, halves.clone(), x, out, 128, STEP=1, num_stages=5)  # 55
product[(4000,)](halves, halves.clone(), x, out, 128, STEP=1, num_stages=3)
product[(1,)](halves, halves[: 64 * 128].clone(), x, out, 128, STEP=1, num_stages=3)  # 57
rows[(500,)](wide[1:], to_wide, 8001, BLOCK=8192)  # 58
turn[(1024,)](x, out)  # 59
"""

SHORTAGE = """
import torch
import triton
import triton.language as tl


@triton.jit
def product(left, right, out, depth, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, depth, BLOCK):
        a = tl.load(left + i[:, None] * depth + first + i[None, :])
        b = tl.load(right + (first + i[:, None]) * BLOCK + i[None, :])
        total = tl.dot(a, b, total)
    tl.store(out + i[:, None] * BLOCK + i[None, :], total)


halves = torch.empty(1 << 19, dtype=torch.float16, device="cuda")
out = torch.empty(1 << 14, device="cuda")
for stages in (3, 5):
    product[(1,)](halves, halves.clone(), out, 4096, BLOCK=128, num_stages=stages)
"""


@pytest.fixture(scope="module")
def shortage(capture_script, capture_server):
    """Capture SHORTAGE with its findings. Return the capture's path and its report."""
    path = capture_script(SHORTAGE)
    return path, make_report(Capture(path), capture_server.compile)


@pytest.fixture(scope="module")
def tried(captured, launches):
    """Return the launches with all changes that were tried and help, even if they save little time."""
    findings = Capture(captured).findings
    return [
        replace(launch, findings=tuple(own)) for launch, own in zip(launches, findings, strict=True)
    ]


def find(launch, kind, op=""):
    return next(each for each in launch.findings if each.kind == kind and op in each.op)


def find_line(code):
    """Return the number of the first line of the script with a text."""
    return SCRIPT[: SCRIPT.index(code)].count("\n") + 1


# A launch, a launch with the change, a finding's kind, operation and cause, and what its change needs.
CHANGES = """
0 | 1 | misaligned | load | x starts 2 bytes past a 16-byte boundary |
2 | 3 | strided | load | adjacent lanes are 32 bytes apart | only if all users of x expect that order.
4 | 3 | strided | load | The requests touch 2 × as many sectors as their bytes fill |
5 | 6 | divisibility | load | cols = 8001 is not a multiple of 16; the next is 8016 | only if out and x have room
7 | 8 | divisibility | load | cols = 8008 is not a multiple of 16 |
9 | 10 | mask | store | The mask's bound 1001 is not a multiple of 16 | only if out and x have room
11 | 12 | repeated | async copy | 2 times. The launch touches 131,072 sectors; about 16,384 would suffice. |
13 | 14 | ordering | atomic | acq_rel | only if no other program synchronizes
15 | 16 | table | load | how the addresses in a table are aligned | all addresses in the table are multiples
27 | 28 | divisibility | load | Each lane accesses only 2 bytes per request |
37 | 38 | mask | store | The mask's bound 1004 is not a multiple | only if out and x have room
42 | 43 | divisibility | load | n = 8001 is not | room for the extra elements, and x is padded with 0.
58 | 6 | misaligned | load | x starts 2 bytes past a 16-byte boundary. cols = 8001 is not | only if out and x have room
"""


@pytest.mark.parametrize("row", CHANGES.strip().splitlines())
def test_a_change_promises_the_numbers_of_the_kernel_changed_by_hand(tried, row):
    number, changed, kind, op, cause, needs = (part.strip() for part in row.split("|"))
    launch = tried[int(number)]
    finding = find(launch, kind, op)
    assert cause in finding.text
    assert needs in finding.needs
    pairs = zip(launch.ops, tried[int(changed)].ops, strict=True)
    before, after = next(
        pair for pair in pairs if pair[0].op == op and pair[0].line == finding.line
    )
    for unit in ("requests", "sectors"):
        assert finding.before[unit] == getattr(before, unit)
        assert finding.after[unit] == getattr(after, unit)
    assert finding.after != finding.before


# A launch, and a finding's kind, operation and cause, in which {} is the number of the line with a text.
CAUSES = """
17 | occupancy | | registers limit an SM to
18 | reversed | load | addresses fall by 16 bytes from lane to lane
20 | autotuner | atomic | Pass reset_to_zero=['out'] to triton.autotune.
22 | outside | load | Program 0, warp 3, lane 26: element (1000) of the block lies outside x, right after its end.
26 | grid | | 124 of 132 SMs stay idle, because the grid size is only 8.
35 | race | store | Programs 0 and 1, warp 0, lane 0 store to the same address of out
44 | race | store | Programs 0 and 1, warp 0, lane 0 store to the same address of out
47 | misaligned | load | x starts 4 bytes past a 32-byte boundary
48 | scattered | load | the load on line {} determines the addresses | index = tl.load(indices + start
52 | bank conflicts | | script.py:{} causes | tl.sum(tl.load(x + i[:, None] * 64
57 | outside | async copy | element (0, 0) of the block lies outside right, right after its end
"""


@pytest.mark.parametrize("row", CAUSES.strip().splitlines())
def test_a_cause_is_named_without_a_change_that_would_raise_the_predicted_time(launches, row):
    number, kind, op, cause, *code = (part.strip() for part in row.split("|"))
    finding = find(launches[int(number)], kind, op)
    assert cause.format(*map(find_line, code)) in finding.text
    assert (finding.change, finding.before, finding.after, finding.needs) == ("", {}, {}, "")


@pytest.mark.parametrize("number", [5, 42])
def test_equal_findings_about_two_operations_are_one(launches, number):
    (finding,) = (each for each in launches[number].findings if each.op)
    assert "The same applies to the store of out on line " in finding.text


def test_a_change_that_saves_less_than_five_percent_is_not_advised(launches, tried):
    all_savings, savings = (
        [each.saving for launch in group for each in launch.findings if each.saving is not None]
        for group in (tried, launches)
    )
    assert min(all_savings) < 0.05 <= min(savings)
    text = find(launches[4], "strided", "load").text
    assert " Tried: Store x's elements without gaps, " in text
    assert text.endswith(" It is predicted to save less than 5 % of the time.")


@pytest.mark.parametrize("number", [53, 59])
def test_a_kernel_that_transposes_is_not_told_to_change_the_order_of_a_tensor(tried, number):
    assert not any(each.needs for each in tried[number].findings)


@pytest.mark.parametrize("number", [*range(30, 35), 41])
def test_a_change_that_accesses_fewer_elements_or_changes_a_divisor_is_not_advised(
    launches, number
):
    assert not any(each.change for each in launches[number].findings)


def test_the_first_change_takes_the_predicted_time_of_the_kernel_changed_by_hand(launches):
    before, after = launches[55:57]
    (change,) = (each for each in before.changes if each.change == "num_stages = 3")
    assert change.is_compiled
    assert change.predicted_us == pytest.approx(after.predicted_us, rel=0.001)
    assert find(before, "stages").after[TIME] == round(1e3 * after.predicted_us)
    best = next(each for each in before.changes if each.is_compiled)
    saving = 1 - best.predicted_us / before.predicted_us
    assert before.first_change.startswith(
        f"With {best.change}, the launch would take {best.predicted_us:.1f} µs, {saving:.0%}".replace(
            "%", " %"
        )
    )


RESOURCES = """
50 | bank conflicts | 51 | Store right transposed, so that the first | users of right
23 | bank conflicts | 17 | Set num_warps = 4. |
55 | stages | 56 | Set num_stages = 3. |
"""


@pytest.mark.parametrize(("number", "kind", "changed", "change", "needs"), read_table(RESOURCES))
def test_a_change_promises_the_resources_and_the_time_of_the_kernel_changed_by_hand(
    launches, number, kind, changed, change, needs
):
    finding = find(launches[number], kind)
    assert change in finding.change
    assert needs in finding.needs
    if kind == "bank conflicts":
        worst = max(launches[number].shared, key=lambda access: access.conflicts)
        lines = dict([(worst.file, worst.line), *worst.callers])
        assert finding.line == lines["script.py"]
        share = f"script.py:{finding.line} causes {worst.conflicts:,} of them ({worst.opcode})"
        assert share in finding.text
    for numbers, launch in (
        (finding.before, launches[number]),
        (finding.after, launches[changed]),
    ):
        wavefronts = sum(access.wavefronts for access in launch.shared)
        conflicts = sum(access.conflicts for access in launch.shared)
        expected = {"shared_wavefronts": wavefronts, "bank_conflicts": conflicts}
        resources = "registers", "spilled_bytes", "shared_bytes"
        expected |= {name: getattr(launch, name) for name in resources}
        shown = numbers.keys() & expected.keys()
        assert needs or shown.issuperset(resources)
        assert {name: numbers[name] for name in shown} == {name: expected[name] for name in shown}
        # A tensor that other kernels store transposed is only transposed in the TTIR
        error = 0.05 if needs else 0.0005
        assert numbers[TIME] == pytest.approx(1e3 * launch.predicted_us, rel=error)
    assert finding.after != finding.before


def test_a_lack_of_shared_memory_names_the_largest_lines_and_the_most_stages_that_fit(shortage):
    fits, fails = shortage[1].launches
    assert fits.predicted_us
    assert fails.not_predicted == "The launch fails, because a program does not fit on an SM."
    finding = find(fails, "shared memory")
    assert finding.text.startswith(
        f"The launch fails on NVIDIA H200: a program needs {fails.shared_bytes:,} bytes of shared memory, and the "
        "limit is 232,448. script.py:12 needs 163,840 and script.py:13 needs 163,840 of them."
    )
    assert finding.change == "Set num_stages = 3."
    assert (finding.before["shared_bytes"], finding.after["shared_bytes"]) == (
        fails.shared_bytes,
        fits.shared_bytes,
    )


def test_a_load_beside_asynchronous_copies_is_named_with_its_reason(launches):
    reasons = {
        finding.tensor: finding.text
        for finding in launches[24].findings
        if finding.kind == "synchronous"
    }
    assert "each lane has only 2 contiguous bytes, and a copy needs 4" in reasons["right"]
    assert "no tl.dot depends on it" in reasons["scales"]
    fixed = [op for op in launches[25].ops if op.tensor == "left"]
    assert {op.op for op in fixed} == {"async copy"}


CURES = """
35 | synchronous | indices | num_stages is only 2 | Set num_stages = 3.
39 | divisibility | left | depth = 200 is not | Declare depth as tl.constexpr.
"""


@pytest.mark.parametrize(("number", "kind", "tensor", "cause", "change"), read_table(CURES))
def test_the_cure_of_a_synchronous_load_promises_the_copies_of_the_kernel_changed_by_hand(
    tried, number, kind, tensor, cause, change
):
    (finding,) = (
        each for each in tried[number].findings if (each.kind, each.tensor) == (kind, tensor)
    )
    assert cause in finding.text
    assert finding.change == change
    for numbers, launch, kind in (
        (finding.before, tried[number], "load"),
        (finding.after, tried[number + 1], "async copy"),
    ):
        ops = [op for op in launch.ops if op.tensor == tensor]
        assert {op.op for op in ops} == {kind}
        for unit in ("requests", "sectors"):
            assert numbers[unit] == sum(getattr(op, unit) for op in ops)
        synchronous = sum(op.requests for op in ops if op.op == "load")
        assert numbers["synchronous_requests"] == synchronous


def test_a_load_that_the_change_merges_into_another_costs_nothing(tried):
    findings = {each.line: each for each in tried[45].findings if each.kind == "divisibility"}
    changed = {op.line: op for op in tried[46].ops}
    dropped = findings.keys() - changed.keys()
    assert len(dropped) == 1
    for line, finding in findings.items():
        for unit in ("requests", "sectors"):
            assert finding.after[unit] == (0 if line in dropped else getattr(changed[line], unit))


def test_padding_names_all_tensors_so_that_no_row_overlaps_another(launches):
    finding = find(launches[42], "divisibility")
    for change in ("Pad out, and pass out_stride = 8016.", "Pass n = 8016."):
        assert change in finding.change


def test_bytes_that_lanes_of_a_request_share_save_no_sectors(launches):
    text = find(launches[49], "repeated", "load").text
    assert "lanes of one request load the same bytes 32 times" in text
    assert "would suffice" not in text.partition("requests of one warp")[0]


NOTHING_ELSE = """
19 | [] | the mask is at the end
21 | ["grid"] | reset_to_zero is given
26 | ["grid"] | the size of the grid comes last
29 | [] | it loads scalars
"""


@pytest.mark.parametrize(("number", "kinds", "why"), read_table(NOTHING_ELSE))
def test_nothing_else_is_found(launches, number, kinds, why):
    assert [each.kind for each in launches[number].findings] == kinds


def test_findings_are_kept_in_the_file_and_a_file_without_them_says_that_nothing_was_tried(
    shortage,
):
    path, report = shortage
    capture = Capture(path)
    again = make_report(capture)
    assert [each.findings for each in again.launches] == [each.findings for each in report.launches]
    assert again.untried == ""
    capture.findings = None
    untried = make_report(capture)
    assert "No changes were tried" in table(untried)
    assert not any(each.change for launch in untried.launches for each in launch.findings)
