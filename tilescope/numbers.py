"""Numbers with their units and sources, as the page writes them, and the main numbers of each kind of result."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilescope.declare.knobs import join_names  # noqa: F401
from tilescope.results import Counters, GroupSizeStudy, RunResult, Timeline, Timing

# Sources of numbers. The page shows the source as a small mark.
SOURCES = (
    "measured",
    "predicted",
    "interpreter",
    "recorded",
    "compiled",
    "counted",
    "textbook",
    "assumed",
)


def significant(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, with an exponent only if it is very small or large.

    >>> significant(1460.3), significant(0.05), significant(2.1e-5)
    ('1,460', '0.0500', '2.10e-05')
    """
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if -4 <= magnitude < 7:
        return f"{value:,.{max(0, digits - 1 - magnitude)}f}"
    return f"{value:.{digits - 1}e}"


def milliseconds(value: float, longest: float | None = None) -> str:
    """Format a time in milliseconds, or in µs below a tenth of a millisecond.

    Args:
        longest: the longest time of a table's column; its unit is used for the whole column.

    >>> milliseconds(1.6), milliseconds(0.0365), milliseconds(0.0365, longest=1.6)
    ('1.60 ms', '36.5 µs', '0.0365 ms')
    """
    unit, scale = time_unit(value if longest is None else longest)
    return f"{significant(value * scale)} {unit}"


def time_unit(ms: float) -> tuple[str, float]:
    """Return the unit in which a time is shown, and the factor from ms to it: µs below a tenth of a millisecond."""
    return ("µs", 1000.0) if ms < 0.1 else ("ms", 1.0)


def bytes_of(count: float) -> str:
    """Format a number of bytes in a decimal unit.

    >>> bytes_of(3.22e9), bytes_of(2_097_152), bytes_of(640)
    ('3.22 GB', '2.10 MB', '640 bytes')
    """
    for size, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= size:
            return f"{significant(count / size)} {unit}"
    return f"{count:.0f} bytes"


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.2g} %"


_FORMATS: dict[str, Callable[[float], str]] = {
    "ms": milliseconds, "ns": lambda ns: milliseconds(ns / 1e6), "bytes": bytes_of, "share": percent,
}  # fmt: skip


def format_number(value: float, unit: str) -> str:
    """Format a number with its unit.

    Args:
        unit: "ms", "ns", "bytes", "share", "times", a rate such as "TFLOP/s", or "" for a count.

    >>> format_number(0.19, "ms"), format_number(90_300, "ns"), format_number(16.8e6, "bytes")
    ('0.190 ms', '90.3 µs', '16.8 MB')
    >>> format_number(1234567, ""), format_number(4.0, ""), format_number(0.994, "share"), format_number(1.77, "times")
    ('1,234,567', '4', '99 %', '1.77 ×')
    """
    if unit in _FORMATS:
        return _FORMATS[unit](value)
    if not unit and float(value).is_integer():
        return f"{value:,.0f}"
    return f"{significant(value)} {'×' if unit == 'times' else unit}".strip()


def count_noun(number: int, what: str) -> str:
    """Return a count with its noun, in the singular or the plural.

    >>> count_noun(1, "wave"), count_noun(1200, "wave"), count_noun(2, "launch")
    ('1 wave', '1,200 waves', '2 launches')
    """
    plural = "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{'' if number == 1 else plural}"


@dataclass(frozen=True)
class Number:
    """One number.

    Attributes:
        unit: "ms", "bytes", "share", a rate such as "TFLOP/s", or "" for a count.
        source: one of SOURCES.
    """

    name: str
    value: float
    unit: str
    source: str

    def __str__(self) -> str:
        return format_number(self.value, self.unit)


def source(backend: str, live: str = "measured") -> str:
    """Return the source of a result's numbers.

    Args:
        live: the source of results from this machine's GPU: "measured" or "counted".
    """
    return {"cuda": live}.get(backend, backend)


def key_numbers(measured: Any) -> tuple[Number, ...]:
    """Return the one or two main numbers of a result; () for unknown kinds of results."""
    is_counted = isinstance(measured, Counters | GroupSizeStudy)
    of = source(getattr(measured, "backend", ""), "counted" if is_counted else "measured")
    match measured:
        case RunResult(timing=Timing() as timing):
            rate, unit = (
                (timing.tflops, "TFLOP/s")
                if timing.tflops is not None
                else (timing.gbps or 0.0, "GB/s")
            )
            return Number("time", timing.median_ms, "ms", of), Number("rate", rate, unit, of)
        case RunResult():
            return (wrong_elements(measured),)
        case Counters(launch=counts):
            requests = sum(
                counts[f"{operation}_requests"] for operation in ("ld", "st", "red", "atom")
            )
            traffic = counts["dram_read_bytes"] + counts["dram_write_bytes"]
            return Number("requests", requests, "", of), Number(
                "DRAM traffic", traffic, "bytes", of
            )
        case GroupSizeStudy(rows=rows):
            reads = [row.read_bytes for row in rows if row.read_bytes]
            extremes = (("fewest", min), ("most", max))[: len(reads)]
            return tuple(
                Number(f"{name} DRAM reads", pick(reads), "bytes", of) for name, pick in extremes
            )
        case Timeline():
            duration = Number("first start to last end", measured.span_ns / 1e6, "ms", of)
            return Number("programs", len(measured.sm), "", of), duration
    return ()


def wrong_elements(run: RunResult) -> Number:
    return Number("wrong elements", run.check.mismatched, "", source(run.backend))
