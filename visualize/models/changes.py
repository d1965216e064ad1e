"""When the same launch became slower: changes in the times of its runs, apart from noise. NumPy alone.

A median of one run is known to a fraction of a percent, and yet differs from run to run: clocks, temperature and
neighbours move it. So a change must hold for several runs, and be larger than what runs differ by anyway:

1. On each side of it are at least FEWEST runs. One or two may have had a neighbour.
2. The intervals of the two sides do not overlap. A side's interval holds the middle half of its medians, and reaches
   from the median of its 20th percentiles to that of its 80th.
3. The medians of the two sides differ by LEAST at least, and by SCATTERS times as much as a run differs from the next.

Runs are split where the distances to the medians of both parts add up to the least; what lies on each side of a change
is split again. Left out: a slow drift, which is no step; and a slow spell that is shorter than what follows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Runs on each side of a change, at least.
FEWEST = 3

# The least change, as a share. The order of calls and the GPU's power limit move a time by up to 1.5 % between runs of
# one launch on an H200 (README, benchmarks); so that two runs of the same launch can differ by twice that.
LEAST = 0.03

# How many times the scatter between runs a change must be.
SCATTERS = 3.0

# A normal distribution's standard deviation, over the median of the absolute differences of two draws from it.
_OF_DIFFERENCES = 1.4826 / 2**0.5


@dataclass(frozen=True)
class Times:
    """Times of runs of one launch on one device, the oldest first; (runs,) each, in ms, above 0."""

    median_ms: np.ndarray
    p20_ms: np.ndarray
    p80_ms: np.ndarray

    def __len__(self) -> int:
        return len(self.median_ms)

    def part(self, start: int, end: int) -> Times:
        """Some of the runs."""
        return Times(self.median_ms[start:end], self.p20_ms[start:end], self.p80_ms[start:end])


@dataclass(frozen=True)
class Change:
    """A time from which a launch took another time than before.

    Attributes:
        place: of the first run after it.
        ratio: how long it takes after it over how long before; above 1 it became slower.
        low, high: the least and the greatest ratio of the two intervals.
        before, after: runs on each side, up to the changes next to it.
    """

    place: int
    ratio: float
    low: float
    high: float
    before: int
    after: int

    @property
    def is_slower(self) -> bool:
        return self.ratio > 1


def changes(times: Times) -> tuple[Change, ...]:
    """The changes in a row of runs, the oldest first."""
    places = _places(times, 0, len(times), _scatter(times))
    edges = [0, *places, len(times)]
    found = zip(edges, places, edges[2:], strict=False)
    return tuple(_change(times.part(start, end), place - start, start) for start, place, end in found)


def suspicion(times: Times, known: Sequence[Change]) -> Change | None:
    """What the last runs show, too few for a change: one if others confirm it. None where they fit those before.

    Args:
        known: the changes of these times.
    """
    start = max((change.place for change in known), default=0)
    own = times.part(start, len(times))
    for count in range(FEWEST - 1, 0, -1):
        if len(own) - count >= FEWEST:
            found = _change(own, len(own) - count, start)
            if _holds(found, _scatter(own.part(0, len(own) - count))):
                return found
    return None


def _places(times: Times, start: int, end: int, scatter: float) -> list[int]:
    """Where the runs from `start` to `end` are split, in order."""
    part = times.part(start, end)
    if len(part) < 2 * FEWEST:
        return []
    splits = range(FEWEST, len(part) - FEWEST + 1)
    split = min(splits, key=lambda place: _distance(part.median_ms[:place]) + _distance(part.median_ms[place:]))
    if not _holds(_change(part, split, start), scatter):
        return []
    place = start + split
    return [*_places(times, start, place, scatter), place, *_places(times, place, end, scatter)]


def _holds(change: Change, scatter: float) -> bool:
    """Whether it is more than noise: the second and the third rule."""
    apart = change.low > 1 or change.high < 1
    return apart and abs(np.log(change.ratio)) >= max(np.log1p(LEAST), SCATTERS * scatter)


def _change(times: Times, split: int, start: int) -> Change:
    before, after = times.part(0, split), times.part(split, len(times))
    (least, most), (low, high) = _interval(before), _interval(after)
    ratio = float(np.median(after.median_ms) / np.median(before.median_ms))
    return Change(start + split, ratio, low / most, high / least, len(before), len(after))


def _interval(times: Times) -> tuple[float, float]:
    """What the second rule says of a side."""
    quarter, three = np.percentile(times.median_ms, (25, 75))
    return float(min(quarter, np.median(times.p20_ms))), float(max(three, np.median(times.p80_ms)))


def _distance(median_ms: np.ndarray) -> float:
    logs = np.log(median_ms)
    return float(np.abs(logs - np.median(logs)).sum())


def _scatter(times: Times) -> float:
    """How much a run differs from the next, as a share: robust to steps, which few of the differences cross."""
    if len(times) < 2:
        return 0.0
    return float(_OF_DIFFERENCES * np.median(np.abs(np.diff(np.log(times.median_ms)))))
