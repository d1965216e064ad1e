"""How far a result is from its reference, element by element: the formulas of the check. Torch, inside functions.

The runner's check and an exported script compute with these same functions.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def compared_in(dtype: torch.dtype, reference_dtype: str) -> torch.dtype:
    """The type in which an output of `dtype` and its reference are compared; torch compares no float8.

    Args:
        reference_dtype: by torch's name; "" where the output must equal the reference.
    """
    import torch

    if reference_dtype:
        return getattr(torch, reference_dtype)
    return torch.float32 if dtype.itemsize == 1 else dtype


def as_stored(value: Any, dtype: torch.dtype) -> Any:
    """What a right result is stored as, in the type of `value`. float8 has its largest number instead of infinity."""
    import torch

    if dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        value = value.clamp(-most, most)
    return value.to(dtype).to(value.dtype)


def deviations(got: Any, expected: Any, right: Any) -> tuple[Any, Any, Any]:
    """Of each element: is it not finite where it should be; its error; how far a right result may be, by rounding.

    Args:
        got, expected: the result and the reference, in one type.
        right: what a right result is stored as.
    """
    import torch

    nonfinite = ~torch.isfinite(got) & (got != right)
    error = torch.where(nonfinite | (got == expected), 0, (got - expected).abs())
    rounding = torch.where(right == expected, 0, (right - expected).abs())
    return nonfinite, error, rounding


def in_limits(got: Any, right: Any, error: Any, rounding: Any, limit: Any) -> Any:
    """The error of each element beyond rounding, in units of what is allowed: above 1 it is wrong."""
    import torch

    # An error of `limit` before rounding can round up or down what lay between two neighbours: twice as much.
    beyond = torch.where(got == right, 0, (error - rounding).clamp(min=0))
    return torch.where(limit > 0, beyond / (2 * limit), torch.where(beyond > 0, torch.inf, 0))


def rms_limit(explained: float, scale: float, elements: int) -> float:
    """The largest relative RMS error that is allowed.

    Args:
        explained: root of the sum of squares that rounding explains.
        scale: root of the reference's sum of squares.
    """
    # Rounding is known element by element, the rest on average: over few elements that scatters.
    return (1.05 + 2 / math.sqrt(elements)) * explained / scale
