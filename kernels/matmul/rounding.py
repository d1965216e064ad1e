"""The error that rounding alone can cause in each element of a matrix product.

The reference is computed in a wider type, so the rounding of the final result is known exactly. Any further error comes
from the sum itself: truncated operands, the order of the additions, rounded partial results. That error is small enough
that a check detects one missing product in four thousand, in every type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kernels.spec import DTYPE_BYTES, DTYPE_ROUNDOFF, Allowance, Rounding

# Relative error of a product from converting its operands to tf32: (mean, spread). tf32 keeps 10 mantissa bits.
# Truncation moves a value by [0, 2^-10) toward zero, on average by 0.36 · 2^-10 for values spread over a binade. The
# errors of two operands add up. Rounding has no bias and a spread of 0.41 · 2^-11. "tf32x3" omits the product of the
# two remainders.
_OPERANDS = {
    "tf32": (0.75 * 2.0**-10, 0.5 * 2.0**-10),
    "tf32_rounded": (0.0, 0.6 * 2.0**-11),
    "tf32x3": (0.0, 0.6 * 2.0**-21),
    "exact": (0.0, 0.0),
}

# Error of Hopper's matrix unit when it adds float8 products, relative to |A| @ |B|. Measured on an H200 (float32
# results, 512 × 512, K from 16 to 16384): 4e-5 RMS and at most 5e-4, where sums are large. Half types lose at most
# 1.5e-6, float32 3e-7. Ada is assumed to behave like Hopper; it was not measured.
_COARSE = 2.0**-11


@dataclass(frozen=True)
class Arithmetic:
    """The arithmetic of one launch.

    Attributes:
        dtype: type of the operands and the result.
        reduction: number of products summed in float32 per element.
        operands: how operands are converted before they are multiplied: "exact", "tf32" (truncated), "tf32_rounded" or
            "tf32x3".
        roundings: number of partial sums that are rounded to `dtype` and added up in it.
        coarse_sums: whether an Ada or Hopper matrix unit adds float8 products, which keeps few bits of each.
    """

    dtype: str
    reduction: int
    operands: str = "exact"
    roundings: int = 1
    coarse_sums: bool = False


def arithmetic(rounding: Rounding[Any]) -> Arithmetic:
    """Return the arithmetic of a matmul launch."""
    problem, gpu = rounding.launch.problem, rounding.launch.gpu
    operands = "exact"
    # Small integers are exact in tf32. Matrix units multiply float32 from compute capability 8.0 on.
    if problem.dtype == "float32" and rounding.distribution not in ("integers", "zeros"):
        matrix_units = not rounding.interpreted and gpu.compute_capability >= (8, 0)
        if problem.precision == "tf32_rounded" or (problem.precision in ("tf32", "tf32x3") and matrix_units):
            operands = problem.precision
    is_float8 = DTYPE_BYTES[problem.dtype] == 1
    coarse_sums = is_float8 and not rounding.interpreted and gpu.compute_capability < (10, 0)
    return Arithmetic(problem.dtype, problem.K, operands, rounding.partial_sums, coarse_sums)


def allowance(of: Arithmetic) -> Allowance:
    """Return the allowed error of a sum of `of.reduction` products. Its error scale is |A| @ |B|.

    This is not a worst-case bound. Operands are random, so the sum of K rounding errors grows with √K.

    >>> allowance(Arithmetic("float16", 1024)).of_scale < 1e-5 < allowance(Arithmetic("float32", 1024, "tf32")).of_scale
    True
    """
    bias, spread = _OPERANDS[of.operands]
    # For normal operands, √(Σ a²b²) is (π/2)/√K times Σ|a||b|: a random error shrinks by this factor relative to it.
    by_chance = (math.pi / 2) / math.sqrt(of.reduction)
    sums = 2.0**-23 * math.sqrt(of.reduction)
    coarse = _COARSE if of.coarse_sums else 0.0
    # Each partial sum is rounded, and so is each running total except the last. The j-th of n totals is about √(j/n) of
    # the final one. One rounding contributes 0.41 unit roundoffs (uniform error, values spread over a binade; 0.5
    # leaves a margin). If the result is far from 0, so were the running totals.
    roundoff = DTYPE_ROUNDOFF[of.dtype] if of.roundings > 1 else 0.0
    partial = 0.5 * roundoff * math.sqrt((of.roundings - 1) / 2 + 1)
    of_sums = 3 * 0.5 * roundoff * math.sqrt((of.roundings - 1) / 3)
    most = 2 * spread + 2 * of.roundings * roundoff
    return Allowance(
        of_value=1.4 * bias + of_sums + 4 * coarse,
        of_scale=min(6 * math.hypot(spread, partial) * by_chance, most) + sums + coarse,
        expected_of_value=bias,
        expected_of_scale=math.hypot(spread, partial) * by_chance + sums / 4 + coarse / 12,
        # Products of half types are exact in float32, products of float32 in float64.
        reference_dtype="float64" if of.dtype == "float32" else "float32",
    )
