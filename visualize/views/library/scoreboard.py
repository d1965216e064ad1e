"""The scoreboard: shipped predictions of all recorded launches, compared with the recorded counts.

Predicting every launch takes too long for a page view, so the predictions are a file: one ShippedPrediction per line.
`python -m scripts.predict_records` writes it, and tests/tilescope/oracle checks it against the current models.
"""

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tilescope.caching import once
from tilescope.declare.discovery import read_text
from tilescope.declare.experiment import Experiment, from_json, nest
from tilescope.measure.counters import COUNTERS
from tilescope.measure.group_sizes import GROUP_SIZES
from tilescope.results import codec, records
from tilescope.results.counters import any_group_size, with_group_size
from tilescope.results.records import RecordForm, Recording
from visualize.predict.agreement import counted_total

FILE = "predictions.jsonl"

FORMS: tuple[RecordForm[Any], ...] = (COUNTERS.form, GROUP_SIZES.form)


# Sectors and requests must be equal. DRAM bytes depend on timing, so their prediction is approximate.
EXACT_COUNTS = ("sectors", "requests")
DRAM = "dram_bytes"
COUNTS = (*EXACT_COUNTS, DRAM)

# An approximate prediction is a miss if its error exceeds this fraction of the count.
ALLOWED_ERROR = 0.2


@dataclass(frozen=True)
class Score:
    """One count of one recorded launch, with its prediction.

    Attributes:
        experiment: the launch; its `gpu` is the GPU on which it was counted.
        operation: a key of `counts.KINDS`, or "DRAM read".
        count: one of COUNTS.
        predicted, counted: totals over the launch.
        is_lower_bound: whether the prediction is only a lower bound, because an atomic loop retries after collisions.
        is_flagged: whether the model marked its prediction as uncertain.
    """

    experiment: Experiment
    operation: str
    count: str
    predicted: int
    counted: int
    is_lower_bound: bool = False
    is_flagged: bool = False

    @property
    def is_exact(self) -> bool:
        return self.predicted == self.counted

    @property
    def error(self) -> float:
        """The prediction's error as a fraction of the count; positive if the prediction is too large."""
        if self.counted:
            return (self.predicted - self.counted) / self.counted
        return math.inf if self.predicted else 0.0

    @property
    def is_miss(self) -> bool:
        """Whether the prediction differs from the count or, for DRAM bytes, differs by more than ALLOWED_ERROR."""
        return abs(self.error) > ALLOWED_ERROR if self.count == DRAM else not self.is_exact


@dataclass(frozen=True)
class Scoreboard:
    """Every recorded count with its prediction.

    Attributes:
        scores: scores of exact and approximate predictions.
        lower_bounds: scores of predictions that are only lower bounds.
        unpredicted: recorded launches without a shipped prediction.
    """

    scores: tuple[Score, ...]
    lower_bounds: tuple[Score, ...] = ()
    unpredicted: tuple[Experiment, ...] = ()

    def part(self, counts: Sequence[str] = COUNTS, gpu: str = "", kernel: str = "") -> "Scoreboard":
        """Return the scores of the given counts, GPU and kernel; "" selects all."""

        def matches(launch: Experiment) -> bool:
            return gpu in ("", launch.gpu) and kernel in ("", launch.kernel)

        def select(scores: Sequence[Score]) -> tuple[Score, ...]:
            return tuple(
                score for score in scores if score.count in counts and matches(score.experiment)
            )

        return Scoreboard(
            select(self.scores), select(self.lower_bounds), tuple(filter(matches, self.unpredicted))
        )

    @property
    def misses(self) -> tuple[Score, ...]:
        """The misses, largest error first."""
        return tuple(
            sorted(
                (score for score in self.scores if score.is_miss),
                key=lambda score: -abs(score.error),
            )
        )

    @property
    def exact(self) -> int:
        return sum(score.is_exact for score in self.scores)

    @property
    def gpus(self) -> tuple[str, ...]:
        return tuple(sorted({score.experiment.gpu for score in self.scores}))

    @property
    def launches(self) -> int:
        """Number of compared launches. A launch whose DRAM bytes are counted for several GROUP_SIZEs counts once."""
        return len(
            {any_group_size(s.experiment) if s.count == DRAM else s.experiment for s in self.scores}
        )

    @property
    def median_error(self) -> float:
        """The median error as a fraction of the count. Requires scores."""
        return statistics.median(abs(score.error) for score in self.scores)


@dataclass(frozen=True)
class ShippedPrediction:
    """The prediction of one recording: `operations` for counters, `reads` for a GROUP_SIZE study.

    Attributes:
        launch: short address of the launch; `gpu` is the GPU on which it was recorded.
        triton: version of Triton that compiled the kernel.
        operations: (requests, sectors) by kind of operation; requests is None for TMA boxes.
        lower_bounds: kinds of operations whose predictions are only lower bounds.
        reads: (GROUP_SIZE or None, bytes read from DRAM, whether the model flags the prediction as uncertain).
    """

    launch: dict[str, int | str]
    triton: str
    operations: dict[str, tuple[int | None, int]] = field(default_factory=dict)
    lower_bounds: tuple[str, ...] = ()
    reads: tuple[tuple[int | None, int, bool], ...] = ()

    @property
    def experiment(self) -> Experiment:
        """The launch.

        Raises:
            ConfigError: `launch` is not a valid experiment.
        """
        return from_json(nest(self.launch))


@once
def shipped_predictions() -> tuple[ShippedPrediction, ...]:
    lines = list(map(json.loads, read_text(FILE).splitlines()))
    return codec.from_json(tuple[ShippedPrediction, ...], lines, FILE)


def recorded_launch(recording: Recording[Any]) -> Experiment:
    """Return the recording's experiment on the GPU on which it was recorded."""
    return replace(recording.measured.experiment, gpu=recording.gpu)


@once
def scoreboard() -> Scoreboard:
    return score_recordings(shipped_predictions())


def score_recordings(predictions: Iterable[ShippedPrediction]) -> Scoreboard:
    """Compare every shipped recording of counts with its prediction."""
    by_launch = {
        (bool(prediction.reads), prediction.experiment): prediction for prediction in predictions
    }
    scores: list[Score] = []
    unpredicted = []
    for form in FORMS:
        for recording in records.shipped(form):
            launch = recorded_launch(recording)
            prediction = by_launch.get((form is GROUP_SIZES.form, launch))
            if prediction is None:
                unpredicted.append(launch)
            else:
                scores += _scores(recording.measured, launch, prediction)
    lower_bounds = tuple(score for score in scores if score.is_lower_bound)
    judged = tuple(score for score in scores if not score.is_lower_bound)
    return Scoreboard(judged, lower_bounds, tuple(unpredicted))


def _scores(measured: Any, launch: Experiment, prediction: ShippedPrediction) -> Iterator[Score]:
    for kind, (requests, sectors) in prediction.operations.items():
        for count, predicted in (("requests", requests), ("sectors", sectors)):
            if predicted is not None:
                counted = counted_total(kind, count, measured)
                yield Score(
                    launch,
                    kind,
                    count,
                    predicted,
                    counted,
                    is_lower_bound=kind in prediction.lower_bounds,
                )
    bytes_by_size = (
        {row.group_size: row.dram_read_bytes for row in measured.rows} if prediction.reads else {}
    )
    for size, predicted, is_flagged in prediction.reads:
        if samples := bytes_by_size.get(size):
            counted = round(statistics.median(samples))
            yield Score(
                with_group_size(launch, size),
                "DRAM read",
                DRAM,
                predicted,
                counted,
                is_flagged=is_flagged,
            )
