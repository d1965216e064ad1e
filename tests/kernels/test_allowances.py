"""What rounding explains passes, whatever is done to the numbers; one product left out never does. On CPU tensors."""

from __future__ import annotations

import itertools

import pytest
import torch

from kernels import discover
from kernels.gpus import GPUS
from kernels.matmul.rounding import Arithmetic, allowance, arithmetic
from kernels.spec import DTYPE_BYTES, DTYPE_ROUNDOFF, Launch, Rounding
from tests.covering import pairs_of
from tests.kernels.products import (
    DISTRIBUTIONS,
    WIDER_THAN_A_BYTE,
    checked_product,
    product,
)


@pytest.fixture(params=WIDER_THAN_A_BYTE)
def dtype(request):
    return request.param


@pytest.mark.parametrize(
    ("k", "distribution", "any_dtype"), pairs_of(itertools.product((1, 577, 4097), DISTRIBUTIONS, DTYPE_BYTES))
)
def test_the_rounded_product_passes(k, distribution, any_dtype):
    for m, n in ((1, 1), (1, 129), (129, 577)):
        inputs, exact = product(m, n, k, any_dtype, distribution)
        result, diff = checked_product(exact, inputs, any_dtype)
        assert result.passed, (m, n, result)
        assert (result.mismatched, result.nonfinite, result.elements) == (0, 0, m * n)
        assert result.relative_rms <= result.tolerance
        assert diff.cells.max() <= 1


@pytest.mark.parametrize("k", [1, 577, 4097])
def test_torch_matmul_passes(k, dtype):
    inputs, _ = product(256, 129, k, dtype)
    assert checked_product(inputs["A"] @ inputs["B"], inputs, dtype)[0].passed


HOW = ((), (("coarse_sums", True),), (("roundings", 8),), (("roundings", 16),))


@pytest.mark.parametrize(("k", "any_dtype", "how"), pairs_of(itertools.product((64, 577, 4097), DTYPE_BYTES, HOW)))
def test_skipping_the_last_product_fails(k, any_dtype, how):
    """In every type, with all that float8 sums and split-K's roundings are allowed on top."""
    how = dict(how)
    if DTYPE_BYTES[any_dtype] == 1:
        how = {**how, "roundings": 1}  # no kernel adds up float8: atomics don't know it
    inputs, exact = product(256, 256, k, any_dtype)
    short = inputs["A"][:, : k - 1].double() @ inputs["B"][: k - 1].double()
    result, _ = checked_product(short.to(getattr(torch, any_dtype)), inputs, any_dtype, **how)
    assert checked_product(exact, inputs, any_dtype, **how)[0].passed
    assert not result.passed
    assert result.nonfinite == 0


@pytest.mark.parametrize("operands", ["tf32", "tf32_rounded", "tf32x3"])
@pytest.mark.parametrize("k", [64, 577, 4097])
def test_skipping_the_last_product_fails_whatever_operands_are_made_of(k, operands):
    inputs, exact = product(256, 256, k, "float32")
    short = (inputs["A"][:, : k - 1].double() @ inputs["B"][: k - 1].double()).float()
    assert checked_product(exact, inputs, "float32", operands)[0].passed
    assert not checked_product(short, inputs, "float32", operands)[0].passed


@pytest.mark.parametrize(
    ("slices", "distribution", "dtype"), pairs_of(itertools.product((2, 8, 16), DISTRIBUTIONS, ("float16", "bfloat16")))
)
def test_partial_sums_added_up_in_a_half_type_pass_where_that_is_what_is_done(slices, distribution, dtype):
    inputs, _ = product(512, 512, 1024, dtype, distribution)
    pieces = zip(inputs["A"].double().chunk(slices, 1), inputs["B"].double().chunk(slices, 0), strict=True)
    total = torch.zeros(512, 512, dtype=getattr(torch, dtype))
    for a, b in pieces:
        total = (total.double() + (a @ b).to(total.dtype).double()).to(total.dtype)
    assert checked_product(total, inputs, dtype, roundings=slices)[0].passed
    if distribution in ("normal", "uniform"):
        assert not checked_product(total, inputs, dtype)[0].passed


def test_float8_stops_at_its_largest_number():
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        a = torch.full((64, 64), 32.0).to(getattr(torch, dtype))
        inputs, most = {"A": a, "B": a}, torch.finfo(a.dtype).max
        stopped = torch.full((64, 64), min(64 * 32.0 * 32.0, most)).to(a.dtype)
        assert checked_product(stopped, inputs, dtype)[0].passed
        assert not checked_product((stopped.float() / 2).to(a.dtype), inputs, dtype)[0].passed


def rounding(kernel, gpu="H200", distribution="normal", interpreted=False, **problem):
    """What the rounding errors of a kernel's default config depend on."""
    launch = Launch(kernel.family.problem(**problem), kernel.config(), GPUS[gpu])
    return Rounding(launch, kernel.roundings(launch), distribution, interpreted)


