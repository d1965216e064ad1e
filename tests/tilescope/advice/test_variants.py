"""Variants name what Triton specialized. Merging them costs what the kernel without specialization takes."""

import math
from dataclasses import replace

import pytest

from tests.tables import read_table
from tilescope.advice.variants import find_variants
from tilescope.captures.reader import Capture
from tilescope.numbers import milliseconds
from tilescope.reports.launch import make_report
from tilescope.reports.text import brief, markdown, table

# One worker compiles the kernels once
pytestmark = [pytest.mark.xdist_group("variants"), pytest.mark.usefixtures("no_options")]

SCRIPT = """
import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def double(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


@triton.jit(do_not_specialize=["n"])
def double_any(x, n, BLOCK: tl.constexpr):
    double(x, n, BLOCK)


@triton.jit
def double_halves(x, n, BLOCK: tl.constexpr):
    double(x, n, BLOCK)


@triton.jit(do_not_specialize=["n"])
def double_any_halves(x, n, BLOCK: tl.constexpr):
    double(x, n, BLOCK)


@triton.jit
def add(x, y, n, scale, FLAG: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    total = tl.load(x + i, mask=i < n)
    if y is not None:
        total += tl.load(y + i, mask=i < n)
    tl.store(x + i, total * scale, mask=i < n)


@triton.jit
def move(blocks, first):
    blocks.store([0, 0], blocks.load([first, 0]))


@triton.jit
def increment(x, count, first, BLOCK: tl.constexpr):
    is_used = tl.program_id(0) < count
    i = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=is_used) + 1, mask=is_used)


def run(kernel, n, dtype):
    x = torch.empty(n, device="cuda", dtype=dtype)
    kernel[(triton.cdiv(n, 1024),)](x, n, BLOCK=1024)


for kernel in (double, double_any):
    for n in (1, 1000, 1024, 4096, 4097, 4097):
        run(kernel, n, torch.float32)
for kernel in (double_halves, double_any_halves):
    for n in (1 << 20, (1 << 20) - 1):
        run(kernel, n, torch.float16)
x = torch.empty(4096, device="cuda")
h = torch.empty(4096, device="cuda", dtype=torch.float16)
add[(1,)](x, x, 16, 2.0, True, 1024)
add[(1,)](x, None, 16, 2.0, True, 1024)
add[(1,)](h, h, 16, 2.0, False, 1024)
add[(1,)](x[1:], x, 16, 2.0, "b", 1024)
add[(1,)](x, x, 1 << 40, 2, True, 1024, num_warps=8, maxnreg=64)
for count, first in ((8192, 16), (8191, 16), (16, 3)):
    x = torch.empty(count * 1024 + first, device="cuda", dtype=torch.int8)
    increment[(count,)](x, count, first, BLOCK=1024)
blocks = TensorDescriptor.from_tensor(torch.empty(64, 64, device="cuda"), [16, 64])
for first in (1, 16, 17):
    move[(1,)](blocks, first)
"""


@pytest.fixture(scope="module")
def report(captured, capture_server):
    return make_report(Capture(captured), capture_server.compile, most_seconds=math.inf)


def of(report, name):
    """Return a kernel's variants, the numbers of its launches, and its finding about variants."""
    variants = next((each.variants for each in report.variants if each.kernel == name), ())
    numbers = [n for n, launch in enumerate(report.launches) if launch.kernel == name]
    findings = [[f for f in report.launches[n].findings if f.kind == "variants"] for n in numbers]
    assert all(each == findings[0] for each in findings)
    return variants, numbers, findings[0]


def facts(variant):
    return {(each.argument, each.kind): each.value for each in variant.specializations}


def total_us(report, numbers):
    return sum(report.launches[number].predicted_us for number in numbers)


def test_values_of_an_integer_explain_the_variants_of_a_kernel(report):
    variants, _, _ = of(report, "double")
    assert [(each.launches, facts(each)) for each in variants] == [
        ((0,), {("n", "equal to 1"): True}),
        ((1, 4, 5), {("n", "divisible by 16"): False}),
        ((2, 3), {("n", "divisible by 16"): True}),
    ]
    assert [report.launches[n].arguments for n in (0, 1, 4)] == [{}, {"n": 1000}, {"n": 4097}]


def test_a_kernel_that_is_not_specialized_has_no_variants(report):
    assert of(report, "double_any") == ((), [*range(6, 12)], [])


def test_merging_costs_what_the_kernel_without_specialization_takes(report):
    for name, unspecialized, verdict, count in (
        ("double", "double_any", "does not pay: ", 3),
        ("double_halves", "double_any_halves", "pays: ", 2),
    ):
        _, numbers, (finding,) = of(report, name)
        before_us = total_us(report, numbers)
        after_us = total_us(report, of(report, unspecialized)[1])
        times = f"{milliseconds(before_us / 1e3)} → {milliseconds(after_us / 1e3)}"
        assert finding.text == (
            f'Specializing on the values of n {verdict}with do_not_specialize=["n"], all {len(numbers)} launches share '
            f"1 kernel instead of {count}. Tried: predicted time {times} ({after_us / before_us - 1:+z.1%})."
        )
        assert (finding.line, finding.change) == (report.launches[numbers[0]].line, "")


def test_if_all_variants_pay_those_of_one_argument_are_merged(report):
    variants, _, (finding,) = of(report, "increment")
    assert len(variants) == 3
    assert finding.text.startswith(
        'Specializing on the values of count does not pay: with do_not_specialize=["count"], '
        "all 3 launches share 2 kernels instead of 3. Tried: predicted time "
    )


SPECIALIZATIONS = """
2 | x | dtype | ("*fp32", "*fp16")
3 | x | alignment | (True, False)
3 | FLAG | constexpr | (True, "b")
4 | n | dtype | ("i32", "i64")
4 | num_warps | option | (4, 8)
4 | maxnreg | option | (None, 64)
"""


@pytest.mark.parametrize(("number", "argument", "kind", "values"), read_table(SPECIALIZATIONS))
def test_each_kind_of_specialization_makes_another_variant(report, number, argument, kind, values):
    variants, _, findings = of(report, "add")
    pair = (facts(variants[each])[argument, kind] for each in (0, number))
    assert tuple(pair) == values
    assert not findings


def test_an_argument_that_is_none_makes_a_variant(report):
    (first, without, *_), _, _ = of(report, "add")
    assert (facts(first)["y", "dtype"], facts(without)["y", "constexpr"]) == ("*fp32", None)
    assert ("BLOCK", "constexpr") not in facts(first)


def test_variants_of_a_kernel_with_a_descriptor_are_merged(report):
    variants, numbers, (finding,) = of(report, "move")
    assert [*map(facts, variants)] == [
        {("first", "equal to 1"): True},
        {("first", "divisible by 16"): True},
        {("first", "divisible by 16"): False},
    ]
    assert f"all {len(numbers)} launches share 1 kernel" in finding.text


def test_each_form_of_a_report_has_a_line_per_kernel(report):
    line = (
        "double: 3 variants in 6 launches: n divisible by 16 (2, 3), n equal to 1 (0), "
        "n not divisible by 16 (1, 4, 5)."
    )
    own = replace(report, launches=report.launches[:6], variants=report.variants[:1])
    for text in (table(own), markdown(own), brief(own)):
        assert text.count(line) == 1


def test_a_capture_of_an_earlier_version_has_no_variants(captured):
    content = Capture(captured).content
    kernels = tuple(replace(kernel, specializations=()) for kernel in content.kernels)
    assert find_variants(content)
    assert find_variants(replace(content, kernels=kernels)) == ()
