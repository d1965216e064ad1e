"""How many times are taken: warm up until steady, then take turns until the ratios are known. No CUDA here.

What launches and times them is a `Stream`; tests give one of their own, and a clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernels.pairs import pair
from kernels.results import Clocks, Timing

# Turns of a batch, unless the stream holds fewer: the clock is read once for each batch.
MOST_TURNS = 20
_BATCH_MS = 50.0

# Whatever the time, ten turns are taken; of launches that take seconds so many that they take ten, or three.
_TURNS, _TURNS_MS, _LONG_TURNS = 10, 10_000.0, 3

# Steady: the last so many batches take the same time, within this share.
_ALIKE, _STEADY = 4, 0.01

# Ratios are looked at again each time there are so many times more pairs: a bootstrap takes some milliseconds.
_GROWTH = 1.3

# What a clock is read by.
MEASURED, DRIVERS = "cycles over global time", "NVML"


@dataclass(frozen=True)
class Effort:
    """When enough times are taken.

    Attributes:
        half_width: sampling ends where the 95 % interval of each call's ratio to the first is as narrow to either
            side, as a share, or as narrow as the timer can tell.
        fewest, most: turns, where there is time for them.
        least_ms: of launches, unless there are `most` turns.
        most_s: for sampling, by the clock on the wall.
        warm_s: the same for warming up.
    """

    half_width: float
    fewest: int
    most: int
    least_ms: float
    most_s: float
    warm_s: float


# A study of many variants shows each one's spread. A run is one ratio, which must be known.
STUDY = Effort(half_width=math.inf, fewest=10, most=200, least_ms=200.0, most_s=30.0, warm_s=0.3)
RUN = Effort(half_width=0.002, fewest=30, most=1000, least_ms=100.0, most_s=1.5, warm_s=0.5)


@dataclass(frozen=True)
class Batch:
    """Turns that were queued at once.

    Attributes:
        times_ms: (calls, turns), of one launch.
        clock_mhz: the SM clock while they ran, as cycles over global time; None where that is no clock that can be, or
            they took too short a time.
        driver_mhz: the driver's own, averaged over some tenths of a second; None where it may not be read.
        limits: why the driver holds the clock down, in words.
    """

    times_ms: np.ndarray
    clock_mhz: float | None = None
    driver_mhz: float | None = None
    limits: tuple[str, ...] = ()


class Stream(Protocol):
    """What launches calls in turns and times each launch.

    Attributes:
        launches_per_sample: launches that one time is taken of.
        most_turns: that a batch may have.
        driver_note: why the driver can't be asked for its clock; "" where it can.
    """

    @property
    def launches_per_sample(self) -> int: ...

    @property
    def most_turns(self) -> int: ...

    @property
    def driver_note(self) -> str: ...

    def batch(self, turns: int) -> Batch:
        """Launch each call once a turn, and time it."""
        ...


@dataclass(frozen=True)
class Samples:
    """Milliseconds of each launch, (calls, samples), taken in turns, and what was found beside them.

    Attributes:
        clocks: None where the clock can't be read.
        warning: what a reader must know, besides what `clocks` says.
    """

    times_ms: np.ndarray
    clocks: Clocks | None
    launches_per_sample: int
    warning: str

    @property
    def clock_mhz(self) -> int | None:
        """The median of the clock."""
        return round(self.clocks.median_mhz) if self.clocks else None

    @property
    def note(self) -> str:
        """All that a reader must know."""
        return " ".join(filter(None, [self.warning, self.clocks.note if self.clocks else ""]))


def timing(samples_ms: np.ndarray, work: int, minimal_bytes: int) -> Timing:
    """Median and spread of `samples_ms`; the rate of `work` operations or, where there are none, of `minimal_bytes`."""
    p20, median, p80 = (float(x) for x in np.percentile(samples_ms, (20, 50, 80)))
    return Timing(
        median_ms=median,
        p20_ms=p20,
        p80_ms=p80,
        samples=len(samples_ms),
        tflops=work / median / 1e9 if work else None,
        gbps=None if work else minimal_bytes / median / 1e6,
    )


def sampled(stream: Stream, effort: Effort, now: Callable[[], float] = time.perf_counter) -> Samples:
    """Take turns on a stream until enough are taken.

    Args:
        now: seconds.
    """
    turn_ms, moving = _warmed_up(stream, effort, now)
    least = min(_TURNS, max(_LONG_TURNS, int(_TURNS_MS / turn_ms)))
    turns = _turns(turn_ms, stream)
    batches: list[Batch] = []
    began, look_at = now(), effort.fewest
    while True:
        batches.append(stream.batch(turns))
        times_ms = np.concatenate([batch.times_ms for batch in batches], axis=1)
        taken = times_ms.shape[1]
        if taken >= effort.most or (taken >= least and now() - began >= effort.most_s):
            break
        if taken < look_at or times_ms.sum() * stream.launches_per_sample < effort.least_ms:
            continue
        if _is_narrow(times_ms, effort.half_width):
            break
        look_at = math.ceil(_GROWTH * taken)
    clocks = clocks_of(batches)
    unread = "" if clocks else f"The SM clock could not be read. {stream.driver_note}"
    return Samples(times_ms, clocks, stream.launches_per_sample, f"{moving} {unread}".strip())


def _turns(turn_ms: float, stream: Stream) -> int:
    """Turns of a batch: so many that it takes some time, so that the clock can be read, and does not take long."""
    return max(1, min(stream.most_turns, int(_BATCH_MS / max(turn_ms, 1e-6))))


def _warmed_up(stream: Stream, effort: Effort, now: Callable[[], float]) -> tuple[float, str]:
    """Launch until the times are steady: how long a turn takes, and a sentence where they are not."""
    began = now()
    took_ms = [_turn_ms(stream, 1)]
    turns = _turns(took_ms[0], stream)
    while now() - began < effort.warm_s:
        took_ms.append(_turn_ms(stream, turns))
        if is_steady(took_ms):
            return took_ms[-1], ""
    return took_ms[-1], f"Warm-up ended after {now() - began:.1f} s, before times were steady."


def _turn_ms(stream: Stream, turns: int) -> float:
    """How long one of some turns takes, the median."""
    return float(np.median(stream.batch(turns).times_ms.sum(axis=0))) * stream.launches_per_sample


def is_steady(took_ms: Sequence[float]) -> bool:
    """Whether the last batches took the same time: what a turn of each took.

    >>> is_steady([3.0, 1.01, 1.0, 1.0, 1.0]), is_steady([1.06, 1.04, 1.02, 1.0]), is_steady([1.0])
    (True, False, False)
    """
    last = took_ms[-_ALIKE:]
    return len(last) == _ALIKE and max(last) <= (1 + _STEADY) * min(last)


def _is_narrow(times_ms: np.ndarray, half_width: float) -> bool:
    """Whether each call's ratio to the first is known well enough."""
    if math.isinf(half_width):
        return True
    ratios = (pair(others, times_ms[0]) for others in times_ms[1:])
    return all(ratio.noise <= half_width + ratio.resolution for ratio in ratios)


def clocks_of(batches: Sequence[Batch]) -> Clocks | None:
    """The clock over all batches, the driver's where it was not measured; None where neither could be read."""
    measured = [batch.clock_mhz for batch in batches if batch.clock_mhz]
    read = measured or [batch.driver_mhz for batch in batches if batch.driver_mhz]
    if not read:
        return None
    limits = dict.fromkeys(limit for batch in batches for limit in batch.limits)
    low, median, high = (round(float(x), 1) for x in np.percentile(read, (0, 50, 100)))
    return Clocks(median, low, high, MEASURED if measured else DRIVERS, tuple(limits))
