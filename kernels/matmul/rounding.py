"""What rounding explains of the error of a sum of products, element by element.

The reference is computed in a wider type, so it is known what the right result rounds to. What an element errs beyond
that rounding must come from the sum before it: from how operands were truncated, how products were added, and how often
a partial result was rounded. That is small, so that one product left out of four thousand shows in every type.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernels.spec import DTYPE_ROUNDOFF, Allowance

# How an operand errs as tf32, relative to its product: (on average, by chance). tf32 keeps 10 bits of a mantissa.
# Truncated, the error is in [0, 2^-10), toward zero, on average 0.36 · 2^-10 for values spread over a binade; two
# operands add up. Rounded, it has no direction, and is 0.41 · 2^-11 by chance. Three products of two such parts leave
# out the product of the rests.
_OPERANDS = {
    "tf32": (0.75 * 2.0**-10, 0.5 * 2.0**-10),
    "tf32_rounded": (0.0, 0.6 * 2.0**-11),
    "tf32x3": (0.0, 0.6 * 2.0**-21),
    "exact": (0.0, 0.0),
}

# What Hopper's matrix unit loses as it adds float8 products, of |A| @ |B|: on an H200 (float32 results, 512 × 512, K
# from 16 to 16384) 4e-5 by RMS and 5e-4 at most, where sums are large. Halves lose 1.5e-6 at most, float32 3e-7. Ada's
# is taken to be alike; it was not measured.
_COARSE = 2.0**-11


@dataclass(frozen=True)
class Arithmetic:
    """What a launch does to numbers.

    Attributes:
        dtype: of the operands and the result.
        reduction: products summed in float32 per element.
        operands: what becomes of them before they are multiplied: "exact", "tf32" (truncated), "tf32_rounded",
            "tf32x3".
        roundings: partial sums that are rounded to `dtype` and added up in it.
        coarse_sums: float8 products are added by a matrix unit of Ada or Hopper, which keeps few bits of them.
    """

    dtype: str
    reduction: int
    operands: str = "exact"
    roundings: int = 1
    coarse_sums: bool = False


def allowance(done: Arithmetic) -> Allowance:
    """What is allowed for a sum of `done.reduction` products; the scale of its error is |A| @ |B|.

    Not a worst-case bound: operands are random, so sums of K rounding errors grow with √K.

    >>> allowance(Arithmetic("float16", 1024)).of_scale < 1e-5 < allowance(Arithmetic("float32", 1024, "tf32")).of_scale
    True
    """
    bias, spread = _OPERANDS[done.operands]
    # For normal operands √(Σ a²b²) is (π/2)/√K of Σ|a||b|: a random part shrinks so against |A| @ |B|.
    by_chance = (math.pi / 2) / math.sqrt(done.reduction)
    sums = 2.0**-23 * math.sqrt(done.reduction)
    coarse = _COARSE if done.coarse_sums else 0.0
    # Each partial sum is rounded, and so is what it is added to but for the last: the j-th of n is √(j/n) of the whole.
    # A rounding errs by 0.41 of a unit roundoff (evenly within it, values spread over a binade; 0.5 leaves room). Where
    # the result is far from 0, so were the sums.
    roundoff = DTYPE_ROUNDOFF[done.dtype] if done.roundings > 1 else 0.0
    partial = 0.5 * roundoff * math.sqrt((done.roundings - 1) / 2 + 1)
    of_sums = 3 * 0.5 * roundoff * math.sqrt((done.roundings - 1) / 3)
    most = 2 * spread + 2 * done.roundings * roundoff
    return Allowance(
        of_value=1.4 * bias + of_sums + 4 * coarse,
        of_scale=min(6 * math.hypot(spread, partial) * by_chance, most) + sums + coarse,
        expected_of_value=bias,
        expected_of_scale=math.hypot(spread, partial) * by_chance + sums / 4 + coarse / 12,
        # Products of halves are exact in float32, those of floats in float64.
        reference_dtype="float64" if done.dtype == "float32" else "float32",
    )
