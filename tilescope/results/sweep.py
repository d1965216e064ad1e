"""A sweep: many configs of one kernel on one problem, the outcome of each, and the best.

Rows are streamed while a sweep runs. When a config is timed again with more samples, its new row replaces the old one.
`Sweep` holds all rows of a finished sweep.
"""

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
from numpy import ndarray

from tilescope.declare.experiment import Experiment
from tilescope.results.codec import SweptExperiment, SweptSpace
from tilescope.results.run import Device

# "checked" and "predicted" occur on machines that can't time a config: the interpreter's result was correct, or the
# config was only compiled.
Status = Literal["timed", "checked", "predicted", "wrong", "set aside", "failed", "not tried"]

# A resumed sweep skips configs with these statuses. It retries failed configs.
DONE = ("timed", "checked", "predicted", "wrong", "set aside")

# Expected times within this fraction tie: in six of the eight recorded sweeps, the model's favourite is up to 5 %
# slower than the measured best.
TIE = 0.05


@dataclass(frozen=True)
class SweepPrediction:
    """A time that a model predicts for one launch.

    Attributes:
        resource: the busiest resource, or "latency" if none is busy for most of the time.
    """

    ms: float
    resource: str


@dataclass(frozen=True)
class SweepRow:
    """The outcome of one config.

    Attributes:
        reason: a sentence that says why the config was not timed, or not completely; "" for a timed config.
        device: the name of the GPU that ran the config, or for which it was compiled. Times of different GPUs are never
            compared.
        estimate: orders configs before they are compiled, and is never shown as a time; None if the model has none.
        predicted: from the compiled code; None without a prediction.
        compile_s: compile time in seconds; None if not compiled.
        registers, spilled_bytes, shared_bytes: per thread, per thread, per program; None if not compiled.
        written: an upper bound on the fraction of an uninitialized expected output's elements that the config writes;
            the lowest of all such outputs. None if unknown.
        median_ms, low_ms, high_ms: median time of one launch and its 95 % interval; None if not timed.
        samples: number of timed launches.
        relative: the config's time divided by the time of the reference (the sweep's first correct config), the median
            over pairs. Clock changes cancel out, so this ranks the configs.
        turn: the config's position, from 0, in the order of first timing; None if not timed.
    """

    experiment: SweptExperiment
    status: Status
    reason: str = ""
    device: str = ""
    estimate: float | None = None
    predicted: SweepPrediction | None = None
    compile_s: float | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int | None = None
    written: float | None = None
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    samples: int = 0
    relative: float | None = None
    turn: int | None = None

    @property
    def expected(self) -> float | None:
        """Return the number that orders configs before they are timed. Compare it only within one sweep."""
        return self.predicted.ms if self.predicted else self.estimate

    @property
    def is_right(self) -> bool:
        """Return whether the config may be ranked, because it neither failed nor was set aside."""
        return self.status in ("timed", "checked", "predicted")


@dataclass(frozen=True)
class Finalist:
    """One of the last few configs, timed in alternating launches.

    Attributes:
        ratio: the config's time divided by the fastest finalist's, the median over pairs; 1 for the fastest.
        low, high: the ratio's 95 % interval.
        is_tie: whether the interval contains 1, so that the config is not known to be slower than the fastest.
    """

    experiment: SweptExperiment
    median_ms: float
    samples: int
    ratio: float
    low: float
    high: float
    is_tie: bool


