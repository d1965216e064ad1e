"""Compare a launch's output with the reference, either exactly or within a rounding error. Runs in the worker.

If the family allows rounding, the reference is computed in a wider type, so the rounding error of a correct result is
known. An element passes if its error beyond that rounding error is within its Allowance.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tilescope.declare.numerics import compare_parts, comparison_dtype, summarize
from tilescope.declare.spec import Allowance, Family
from tilescope.results.run import Check, Closeup, Diff

if TYPE_CHECKING:
    import torch

MAX_CELLS = 128
_CLOSEUP_CELLS = 96
_WINDOW = 3
_CHUNK_BYTES = 512 * 1024 * 1024
_GIB = 2**30

# Of some rows: the largest error, absolute and scaled, the number of elements that are not finite, and `Diff.cells`.
_Extras = tuple[float, float, int, Any]


class InsufficientMemory(Exception):
    """An allocation would exceed the device's free memory."""


def require_memory(needed_bytes: int, what: str) -> None:
    """Check the current GPU's free memory before an allocation.

    Args:
        what: names the tensors in the message.

    Raises:
        InsufficientMemory: if too little is free. The message gives the needed and the free memory.
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    # Torch can reuse memory that it has reserved but not allocated.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if needed_bytes > free:
        raise InsufficientMemory(
            f"{what} take {needed_bytes / _GIB:.1f} GiB; the GPU has {total / _GIB:.0f} GiB, {free / _GIB:.1f} of them "
            "free. Make the shape smaller."
        )


def check(
    output: torch.Tensor,
    inputs: dict[str, torch.Tensor],
    family: Family,
    allowance: Allowance | None,
    tile: tuple[int, int] | None = None,
) -> tuple[Check, Diff]:
    """Compare `output` with the family's reference.

    Args:
        output: (rows, columns), poisoned with NaN before the launch.
        allowance: the error that rounding explains; None if every element must equal the reference bit for bit.
        tile: (rows, columns) of the output's tiles. The closeup of the worst element shows whole tiles.

    Raises:
        InsufficientMemory: raised before the check allocates anything.
    """
    import numpy as np

    rows, columns = output.shape
    is_exact = allowance is None
    wide = comparison_dtype(output.dtype, allowance.reference_dtype if allowance else "")
    if output.is_cuda:
        per_element = (0 if wide == output.dtype else wide.itemsize) + (
            4 if family.error_scale else 0
        )
        needed_bytes = per_element * sum(tensor.numel() for tensor in inputs.values())
        require_memory(needed_bytes, "The operands of the check, in a wider type,")
    compare_rows = functools.partial(
        compare_parts, output, inputs, family.reference, family.error_scale, allowance
    )
    cell = (_cell_side(rows, tile and tile[0]), _cell_side(columns, tile and tile[1]))
    chunk = max(1, _CHUNK_BYTES // (columns * 64) // cell[0]) * cell[0]
    chunks = (slice(first, first + chunk) for first in range(0, rows, chunk))
    extras: list[_Extras] = []
    parts = _note_extras(compare_rows(chunks), cell, extras)
    result = _make_check(summarize(parts, is_exact, output.numel()), extras, output.numel())
    closeup = None
    if not (result.passed and is_exact):
        closeup = _closeup(compare_rows, (rows, columns), result.worst_index, tile)
    cells = np.concatenate([cells for *_, cells in extras])
    return result, Diff(cells, cell, (rows, columns), is_exact, tile, closeup)


def _note_extras(
    parts: Iterable[Any], cell: tuple[int, int], extras: list[_Extras]
) -> Iterator[Any]:
    """Pass on the parts of a comparison, and note what only a runner's check has."""
    import torch

    for part in parts:
        nonzero = torch.where(part.error > 0, torch.inf, 0)
        scaled = torch.where(part.scale > 0, part.error / part.scale, nonzero)
        errors = part.error.max().item(), scaled.max().item()
        extras.append((*errors, int(part.nonfinite.sum().item()), _max_pool(part.units, cell)))
        yield part


def _make_check(total: Any, extras: list[_Extras], elements: int) -> Check:
    abs_errors, scaled_errors, nonfinite, _ = zip(*extras, strict=True)
    return Check(
        passed=total.passed,
        relative_rms=total.relative_rms,
        tolerance=total.limit,
        max_abs_error=max(abs_errors),
        max_scaled_error=max(scaled_errors),
        mismatched=total.wrong,
        nonfinite=sum(nonfinite),
        elements=elements,
        worst_index=total.place,
        worst_got=total.got,
        worst_expected=total.expected,
        worst_over_allowed=total.units,
    )


def _closeup(
    compare_rows: Callable[..., Any],
    shape: tuple[int, int],
    worst: tuple[int, int],
    tile: tuple[int, int] | None,
) -> Closeup:
    """Return a picture of the worst element's tile and the adjacent tiles, with the values around the element."""
    sides = tile or 2 * (_CLOSEUP_CELLS // 3,)
    near = []
    frame = []
    for at, side, length in zip(worst, sides, shape, strict=True):
        shown = slice(max(0, at - _WINDOW), min(length, at + _WINDOW + 1))
        # Tiles smaller than the window need more than one neighbour.
        first = min(max(0, (at // side - 1) * side), shown.start // side * side)
        last = min(length, max((at // side + 2) * side, -(-shown.stop // side) * side))
        near.append(shown)
        frame.append(slice(first, last))
    part = next(compare_rows([frame[0]]))
    shape = (frame[0].stop - frame[0].start, frame[1].stop - frame[1].start)
    cell = (-(-shape[0] // _CLOSEUP_CELLS), -(-shape[1] // _CLOSEUP_CELLS))
    rows = slice(near[0].start - frame[0].start, near[0].stop - frame[0].start)
    got, expected, units = (
        x[rows, near[1]].float().cpu().numpy() for x in (part.got, part.expected, part.units)
    )
    cells = _max_pool(part.units[:, frame[1]], cell)
    start = (frame[0].start, frame[1].start)
    return Closeup(cells, cell, start, shape, (near[0].start, near[1].start), got, expected, units)


def _cell_side(elements: int, tile: int | None) -> int:
    """Return a cell's side in elements: a divisor or a multiple of the tile's side, so that cells align with tiles."""
    least = -(-elements // MAX_CELLS)
    if tile is None or tile >= elements:
        return least
    return next((side for side in range(least, tile) if tile % side == 0), -(-least // tile) * tile)


def _max_pool(units: torch.Tensor, cell: tuple[int, int]) -> Any:
    import torch

    return (
        torch.nn.functional.max_pool2d(units.float()[None, None], cell, ceil_mode=True)[0, 0]
        .cpu()
        .numpy()
    )
