"""Is the output right? Against what the dtype's rounding allows at this K. Torch; runs in the worker."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.runner.results import Check, Diff

if TYPE_CHECKING:
    import torch

# Unit roundoff (half a unit in the last place, relative) and half the smallest subnormal, by output dtype: IEEE 754.
_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
_FLOOR = {"float16": 2.0**-25, "bfloat16": 2.0**-134, "float32": 2.0**-150}

# tf32 keeps 10 bits of an operand's mantissa; Triton truncates the rest. Relative error of an operand: in
# [0, 2^-10), toward zero, on average 0.36 · 2^-10 for values spread over a binade; two operands add up.
_TF32_BIAS = 0.75 * 2.0**-10
_TF32_SPREAD = 0.5 * 2.0**-10

MAX_CELLS = 128
_CHUNK_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class Allowance:
    """What rounding allows at one element: `of_value` · |ref| + `of_magnitude` · (|A| @ |B|) + `floor`.

    `expected_*` are the same for the RMS: what rounding does on average. Not worst-case bounds: operands are
    random, so sums of K rounding errors grow with √K. All zero for a kernel that only moves data.
    """

    of_value: float
    of_magnitude: float
    floor: float
    expected_of_value: float
    expected_of_magnitude: float


def allowance(dtype: str, reduction: int, tf32: bool) -> Allowance:
    """What is allowed for a sum of `reduction` products of `dtype` operands, summed in float32, rounded to `dtype`.

    Args:
        tf32: float32 operands are cut to tf32 before they are multiplied.
    """
    if not reduction:
        return Allowance(0, 0, 0, 0, 0)
    roundoff = _ROUNDOFF[dtype]
    bias = _TF32_BIAS if tf32 else 0.0
    # For normal operands √(Σ a²b²) is (π/2)/√K of Σ|a||b|: a random part shrinks so against |A| @ |B|.
    spread = _TF32_SPREAD * (math.pi / 2) / math.sqrt(reduction) if tf32 else 0.0
    sums = 2.0**-23 * math.sqrt(reduction)
    return Allowance(
        of_value=1.1 * roundoff + 1.4 * bias,
        of_magnitude=min(6 * spread, 2 * 2.0**-10) + sums,
        floor=_FLOOR[dtype],
        expected_of_value=0.6 * roundoff + bias,
        expected_of_magnitude=spread + sums / 4,
    )


def check(
    output: torch.Tensor,
    inputs: dict[str, torch.Tensor],
    reference: Callable[[dict[str, Any], slice], torch.Tensor],
    reduction: int,
    dtype: str,
    tf32: bool,
) -> tuple[Check, Diff]:
    """Compare `output` with `reference`, rows at a time, so that 16,384 × 16,384 fits beside the tensors.

    Args:
        output: (rows, columns), poisoned with NaN before the launch.
        reference: (inputs, rows) → those rows of the right answer, in the inputs' type; with |inputs|, |A| @ |B|.
        reduction: products summed per element; 0 where the output must equal the reference bit for bit.
        tf32: float32 operands are cut to tf32 before they are multiplied.
    """
    import torch

    rows, columns = output.shape
    allowed = allowance(dtype, reduction, tf32)
    cell = (-(-rows // MAX_CELLS), -(-columns // MAX_CELLS))
    chunk = max(1, _CHUNK_BYTES // (columns * 48) // cell[0]) * cell[0]
    # Sums are compared with sums in a wider type: products of halves are exact in float32, those of floats in float64.
    wide = (torch.float64 if dtype == "float32" else torch.float32) if reduction else output.dtype
    exact = {name: tensor.to(wide) for name, tensor in inputs.items()}
    absolute = {name: tensor.float().abs() for name, tensor in inputs.items()} if reduction else {}
    totals = torch.zeros(3, dtype=torch.float64, device=output.device)  # Σ error², Σ reference², Σ expected²
    max_abs = max_scaled = 0.0
    mismatched = nonfinite = 0
    worst = (-1.0, 0, 0, 0.0, 0.0)
    pictures = []
    for first in range(0, rows, chunk):
        part = slice(first, min(first + chunk, rows))
        expected = reference(exact, part)
        magnitude = reference(absolute, part).to(expected.dtype) if reduction else expected.abs()
        got = output[part].to(expected.dtype)
        finite = torch.isfinite(got)
        error = torch.where(finite, (got - expected).abs(), 0)
        limit = allowed.of_value * expected.abs() + allowed.of_magnitude * magnitude + allowed.floor
        wrong = ~finite | (error > limit)
        units = torch.where(limit > 0, error / limit, error) if reduction else error
        units = torch.where(finite, units, torch.inf)
        typical = allowed.expected_of_value * expected.abs() + allowed.expected_of_magnitude * magnitude + allowed.floor
        totals += torch.stack([(x.double() ** 2).sum() for x in (error, expected, typical)])
        max_abs = max(max_abs, error.max().item())
        scaled = torch.where(magnitude > 0, error / magnitude, torch.where(error > 0, torch.inf, 0))
        max_scaled = max(max_scaled, scaled.max().item())
        mismatched += int(wrong.sum().item())
        nonfinite += int((~finite).sum().item())
        place = int(units.argmax().item())
        if (value := units.view(-1)[place].item()) > worst[0]:
            row, column = divmod(place, columns)
            worst = (value, first + row, column, got[row, column].item(), expected[row, column].item())
        pictures.append(
            torch.nn.functional.max_pool2d(units.float()[None, None], cell, ceil_mode=True)[0, 0].cpu().numpy()
        )
    import numpy as np

    error_2, reference_2, typical_2 = totals.tolist()
    scale = math.sqrt(reference_2) or 1.0
    relative_rms = math.sqrt(error_2) / scale
    # An RMS over few elements scatters: one element may err by the whole roundoff.
    tolerance = 1.5 * (1 + 2 / math.sqrt(output.numel())) * math.sqrt(typical_2) / scale
    return (
        Check(
            passed=mismatched == 0 and relative_rms <= tolerance,
            relative_rms=relative_rms,
            tolerance=tolerance,
            max_abs_error=max_abs,
            max_scaled_error=max_scaled,
            mismatched=mismatched,
            nonfinite=nonfinite,
            elements=output.numel(),
            worst_index=(worst[1], worst[2]),
            worst_got=worst[3],
            worst_expected=worst[4],
        ),
        Diff(np.concatenate(pictures), cell, (rows, columns), exact=not reduction),
    )
