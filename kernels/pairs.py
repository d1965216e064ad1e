"""Two launches timed in turns: how their times compare, and how sure that is. NumPy alone.

What slows both calls of a pair (a clock that moves, a neighbour) cancels in the pair's own ratio. The ratio is the
median over pairs; its interval is a bootstrap over pairs, widened by what the timer can't resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95

# With fewer pairs no interval holds CONFIDENCE: all of five fall on one side of the median in 1 of 16 cases.
FEWEST = 6

_RESAMPLES = 1000


@dataclass(frozen=True)
class Pair:
    """How long one call takes, over how long another does.

    Attributes:
        ratio: median over pairs.
        low, high: its 95 % interval; for fewer than FEWEST pairs, the least and the greatest of them.
        resolution: the part of the interval, to either side, that is the timer's, as a share.
    """

    ratio: float
    low: float
    high: float
    resolution: float = 0.0

    @property
    def differs(self) -> bool:
        """Whether one of the two is faster: the interval does not contain 1."""
        return not self.low <= 1 <= self.high

    @property
    def noise(self) -> float:
        """Half the interval's width, as a share of the ratio."""
        return (self.high - self.low) / 2 / self.ratio


def pair(times_ms: Sequence[float] | np.ndarray, others_ms: Sequence[float] | np.ndarray, seed: int = 0) -> Pair:
    """Compare times that were taken in turns: the i-th of each belong together.

    Args:
        times_ms, others_ms: (pairs,), above 0.
        seed: of the bootstrap.

    Raises:
        ValueError: where there are not as many of both, or none.
    """
    if len(times_ms) != len(others_ms) or not len(times_ms):
        raise ValueError(f"{len(times_ms)} and {len(others_ms)} times can't be paired.")
    ours, theirs = np.asarray(times_ms, dtype=float), np.asarray(others_ms, dtype=float)
    ratios = np.sort(ours / theirs)
    ratio = float(np.median(ratios))
    if len(ratios) < FEWEST:
        return Pair(ratio, float(ratios[0]), float(ratios[-1]))
    medians = _resampled_medians(ratios, np.random.default_rng(seed))
    tail = 50 * (1 - CONFIDENCE)
    low, high = np.percentile(medians, (tail, 100 - tail))
    # A median of ticks is off by half a tick at most.
    resolution = _tick_ms(ours, theirs) / 2 * float(1 / np.median(ours) + 1 / np.median(theirs))
    return Pair(ratio, float(low) * (1 - resolution), float(high) * (1 + resolution), resolution)


def _resampled_medians(ranked: np.ndarray, dice: np.random.Generator) -> np.ndarray:
    """Medians of resamples: of sorted values, that of the resample is at the median of its places."""
    count = len(ranked)
    places = np.sort(dice.integers(count, size=(_RESAMPLES, count), dtype=np.uint16), axis=1, kind="stable")
    return (ranked[places[:, (count - 1) // 2]] + ranked[places[:, count // 2]]) / 2


def _tick_ms(*times_ms: np.ndarray) -> float:
    """The step in which the timer counts, as the times show it: 32 ns, of CUDA's events on an H200.

    It is the smallest step between times that differ; 0 where no time comes twice, as of a timer that ticks finely.
    """
    every = np.round(np.concatenate(times_ms), 6)  # to the nanosecond: events give float32
    distinct = np.unique(every)
    return float(np.diff(distinct).min()) if 1 < len(distinct) < len(every) else 0.0