def test_only_a_product_may_err(kernels):
    for kernel in kernels.values():
        assert kernel.family.is_exact == (kernel.family.root.id == "transpose")
        if not kernel.family.is_exact:
            assert kernel.family.allowance(rounding(kernel)).of_scale > 0


def test_float32_is_multiplied_as_tf32_where_matrix_units_do_it():
    kernel = discover()["matmul.grouped"]
    for given, operands in (
        ({}, "tf32"),
        ({"precision": "tf32x3"}, "tf32x3"),
        ({"precision": "ieee"}, "exact"),
        ({"precision": "tf32_rounded"}, "tf32_rounded"),
        ({"interpreted": True}, "exact"),
        ({"interpreted": True, "precision": "tf32_rounded"}, "tf32_rounded"),
        ({"gpu": "T4"}, "exact"),
        ({"distribution": "integers"}, "exact"),
        ({"distribution": "zeros"}, "exact"),
        ({"distribution": "uniform"}, "tf32"),
        ({"dtype": "float16"}, "exact"),
    ):
        assert arithmetic(rounding(kernel, **{"dtype": "float32", **given})).operands == operands, given


def test_only_ada_and_hopper_add_float8_products_coarsely():
    kernel = discover()["matmul.grouped"]
    for gpu, interpreted, coarse in (
        ("H200", False, True),
        ("L4", False, True),
        ("B200", False, False),
        ("H200", True, False),
    ):
        for dtype in DTYPE_BYTES:
            done = arithmetic(rounding(kernel, gpu, interpreted=interpreted, dtype=dtype))
            assert done.coarse_sums == (coarse and DTYPE_BYTES[dtype] == 1), (gpu, interpreted, dtype)


def test_slices_of_k_that_hold_any_are_rounded_one_by_one():
    kernel = discover()["matmul.split_k_atomic"]
    for k, slices in ((8192, 8), (64, 2), (32, 1)):
        assert arithmetic(rounding(kernel, K=k)).roundings == slices


def test_what_is_done_to_a_sum_of_products_adds_to_what_it_may_err(dtype):
    for reduction in (1, 577, 16384):
        allowed = allowance(Arithmetic(dtype, reduction))
        assert 0 < allowed.expected_of_scale < allowed.of_scale < DTYPE_ROUNDOFF["float16"] / 10
        for how in ({"coarse_sums": True}, {"roundings": 8}, {"operands": "tf32"}, {"operands": "tf32_rounded"}):
            more = allowance(Arithmetic(dtype, reduction, **how))
            assert more.of_scale > allowed.of_scale, how
            assert more.expected_of_scale > allowed.expected_of_scale, how


def cut_to_tf32(x):
    """float32 with 10 bits of mantissa, the rest dropped: what Triton's dot makes of an operand."""
    return (x.view(torch.int32) & ~0x1FFF).view(torch.float32)


@pytest.mark.parametrize("k", [1, 16, 577, 4097])
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_products_of_operands_cut_to_tf32_pass_where_tf32_is_what_multiplies_and_fail_elsewhere(k, distribution):
    inputs, _ = product(129, 577, k, "float32", distribution)
    cut = {name: cut_to_tf32(tensor).double() for name, tensor in inputs.items()}
    output = (cut["A"] @ cut["B"]).float()
    assert checked_product(output, inputs, "float32", "tf32")[0].passed
    assert not checked_product(output, inputs, "float32")[0].passed


def test_a_skipped_product_fails_under_tf32_too():
    inputs, exact = product(256, 256, 4097, "float32")
    last = inputs["A"][:, -1:] @ inputs["B"][-1:]
    assert checked_product(exact, inputs, "float32", "tf32")[0].passed
    assert not checked_product(exact - last, inputs, "float32", "tf32")[0].passed


@pytest.mark.parametrize("k", [1, 64, 577, 4097])
def test_float32_that_is_a_thousandth_off_fails_where_it_is_multiplied_in_full(k):
    inputs, exact = product(129, 257, k, "float32")
    assert not checked_product(exact * 1.001, inputs, "float32")[0].passed
    assert not checked_product(exact.half().float(), inputs, "float32")[0].passed


@pytest.mark.parametrize("k", [1, 16, 577, 4097])
def test_products_of_operands_rounded_to_tf32_pass_where_they_are_rounded(k):
    inputs, _ = product(129, 577, k, "float32")
    rounded = {
        name: ((tensor.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32).double()
        for name, tensor in inputs.items()
    }
    output = (rounded["A"] @ rounded["B"]).float()
    assert checked_product(output, inputs, "float32", "tf32_rounded")[0].passed
    assert not checked_product(output, inputs, "float32")[0].passed
    cut = {name: cut_to_tf32(tensor).double() for name, tensor in inputs.items()}
    assert not checked_product((cut["A"] @ cut["B"]).float(), inputs, "float32", "tf32_rounded")[0].passed
