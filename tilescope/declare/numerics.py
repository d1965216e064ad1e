"""Generate input values, interpret a launch, compare a result with its reference, and time a script's launch.

Measurements and exported scripts share `values` and `compare`. The exporter copies the source of these functions into
the script. They import torch when they are called.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from tilescope.declare.spec import Tensors

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


def interpret(launch: Callable[[], Any], output: Any, every_s: float = 10.0) -> None:
    """Launch under Triton's interpreter. Print how much of the output is written, at the start and then regularly.

    Args:
        output: a contiguous tensor. Elements that still have their first value, or are NaN, count as not written.
        every_s: seconds between two reports.
    """
    import torch

    # Sample the elements, because comparing all of a large output takes seconds.
    sample = output.view(-1)[::101]
    before = sample.clone().float()
    has_ended = threading.Event()

    def report() -> None:
        began = time.monotonic()
        while not has_ended.wait(every_s):
            now = sample.float()
            written = 1 - (torch.isnan(now) | (now == before)).float().mean().item()
            print(
                f"{time.monotonic() - began:.0f} s: {written:.1%} of the output has been written",
                flush=True,
            )

    threading.Thread(target=report, daemon=True).start()
    try:
        launch()
    finally:
        has_ended.set()


def comparison_dtype(dtype: torch.dtype, reference_dtype: str) -> torch.dtype:
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
        result as stored; `typical`, the expected error beyond `rounding`; `nonfinite`, whether the output is wrongly
        not finite; and `units`, the error beyond rounding in units of the limit. An element is wrong if `units`
        exceeds 1. If the output must equal the reference, `units` is the error, and any error is wrong.
    """
    import torch

    got = output.to(expected.dtype)
    right = expected
    if allowed:
        if output.dtype.itemsize == 1:  # float8 saturates at its largest number
            most = torch.finfo(output.dtype).max
            right = expected.clamp(-most, most)
        right = right.to(output.dtype).to(expected.dtype)
    nonfinite = ~torch.isfinite(got) & (got != right)
    error = torch.where(nonfinite | (got == expected), 0, (got - expected).abs())
    rounding = torch.where(right == expected, 0, (right - expected).abs())
    typical = torch.zeros_like(error)
    units = error
    if allowed:
        limit = allowed.of_value * expected.abs() + allowed.of_scale * scale
        typical = allowed.expected_of_value * expected.abs() + allowed.expected_of_scale * scale
        # An error of `limit` before rounding can also flip the rounding to the other neighbour, which doubles it.
        beyond = torch.where(got == right, 0, (error - rounding).clamp(min=0))
        units = torch.where(limit > 0, beyond / (2 * limit), torch.where(beyond > 0, torch.inf, 0))
    units = torch.where(nonfinite, torch.inf, units)
    return SimpleNamespace(
        got=got, error=error, rounding=rounding, typical=typical, nonfinite=nonfinite, units=units
    )


def compare_parts(
    output: Any, inputs: Tensors, reference: Any, error_scale: Any, allowed: Any, parts: Any
) -> Any:
    """Compare the output with torch's result in slices of rows: a whole large product may not fit beside its operands.

    Args:
        reference, error_scale: the family's functions of the inputs and a slice of rows; error_scale may be None.
        allowed: the error that rounding explains; None if the output must equal the reference bit for bit.
        parts: an iterable of slices of rows.

    Yields:
        The fields of `compare` for each part, with `rows`, `expected` and `scale`.
    """
    wide = comparison_dtype(output.dtype, allowed.reference_dtype if allowed else "")
    wider = {name: tensor.to(wide) for name, tensor in inputs.items()}
    absolute = (
        {name: tensor.float().abs() for name, tensor in inputs.items()} if error_scale else {}
    )
    for rows in parts:
        expected = reference(wider, rows)
        scale = error_scale(absolute, rows).to(wide) if error_scale else expected.abs()
        compared = compare(output[rows], expected, scale, allowed)
        yield SimpleNamespace(rows=rows, expected=expected, scale=scale, **vars(compared))


