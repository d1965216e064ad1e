"""Key numbers: those of a result, and those that a view compares with a pinned experiment's."""

from collections.abc import Sequence
from typing import Any

from kernels.results import Counters, GroupSizeStudy, RunResult, Timeline, Timing
from visualize.views.numbers import Number, source
from visualize.views.panel import Panel
from visualize.views.state import Snapshot


def key_numbers(measured: Any) -> tuple[Number, ...]:
    """Return the one or two main numbers of a result; () for unknown kinds of results."""
    is_counted = isinstance(measured, Counters | GroupSizeStudy)
    of = source(getattr(measured, "backend", ""), "counted" if is_counted else "measured")
    match measured:
        case RunResult(timing=Timing() as timing):
            rate, unit = (timing.tflops, "TFLOP/s") if timing.tflops is not None else (timing.gbps or 0.0, "GB/s")
            return Number("time", timing.median_ms, "ms", of), Number("rate", rate, unit, of)
        case RunResult():
            return (_wrong_elements(measured),)
        case Counters(launch=counts):
            requests = sum(counts[f"{operation}_requests"] for operation in ("ld", "st", "red", "atom"))
            traffic = counts["dram_read_bytes"] + counts["dram_write_bytes"]
            return Number("requests", requests, "", of), Number("DRAM traffic", traffic, "bytes", of)
        case GroupSizeStudy(rows=rows):
            reads = [row.read_bytes for row in rows if row.read_bytes]
            extremes = (("fewest", min), ("most", max))[: len(reads)]
            return tuple(Number(f"{name} DRAM reads", pick(reads), "bytes", of) for name, pick in extremes)
        case Timeline():
            duration = Number("first start to last end", measured.span_ns / 1e6, "ms", of)
            return Number("programs", len(measured.sm), "", of), duration
    return ()


def _wrong_elements(run: RunResult) -> Number:
    return Number("wrong elements", run.check.mismatched, "", source(run.backend))


def view_numbers(snapshot: Snapshot, panels: Sequence[Panel]) -> list[Number]:
    """Return the numbers of a view's panels, and the check and the time of a run if it is known.

    Raises:
        ConfigError: a panel cannot be drawn.
    """
    numbers = [number for panel in panels for number in panel.summary(snapshot)]
    run = snapshot.result(RunResult)
    if run is None:
        return numbers
    # The interpreter measures no time, but its result may hold a recorded run.
    timed = run.recorded or run
    return list(dict.fromkeys((*numbers, _wrong_elements(timed), *key_numbers(timed))))
