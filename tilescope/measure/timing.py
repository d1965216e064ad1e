"""Time launches until their ratios are known, and compare the times.

A warm-up lasts until the times are steady. Then the calls alternate.

A disturbance that slows both calls of a pair (a changing clock, another process) cancels in the pair's ratio. The ratio
is the median over pairs; its interval is a bootstrap over pairs, widened by the timer's resolution.
This module uses no CUDA: a `Stream` launches and times the calls. Tests pass a fake stream and a fake clock.
"""

import math
import time
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy import ndarray

from tilescope.declare.spec import Family
from tilescope.results.run import Clocks, LaunchOverhead, Timing

CONFIDENCE = 0.95

# Fewer pairs can't reach CONFIDENCE: five ratios all fall on the same side of the median in 1 of 16 cases.
FEWEST = 6

_RESAMPLES = 1000

# Turns per batch, unless the stream's queue holds fewer. The clock is read once per batch.
MOST_TURNS = 20
_BATCH_MS = 50.0
# Measure at least ten turns. If ten take longer than 10 s, measure as many as fit into 10 s, but at least three.
_MIN_TURNS = 10
_MIN_TURNS_MS = 10_000.0
_MIN_LONG_TURNS = 3
# Warm-up ends when this many consecutive batches agree within this share.
_STEADY_BATCHES = 4
_STEADY_SHARE = 0.01
# Recompute the ratios each time the samples have grown by this factor, because a bootstrap takes a few milliseconds.
_GROWTH = 1.3
# Calls timed for the launch overhead, fewer for long kernels. The GPU's queue holds about 1,000 launches, so none of
# these calls blocks on a full queue.
_MAX_CALLS = 200
_MIN_CALLS = 5
_OVERHEAD_BUDGET_MS = 100.0


@dataclass(frozen=True)
class Pair:
    """The time of one call divided by the time of another.

    Attributes:
        ratio: median over pairs.
        low, high: the ratio's 95 % interval; with fewer than FEWEST pairs, the range of the ratios.
        resolution: the timer's contribution to the interval on either side, as a fraction of the ratio.
    """

    ratio: float
    low: float
    high: float
    resolution: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether one call is faster beyond noise: the interval does not contain 1."""
        return not self.low <= 1 <= self.high

    @property
    def noise(self) -> float:
        """Half the interval's width, as a fraction of the ratio."""
        return (self.high - self.low) / 2 / self.ratio


def pair(times_ms: Sequence[float] | ndarray, others_ms: Sequence[float] | ndarray) -> Pair:
    """Compare times from alternating measurements: the i-th times of both calls form a pair.

    Args:
        times_ms, others_ms: (pairs,), positive.

    Raises:
        ValueError: the sequences are empty or differ in length.
    """
    if len(times_ms) != len(others_ms) or not len(times_ms):
        raise ValueError(f"{len(times_ms)} and {len(others_ms)} times can't be paired.")
    first = np.asarray(times_ms, dtype=float)
    second = np.asarray(others_ms, dtype=float)
    ratios = np.sort(first / second)
    ratio = float(np.median(ratios))
    if len(ratios) < FEWEST:
        return Pair(ratio, float(ratios[0]), float(ratios[-1]))
    medians = _bootstrap_medians(ratios, np.random.default_rng(0))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(medians, (tail, 100 - tail))
    # The median of times in whole ticks is off by at most half a tick.
    resolution = _tick_ms(first, second) / 2 * float(1 / np.median(first) + 1 / np.median(second))
    return Pair(ratio, float(low) * (1 - resolution), float(high) * (1 + resolution), resolution)


