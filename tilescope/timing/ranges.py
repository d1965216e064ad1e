"""The ranges that the report and the page state beside predicted times.

They are computed from launches to which no constant was fitted. The `unseen` launches were timed after the model was
final. The `examined` launches guided its changes, so their errors may be too small. The kernels don't ship, so the
scores hold the predictions of commit 97870d3b.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from tilescope.caching import once
from tilescope.results.scores import Score, shipped_scores

SOURCE = "an H100 80GB HBM3 and an H200 with a cold L2 and Triton 3.6.0"
# Nine of ten normally distributed numbers are within so many standard deviations of their mean.
_DEVIATIONS = 1.645
UNFITTED = ("unseen_time", "examined_time")


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


def unfitted_scores(models: Sequence[str] = UNFITTED) -> list[Score]:
    """Return the predicted launches to which no constant was fitted."""
    return [each for each in shipped_scores() if each.model in models and each.is_compared]


def unseen_scores() -> list[Score]:
    """Return the predicted launches that played no part in fitting or designing the model."""
    return unfitted_scores(UNFITTED[:1])


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
        half = _find_deviations(len(logarithms)) * stdev(logarithms)
        low = mean(logarithms) - half
        high = mean(logarithms) + half
        inside = sum(low <= each <= high for each in logarithms) / len(logarithms)
        ranges[name] = TimeRange(len(logarithms), math.exp(low), math.exp(high), inside)
    return ranges


def _find_deviations(launches: int) -> float:
    """Return half the width of a 90 % prediction interval, in standard deviations of a sample of launches.

    Student's t is expanded to the first order of 1 / degrees of freedom.
    """
    normal = _DEVIATIONS
    quantile = normal + (normal**3 + normal) / 4 / (launches - 1)
    return quantile * math.sqrt(1 + 1 / launches)


@once
def stated_ranges() -> dict[str, TimeRange]:
    return fit_ranges(unfitted_scores())
