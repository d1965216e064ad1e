"""Matrices and their products, for tests of the check. On CPU tensors."""

import functools

import torch

from kernels.matmul.problem import FAMILY as MATMUL
from kernels.matmul.problem import allowance
from kernels.transpose.problem import FAMILY as TRANSPOSE
from tilescope.declare import numerics
from tilescope.declare.spec import DTYPE_BYTES
from tilescope.measure.check import check

DISTRIBUTIONS = ("normal", "uniform", "integers", "zeros")
WIDER_THAN_A_BYTE = [name for name, size in DTYPE_BYTES.items() if size > 1]


@functools.lru_cache(maxsize=8)
def values(shape, dtype, distribution="normal", seed=7):
    generator = torch.Generator().manual_seed(seed)
    return numerics.values(distribution, shape, generator, "cpu").to(getattr(torch, dtype))


def product(m, n, k, dtype, distribution="normal"):
    """Return inputs and their product, summed in float64 and rounded once. The caller may change the product."""
    a, b, exact = _product(m, n, k, dtype, distribution)
    return {"A": a, "B": b}, exact.clone()


@functools.lru_cache(maxsize=8)
def _product(m, n, k, dtype, distribution):
    a = values((m, k), dtype, distribution, 1)
    b = values((k, n), dtype, distribution, 2)
    return a, b, (a.double() @ b.double()).to(getattr(torch, dtype))


def checked_product(output, inputs, dtype, operands="exact", tile=None, **how):
    return check(
        output, inputs, MATMUL, allowance(dtype, inputs["A"].shape[1], operands, **how), tile
    )


def copied(a):
    """Return the transpose as a contiguous copy."""
    return a.t().clone(memory_format=torch.contiguous_format)


def checked_copy(output, a, tile=None):
    return check(output, {"A": a}, TRANSPOSE, None, tile)
