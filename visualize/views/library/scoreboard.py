"""Shipped predictions of all recorded launches, and the scoreboard that compares them with the recorded counts.

Predicting every launch takes too long for a page view, so the predictions are a file: one Prediction per line.
`python -m scripts.predict_records` writes it, and tests/tilescope/oracle checks it against the current models.
"""

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tilescope.caching import once
from tilescope.declare.discovery import read_text
from tilescope.declare.experiment import Experiment, from_json, nest
from tilescope.measure.counters import COUNTERS
from tilescope.measure.group_sizes import GROUP_SIZES
from tilescope.results import codec, records
from tilescope.results.counters import with_group_size
from tilescope.results.records import RecordForm, Recording
from visualize.predict.agreement import counted_total
from visualize.predict.scores import DRAM, Score, Scoreboard

FILE = "predictions.jsonl"

FORMS: tuple[RecordForm[Any], ...] = (COUNTERS.form, GROUP_SIZES.form)


@dataclass(frozen=True)
class Prediction:
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
def shipped_predictions() -> tuple[Prediction, ...]:
    lines = list(map(json.loads, read_text(FILE).splitlines()))
    return codec.from_json(tuple[Prediction, ...], lines, FILE)


def recorded_launch(recording: Recording[Any]) -> Experiment:
    """Return the recording's experiment on the GPU on which it was recorded."""
    return replace(recording.measured.experiment, gpu=recording.gpu)


@once
def scoreboard() -> Scoreboard:
    return score_recordings(shipped_predictions())


def score_recordings(predictions: Iterable[Prediction]) -> Scoreboard:
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


def _scores(measured: Any, launch: Experiment, prediction: Prediction) -> Iterator[Score]:
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
