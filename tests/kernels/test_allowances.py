"""Errors that rounding explains pass the check; a sum that lacks one product never does. On CPU tensors."""

import itertools

import numpy as np
import pytest
import torch

from kernels.matmul.problem import allowance
from kernels.orders import slice_of_k
from tests.covering import pairs_of
from tests.experiments import experiment_of, fields
from tests.products import DISTRIBUTIONS, WIDER_THAN_A_BYTE, checked_product, product
from tests.tables import read_table
from tilescope.declare.discovery import discover
from tilescope.declare.experiment import launch_of, resolve_gpu
from tilescope.declare.gpus import GPUS
from tilescope.declare.jit import on_arrays
from tilescope.declare.spec import DTYPE_BYTES, Launch


@pytest.fixture(params=WIDER_THAN_A_BYTE)
def dtype(request):
    return request.param


@pytest.mark.parametrize(
    ("k", "distribution", "any_dtype"),
    pairs_of(itertools.product((1, 577, 4097), DISTRIBUTIONS, DTYPE_BYTES)),
)
def test_the_rounded_product_passes(k, distribution, any_dtype):
    for m, n in ((1, 1), (1, 129), (129, 577)):
        inputs, exact = product(m, n, k, any_dtype, distribution)
        result, diff = checked_product(exact, inputs, any_dtype)
        assert result.passed, (m, n, result)
        assert result.mismatched == 0
        assert result.nonfinite == 0
        assert result.elements == m * n
        assert result.relative_rms <= result.tolerance
        assert diff.cells.max() <= 1


@pytest.mark.parametrize(
    ("slices", "distribution", "dtype"),
    pairs_of(itertools.product((2, 8, 16), DISTRIBUTIONS, ("float16", "bfloat16"))),
)
def test_partial_sums_added_in_a_half_type_pass_only_where_the_kernel_adds_them(
    slices, distribution, dtype
):
    inputs, _ = product(512, 512, 1024, dtype, distribution)
    pieces = zip(
        inputs["A"].double().chunk(slices, 1), inputs["B"].double().chunk(slices, 0), strict=True
    )
    total = torch.zeros(512, 512, dtype=getattr(torch, dtype))
    for a, b in pieces:
        total = (total.double() + (a @ b).to(total.dtype).double()).to(total.dtype)
    assert checked_product(total, inputs, dtype, roundings=slices)[0].passed
    if distribution in ("normal", "uniform"):
        assert not checked_product(total, inputs, dtype)[0].passed


def test_float8_stops_at_its_largest_number():
    for dtype in ("float8_e4m3fn", "float8_e5m2"):
        a = torch.full((64, 64), 32.0).to(getattr(torch, dtype))
        inputs = {"A": a, "B": a}
        most = torch.finfo(a.dtype).max
        stopped = torch.full((64, 64), min(64 * 32.0 * 32.0, most)).to(a.dtype)
        assert checked_product(stopped, inputs, dtype)[0].passed
        assert not checked_product((stopped.float() / 2).to(a.dtype), inputs, dtype)[0].passed


def test_only_a_product_may_err(kernels):
    for kernel in kernels.values():
        assert kernel.family.is_exact == (kernel.family.root.id == "transpose")


def to_tf32(x, carry):
    """Cut float32 to 10 bits of mantissa: drop the rest, as Triton's dot does, or round with a carry of 0x1000."""
    return ((x.view(torch.int32) + carry) & ~0x1FFF).view(torch.float32).double()


@pytest.mark.parametrize("k", [1, 16, 577, 4097])
@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_products_of_tf32_operands_pass_only_where_the_kernel_uses_tf32(k, distribution):
    inputs, _ = product(129, 577, k, "float32", distribution)
    cut, rounded = (
        (to_tf32(inputs["A"], c) @ to_tf32(inputs["B"], c)).float() for c in (0, 0x1000)
    )
    for output, operands, passed in (
        (cut, "tf32", True),
        (cut, "tf32_rounded", False),
        (cut, "exact", False),
        (rounded, "tf32_rounded", True),
        (rounded, "exact", False),
    ):
        if (operands, distribution) != ("tf32_rounded", "uniform"):
            assert checked_product(output, inputs, "float32", operands)[0].passed == passed, (
                operands
            )