def rms_limit(explained: float, scale: float, elements: int) -> float:
    """Return the largest allowed relative RMS error.

    Args:
        explained: root of the sum of squared errors that rounding explains.
        scale: root of the reference's sum of squares.
    """
    # Rounding is known for each element. Other errors are known only on average, which varies more over few elements.
    return (1.05 + 2 / math.sqrt(elements)) * explained / scale


def summarize(parts: Any, is_exact: bool, elements: int) -> SimpleNamespace:
    """Add up the errors of the parts of an output that `compare_parts` yields.

    Returns:
        `passed`; the number of `wrong` elements; `relative_rms` and its `limit`; and, of the element with
        the largest error in units of its limit, these `units`, its `place` (row and column), and `got` and `expected`.
    """
    wrong = 0
    worst = SimpleNamespace(units=-1.0)
    squares = [0.0, 0.0, 0.0, 0.0]
    for part in parts:
        wrong += int((part.units > (0 if is_exact else 1)).sum().item())
        errors = part.error, part.expected, part.rounding, part.typical
        squares = [
            total + (error.double() ** 2).sum().item()
            for total, error in zip(squares, errors, strict=True)
        ]
        units = part.units.max().item()
        if units > worst.units:
            row, column = divmod(int(part.units.argmax().item()), part.units.shape[1])
            worst = SimpleNamespace(
                units=units,
                place=(part.rows.start + row, column),
                got=part.got[row, column].item(),
                expected=part.expected[row, column].item(),
            )
    error, norm, rounding, typical = squares
    scale = math.sqrt(norm) or 1.0
    relative_rms = math.sqrt(error) / scale
    limit = rms_limit(math.sqrt(rounding + typical), scale, elements)
    passed = wrong == 0 and relative_rms <= limit
    return SimpleNamespace(
        passed=passed, wrong=wrong, relative_rms=relative_rms, limit=limit, **vars(worst)
    )


def is_right(output: Any, inputs: Tensors, reference: Any, error_scale: Any, allowed: Any) -> bool:
    """Compare the output with torch's result, 1024 rows at a time, and print the error. See `compare_parts`."""
    rows = (slice(first, first + 1024) for first in range(0, len(output), 1024))
    parts = compare_parts(output, inputs, reference, error_scale, allowed, rows)
    total = summarize(parts, not allowed, output.numel())
    rule = f"limit {total.limit:.2e}" if allowed else "every element must be equal"
    verdict = "passed" if total.passed else "FAILED"
    print(
        f"check {verdict}: {total.wrong:,} of {output.numel():,} elements wrong, "
        f"relative RMS error {total.relative_rms:.2e} ({rule}), worst at {total.place}"
    )
    return total.passed


def times_ms(
    calls: Sequence[Callable[[], Any]], is_cold: bool, turns: int = 50
) -> list[list[float]]:
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
        gate_end = torch.cuda.Event()
        gate_end.record()
        for place, call in zip(range(0, len(events), 2), itertools.cycle(calls), strict=False):
            if is_cold:
                torch.sum(other, dim=0, out=total)
            events[place].record()
            call()
            events[place + 1].record()
        was_gated = not gate_end.query()
        torch.cuda.synchronize()
        if was_gated:
            times = [events[n].elapsed_time(events[n + 1]) for n in range(0, len(events), 2)]
            return [times[n :: len(calls)] for n in range(len(calls))]
        if cycles > 1 << 32:
            raise RuntimeError(
                f"{len(events)} events could not be queued within {cycles:,} cycles."
            )
        cycles *= 4


def describe_times(name: str, times: Sequence[float], work: int, moved_bytes: int) -> str:
    """Describe a call's times: median, spread, and rate in TFLOP/s, or in GB/s if `work` is 0."""
    tenths = statistics.quantiles(times, n=10)
    median = statistics.median(times)
    rate = (
        f"{work / median / 1e9:,.1f} TFLOP/s" if work else f"{moved_bytes / median / 1e6:,.0f} GB/s"
    )
    return f"{name}: {median:.4f} ms (20 % to 80 %: {tenths[1]:.4f} to {tenths[7]:.4f}), {rate}"
