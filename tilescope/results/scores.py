"""Scores: predicted values of launches, and the values that GPUs counted or measured.

A file holds a score per line. FILE has the scores of launches of other kernels than ours, and RANGES what follows from
those of times: the ranges that the report and the page state beside predicted times.
"""

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilescope.caching import once

FILE = Path(__file__).parent / "scores.jsonl"
# The times to which no constant was fitted. The `unseen` launches were not used to change the model. The `examined`
# launches guided its changes, so their errors may be too small. The kernels don't ship, so the scores hold the
# predictions of commit 97870d3b.
UNFITTED = ("unseen_time", "examined_time")
TIMED_ON = "an H100 80GB HBM3 and an H200 with a cold L2 and Triton 3.6.0"
# The ranges of these times: see `scripts.score_times`.
RANGES = FILE.with_name("time_ranges.json")


@dataclass(frozen=True)
class Score:
    """A predicted value of a launch, and the value that was counted or measured.

    Attributes:
        model: what was predicted, such as "sectors" or "time".
        launch: a launch of ours as `Experiment.short_address`; of another kernel, its `family`, `case`, `number` within
            the case, `kernel` and `gpu`. Times of unseen kernels also have `grid`, `config` and `spilled_bytes`.
        predicted: None if it is unknown.
        counted: a count, or the median time in µs.
        part: the operation, the source line and opcode, or the resource that bounds the time; "" for the whole launch.
        why: why the values differ or are not compared, if known.
        is_flagged: whether the model marked its prediction as uncertain.
        is_compared: whether the two should be equal or close.
    """

    model: str
    launch: dict[str, Any]
    predicted: int | float | None
    counted: int | float
    part: str = ""
    why: str = ""
    is_flagged: bool = False
    is_compared: bool = True

    @property
    def error(self) -> float:
        """The prediction's error as a fraction of the count; positive if the prediction is too large."""
        if self.predicted == self.counted:
            return 0.0
        if self.predicted is None or not self.counted:
            return math.inf
        return self.predicted / self.counted - 1


@dataclass(frozen=True)
class Errors:
    """The sizes of the errors of scores: their median and 90th percentile.

    Attributes:
        within: the share of errors that are allowed.
    """

    launches: int
    median: float
    high: float
    within: float


def summarize(scores: Sequence[Score], allowed: float = 0.25) -> Errors:
    """Return the sizes of the errors of at least one score."""
    sizes = sorted(abs(score.error) for score in scores)
    count = len(sizes)
    within = sum(size <= allowed for size in sizes) / count
    return Errors(count, statistics.median(sizes), sizes[int(0.9 * count)], within)


def parse_scores(text: str) -> tuple[Score, ...]:
    return tuple(Score(**json.loads(line)) for line in text.splitlines())


@once
def shipped_scores() -> tuple[Score, ...]:
    return parse_scores(FILE.read_text(encoding="utf-8"))


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


@once
def stated_ranges() -> dict[str, TimeRange]:
    rows = json.loads(RANGES.read_text(encoding="utf-8"))
    return {name: TimeRange(**row) for name, row in rows.items()}
