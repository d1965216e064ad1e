"""Times of a run: the kernel's, those of the library's calls in the same run, the clock, and what a call costs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

# A clock that moves by no more is said to stand.
MOVED = 0.03


@dataclass(frozen=True)
class Device:
    """What ran it: "cuda" or "interpreter", the device's own name, and the versions."""

    backend: str
    name: str
    torch: str
    triton: str


@dataclass(frozen=True)
class Timing:
    """Times of one launch. Rates follow from the median: `tflops` for a reduction, `gbps` for a copy."""

    median_ms: float
    p20_ms: float
    p80_ms: float
    samples: int
    tflops: float | None
    gbps: float | None


@dataclass(frozen=True)
class Baseline:
    """A call of the library's, timed in turns with the kernel.

    Attributes:
        ratio: its time over ours, the median over pairs; above 1, we are faster.
        ratio_low, ratio_high: the 95 % interval of the ratio; None where there were too few pairs, or none were kept.
    """

    name: str
    timing: Timing
    ratio: float
    ratio_low: float | None = None
    ratio_high: float | None = None

    @property
    def is_tie(self) -> bool:
        """Whether neither is known to be faster: the interval contains 1."""
        return self.ratio_low is not None and self.ratio_high is not None and self.ratio_low <= 1 <= self.ratio_high

    def to_json(self) -> dict[str, Any]:
        """The fields of its times, and its own, in one object."""
        own = {"name": self.name, "ratio": self.ratio, "ratio_low": self.ratio_low, "ratio_high": self.ratio_high}
        return {**dataclasses.asdict(self.timing), **own}

    def to_record(self) -> dict[str, Any]:
        """The same without what is not known."""
        unknown = [name for name in ("ratio_low", "ratio_high") if getattr(self, name) is None]
        return {name: value for name, value in self.to_json().items() if name not in unknown}

    @staticmethod
    def nested(fields: dict[str, Any]) -> dict[str, Any]:
        """The fields of this class, from one object of `to_record`."""
        own = {field.name for field in dataclasses.fields(Baseline)} - {"timing"}
        times = {name: value for name, value in fields.items() if name not in own}
        return {**{name: value for name, value in fields.items() if name in own}, "timing": times}


@dataclass(frozen=True)
class Peak:
    """The best that this device was measured to do: `rate` in TFLOP/s or GB/s, by `what`; `share` is ours over it."""

    rate: float
    unit: str
    what: str
    share: float


@dataclass(frozen=True)
class Clocks:
    """The SM clock while launches were timed, in MHz: median, lowest and highest of the batches.

    Attributes:
        how: what it was read by, in words.
        limited_by: why the driver held the clock down, in words.
    """

    median_mhz: float
    lowest_mhz: float
    highest_mhz: float
    how: str
    limited_by: tuple[str, ...] = ()

    @property
    def moved(self) -> float:
        """How far the clock moved, as a share of its highest."""
        return 1 - self.lowest_mhz / self.highest_mhz

    @property
    def note(self) -> str:
        """What a reader must know of the clock: that it moved, and what held it down; "" where it stood.

        >>> Clocks(1755, 1740, 1980, "NVML", ("power limit",)).note
        'The SM clock moved between 1,740 and 1,980 MHz (12 %); the driver limited it: power limit.'
        """
        limited = f"the driver limited it: {', '.join(self.limited_by)}" if self.limited_by else ""
        if self.moved <= MOVED:
            return f"The SM clock stood at {self.median_mhz:,.0f} MHz; {limited}." if limited else ""
        span = f"{self.lowest_mhz:,.0f} and {self.highest_mhz:,.0f} MHz ({100 * self.moved:.0f} %)"
        return f"The SM clock moved between {span}{f'; {limited}' if limited else ''}."


@dataclass(frozen=True)
class LaunchOverhead:
    """What one call from Python costs, whatever the kernel takes: medians on the host's clock.

    Attributes:
        enqueue_ms: from the call to its return, one of many that are not waited for.
        synchronized_ms: from the call to the end of its launch, with nothing before it.
        calls: that were enqueued.
    """

    enqueue_ms: float
    synchronized_ms: float
    calls: int


@dataclass(frozen=True)
class RunTimes:
    """All that is timed of one run.

    Attributes:
        baseline: the library's call that the family names first; None where it has none.
        baselines: all of the library's calls, that one first.
        launches_per_sample: launches that one time is taken of; more than one where a graph of them is replayed.
        copy_gbps: the best rate of a large copy on this device, bytes read plus bytes written.
        note: what a reader must know.
    """

    timing: Timing
    baselines: tuple[Baseline, ...]
    peak: Peak | None
    clocks: Clocks | None
    launch_overhead: LaunchOverhead
    launches_per_sample: int
    copy_gbps: float
    note: str

    @property
    def baseline(self) -> Baseline | None:
        return self.baselines[0] if self.baselines else None
