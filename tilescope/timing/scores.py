"""Timed launches and their predicted times: the errors and ranges that the report and the page state.

The files hold a launch per line. `python -m scripts.score_times` writes FILE. UNSEEN_FILE holds launches that
were timed after the model was final. Their predictions are those of commit 4b82bea4, because the kernels don't ship.
"""

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from tilescope.caching import once
from tilescope.results import codec

FILE = Path(__file__).parent / "scores.jsonl"
UNSEEN_FILE = Path(__file__).parent / "unseen.jsonl"
SOURCE = "an H100 80GB HBM3 and an H200 with a cold L2 and Triton 3.6.0"
_PERCENTILE = 0.9
# Standard deviations from the mean to the ends of a range. If logarithms of measured / predicted times are normally
# distributed, nine of ten further launches are within 2.1 after 7 launches, the fewest of a class.
_DEVIATIONS = 2.1


@dataclass(frozen=True)
class TimeScore:
    """A timed launch.

    Attributes:
        number: of the launch within its case.
        gpu: its row in the table of `tilescope.declare.gpus`.
        measured_us: the median time.
        predicted_us: None without a prediction.
        unseen_us: predicted with constants that were fitted to the other families alone; None without a prediction.
        bound_by: see `model.TimePrediction`.
        why: why nothing is predicted, or what the launch waits for if the error is large.
        spilled_bytes, grid, config: set only for unseen launches.
    """

    family: str
    case: str
    number: int
    kernel: str
    gpu: str
    measured_us: float
    predicted_us: float | None = None
    unseen_us: float | None = None
    bound_by: str = ""
    why: str = ""
    spilled_bytes: int = 0
    grid: tuple[int, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> float:
        """Predicted / measured − 1; 0 without a prediction."""
        return self.predicted_us / self.measured_us - 1 if self.predicted_us else 0.0

    @property
    def unseen_error(self) -> float:
        return self.unseen_us / self.measured_us - 1 if self.unseen_us else 0.0


@dataclass(frozen=True)
class Errors:
    """The sizes of the errors of launches: their median and 90th percentile.

    Attributes:
        within: the share of launches with an error of at most 25 %.
    """

    launches: int
    median: float
    high: float
    within: float


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


@once
def shipped_scores() -> tuple[TimeScore, ...]:
    text = FILE.read_text(encoding="utf-8") + UNSEEN_FILE.read_text(encoding="utf-8")
    rows = list(map(json.loads, text.splitlines()))
    return codec.from_json(tuple[TimeScore, ...], rows, FILE.name)


def unseen_scores() -> list[TimeScore]:
    """Return the predicted launches that played no part in fitting or designing the model."""
    return [score for score in shipped_scores() if score.family == "unseen" and score.predicted_us]


def summarize(errors: Iterable[float]) -> Errors:
    sizes = sorted(map(abs, errors))
    count = len(sizes)
    within = sum(size <= 0.25 for size in sizes) / count
    return Errors(count, sizes[count // 2], sizes[int(_PERCENTILE * count)], within)


def classify(bound_by: str, spilled_bytes: int) -> str:
    """Name the launches whose errors are about as large as those of a launch."""
    if spilled_bytes or bound_by in ("L1", "L2"):
        return "L1, L2 or spills"
    return "DRAM" if bound_by == "DRAM" else "others"


def fit_ranges(scores: Iterable[TimeScore]) -> dict[str, TimeRange]:
    """Return the range of each class of launches."""
    classes = defaultdict[str, list[float]](list)
    for score in scores:
        ratio = score.measured_us / (score.predicted_us or math.nan)
        classes[classify(score.bound_by, score.spilled_bytes)].append(math.log(ratio))
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
