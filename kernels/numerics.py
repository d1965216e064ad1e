"""Input values, and the comparison of a result with its reference. Torch, imported inside the functions.

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
    """Return the type in which an output of `dtype` and its reference are compared. torch compares no float8.

    Args:
        reference_dtype: by torch's name; "" if the output must equal the reference.
    """
    import torch

    if reference_dtype:
        return getattr(torch, reference_dtype)
    return torch.float32 if dtype.itemsize == 1 else dtype


def compare(output: Any, expected: Any, scale: Any, allowed: Any) -> SimpleNamespace:
    """Compare elements of a result with the reference.

    Args:
        expected: the reference, in the type of the comparison.
        scale: of the elements' errors.
        allowed: the Allowance; None if the output must equal the reference bit for bit.

    Returns:
        For each element: `got`, the output in the type of the comparison; `error`; `rounding`, the error of the correct
        result as stored; `typical`, the expected error beyond it; whether it is wrongly `nonfinite`; and `units`, the
        error beyond rounding in units of what is allowed, or the error if none is. Above 1, or 0, an element is wrong.
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
        # An error of `limit` before rounding can move a value between two neighbours to either: twice as much.
        beyond = torch.where(got == right, 0, (error - rounding).clamp(min=0))
        units = torch.where(limit > 0, beyond / (2 * limit), torch.where(beyond > 0, torch.inf, 0))
    units = torch.where(nonfinite, torch.inf, units)
    return SimpleNamespace(got=got, error=error, rounding=rounding, typical=typical, nonfinite=nonfinite, units=units)


def rms_limit(explained: float, scale: float, elements: int) -> float:
    """Return the largest relative RMS error that is allowed.

    Args:
        explained: root of the sum of squares that rounding explains.
        scale: root of the reference's sum of squares.
    """
    # Rounding is known element by element, the rest on average: over few elements that scatters.
    return (1.05 + 2 / math.sqrt(elements)) * explained / scale
