"""Is the output right? Against what the dtype's rounding allows at this K. Torch; runs in the worker.

The reference is computed in a wider type, so it is known what the right result rounds to. What an element errs beyond
that rounding must come from the sum before it: from how operands were cut, how products were added, and how often a
partial result was rounded. That is small, so that one product left out of four thousand shows in every type.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kernels.results import Check, Closeup, Diff

if TYPE_CHECKING:
    import torch

# Unit roundoff (half a unit in the last place, relative), by dtype: IEEE 754; for float8 the OCP 8-bit formats 1.0.
ROUNDOFF = {
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float32": 2.0**-24,
    "float8_e4m3fn": 2.0**-4,
    "float8_e5m2": 2.0**-3,
}

# How an operand errs as tf32, relative to its product: (on average, by chance). tf32 keeps 10 bits of a mantissa. Cut
# off, the error is in [0, 2^-10), toward zero, on average 0.36 · 2^-10 for values spread over a binade; two operands
# add up. Rounded, it has no direction, and is 0.41 · 2^-11 by chance. Three products of two such parts leave out the
# product of the rests.
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

MAX_CELLS = 128
_CLOSEUP_CELLS, _WINDOW = 96, 3
_CHUNK_BYTES = 512 * 1024 * 1024


@dataclass(frozen=True)
class Arithmetic:
    """What a launch does to numbers.

    Attributes:
        dtype: of the operands and the result.
        reduction: products summed in float32 per element; 0 for a kernel that only moves data.
        operands: what becomes of them before they are multiplied: "exact", "tf32" (cut off), "tf32_rounded", "tf32x3".
        roundings: partial sums that are rounded to `dtype` and added up in it.
        coarse_sums: float8 products are added by a matrix unit of Ada or Hopper, which keeps few bits of them.
    """

    dtype: str
    reduction: int
    operands: str = "exact"
    roundings: int = 1
    coarse_sums: bool = False


@dataclass(frozen=True)
class Allowance:
    """How far a sum may be off before it is rounded: `of_value` · |ref| + `of_magnitude` · (|A| @ |B|).

    `expected_*` are the same on average (RMS). Not worst-case bounds: operands are random, so sums of K rounding errors
    grow with √K. All zero for a kernel that only moves data.
    """

    of_value: float
    of_magnitude: float
    expected_of_value: float
    expected_of_magnitude: float


def allowance(done: Arithmetic) -> Allowance:
    """What is allowed for a sum of `done.reduction` products."""
    if not done.reduction:
        return Allowance(0, 0, 0, 0)
    bias, spread = _OPERANDS[done.operands]
    # For normal operands √(Σ a²b²) is (π/2)/√K of Σ|a||b|: a random part shrinks so against |A| @ |B|.
    by_chance = (math.pi / 2) / math.sqrt(done.reduction)
    sums = 2.0**-23 * math.sqrt(done.reduction)
    coarse = _COARSE if done.coarse_sums else 0.0
    # Each partial sum is rounded, and so is what it is added to but for the last: the j-th of n is √(j/n) of the whole.
    # A rounding errs by 0.41 of a unit roundoff (evenly within it, values spread over a binade; 0.5 leaves room). Where
    # the result is far from 0, so were the sums.
    roundoff = ROUNDOFF[done.dtype] if done.roundings > 1 else 0.0
    partial = 0.5 * roundoff * math.sqrt((done.roundings - 1) / 2 + 1)
    of_sums = 3 * 0.5 * roundoff * math.sqrt((done.roundings - 1) / 3)
    most = 2 * spread + 2 * done.roundings * roundoff
    return Allowance(
        of_value=1.4 * bias + of_sums + 4 * coarse,
        of_magnitude=min(6 * math.hypot(spread, partial) * by_chance, most) + sums + coarse,
        expected_of_value=bias,
        expected_of_magnitude=math.hypot(spread, partial) * by_chance + sums / 4 + coarse / 12,
    )


@dataclass(frozen=True)
class _Compared:
    """Some rows of the output beside the reference, element by element."""

    got: torch.Tensor
    expected: torch.Tensor
    error: torch.Tensor
    magnitude: torch.Tensor
    rounding: torch.Tensor
    typical: torch.Tensor
    units: torch.Tensor
    nonfinite: torch.Tensor


class _Comparison:
    """The output and the reference, compared some rows at a time, so that 16,384 × 16,384 fits beside the tensors."""

    def __init__(self, output: torch.Tensor, inputs: dict[str, Any], reference: Any, done: Arithmetic) -> None:
        import torch

        self.output, self.reference, self.done = output, reference, done
        # Sums are compared with sums in a wider type: products of halves are exact in float32, those of floats in
        # float64.
        wider = torch.float64 if done.dtype == "float32" else torch.float32
        self.wide = wider if done.reduction or output.dtype.itemsize == 1 else output.dtype
        self.exact = {name: tensor.to(self.wide) for name, tensor in inputs.items()}
        self.absolute = {name: tensor.float().abs() for name, tensor in inputs.items()} if done.reduction else {}
        self.allowed = allowance(done)

    def rows(self, part: slice) -> _Compared:
        import torch

        expected = self.reference(self.exact, part)
        got = self.output[part].to(expected.dtype)
        if self.done.reduction:
            magnitude = self.reference(self.absolute, part).to(expected.dtype)
            right = self._rounded(expected)
        else:
            magnitude, right = expected.abs(), expected
        nonfinite = ~torch.isfinite(got) & (got != right)
        error = torch.where(nonfinite | (got == expected), 0, (got - expected).abs())
        rounding = torch.where(right == expected, 0, (right - expected).abs())
        allowed = self.allowed.of_value * expected.abs() + self.allowed.of_magnitude * magnitude
        typical = self.allowed.expected_of_value * expected.abs() + self.allowed.expected_of_magnitude * magnitude
        # An error of `allowed` before the rounding can turn up or down what lay between two neighbours: twice as much.
        beyond = torch.where(got == right, 0, (error - rounding).clamp(min=0))
        units = torch.where(allowed > 0, beyond / (2 * allowed), torch.where(beyond > 0, torch.inf, 0))
        units = torch.where(nonfinite, torch.inf, units if self.done.reduction else error)
        return _Compared(got, expected, error, magnitude, rounding, typical, units, nonfinite)

    def _rounded(self, value: torch.Tensor) -> torch.Tensor:
        """What a right result is stored as. float8 has its largest number where others have infinity."""
        import torch

        if self.output.dtype.itemsize == 1:
            most = torch.finfo(self.output.dtype).max
            value = value.clamp(-most, most)
        return value.to(self.output.dtype).to(value.dtype)


def check(
    output: torch.Tensor,
    inputs: dict[str, torch.Tensor],
    reference: Callable[[dict[str, Any], slice], torch.Tensor],
    done: Arithmetic,
    tile: tuple[int, int] | None = None,
) -> tuple[Check, Diff]:
    """Compare `output` with `reference`.

    Args:
        output: (rows, columns), poisoned with NaN before the launch.
        reference: (inputs, rows) → those rows of the right answer, in the inputs' type; with |inputs|, |A| @ |B|.
        tile: rows and columns of the output's tiles, which the closeup of the worst element keeps to.
    """
    import numpy as np
    import torch

    rows, columns = output.shape
    comparison = _Comparison(output, inputs, reference, done)
    cell = (-(-rows // MAX_CELLS), -(-columns // MAX_CELLS))
    chunk = max(1, _CHUNK_BYTES // (columns * 64) // cell[0]) * cell[0]
    # Σ error², Σ reference², Σ (rounding² + typical²)
    totals = torch.zeros(3, dtype=torch.float64, device=output.device)
    max_abs = max_scaled = 0.0
    mismatched = nonfinite = 0
    worst = (-1.0, 0, 0, 0.0, 0.0)
    pictures = []
    for first in range(0, rows, chunk):
        part = comparison.rows(slice(first, min(first + chunk, rows)))
        squares = ((part.error,), (part.expected,), (part.rounding, part.typical))
        totals += torch.stack([torch.stack([(x.double() ** 2).sum() for x in group]).sum() for group in squares])
        max_abs = max(max_abs, part.error.max().item())
        scaled = torch.where(part.magnitude > 0, part.error / part.magnitude, torch.where(part.error > 0, torch.inf, 0))
        max_scaled = max(max_scaled, scaled.max().item())
        mismatched += int((part.units > (1 if done.reduction else 0)).sum().item())
        nonfinite += int(part.nonfinite.sum().item())
        place = int(part.units.argmax().item())
        if (value := part.units.view(-1)[place].item()) > worst[0]:
            row, column = divmod(place, columns)
            worst = (value, first + row, column, part.got[row, column].item(), part.expected[row, column].item())
        pictures.append(_pooled(part.units, cell))
    error_2, reference_2, typical_2 = totals.tolist()
    scale = math.sqrt(reference_2) or 1.0
    relative_rms = math.sqrt(error_2) / scale
    # Rounding is known element by element, the rest on average: over few elements that scatters.
    tolerance = (1.05 + 2 / math.sqrt(output.numel())) * math.sqrt(typical_2) / scale
    passed = mismatched == 0 and relative_rms <= tolerance
    closeup = None if passed and not done.reduction else _closeup(comparison, (worst[1], worst[2]), tile)
    return (
        Check(
            passed=passed,
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
            worst_over_allowed=worst[0],
        ),
        Diff(np.concatenate(pictures), cell, (rows, columns), not done.reduction, tile, closeup),
    )


def _closeup(comparison: _Comparison, worst: tuple[int, int], tile: tuple[int, int] | None) -> Closeup:
    """The worst element's tile and its neighbours, and the elements next to it."""
    sides = tile or (_CLOSEUP_CELLS // 3, _CLOSEUP_CELLS // 3)
    shape = comparison.output.shape
    near = [slice(max(0, at - _WINDOW), min(room, at + _WINDOW + 1)) for at, room in zip(worst, shape, strict=True)]
    # A tile of fewer rows than are shown as numbers has more neighbours than one.
    first = [
        min(max(0, (at // side - 1) * side), shown.start // side * side)
        for at, side, shown in zip(worst, sides, near, strict=True)
    ]
    last = [
        min(room, max((at // side + 2) * side, -(-shown.stop // side) * side))
        for at, side, room, shown in zip(worst, sides, shape, near, strict=True)
    ]
    part = comparison.rows(slice(first[0], last[0]))
    cell = (-(-(last[0] - first[0]) // _CLOSEUP_CELLS), -(-(last[1] - first[1]) // _CLOSEUP_CELLS))
    rows = slice(near[0].start - first[0], near[0].stop - first[0])
    return Closeup(
        cells=_pooled(part.units[:, first[1] : last[1]], cell),
        cell=cell,
        first=(first[0], first[1]),
        shape=(last[0] - first[0], last[1] - first[1]),
        near=(near[0].start, near[1].start),
        got=part.got[rows, near[1]].float().cpu().numpy(),
        expected=part.expected[rows, near[1]].float().cpu().numpy(),
        units=part.units[rows, near[1]].float().cpu().numpy(),
    )


def _pooled(units: torch.Tensor, cell: tuple[int, int]) -> Any:
    """The largest of each cell."""
    import torch

    return torch.nn.functional.max_pool2d(units.float()[None, None], cell, ceil_mode=True)[0, 0].cpu().numpy()