CONVERTED = [{"operands": operands} for operands in ("tf32", "tf32_rounded", "tf32x3")]
ADDED = ({}, {"coarse_sums": True}, {"roundings": 8}, {"roundings": 16})
# No kernel adds float8 values to each other, because atomics don't support them.
LEGAL = [
    (dtype, how)
    for dtype in DTYPE_BYTES
    for how in ADDED
    if DTYPE_BYTES[dtype] > 1 or "roundings" not in how
]


@pytest.mark.parametrize("k", [64, 577, 4097])
@pytest.mark.parametrize(("any_dtype", "how"), [*LEGAL, *(("float32", how) for how in CONVERTED)])
def test_skipping_the_last_product_fails(k, any_dtype, how):
    """In every type, and with each error that operands, float8 sums and split-K's roundings may add."""
    inputs, exact = product(256, 256, k, any_dtype)
    short = inputs["A"][:, : k - 1].double() @ inputs["B"][: k - 1].double()
    result, _ = checked_product(short.to(getattr(torch, any_dtype)), inputs, any_dtype, **how)
    assert checked_product(exact, inputs, any_dtype, **how)[0].passed
    assert not result.passed
    assert result.nonfinite == 0


LAUNCHES = """
grouped | {"operands": "tf32"}
grouped precision=tf32x3 | {"operands": "tf32x3"}
grouped precision=ieee | {}
grouped interpreted | {}
grouped precision=tf32_rounded interpreted | {"operands": "tf32_rounded"}
grouped gpu=T4 | {}
grouped distribution=integers | {}
grouped dtype=float8_e5m2 | {"coarse_sums": True}
grouped dtype=float8_e4m3fn gpu=L4 | {"coarse_sums": True}
grouped dtype=float8_e4m3fn gpu=B200 | {}
split_k_atomic K=8192 | {"roundings": 8, "operands": "tf32"}
split_k_atomic K=64 | {"roundings": 2, "operands": "tf32"}
split_k_atomic K=32 | {"operands": "tf32"}
"""


@pytest.mark.parametrize(("text", "expected"), read_table(LAUNCHES))
def test_the_allowance_follows_from_the_launch(text, expected):
    """Matrix units multiply float32 as tf32. Ada's and Hopper's add float8 coarsely. Slices of K are rounded."""
    text, interpreted, _ = text.partition(" interpreted")
    experiment = experiment_of({"dtype": "float32", "K": 512, **fields(f"matmul.{text}")})
    kernel, launch = launch_of(experiment, resolve_gpu(experiment, None))
    capability = None if interpreted else launch.gpu.compute_capability
    partial_sums = kernel.roundings(launch)
    distribution = experiment.run.distribution
    allowed = kernel.family.allowance(launch.problem, partial_sums, distribution, capability)
    assert allowed == allowance(launch.problem.dtype, launch.problem.K, **expected)


@pytest.mark.parametrize("steps", [1, 2, 7, 16, 17, 129, 577, 1023])
def test_each_nonempty_slice_of_k_rounds_once(steps):
    kernel = discover()["matmul.split_k_atomic"]
    for split in (1, 2, 4, 8, 16):
        problem = kernel.family.problem(K=16 * steps)
        config = kernel.config(BLOCK_K=16, SPLIT_K=split)
        first, end = on_arrays(slice_of_k)(np.arange(split), steps, split)
        nonempty = np.count_nonzero(first < end)
        assert kernel.roundings(Launch(problem, config, GPUS["H200"])) == nonempty
