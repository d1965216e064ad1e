"""Functions that check and time an exported script's launch. The exporter copies their source into the script."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from kernels.numerics import compare, compared_in, rms_limit
from kernels.spec import Tensors


def is_right(output: Any, inputs: Tensors, reference: Any, error_scale: Any, allowed: Any) -> bool:
    """Compare the output with torch's result, 1024 rows at a time, and print the error.

    Args:
        reference, error_scale: the family's functions of the inputs and a slice of rows; error_scale may be None.
        allowed: the error that rounding explains; None if the output must equal the reference bit for bit.
    """
    wide = compared_in(output.dtype, allowed.reference_dtype if allowed else "")
    wider = {name: tensor.to(wide) for name, tensor in inputs.items()}
    absolute = {name: tensor.float().abs() for name, tensor in inputs.items()}
    wrong, worst, place = 0, -1.0, (0, 0)
    squares = [0.0, 0.0, 0.0, 0.0]
    rows, columns = output.shape
    for first in range(0, rows, 1024):
        part = slice(first, min(first + 1024, rows))
        expected = reference(wider, part)
        scale = error_scale(absolute, part).to(wide) if error_scale else expected.abs()
        compared = compare(output[part], expected, scale, allowed)
        wrong += int((compared.units > (1 if allowed else 0)).sum().item())
        parts = compared.error, expected, compared.rounding, compared.typical
        squares = [total + (part.double() ** 2).sum().item() for total, part in zip(squares, parts, strict=True)]
        if compared.units.max().item() > worst:
            worst = compared.units.max().item()
            row, column = divmod(int(compared.units.argmax().item()), columns)
            place = first + row, column
    error, norm, rounding, typical = map(math.sqrt, squares)
    relative_rms = error / (norm or 1.0)
    most = rms_limit(math.hypot(rounding, typical), norm or 1.0, output.numel())
    passed = wrong == 0 and relative_rms <= most
    rule = f"limit {most:.2e}" if allowed else "every element must be equal"
    print(f"check {'passed' if passed else 'FAILED'}: {wrong:,} of {output.numel():,} elements wrong, ", end="")
    print(f"relative RMS error {relative_rms:.2e} ({rule}), worst at {place}")
    return passed


def times_ms(calls: Sequence[Callable[[], Any]], is_cold: bool, turns: int = 50) -> list[list[float]]:
    """Time the launches of several calls in alternation. Return milliseconds per call and launch. Needs a GPU.

    A spinning kernel gates the stream until all launches are queued, so the events do not time Python. If the gate
    opens too early, the measurement is repeated with a longer spin.

    Args:
        is_cold: whether to evict the L2 before each launch, by reading other data of twice its capacity.
    """
    import torch

    l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    other = torch.zeros(max(1, 2 * l2_bytes // 4), device="cuda")
    total = torch.empty((), device="cuda")
    for call in calls:
        call()
    cycles = 1 << 23
    while True:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(2 * turns * len(calls))]
        torch.cuda.synchronize()
        torch.cuda._sleep(cycles)
        held = torch.cuda.Event()
        held.record()
        for place, call in zip(range(0, len(events), 2), itertools.cycle(calls), strict=False):
            if is_cold:
                torch.sum(other, dim=0, out=total)
            events[place].record()
            call()
            events[place + 1].record()
        was_full = not held.query()
        torch.cuda.synchronize()
        if was_full:
            times = [events[n].elapsed_time(events[n + 1]) for n in range(0, len(events), 2)]
            return [times[n :: len(calls)] for n in range(len(calls))]
        if cycles > 1 << 32:
            raise RuntimeError(f"{len(events)} events could not be queued within {cycles:,} cycles.")
        cycles *= 4


def told(name: str, times: Sequence[float], work: int, moved_bytes: int) -> str:
    """Describe a call's times: median, spread, and rate in operations, or in bytes if `work` is 0."""
    tenths = statistics.quantiles(times, n=10)
    median = statistics.median(times)
    rate = f"{work / median / 1e9:,.1f} TFLOP/s" if work else f"{moved_bytes / median / 1e6:,.0f} GB/s"
    return f"{name}: {median:.4f} ms (20 % to 80 %: {tenths[1]:.4f} to {tenths[7]:.4f}), {rate}"
