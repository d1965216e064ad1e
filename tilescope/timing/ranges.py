"""The ranges that the report and the page state beside predicted times.

They are derived from launches that were timed after the model was final. The predictions of these launches are those of
commit 4b82bea4, because the kernels don't ship.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean, stdev

from tilescope.caching import once
from tilescope.results.scores import Score, shipped_scores

SOURCE = "an H100 80GB HBM3 and an H200 with a cold L2 and Triton 3.6.0"
# Standard deviations from the mean to the ends of a range. If logarithms of measured / predicted times are normally
# distributed, nine of ten further launches are within 2.1 after 7 launches, the fewest of a class.
_DEVIATIONS = 2.1


@dataclass(frozen=True)
class TimeRange:
    """The range of measured / predicted times of a class of launches.

    Attributes:
        inside: the share of the class's `launches` in the range.
    """

    launches: int
    low: float
    high: float
    inside: float


def unseen_scores() -> list[Score]:
    """Return the predicted launches that played no part in fitting or designing the model."""
    return [each for each in shipped_scores() if each.model == "unseen_time" and each.is_compared]


def classify(bound_by: str, spilled_bytes: int) -> str:
    """Name the launches whose errors are about as large as those of a launch."""
    if spilled_bytes or bound_by in ("L1", "L2"):
        return "L1, L2 or spills"
    return "DRAM" if bound_by == "DRAM" else "others"


def fit_ranges(scores: Iterable[Score]) -> dict[str, TimeRange]:
    """Return the range of each class of launches."""
    classes = defaultdict[str, list[float]](list)
    for score in scores:
        ratio = score.counted / (score.predicted or math.nan)
        name = classify(score.part, score.launch.get("spilled_bytes", 0))
        classes[name].append(math.log(ratio))
    ranges = {}
    for name, logarithms in classes.items():
        half = _DEVIATIONS * stdev(logarithms)
        low = mean(logarithms) - half
        high = mean(logarithms) + half
        inside = sum(low <= each <= high for each in logarithms) / len(logarithms)
        ranges[name] = TimeRange(len(logarithms), math.exp(low), math.exp(high), inside)
    return ranges


@once
def stated_ranges() -> dict[str, TimeRange]:
    return fit_ranges(unseen_scores())
