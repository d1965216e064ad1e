"""Launches that were timed on a GPU, and their predicted times: the errors that the report and the page state.

The file holds a launch per line. `python -m scripts.score_times` writes it.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernels import once
from kernels.results import codec

FILE = Path(__file__).parent / "scores.jsonl"
SOURCE = "an H100 80GB HBM3 and an H200 with a cold L2 and Triton 3.6.0"
# The percentile of the errors that is stated beside a prediction.
PERCENTILE = 0.9


@dataclass(frozen=True)
class TimeScore:
    """A timed launch.

    Attributes:
        number: of the launch within its case.
        gpu: its row in the table of `kernels.gpus`.
        measured_us: the median time.
        predicted_us: None without a prediction.
        unseen_us: predicted with constants that were fitted to the other families alone; None without a prediction.
        bound_by: see `model.Prediction`.
        why: why nothing is predicted, or what the launch waits for if the error is large.
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

    @property
    def error(self) -> float:
        """Predicted / measured − 1; 0 without a prediction."""
        return self.predicted_us / self.measured_us - 1 if self.predicted_us else 0.0

    @property
    def unseen_error(self) -> float:
        return self.unseen_us / self.measured_us - 1 if self.unseen_us else 0.0


@dataclass(frozen=True)
class Errors:
    """The sizes of the errors of launches: their median, and a percentile (see PERCENTILE).

    Attributes:
        within: the share of launches with an error of at most 25 %.
    """

    launches: int
    median: float
    high: float
    within: float


@once
def shipped_scores() -> tuple[TimeScore, ...]:
    rows = list(map(json.loads, FILE.read_text(encoding="utf-8").splitlines()))
    return codec.from_json(tuple[TimeScore, ...], rows, FILE.name)


def summarize(errors: Iterable[float]) -> Errors:
    sizes = sorted(map(abs, errors))
    count = len(sizes)
    within = sum(size <= 0.25 for size in sizes) / count
    return Errors(count, sizes[count // 2], sizes[int(PERCENTILE * count)], within)


@once
def stated_errors(is_dram_bound: bool) -> Errors:
    """Return the errors of launches whose family was left out when the constants were fitted.

    Args:
        is_dram_bound: of the launches that DRAM bounds, or of the others.
    """
    return summarize(
        score.unseen_error
        for score in shipped_scores()
        if score.unseen_us and (score.bound_by == "DRAM") == is_dram_bound
    )