def _bootstrap_medians(ranked: ndarray, generator: np.random.Generator) -> ndarray:
    """Return the medians of resamples. In sorted values, a resample's median is at the median of its indices."""
    count = len(ranked)
    indices = np.sort(
        generator.integers(count, size=(_RESAMPLES, count), dtype=np.uint16), axis=1, kind="stable"
    )
    return (ranked[indices[:, (count - 1) // 2]] + ranked[indices[:, count // 2]]) / 2


def _tick_ms(*times_ms: ndarray) -> float:
    """Return the timer's resolution, inferred from the times: 32 ns for CUDA events on an H200.

    The resolution is the smallest difference between distinct times. It is 0 if no time repeats, because the
    timer is then fine-grained.
    """
    times = np.round(np.concatenate(times_ms), 6)  # to the nanosecond: events return float32
    distinct = np.unique(times)
    return float(np.diff(distinct).min()) if 1 < len(distinct) < len(times) else 0.0


# z of a 95 % interval.
_Z95 = 1.96


def median_interval(times_ms: ndarray) -> tuple[float, float]:
    """Return the 95 % interval of a median from order statistics, or the range of fewer than FEWEST times.

    >>> median_interval(np.arange(1.0, 102.0))
    (41.0, 61.0)
    """
    ranked = np.sort(times_ms)
    count = len(times_ms)
    if count < FEWEST:
        return float(ranked[0]), float(ranked[-1])
    # The number of times below the median is binomial.
    reach = _Z95 * math.sqrt(count) / 2
    low, high = math.floor((count - 1) / 2 - reach), math.ceil((count - 1) / 2 + reach)
    return float(ranked[max(0, low)]), float(ranked[min(count - 1, high)])


# How the clock is read.
MEASURED = "cycles over global time"


@dataclass(frozen=True)
class Effort:
    """Criteria for enough samples.

    Attributes:
        half_width: sampling ends once the 95 % interval of each call's ratio to the first call extends at most this
            share, plus the timer's resolution, to either side.
        fewest, most: minimum and maximum number of turns, if time permits.
        least_ms: total launch time, unless `most` turns are reached.
        most_s: wall-clock limit for sampling.
        warm_s: wall-clock limit for the warm-up.
    """

    half_width: float
    fewest: int
    most: int
    least_ms: float
    most_s: float
    warm_s: float


# A study of many variants reports each variant's spread. A run reports one ratio, which must be precise.
STUDY = Effort(half_width=math.inf, fewest=10, most=200, least_ms=200.0, most_s=30.0, warm_s=0.3)
RUN = Effort(half_width=0.002, fewest=30, most=1000, least_ms=100.0, most_s=1.5, warm_s=0.5)


@dataclass(frozen=True)
class Batch:
    """Turns that were queued together.

    Attributes:
        times_ms: (calls, turns), per launch.
        clock_mhz: the SM clock during the batch, as cycles over global time; None if implausible or too short to tell.
        limits: the driver's reasons for lowering the clock.
    """

    times_ms: ndarray
    clock_mhz: float | None = None
    limits: tuple[str, ...] = ()


class Stream(Protocol):
    """Launches the calls in turns and times each launch.

    Attributes:
        launches_per_sample: launches per time sample.
        most_turns: turns that fit in a batch.
    """

    launches_per_sample: int
    most_turns: int

    def batch(self, turns: int) -> Batch:
        """Launch each call once per turn, and time it."""


@dataclass(frozen=True)
class Samples:
    """Milliseconds per launch, (calls, samples), taken in turns, and the clock during sampling.

    Attributes:
        clocks: None if the clock can't be read.
        warning: caveats other than those in `clocks.note`.
    """

    times_ms: ndarray
    clocks: Clocks | None
    warning: str

    @property
    def clock_mhz(self) -> int | None:
        """The median SM clock."""
        return round(self.clocks.median_mhz) if self.clocks else None

    @property
    def note(self) -> str:
        """All caveats, in sentences."""
        return " ".join(filter(None, [self.warning, self.clocks.note if self.clocks else ""]))


def summarize_times(samples_ms: ndarray, family: Family, problem: Any) -> Timing:
    """Return median, spread and rate: TFLOP/s of the family's work, or GB/s of its minimal bytes if it has no work."""
    work = family.work(problem)
    p20, median, p80 = (float(x) for x in np.percentile(samples_ms, (20, 50, 80)))
    tflops = work / median / 1e9 if work else None
    gbps = None if work else family.minimal_bytes(problem) / median / 1e6
    return Timing(median, p20, p80, len(samples_ms), tflops, gbps)


def sample(stream: Stream, effort: Effort, now: Callable[[], float] = time.perf_counter) -> Samples:
    """Warm up, then take turns on a stream until the effort's criteria are met.

    Args:
        now: a clock in seconds.
    """
    began = now()
    warm_up_ms = [_median_turn_ms(stream, 1)]
    turns = _turns_per_batch(warm_up_ms[0], stream)
    while not is_steady(warm_up_ms) and now() - began < effort.warm_s:
        warm_up_ms.append(_median_turn_ms(stream, turns))
    warnings = []
    if not is_steady(warm_up_ms):
        warnings.append(f"Warm-up ended after {now() - began:.1f} s, before times were steady.")
    min_turns = min(_MIN_TURNS, max(_MIN_LONG_TURNS, int(_MIN_TURNS_MS / warm_up_ms[-1])))
    turns = _turns_per_batch(warm_up_ms[-1], stream)
    batches = []
    began = now()
    next_check = effort.fewest
    while True:
        batches.append(stream.batch(turns))
        times_ms = np.concatenate([batch.times_ms for batch in batches], axis=1)
        taken = times_ms.shape[1]
        if taken >= effort.most or (taken >= min_turns and now() - began >= effort.most_s):
            break
        if taken < next_check or times_ms.sum() * stream.launches_per_sample < effort.least_ms:
            continue
        ratios = (
            ()
            if math.isinf(effort.half_width)
            else (pair(times, times_ms[0]) for times in times_ms[1:])
        )
        if all(ratio.noise <= effort.half_width + ratio.resolution for ratio in ratios):
            break
        next_check = math.ceil(_GROWTH * taken)
    clocks = summarize_clocks(batches)
    if clocks is None:
        warnings.append("The SM clock could not be read.")
    return Samples(times_ms, clocks, " ".join(warnings))


def _turns_per_batch(turn_ms: float, stream: Stream) -> int:
    """Choose a batch that is long enough for the probes to read the clock, and short enough to stop soon."""
    return max(1, min(stream.most_turns, int(_BATCH_MS / max(turn_ms, 1e-6))))


def _median_turn_ms(stream: Stream, turns: int) -> float:
    return float(np.median(stream.batch(turns).times_ms.sum(axis=0))) * stream.launches_per_sample


def is_steady(turn_times_ms: Sequence[float]) -> bool:
    """Return whether the last batches agree.

    Args:
        turn_times_ms: the median duration of a turn, per batch.

    >>> is_steady([3.0, 1.01, 1.0, 1.0, 1.0]), is_steady([1.06, 1.04, 1.02, 1.0]), is_steady([1.0])
    (True, False, False)
    """
    last = turn_times_ms[-_STEADY_BATCHES:]
    return len(last) == _STEADY_BATCHES and max(last) <= (1 + _STEADY_SHARE) * min(last)


def summarize_clocks(batches: Sequence[Batch]) -> Clocks | None:
    """Return the clock over all batches, and its limits; None if it could not be read."""
    readings = [batch.clock_mhz for batch in batches if batch.clock_mhz]
    if not readings:
        return None
    limits = dict.fromkeys(limit for batch in batches for limit in batch.limits)
    low, median, high = (round(float(x), 1) for x in np.percentile(readings, (0, 50, 100)))
    return Clocks(median, low, high, MEASURED, tuple(limits))


def measure_launch_overhead(
    call: Callable[[], Any],
    synchronize: Callable[[], Any],
    kernel_ms: float,
    now: Callable[[], float] = time.perf_counter,
) -> LaunchOverhead:
    """Measure the cost of a launch from Python on the host's clock, first without waiting, then with.

    Args:
        call: launches, and returns without waiting.
        synchronize: waits until all launches have ended.
        kernel_ms: duration of one launch.
        now: a clock in seconds.
    """
    calls = max(_MIN_CALLS, min(_MAX_CALLS, int(_OVERHEAD_BUDGET_MS / kernel_ms)))
    synchronize()
    enqueue_s = timeit.repeat(call, timer=now, repeat=calls, number=1)
    synchronize()
    synchronized_s = timeit.repeat(
        lambda: (call(), synchronize()), timer=now, repeat=calls, number=1
    )
    return LaunchOverhead(
        float(np.median(enqueue_s)) * 1000, float(np.median(synchronized_s)) * 1000, calls
    )
