"""Key numbers: those of a result, and those that a view compares with a pinned experiment's."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.results import Counters, GroupSizeStudy, RunResult, Timeline, Timing
from visualize.predict import coalescing
from visualize.predict.agreement import sum_costs
from visualize.predict.reuse import DramTraffic
from visualize.predict.schedule import loads, occupancy
from visualize.views.numbers import Number, source
from visualize.views.panel import Panel
from visualize.views.state import ScheduleView, Snapshot


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
            reads = [float(np.median(row.dram_read_bytes)) for row in rows if row.dram_read_bytes]
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


def schedule_numbers(snapshot: Snapshot) -> tuple[Number, ...]:
    """Return the number of programs and waves, and of blocks that the first programs load: `first`, or one wave."""
    ideal, first = snapshot.schedule, snapshot.state.view.of(ScheduleView).first
    loaded = loads(ideal, np.array([min(ideal.programs, first or ideal.resident_programs)]))
    blocks = f"blocks for {first} programs" if first else "blocks, first wave"
    return (
        Number("programs", ideal.programs, "", "predicted"),
        Number("waves", ideal.waves, "", "predicted"),
        *([Number(blocks, int(loaded[0]), "", "predicted")] if loaded is not None else []),
    )


def reuse_numbers(traffic: DramTraffic) -> tuple[Number, ...]:
    predicted = Number("DRAM reads", traffic.own.read_bytes, "bytes", "predicted")
    if not traffic.row or not traffic.row.dram_read_bytes:
        return (predicted,)
    read_bytes = float(np.median(traffic.row.dram_read_bytes))
    return predicted, Number("DRAM reads, counted", read_bytes, "bytes", traffic.source("counted"))


def request_numbers(snapshot: Snapshot) -> tuple[Number, ...]:
    """Return the requests and sectors of the compiled launch, and the counted ones."""
    compiled, numbers = snapshot.compiled, []
    if compiled is not None and not compiled.unreadable:
        cost = sum_costs(coalescing.operations(snapshot.state.kernel, snapshot.launch, compiled.operations))
        numbers = [Number(name, getattr(cost, name), "", "compiled") for name in ("requests", "sectors")]
        numbers.append(Number("bytes used per byte fetched", cost.efficiency, "share", "compiled"))
    counted = key_numbers(snapshot.result(Counters))
    return *numbers, *(replace(number, name=f"{number.name}, counted") for number in counted)


def compiled_numbers(snapshot: Snapshot) -> tuple[Number, ...]:
    """Return what a program needs of an SM; () until the kernel is compiled."""
    compiled, launch = snapshot.compiled, snapshot.launch
    if compiled is None:
        return ()
    resident = occupancy(launch.gpu, launch.config.num_warps, compiled.registers, compiled.shared_bytes)
    return (
        Number("registers per thread", compiled.registers, "", "compiled"),
        Number("shared memory", compiled.shared_bytes, "bytes", "compiled"),
        Number("programs per SM", resident.programs_per_sm, "", "compiled"),
    )
