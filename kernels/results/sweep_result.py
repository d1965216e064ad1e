"""A sweep: many configs of one kernel at one problem, what became of each, and which is the best.

Rows stream while a sweep runs; a row that is timed again, with more samples, replaces the one before. `Sweep` holds
them all when it ends, or when it is cancelled.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kernels.experiment import Experiment
from kernels.results.run_times import Device
from kernels.space import Space

# What becomes of a config. `checked` and `predicted` are those of a machine that can't time it: the result was right
# under the interpreter, or it was compiled and no more.
STATUSES = ("timed", "checked", "predicted", "wrong", "set aside", "failed", "not tried")

# A config of these is done: a resumed sweep skips it. One that failed is tried again.
DONE = ("timed", "checked", "predicted", "wrong", "set aside")

STRATEGIES = ("guided", "grid", "random")

# Without an improvement among so many timed configs a guided search ends: by the rule of three, with 95 % confidence
# at most one in ten of configs like those would be an improvement, and what is left is predicted to be slower.
PATIENCE = 30


@dataclass(frozen=True)
class Strategy:
    """How a space is searched.

    Attributes:
        name: "guided" (by the model's prediction, and ends early), "grid" (all, in order), "random" (all, shuffled).
        seed: of "random".
        budget: configs that are timed at most; None for no limit.
        patience: of "guided": timed configs without an improvement after which it ends.
    """

    name: str = "guided"
    seed: int = 0
    budget: int | None = None
    patience: int = PATIENCE


@dataclass(frozen=True)
class Prediction:
    """A time that a model gives before any launch.

    Attributes:
        ms: of one launch.
        resource: the one that takes the longest.
        by_resource: (resource, ms) of each.
    """

    ms: float
    resource: str
    by_resource: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class SweepRow:
    """What became of one config.

    Attributes:
        status: one of STATUSES.
        reason: why it has no time, or no more than it has, as a sentence; "" where it has one.
        device: the name of the GPU that it was compiled for, or ran on; times of different ones are never compared.
        where: which of several devices of that name: host and number; "" for the only one.
        predicted: None where the model says nothing.
        compile_s: seconds in the compiler; None where it was not compiled.
        registers, spilled_bytes, shared_bytes: per thread, per thread, per program; None where not compiled.
        median_ms, low_ms, high_ms: of one launch, and the median's 95 % interval; None where it was not timed.
        samples: that the median is of.
        relative: its time over that of the reference (the first right config of the sweep), the median over pairs.
            A clock that moved cancels in it, so that configs are ranked by it.
        turn: its place, from 0, in the order in which configs were first timed; None where it was not.
    """

    experiment: Experiment
    status: str
    reason: str = ""
    device: str = ""
    where: str = ""
    predicted: Prediction | None = None
    compile_s: float | None = None
    registers: int | None = None
    spilled_bytes: int | None = None
    shared_bytes: int | None = None
    median_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    samples: int = 0
    relative: float | None = None
    turn: int | None = None

    @property
    def is_done(self) -> bool:
        """Whether a resumed sweep skips it."""
        return self.status in DONE

    @property
    def is_right(self) -> bool:
        """Whether nothing is known against it: it may be ranked."""
        return self.status in ("timed", "checked", "predicted")

    def to_json(self) -> dict[str, Any]:
        """A line of a file of rows."""
        return {**dataclasses.asdict(self), "experiment": self.experiment.to_json()}


@dataclass(frozen=True)
class Finalist:
    """One of the last few, timed in turns with the others.

    Attributes:
        ratio: its time over that of the fastest, the median over pairs; 1 for the fastest itself.
        low, high: the ratio's 95 % interval.
        is_tie: the interval contains 1: it is not known to be slower than the fastest.
    """

    experiment: Experiment
    median_ms: float
    samples: int
    ratio: float
    low: float
    high: float
    is_tie: bool


@dataclass(frozen=True)
class AgainstLibrary:
    """The best config beside the library's call, timed in the same turns.

    Attributes:
        ratio: the library's time over the best config's, the median over pairs; above 1 the config is faster.
        low, high: the ratio's 95 % interval.
    """

    name: str
    median_ms: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class Final:
    """The finalists, fastest first, and the best: of those that tie with the fastest, the simplest.

    Attributes:
        best: its experiment is among the finalists'.
        baselines: the library's calls, the one that the family names first; () where it has none.
    """

    finalists: tuple[Finalist, ...]
    best: Experiment
    baselines: tuple[AgainstLibrary, ...] = ()


@dataclass(frozen=True)
class Sweep:
    """What a sweep found, complete or cancelled. Its times are all of one kind of device.

    Attributes:
        backend: "cuda"; "interpreter" or "predicted" where nothing was timed; "recorded" where it was on another day.
        rows: of every config, in grid order.
        final: None where nothing was timed to the end.
        ended: "complete" (every config was tried), "patience", "budget", "cancelled", "failed" (no device
            could be started, or none was left), "running" of one that has not ended, or "cut off" of one that was
            stored and never said how it ended.
        seconds: that it took.
        note: what a reader must know, in sentences.
    """

    space: Space
    strategy: Strategy
    backend: str
    device: Device
    rows: tuple[SweepRow, ...]
    final: Final | None
    ended: str
    seconds: float
    note: str = ""

    @property
    def experiment(self) -> Experiment:
        """The base of its space."""
        return self.space.base

    @property
    def is_timed(self) -> bool:
        """Whether configs are ranked by time; else by the predicted bound alone."""
        return any(row.status == "timed" for row in self.rows)

    @property
    def source(self) -> str:
        """Where the times are from that configs are ranked by: "measured", "recorded" or "predicted"."""
        if not self.is_timed:
            return "predicted"
        return "recorded" if self.backend == "recorded" else "measured"

    @cached_property
    def ranked(self) -> tuple[SweepRow, ...]:
        """Rows that may be compared, the best first: by time where there are times, else by prediction.

        The best is first, then the other finalists by their paired ratio, then what was timed by its relative time.
        """
        if not self.is_timed:
            right = [row for row in self.rows if row.is_right and row.predicted]
            return tuple(sorted(right, key=lambda row: row.predicted.ms if row.predicted else math.inf))
        place = {one.experiment: number for number, one in enumerate(self.final.finalists)} if self.final else {}
        best = self.final.best if self.final else None
        timed = [row for row in self.rows if row.status == "timed"]
        return tuple(
            sorted(
                timed,
                key=lambda row: (
                    row.experiment != best,
                    place.get(row.experiment, len(place)),
                    row.relative or math.inf,
                ),
            )
        )

    @property
    def best(self) -> SweepRow | None:
        """The best config's row; None where no config was right."""
        return self.ranked[0] if self.ranked else None

    @property
    def convergence(self) -> tuple[tuple[int, float], ...]:
        """(configs timed, the fastest median so far in ms), in the order in which they were timed."""
        timed = sorted((row.turn, row.median_ms) for row in self.rows if row.turn is not None and row.median_ms)
        found, fastest = [], math.inf
        for count, (_, median_ms) in enumerate(timed, 1):
            fastest = min(fastest, median_ms)
            found.append((count, fastest))
        return tuple(found)

    def count(self, status: str) -> int:
        """Rows of a status."""
        return sum(row.status == status for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The API's reply, and as it is kept."""
        final = self.final and {
            **dataclasses.asdict(self.final),
            "finalists": [
                {**dataclasses.asdict(one), "experiment": one.experiment.to_json()} for one in self.final.finalists
            ],
            "best": self.final.best.to_json(),
        }
        return {
            "space": self.space.to_json(),
            "identity": self.space.identity,
            "strategy": dataclasses.asdict(self.strategy),
            "backend": self.backend,
            "device": dataclasses.asdict(self.device),
            "rows": [row.to_json() for row in self.rows],
            "final": final,
            "ended": self.ended,
            "seconds": self.seconds,
            "note": self.note,
        }
