"""The recorded comparisons of GROUP_SIZE with their predictions. Kernels are compiled here; occupancy is recorded."""

from __future__ import annotations

import csv
import functools
import itertools
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kernels import discover
from kernels.compiling.compiler import compile_experiment
from kernels.experiment import Experiment
from kernels.gpus import GPUS
from kernels.measuring.group_sizes import GROUP_SIZES
from kernels.results import Compiled, GroupSizeRow, GroupSizeStudy, records
from kernels.results.counters import any_group_size
from kernels.spec import Kernel, Launch
from visualize.predict.bounds import bounds, l2_pressure, writes_in_parts
from visualize.predict.coalescing import operations
from visualize.predict.l2 import CONSTANTS, Constants
from visualize.predict.reuse import Reuse, asked_bytes, by_group_size, recommended, reuse
from visualize.predict.schedule import Schedule, occupancy, schedule
from visualize.predict.traffic import Operation
from visualize.scoreboard.predictions import shipped

# Shapes drawn at random, by draw.
with (Path(__file__).parent / "drawn_shapes.csv").open(encoding="utf-8") as file:
    DRAWN: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for row in csv.DictReader(file):
        DRAWN[row["draw"]].append(tuple(int(row[name]) for name in "MNK"))

STUDIES = records.shipped(GROUP_SIZES.form)


@dataclass(frozen=True)
class Compared:
    """A recorded launch, with all that its prediction needs.

    Attributes:
        rows: what was counted and timed, by GROUP_SIZE; None for a kernel that has none.
        clock_mhz: of the SMs, while it was timed.
    """

    kernel: Kernel
    launch: Launch
    schedule: Schedule
    rows: Mapping[int | None, GroupSizeRow]
    experiment: Experiment
    clock_mhz: float

    @functools.cached_property
    def operations(self) -> tuple[Operation, ...]:
        """Memory operations of the kernel, which the first access compiles into Triton's cache directory."""
        made = compile_experiment(any_group_size(self.experiment), self.launch.gpu)
        assert isinstance(made, Compiled), made
        return operations(self.kernel, self.launch, made.operations)

    @functools.cached_property
    def pressure(self) -> float:
        """Pressure on the L2."""
        asked = asked_bytes(self.kernel, self.launch, self.schedule)
        found = bounds(self.kernel, self.launch, self.operations, 0.0, asked)
        return l2_pressure(found, self.operations)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for size in vars(self.launch.problem).values() if isinstance(size, int))

    @property
    def tile(self) -> tuple[int, ...]:
        sides = ("BLOCK_M", "BLOCK_N", "BLOCK")
        return tuple(getattr(self.launch.config, side) for side in sides if hasattr(self.launch.config, side))

    @property
    def is_matmul(self) -> bool:
        return self.kernel.family.root.id == "matmul"

    def __str__(self) -> str:
        kernel = self.kernel.id.partition(".")[2]
        sizes, tile = (" × ".join(map(str, several)) for several in (self.shape, self.tile))
        return f"{kernel} {self.launch.problem.dtype} {sizes}, {tile} tiles, {self.launch.gpu.name}"

    @property
    def times_ms(self) -> dict[int | None, float]:
        """The median time of each GROUP_SIZE."""
        return {size: statistics.median(row.times_ms) for size, row in self.rows.items()}

    @property
    def recommended_ms(self) -> float:
        """The time of the GROUP_SIZE that is recommended, of those that were timed."""
        return self.times_ms[recommended(self.kernel, self.launch, self.predicted())]

    @property
    def regret(self) -> float:
        """How much longer that is than the shortest time, as a share."""
        return self.recommended_ms / min(self.times_ms.values()) - 1

    def predicted(self, constants: Constants = CONSTANTS) -> dict[Any, Reuse]:
        """Predict the reads by GROUP_SIZE."""
        return self._usual if constants is CONSTANTS else self._predicted(constants)

    @functools.cached_property
    def _usual(self) -> dict[Any, Reuse]:
        return self._predicted(CONSTANTS)

    def _predicted(self, constants: Constants) -> dict[Any, Reuse]:
        given = self.kernel, self.launch, self.schedule, self.pressure
        if None in self.rows:
            return {None: reuse(*given, writes_in_parts(self.operations), constants)}
        return by_group_size(*given, tuple(self.rows), constants)


@dataclass(frozen=True)
class Row:
    """One GROUP_SIZE of one launch: bytes read, as counted (the median of five) and as predicted.

    Attributes:
        predicted: all of the prediction; None where it was read from the scoreboard's file.
    """

    of: Compared
    group_size: int | None
    counted: float
    read_bytes: float
    is_flagged: bool
    predicted: Reuse | None = None

    @property
    def error(self) -> float:
        """Of the prediction, as a share of what was counted; positive where it is too much."""
        return self.read_bytes / self.counted - 1


def compared() -> tuple[Compared, ...]:
    """All recorded launches."""
    return tuple(_compared(recording.measured, recording.gpu) for recording in STUDIES)


def _compared(study: GroupSizeStudy, gpu_name: str) -> Compared:
    experiment, gpu, first = study.experiment, GPUS[gpu_name], study.rows[0]
    kernel = discover()[experiment.kernel]
    launch = Launch(experiment.problem, experiment.config, gpu)
    held = occupancy(gpu, launch.config.num_warps, first.registers, first.shared_bytes)
    planned = schedule(kernel, launch, held.programs_per_sm, "compiled")
    return Compared(kernel, launch, planned, {row.group_size: row for row in study.rows}, experiment, study.clock_mhz)


def rows(several: Iterable[Compared], constants: Constants = CONSTANTS) -> list[Row]:
    """Every GROUP_SIZE of several launches, as counted and as predicted."""
    return [
        Row(one, size, _counted(one, size), found.read_bytes, found.is_drift or found.is_edge, found)
        for one in several
        for size, found in one.predicted(constants).items()
    ]


def scoreboards(several: Sequence[Compared]) -> list[Row]:
    """The same of all recorded launches, by the predictions that the scoreboard ships."""
    predictions = [one.reads for one in shipped() if one.reads]
    return [
        Row(one, size, _counted(one, size), read_bytes, is_flagged)
        for one, reads in zip(several, predictions, strict=True)
        for size, read_bytes, is_flagged in reads
    ]


def _counted(one: Compared, size: int | None) -> float:
    return statistics.median(one.rows[size].dram_read_bytes)


def within(judged: Iterable[Row], allowed: float = 0.2) -> float:
    """Return the share of rows whose error is at most `allowed`."""
    return statistics.mean(abs(row.error) <= allowed for row in judged)


def median_error(judged: Iterable[Row]) -> float:
    return statistics.median(abs(row.error) for row in judged)


def grid(**values: Iterable[float]) -> tuple[Constants, ...]:
    """Return every combination of these values; other constants keep theirs."""
    return tuple(
        replace(CONSTANTS, **dict(zip(values, each, strict=True))) for each in itertools.product(*values.values())
    )


def left_out(candidates: Sequence[Sequence[Row]]) -> list[Row]:
    """Cross-validate: predict each shape with the candidate that has the least mean log error on all other shapes.

    Args:
        candidates: what each set of constants predicts: the same rows in the same order.
    """
    judged: list[Row] = []
    for shape in dict.fromkeys(row.of.shape for row in candidates[0]):
        best = min(
            candidates,
            key=lambda rows: statistics.mean(abs(math.log1p(row.error)) for row in rows if row.of.shape != shape),
        )
        judged += [row for row in best if row.of.shape == shape]
    return judged
