"""Values that an earlier launch would have written: what does not depend on them is exact, the rest is a bound.

The same launches in Triton's interpreter have all values, so their counts are the right ones.
"""

from dataclasses import replace

import numpy as np
import pytest

from tilescope.captures.listings import isolate
from tilescope.captures.reader import Capture
from tilescope.declare.gpus import DEFAULT_GPU
from tilescope.evaluate.captured import count_launch
from tilescope.evaluate.counts import Example, LaunchCounts
from tilescope.reports.launch import Launches, make_report

SCRIPT = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def number(ids, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(ids + i, i * 7 % n)


@triton.jit
def gather_rows(ids, x, y, pitch, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLUMNS)
    row = tl.load(ids + m) // 2
    tl.store(y + m[:, None] * COLUMNS + c, tl.load(x + row[:, None] * pitch + c))


@triton.jit
def scatter(ids, x, y, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + tl.load(ids + i), tl.load(x + i))


@triton.jit
def select(ids, x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=tl.load(ids + i) < n))


@triton.jit
def double_small(ids, p, i):
    if tl.load(ids + p) < 8:
        return i * 2
    return i


@triton.jit
def call(ids, x, y, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    tl.store(y + p * BLOCK + i, tl.load(x + double_small(ids, p, i)))


@triton.jit
def leave(ids, x, y, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(x + i)
    if tl.load(ids + p) < 8:  # returns
        return
    tl.store(y + i, kept)


@triton.jit
def choose(ids, x, y, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = p * BLOCK + tl.arange(0, BLOCK)
    total = tl.load(x + i)
    if tl.load(ids + p) < 8:  # branches
        total += tl.load(x + i + 4096)
    tl.store(y + i, total)


@triton.jit
def sum_ragged(ids, x, y, BLOCK: tl.constexpr):
    p = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, tl.load(ids + p), BLOCK):  # loops
        total += tl.load(x + start + i)
    tl.store(y + p * BLOCK + i, total)


@triton.jit
def append(count, x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    slot = tl.atomic_add(count, 1)
    tl.store(y + slot * BLOCK + i, tl.load(x + tl.program_id(0) * BLOCK + i))


ids = torch.zeros(64, dtype=torch.int32, device="cuda")
x = torch.ones(1 << 14, device="cuda")
y = torch.empty_like(x)
number[(1,)](ids, 64, BLOCK=64)
gather_rows[(2,)](ids, x, y, 128, ROWS=32, COLUMNS=128)
gather_rows[(2,)](ids, x, y, 16, ROWS=32, COLUMNS=16)
gather_rows[(2,)](ids, x, y, 101, ROWS=32, COLUMNS=128)
scatter[(1,)](ids, x, y, BLOCK=64)
select[(1,)](ids, x, y, 8, BLOCK=64)
call[(8,)](ids, x, y, BLOCK=128)
leave[(8,)](ids, x, y, BLOCK=128)
choose[(8,)](ids, x, y, BLOCK=128)
sum_ragged[(8,)](ids, x, y, BLOCK=8)
append[(8,)](torch.zeros(1, dtype=torch.int32, device="cuda"), x, y, BLOCK=128)
"""
# Per launch, its operations in order: exact (=), an upper bound (<) or a lower bound (>).
BOUNDS = ("=", "===", "=<=", "=<=", "==<", "=<=", "=<=", "==<", "==<=", "=>=", "===")
REASON = "Accesses depend on values from an earlier launch, which did not run."


@pytest.fixture(scope="module")
def captures(captured, capture_script):
    """The script's captures without and with values."""
    return Capture(captured), Capture(capture_script(SCRIPT, DEFAULT_GPU, "--values"))


@pytest.mark.parametrize("number", range(len(BOUNDS)))
def test_only_operations_that_depend_on_unknown_values_are_bounds_which_hold(captures, number):
    counts, right = (count_launch(each, each.content.launches[number]) for each in captures)
    bounds = ""
    for op, same in zip(counts.operations, right.operations, strict=True):
        assert not same.tally.refused
        own, expected = (np.array([each.requests, each.sectors]) for each in (op, same))
        if not op.tally.refused:
            bounds += "="
            assert (own == expected).all()
        elif op.tally.is_upper_bound:
            bounds += "<"
            assert (own >= expected).all()
            assert own.any()
        else:
            bounds += ">"
            assert (own <= expected).all()
        assert not op.tally.refused or REASON in op.tally.refused
    assert bounds == BOUNDS[number]


@pytest.mark.parametrize(
    ("number", "mark", "start"),
    [
        (7, "# returns", "Whether a program returns on line"),
        (8, "# branches", "Whether a program takes the branch on line"),
        (9, "# loops", "How often the loop on line"),
    ],
)
def test_the_reason_names_the_line_of_the_branch_or_loop(captures, number, mark, start):
    capture = captures[0]
    counts = count_launch(capture, capture.content.launches[number])
    (why,) = {op.tally.refused for op in counts.operations} - {""}
    line = next(n for n, text in enumerate(SCRIPT.split("\n"), 1) if mark in text)
    verb = "runs " if mark == "# loops" else ""
    assert why.startswith(f"{start} {line} {verb}is unknown. {REASON}")


def test_a_launch_whose_counts_or_findings_fail_costs_no_other_launch_and_no_other_part(captures):
    capture = captures[0]
    unbroken = Launches(capture)

    @isolate(lambda why, _: LaunchCounts((), why))
    def count(number):
        if number == 1:
            return {}["missing"]
        counts = unbroken.counts(number)
        if number == 2:
            outside = Example(0, np.zeros(0), np.ones(0)), (0,)
            tally = replace(counts.operations[0].tally, outside=outside)
            broken = replace(counts.operations[0], tally=tally)
            counts = replace(counts, operations=(broken, *counts.operations[1:]))
        return counts

    whole = make_report(capture)
    broken = Launches(capture)
    broken.counts = count
    report = make_report(capture, counted=broken)
    assert report.launches[0] == whole.launches[0]
    assert report.launches[3:] == whole.launches[3:]
    (refusal,) = report.launches[1].refused
    assert refusal.why.startswith("Internal error: KeyError 'missing' in test_unknown_values.py:")
    assert report.launches[1].registers == whole.launches[1].registers
    assert report.launches[2].totals == whole.launches[2].totals
    assert any("Internal error: " in finding.text for finding in report.launches[2].findings)


MOVED = """
import torch
import triton
import triton.language as tl


@triton.jit
def late(p, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(p + pid)
    x = tl.load(p + i)
    if pid >= n:
        return
    tl.store(out + i, x * s)


@triton.jit
def select(p, q, out, n):
    pid = tl.program_id(0)
    a = tl.load(p + pid)
    b = tl.load(q + pid)
    tl.store(out + pid, tl.where(pid < n, a, b), mask=pid != 5)


@triton.jit
def store_large(p, q, out):
    pid = tl.program_id(0)
    a = tl.load(p + pid)
    b = tl.load(q + pid)
    if b > 0.5:
        tl.store(out + pid, a)


@triton.jit
def hoist(p, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(p + pid)
    x = tl.load(p + i)
    if s % 2 == 0:
        tl.store(out + i, x)
        for _ in range(s % 3):
            x += tl.load(p + ((i + s) & 1023), mask=pid < n, other=0)
    tl.store(out + i, x + s)


@triton.jit
def mask(p, q, out, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    s = tl.load(p + pid)
    t = tl.load(q + pid)
    x = tl.load(p + i)
    x += tl.load(q + (i + s), mask=s > 3, other=0)
    x += tl.load(p + (i * 2))
    if pid >= n:
        return
    tl.atomic_add(out + i, x)
    tl.store(out + i, x + t)


x = torch.ones(4096, device="cuda")
numbers = torch.arange(4096, dtype=torch.int32, device="cuda")
late[(20,)](x, x.clone(), 17, BLOCK=128)
late[(20,)](x, x.clone(), 0, BLOCK=128)
select[(20,)](x, x, x.clone(), 17)
store_large[(20,)](x, x, x.clone())
hoist[(8,)](numbers, numbers.clone(), 6, BLOCK=64)
mask[(8,)](numbers, numbers.clone(), numbers.clone(), 6, BLOCK=32, num_warps=2)
"""


@pytest.mark.parametrize("gpu", [DEFAULT_GPU, "A100-40GB", "T4"])
def test_loads_that_ptxas_moves_are_counted_where_the_sass_executes_them(capture_script, gpu):
    """Programs have four warps. One of them stores a number."""
    late, never, select, large, hoist, mask = make_report(
        Capture(capture_script(MOVED, gpu))
    ).launches
    assert (late.refused, never.refused, select.refused) == ((), (), ())
    # In the SASS, both loads follow the return of the last three of 20 programs.
    assert [(op.requests, op.sectors) for op in late.ops[:2]] == [
        (4 * 17, 4 * 17),
        (4 * 17, 16 * 17),
    ]
    assert never.totals["ld_requests"] == 0
    # Three programs load the other side of the selection.
    assert [op.requests for op in select.ops] == [4 * 20, 4 * 3, 19]
    # Triton moves a load before the loop, and ptxas moves it back: programs 2 and 4 load.
    assert [op.requests for op in hoist.ops if op.op == "load"] == [4 * 8, 4 * 8, 4 * 2]
    # Programs 4 and 5 load the block of q, and six programs its number.
    assert [op.requests for op in mask.ops if op.tensor == "q"] == [2 * 6, 2 * 2]
    # Only warps that store load the number, but the executor compares no floating-point numbers.
    moved, test, store = large.ops
    assert (moved.requests, moved.is_upper_bound) == (4 * 20, True)
    assert moved.refused.startswith("The compiler moved this load behind a branch.")
    assert (test.requests, store.requests, store.refused) == (4 * 20, 20, "")


REREAD = """
import torch
import triton
import triton.language as tl


@triton.jit
def in_place(p):
    i = tl.load(p + tl.program_id(0))
    if i > 2:
        tl.store(p + tl.program_id(0), 0)


@triton.jit
def reread(p):
    tl.store(p + tl.program_id(0), 7)
    tl.debug_barrier()
    in_place(p)


in_place[(5,)](torch.arange(5, dtype=torch.int32, device="cuda"))
reread[(5,)](torch.arange(5, dtype=torch.int32, device="cuda"))
"""


def test_executions_are_unknown_if_a_branch_depends_on_a_value_that_the_kernel_itself_stores(
    capture_script,
):
    first, second = make_report(Capture(capture_script(REREAD, DEFAULT_GPU))).launches
    assert first.instructions_executed
    assert first.totals["st_requests"] == 2
    assert second.instructions_executed is None
    assert "depends on values that are unknown" in second.not_executed
