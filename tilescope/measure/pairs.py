"""The ratio of two launches' times, from alternating measurements, with its confidence interval. NumPy only.

A disturbance that slows both calls of a pair (a changing clock, another process) cancels in the pair's ratio. The ratio
is the median over pairs; its interval is a bootstrap over pairs, widened by the timer's resolution.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy import ndarray

CONFIDENCE = 0.95

# Fewer pairs can't reach CONFIDENCE: five ratios all fall on the same side of the median in 1 of 16 cases.
FEWEST = 6

_RESAMPLES = 1000


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
