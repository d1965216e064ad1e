"""Numbers as values: what each is, its unit, its source. What a recording is known by, and what is compared."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.results import Counters, GroupSizeStudy, RunResult, Timeline
from visualize.text.words import written


@dataclass(frozen=True)
class Number:
    """One number.

    Attributes:
        unit: "ms", "bytes", "share", a rate such as "TFLOP/s", or "" for a count.
        source: one of `words.SOURCES`.
    """

    name: str
    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return written(self.value, self.unit)


@functools.singledispatch
def key_numbers(measured: Any) -> tuple[Number, ...]:
    """The one or two numbers that a result is known by; none for a kind that is not known here."""
    return ()


def source(backend: str, live: str = "measured") -> str:
    """Where a result's numbers come from.

    Args:
        live: what those of this machine's GPU are called: measured, or counted.
    """
    return {"cuda": live}.get(backend, backend)


@key_numbers.register
def _of_run(run: RunResult) -> tuple[Number, ...]:
    of = source(run.backend)
    if timing := run.timing:
        rate, unit = (timing.tflops, "TFLOP/s") if timing.tflops is not None else (timing.gbps or 0.0, "GB/s")
        return Number("time", timing.median_ms, "ms", of), Number("rate", rate, unit, of)
    return (Number("wrong elements", run.check.mismatched, "", of),)


@key_numbers.register
def _of_counters(counters: Counters) -> tuple[Number, ...]:
    of, counts = source(counters.backend, "counted"), counters.launch
    requests = sum(counts[f"{op}_requests"] for op in ("ld", "st", "red", "atom"))
    moved = counts["dram_read_bytes"] + counts["dram_write_bytes"]
    return Number("requests", requests, "", of), Number("DRAM traffic", moved, "bytes", of)


@key_numbers.register
def _of_group_sizes(study: GroupSizeStudy) -> tuple[Number, ...]:
    of = source(study.backend, "counted")
    read = [float(np.median(row.dram_read_bytes)) for row in study.rows if row.dram_read_bytes]
    return tuple(
        Number(f"{name} DRAM reads", pick(read), "bytes", of)
        for name, pick in (("fewest", min), ("most", max))
        if len(read) > 1 or (read and name == "fewest")
    )


@key_numbers.register
def _of_timeline(timeline: Timeline) -> tuple[Number, ...]:
    of = source(timeline.backend)
    return (
        Number("programs", len(timeline.sm), "", of),
        Number("first start to last end", timeline.span_ns / 1e6, "ms", of),
    )
