"""Generate input values, and compare a result with its reference. Functions import torch when they are called.

The check and exported scripts share these functions.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def values(distribution: str, shape: tuple[int, int], generator: Any, device: str) -> Any:
    """Return float32 values: normal (0, 1), uniform in [-1, 1), integers from -4 to 4, or zeros."""
    import torch

    empty = torch.empty(shape, dtype=torch.float32, device=device)
    if distribution == "normal":
        return empty.normal_(generator=generator)
    if distribution == "uniform":
        return empty.uniform_(-1, 1, generator=generator)
    if distribution == "integers":
        return empty.random_(-4, 5, generator=generator)
    return empty.zero_()


def compared_in(dtype: torch.dtype, reference_dtype: str) -> torch.dtype:
    """Return the type in which an output of `dtype` is compared with its reference. torch can't compare float8.

    Args:
        reference_dtype: torch's name of the type; "" if the output must equal the reference.
    """
    import torch

    if reference_dtype:
        return getattr(torch, reference_dtype)
    return torch.float32 if dtype.itemsize == 1 else dtype


def compare(output: Any, expected: Any, scale: Any, allowed: Any) -> SimpleNamespace:
    """Compare elements of a result with the reference.

    Args:
        expected: the reference, in the type of the comparison.
        scale: the elements' error scale.
        allowed: the Allowance; None if the output must equal the reference bit for bit.

    Returns:
        For each element: `got`, the output in the comparison's type; `error`; `rounding`, the error of the correct
        result as stored; `typical`, the expected error beyond it; `nonfinite`, whether it is wrongly not finite; and
        `units`, the error beyond rounding in units of the limit, where more than 1 is wrong. If the output must equal
        the reference, `units` is the error, and more than 0 is wrong.
    """
    import torch

    got, right = output.to(expected.dtype), expected
    if allowed:
        if output.dtype.itemsize == 1:  # float8 saturates at its largest number
            most = torch.finfo(output.dtype).max
            right = expected.clamp(-most, most)
        right = right.to(output.dtype).to(expected.dtype)
    nonfinite = ~torch.isfinite(got) & (got != right)
    error = torch.where(nonfinite | (got == expected), 0, (got - expected).abs())
    rounding = torch.where(right == expected, 0, (right - expected).abs())
    typical, units = torch.zeros_like(error), error
    if allowed:
        limit = allowed.of_value * expected.abs() + allowed.of_scale * scale
        typical = allowed.expected_of_value * expected.abs() + allowed.expected_of_scale * scale
        # An error of `limit` before rounding can also flip the rounding to the other neighbour, which doubles it.
        beyond = torch.where(got == right, 0, (error - rounding).clamp(min=0))
        units = torch.where(limit > 0, beyond / (2 * limit), torch.where(beyond > 0, torch.inf, 0))
    units = torch.where(nonfinite, torch.inf, units)
    return SimpleNamespace(got=got, error=error, rounding=rounding, typical=typical, nonfinite=nonfinite, units=units)


def rms_limit(explained: float, scale: float, elements: int) -> float:
    """Return the largest allowed relative RMS error.

    Args:
        explained: root of the sum of squared errors that rounding explains.
        scale: root of the reference's sum of squares.
    """
    # Rounding is known for each element, other errors only on average, which varies more over few elements.
    return (1.05 + 2 / math.sqrt(elements)) * explained / scale
