"""Two launches timed alternately: which is faster, and whether the difference is more than noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Medians of n samples scatter by this over √n, in standard deviations of one (normal ones); the median of absolute
# deviations is 1/1.4826 of a standard deviation. Twice that is called noise, and never less than a thousandth.
_OF_MEDIAN, _OF_DEVIATION, _LEAST = 1.2533, 1.4826, 0.001


@dataclass(frozen=True)
class Pair:
    """How long one takes beside another: `ratio` of their times, turn by turn, and how far that can be chance."""

    ratio: float
    noise: float

    @property
    def differs(self) -> bool:
        return abs(self.ratio - 1) > self.noise


def pair(times_ms: Sequence[float], others_ms: Sequence[float]) -> Pair:
    """Compare times taken alternately: the i-th of each belong together.

    Raises:
        ValueError: where there are not as many of both, or none.
    """
    if len(times_ms) != len(others_ms) or not times_ms:
        raise ValueError(f"{len(times_ms)} and {len(others_ms)} times can't be paired.")
    ratios = np.array(times_ms) / np.array(others_ms)
    median = float(np.median(ratios))
    scatter = _OF_DEVIATION * float(np.median(np.abs(ratios - median)))
    return Pair(median, max(_LEAST, 2 * _OF_MEDIAN * scatter / float(np.sqrt(len(ratios)))))