@dataclass(frozen=True)
class LibraryRatio:
    """The best config compared with a library call, in alternating launches.

    Attributes:
        ratio: the library's time divided by the best config's, the median over pairs; above 1, the config is faster.
        low, high: the ratio's 95 % interval.
    """

    name: str
    median_ms: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Final:
    """The finalists, fastest first, and the best config.

    Attributes:
        best: the experiment of the simplest finalist that ties with the fastest.
        baselines: the library calls, the family's preferred call first; empty if it has none.
    """

    finalists: tuple[Finalist, ...]
    best: SweptExperiment
    baselines: tuple[LibraryRatio, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """The result of a sweep, complete or cancelled. All its times come from one kind of device.

    Attributes:
        rows: the rows of all configs, in grid order.
        final: None if no final was timed.
        ended: "complete" (every config was tried), "budget", "cancelled", "failed" (no device could be started, or none
            was left), "running", "cut off" (a stored sweep whose end was never recorded), or "patience" (a stored sweep
            of an earlier version).
        seconds: duration.
        note: caveats for the reader, in sentences.
        name: its name in the store, under which the next sweep continues it; "" if none can.
        budget: the maximum number of configs to time; None for no limit.
    """

    space: SweptSpace
    device: Device
    rows: tuple[SweepRow, ...]
    final: Final | None
    ended: str
    seconds: float
    note: str = ""
    name: str = ""
    budget: int | None = None

    @property
    def backend(self) -> str:
        """Return "cuda"; "interpreter" or "predicted" without times; "recorded" for an earlier sweep."""
        return self.device.backend

    @property
    def experiment(self) -> Experiment:
        """Return the base of the space."""
        return self.space.base

    @property
    def baselines(self) -> tuple[LibraryRatio, ...]:
        """Return the library calls that the best config was timed against; empty before the final."""
        return self.final.baselines if self.final else ()

    @cached_property
    def is_timed(self) -> bool:
        """Return whether configs are ranked by time; otherwise they are ranked by predicted time."""
        return any(row.status == "timed" for row in self.rows)

    @property
    def has_times(self) -> bool:
        """Return whether configs have measured or predicted times. Otherwise only their expected order is known."""
        return self.is_timed or any(row.predicted for row in self.rows)

    @property
    def source(self) -> str:
        """Return the source of the times that rank configs: "measured", "recorded" or "predicted"."""
        if not self.is_timed:
            return "predicted"
        return "recorded" if self.backend == "recorded" else "measured"

    @cached_property
    def ranked(self) -> tuple[SweepRow, ...]:
        """Return the rows that can be ranked, best first: by time if any row was timed, or else by expectation.

        The best config comes first, then the other finalists by paired ratio, then other timed rows by relative time.
        """
        if not self.is_timed:
            right = (row for row in self.rows if row.is_right and row.expected)
            return tuple(
                sorted(right, key=lambda row: (not row.predicted, row.expected or math.inf))
            )
        first = []
        if self.final:
            first = [self.final.best, *(each.experiment for each in self.final.finalists)]

        def order(row: SweepRow) -> tuple[int, float]:
            is_final = row.experiment in first
            place = first.index(row.experiment) if is_final else len(first)
            return place, row.relative or math.inf

        return tuple(sorted((row for row in self.rows if row.status == "timed"), key=order))

    def time_ms(self, row: SweepRow) -> float:
        """Return a row's measured time or, if no row was timed, its predicted time. NaN if it has none."""
        if self.is_timed:
            return row.median_ms if row.status == "timed" and row.median_ms else math.nan
        return row.predicted.ms if row.is_right and row.predicted else math.nan

    def slowdown(self, row: SweepRow) -> float:
        """Return a row's time divided by the best row's time; infinite if either is missing."""
        best = self.best
        if best is None or not row.is_right:
            return math.inf
        if not self.is_timed:
            slowdown = self.time_ms(row) / self.time_ms(best)
            return math.inf if math.isnan(slowdown) else slowdown
        finalists = self.final.finalists if self.final else ()
        ratios = {each.experiment: each.ratio for each in finalists}
        if row.experiment in ratios:
            return ratios[row.experiment] / ratios[best.experiment]
        return row.relative / best.relative if row.relative and best.relative else math.inf

    @cached_property
    def ranks(self) -> dict[int, int]:
        """Return the rank of each ranked row, from 1, keyed by `id(row)`.

        If no row was timed, a rank counts the rows that are clearly better, so rows can share it.
        """
        numbers = map(id, self.ranked)
        if self.is_timed:
            return {number: rank for rank, number in enumerate(numbers, 1)}
        expected = [row.expected or math.inf for row in self.ranked]
        # Rows without a prediction follow those with one.
        rising = np.maximum.accumulate(expected)
        ranks = np.searchsorted(rising, rising / (1 + TIE)) + 1
        return dict(zip(numbers, ranks.tolist(), strict=True))

    @property
    def best(self) -> SweepRow | None:
        """Return the best config's row; None if no config was correct."""
        return self.ranked[0] if self.ranked else None

    def count(self, status: str) -> int:
        """Count the rows with a status."""
        return sum(row.status == status for row in self.rows)


# Samples per config while exploring. Each round of the race takes ETA times as many. With 2 % of noise, the median of
# ten pairs is within 1 %, so the first quarter contains every config within a few percent of the best.
TURNS = 10


@dataclass(frozen=True)
class ConfigBuild:
    """The fields of a SweepRow that are known once the config is compiled.

    Attributes:
        reason: a sentence that says why there is no predicted time; "" if there is one.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    compile_s: float
    predicted: SweepPrediction | None
    written: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class ConfigTrial:
    """Configs to time in turns on one device, on the same inputs.

    Attributes:
        experiments: they differ only in their config.
        phase: "explore" (check each result first, and do not time a wrong one), "race", or "final" (time until the
            ratios are known, with the library's calls in the same turns).
        reference: also timed in each turn, so that a changing clock cancels in the ratio. None: the first correct
            config of `experiments` becomes the reference.
        turns: samples of each config, except in the final.
        numbers: the configs' places in grid order.
        is_retry: whether the first attempt failed.
        load: as in `Space`.
    """

    experiments: tuple[Experiment, ...]
    phase: str = "race"
    reference: Experiment | None = None
    turns: int = TURNS
    numbers: tuple[int, ...] = ()
    is_retry: bool = False
    load: str = "sustained"


@dataclass(frozen=True)
class ConfigOutcome:
    """One config's part of a trial.

    Attributes:
        status: "timed", "checked", "wrong", or "failed" if it could not be launched and harmed no other config.
        reason: why the config was not timed, as a sentence.
        times_ms: (turns,) of one launch each; empty if it was not timed.
        reference_ms: (turns,) of the reference in the same turns.
    """

    status: Status
    reason: str = ""
    times_ms: ndarray = field(default_factory=lambda: np.empty(0))
    reference_ms: ndarray = field(default_factory=lambda: np.empty(0))


@dataclass(frozen=True)
class Outcomes:
    """The outcome of a trial.

    Attributes:
        each: in the order of the trial's experiments.
        baselines: (name, times in ms) of the library's calls in the same turns.
    """

    each: tuple[ConfigOutcome, ...]
    baselines: tuple[tuple[str, ndarray], ...] = ()
