"""Scores: predicted values of launches, and the values that GPUs counted or measured.

A file holds a score per line. FILE has the scores of launches of other kernels than ours.
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
