"""When the same launch became slower: changes in the times of its runs, apart from noise. NumPy alone.

A median of one run is known to a fraction of a percent, and yet differs from run to run: clocks, temperature and
neighbours move it. So a change must hold for several runs, and be larger than what runs differ by anyway:

1. On each side of it, up to the next change, are at least FEWEST runs. One or two may have had a neighbour.
2. The intervals of the two sides do not overlap. A side's interval reaches from the median of its 20th percentiles to
   that of its 80th, and holds its medians but for a quarter at each end: of up to four runs, all.
3. The medians of the two sides differ by LEAST at least, and by SCATTERS times as much as a run differs from the next.

Runs are split in two where that leaves the least squares, and so is each part. Of these places the one that differs
least is dropped, as long as one breaks a rule; what is left is moved to the run nearby that fits best. Left out: a slow
drift, which is no step; and spells of less than FEWEST runs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
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
    scatter = _scatter(times)
    logs = np.log(times.median_ms)
    places = _splits(logs, 0)
    # What is dropped changes the sides of its neighbours alone.
    between = functools.cache(lambda start, place, end: _change(times.part(start, end), place - start, start))
    while True:
        found = tuple(itertools.starmap(between, _sides(places, len(times))))
        broken = [change for change in found if not _holds(change, scatter)]
        if not broken:
            break
        places.remove(min(broken, key=lambda change: abs(np.log(change.ratio))).place)
    return tuple(
        between(start, _moved(logs, start, place, end), end) for start, place, end in _sides(places, len(times))
    )


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


def _splits(logs: np.ndarray, start: int) -> list[int]:
    """Where runs are split, and their parts again, in order, down to FEWEST runs.

    Args:
        start: the place of the first.
    """
    count = len(logs)
    if count < 2 * FEWEST:
        return []
    sums = np.cumsum(logs - logs.mean())[:-1]
    before = np.arange(1, count)
    # The more of the squares is between the parts, the less is left within them.
    between = sums**2 * (1 / before + 1 / (count - before))
    split = FEWEST + int(np.argmax(between[FEWEST - 1 : count - FEWEST]))
    return [*_splits(logs[:split], start), start + split, *_splits(logs[split:], start + split)]


def _sides(places: Sequence[int], count: int) -> Iterator[tuple[int, int, int]]:
    """Each place, between where the runs before it begin and where those after it end."""
    edges = [0, *places, count]
    return zip(edges, places, edges[2:], strict=False)


def _moved(logs: np.ndarray, start: int, place: int, end: int) -> int:
    """The place nearby that leaves the least distances to both sides' medians: a run that stands out moves squares."""
    near = range(max(start + FEWEST, place - FEWEST), min(end - FEWEST, place + FEWEST) + 1)

    def distances(at: int) -> float:
        before, after = logs[start:at], logs[at:end]
        return float(np.abs(before - _median(before)).sum() + np.abs(after - _median(after)).sum())

    return min(near, key=distances)


def _holds(change: Change, scatter: float) -> bool:
    """Whether it is more than noise: the second and the third rule."""
    apart = change.low > 1 or change.high < 1
    return apart and abs(np.log(change.ratio)) >= max(np.log1p(LEAST), SCATTERS * scatter)


def _change(times: Times, split: int, start: int) -> Change:
    before, after = times.part(0, split), times.part(split, len(times))
    (least, most), (low, high) = _interval(before), _interval(after)
    ratio = _median(after.median_ms) / _median(before.median_ms)
    return Change(start + split, ratio, low / most, high / least, len(before), len(after))


def _interval(times: Times) -> tuple[float, float]:
    """What the second rule says of a side."""
    ranked, quarter = np.sort(times.median_ms), (len(times) - 1) // 4
    low, high = ranked[quarter], ranked[-1 - quarter]
    return min(float(low), _median(times.p20_ms)), max(float(high), _median(times.p80_ms))


def _median(values: np.ndarray) -> float:
    """As NumPy's, in a tenth of the time where there are few values."""
    ranked = np.sort(values)
    return float(ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


def _scatter(times: Times) -> float:
    """How much a run differs from the next, as a share: robust to steps, which few of the differences cross."""
    if len(times) < 2:
        return 0.0
    return float(_OF_DIFFERENCES * np.median(np.abs(np.diff(np.log(times.median_ms)))))
