"""The shipped predictions beside the shipped recordings: the scoreboard."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Iterator
from typing import Any

from kernels import once
from kernels.experiment import Experiment
from kernels.measuring.counters import COUNTERS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import Counters, GroupSizeStudy, records
from kernels.results.counters import with_group_size
from kernels.results.records import RecordForm, Recording
from visualize.predict.agreement import counted_total
from visualize.predict.scores import DRAM, Score, Scoreboard
from visualize.scoreboard.predictions import Prediction, shipped

# A recording, its launch with the GPU, and its prediction → their scores.
Scored = Callable[[Any, Experiment, Prediction], Iterator[Score]]


@once
def scoreboard(predictions: Callable[[], tuple[Prediction, ...]] = shipped) -> Scoreboard:
    """Every shipped recording that counts what the models predict."""
    scores: list[Score] = []
    unpredicted: list[Experiment] = []
    kinds: tuple[tuple[RecordForm[Any], Scored], ...] = ((COUNTERS.form, _of_counters), (GROUP_SIZES.form, _of_study))
    for form, scored in kinds:
        by_launch = {
            (form.key(one.experiment), one.experiment.gpu): one for one in predictions() if one.recorded == form.word
        }
        for recording in records.shipped(form):
            launch = _launch(recording)
            found = by_launch.get((form.key(launch), recording.gpu))
            if found is None:
                unpredicted.append(launch)
            else:
                scores += scored(recording.measured, launch, found)
    judged = tuple(one for one in scores if not one.is_lower_bound)
    return Scoreboard(judged, tuple(one for one in scores if one.is_lower_bound), tuple(unpredicted))


def _launch(recording: Recording[Any]) -> Experiment:
    return dataclasses.replace(recording.measured.experiment, gpu=recording.gpu)


def _of_counters(counters: Counters, launch: Experiment, found: Prediction) -> Iterator[Score]:
    for kind, predicted in found.operations.items():
        for count, number in zip(("requests", "sectors"), predicted, strict=True):
            if number is not None:
                counted = counted_total(kind, count, counters)
                yield Score(launch, kind, count, number, counted, is_lower_bound=kind in found.lower_bounds)


def _of_study(study: GroupSizeStudy, launch: Experiment, found: Prediction) -> Iterator[Score]:
    counted = {row.group_size: row.dram_read_bytes for row in study.rows}
    for size, number, flagged in found.reads:
        if of_each := counted.get(size):
            bytes_read = round(statistics.median(of_each))
            yield Score(with_group_size(launch, size), "DRAM read", DRAM, number, bytes_read, is_flagged=flagged)
