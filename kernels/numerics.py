"""Input values, and the formulas that compare a result with its reference. Torch, imported inside the functions.

The check and exported scripts share these functions.
"""

from __future__ import annotations

import math
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


def as_stored(value: Any, dtype: torch.dtype) -> Any:
    """Round correct results to `dtype`, in the type of `value`. float8 saturates at its largest number."""
    import torch

    if dtype.itemsize == 1:
        most = torch.finfo(dtype).max
        value = value.clamp(-most, most)
    return value.to(dtype).to(value.dtype)


def deviations(got: Any, expected: Any, right: Any) -> tuple[Any, Any, Any]:
    """Return for each element: whether it is wrongly not finite, its error, and the error of the correct result.

    Args:
        got, expected: the result and the reference, in one type.
        right: the correct result as stored, which differs from the reference by rounding.
    """
    import torch

    nonfinite = ~torch.isfinite(got) & (got != right)
    error = torch.where(nonfinite | (got == expected), 0, (got - expected).abs())
    rounding = torch.where(right == expected, 0, (right - expected).abs())
    return nonfinite, error, rounding


def in_limits(got: Any, right: Any, error: Any, rounding: Any, limit: Any) -> Any:
    """Return each element's error beyond rounding in units of what is allowed. Above 1 it is wrong."""
    import torch

    # An error of `limit` before rounding can move a value between two neighbours to either: twice as much.
    beyond = torch.where(got == right, 0, (error - rounding).clamp(min=0))
    return torch.where(limit > 0, beyond / (2 * limit), torch.where(beyond > 0, torch.inf, 0))


def rms_limit(explained: float, scale: float, elements: int) -> float:
    """Return the largest relative RMS error that is allowed.

    Args:
        explained: root of the sum of squares that rounding explains.
        scale: root of the reference's sum of squares.
    """
    # Rounding is known element by element, the rest on average: over few elements that scatters.
    return (1.05 + 2 / math.sqrt(elements)) * explained / scale
