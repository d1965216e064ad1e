"""The recorded comparisons of GROUP_SIZE with their predictions. Kernels are compiled here; occupancy is recorded."""

from __future__ import annotations

import csv
import functools
import itertools
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from tilescope.compiling.compiler import compile_experiment
from tilescope.declare.discovery import discover
from tilescope.declare.gpus import GPUS
from tilescope.declare.spec import Launch
from tilescope.measure.counters import GROUP_SIZES
from tilescope.results import Compiled, records
from tilescope.results.counters import any_group_size
from tilescope.timing.l2 import CONSTANTS, writes_in_parts
from visualize.predict.reuse import DramTraffic, Reuse, by_group_size, recommended, reuse
from visualize.views.library import DRAM, scores_by_model

# Shapes drawn at random, by draw.
with (Path(__file__).parent / "drawn_shapes.csv").open(encoding="utf-8") as file:
    DRAWN: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for row in csv.DictReader(file):
        DRAWN[row["draw"]].append(tuple(int(row[name]) for name in "MNK"))

STUDIES = records.shipped(GROUP_SIZES.form)


class RecordedLaunch:
    """A recorded launch, with its prediction.

    Attributes:
        rows: counts and times by GROUP_SIZE; None for a kernel without GROUP_SIZE.
    """

    def __init__(self, recording):
        self.study = recording.measured
        experiment = recording.measured.experiment
        self.kernel = discover()[experiment.kernel]
        self.launch = Launch(experiment.problem, experiment.config, GPUS[recording.gpu])
        self.rows = {row.group_size: row for row in self.study.rows}

    @functools.cached_property
    def traffic(self):
        """The model's input. The first access compiles the kernel into Triton's cache directory."""
        made = compile_experiment(any_group_size(self.study.experiment), self.launch.gpu)
        first = self.study.rows[0]
        assert isinstance(made, Compiled), made
        made = replace(made, registers=first.registers, shared_bytes=first.shared_bytes)
        return DramTraffic(self.kernel, self.launch, made, self.study)

    @property
    def shape(self):
        return tuple(size for size in vars(self.launch.problem).values() if isinstance(size, int))

    @property
    def tile(self):
        sides = ("BLOCK_M", "BLOCK_N", "BLOCK")
        return tuple(
            getattr(self.launch.config, side) for side in sides if hasattr(self.launch.config, side)
        )

    @property
    def is_matmul(self):
        return self.kernel.family.root.id == "matmul"

    def __str__(self):
        kernel = self.kernel.id.partition(".")[2]
        sizes, tile = (" × ".join(map(str, sides)) for sides in (self.shape, self.tile))
        return f"{kernel} {self.launch.problem.dtype} {sizes}, {tile} tiles, {self.launch.gpu.name}"

    @property
    def times_ms(self):
        """The median time of each GROUP_SIZE."""
        return {size: statistics.median(row.times_ms) for size, row in self.rows.items()}

    @property
    def recommended_ms(self):
        """The time of the recommended GROUP_SIZE, among those that were timed."""
        return self.times_ms[recommended(self.kernel, self.launch, self.predict(CONSTANTS))]

    @property
    def regret(self):
        """The excess of that time over the shortest, as a share."""
        return self.recommended_ms / min(self.times_ms.values()) - 1

    @functools.cache  # noqa: B019 (few launches exist)
    def predict(self, constants):
        """Predict the reads by GROUP_SIZE."""
        model = self.traffic
        if None in self.rows:
            return {
                None: reuse(
                    model.schedule,
                    model.l2_pressure,
                    any(map(writes_in_parts, model.operations)),
                    constants,
                )
            }
        return by_group_size(model.schedule, model.l2_pressure, tuple(self.rows), constants)


@dataclass(frozen=True)
class Row:
    """One GROUP_SIZE of one launch: bytes read, as counted (the median of five) and as predicted.

    Attributes:
        predicted: all of the prediction; None where it was read from the scoreboard's file.
    """

    of: RecordedLaunch
    group_size: int | None
    counted: float
    read_bytes: float
    is_flagged: bool
    predicted: Reuse | None = None

    @property
    def error(self):
        """The prediction's error, as a share of the count; positive if the prediction is too large."""
        return self.read_bytes / self.counted - 1


def recorded_launches():
    return tuple(map(RecordedLaunch, STUDIES))


def rows(launches, constants=CONSTANTS):
    """Every GROUP_SIZE of several launches, counted and predicted."""
    return [
        Row(
            launch,
            size,
            _counted(launch, size),
            found.read_bytes,
            found.is_drift or found.is_edge,
            found,
        )
        for launch in launches
        for size, found in launch.predict(constants).items()
    ]


def scoreboards(launches):
    """The same for all recorded launches, with the predictions that the scoreboard ships."""
    scores = iter(scores_by_model()[DRAM])
    return [
        Row(launch, size, _counted(launch, size), score.predicted, score.is_flagged)
        for launch in launches
        for size, score in zip(launch.rows, scores)  # noqa: B905 (the next launches take the others)
    ]


def _counted(launch, size):
    return statistics.median(launch.rows[size].dram_read_bytes)


def within(judged, allowed=0.2):
    """Return the share of rows whose error is at most `allowed`."""
    return statistics.mean(abs(row.error) <= allowed for row in judged)


def median_error(judged):
    return statistics.median(abs(row.error) for row in judged)


def grid(**values):
    """Return every combination of these values; other constants keep theirs."""
    return tuple(
        replace(CONSTANTS, **dict(zip(values, each, strict=True)))
        for each in itertools.product(*values.values())
    )


def left_out(candidates):
    """Cross-validate: predict each shape with the candidate that has the least mean log error on all other shapes.

    Args:
        candidates: the predictions of each set of constants: the same rows in the same order.
    """
    judged = []
    for shape in dict.fromkeys(row.of.shape for row in candidates[0]):
        best = min(
            candidates,
            key=lambda rows: statistics.fmean(
                abs(math.log1p(row.error)) for row in rows if row.of.shape != shape
            ),
        )
        judged += [row for row in best if row.of.shape == shape]
    return judged
